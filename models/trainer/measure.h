// SPDX-License-Identifier: Apache-2.0
// Measures, before training and alone, the rates that `bound_ratio` is taken against: each unit's forward and backward
// at its own shape, the optimizer and the gradient hand-over on the run's own memory, and the volume. Uses the engine's
// slabs, so it must run before any state is in them.
#pragma once

#include "core/result.h"
#include "kernels/cpu/parallel.h"
#include "models/model.h"
#include "runtime/engine/engine.h"

namespace headrace::models {

// `data` is any valid micro-batch. Takes a few seconds.
[[nodiscard]] Result<runtime::Rates> measure_rates(runtime::Engine& engine, const Model& model,
                                                   const kernels::Parallel& parallel, const MicroBatch& data);

// What a driver hands to the model for a lease. The spans point into the lease.
[[nodiscard]] UnitBuffers unit_buffers(const runtime::ComputeLease& lease);

}  // namespace headrace::models
