// SPDX-License-Identifier: Apache-2.0
// A driver of the engine that computes nothing: it hands in gradients. For tests of what happens to state.
#pragma once

#include <functional>

#include "runtime/engine/engine.h"

namespace headrace::runtime {

// One step with a micro-batch: `fill` writes the gradient of a unit, fp32, all of its flat space.
[[nodiscard]] inline Result<StepOutcome> drive_step(Engine& engine, const StepSettings& settings,
                                                    const std::function<void(UnitId, float*)>& fill) {
  HEADRACE_RETURN_IF_ERROR(engine.begin_step(settings));
  for (const Operation& operation : engine.plan().operations) {
    if (operation.lane != Lane::kCompute) continue;
    HEADRACE_TRY(const ComputeLease lease, engine.acquire(operation.unit, operation.pass, operation.micro_batch));
    if (operation.pass == Pass::kBackward) fill(operation.unit, lease.gradient);
    engine.release(lease);
  }
  return engine.finish_step();
}

}  // namespace headrace::runtime
