// SPDX-License-Identifier: Apache-2.0
// Turns stages, choices and layouts into operations, and finds their dependencies from the bytes they touch. Private to
// the compiler.
#pragma once

#include <vector>

#include "runtime/plan/memory_layout.h"

namespace headrace::runtime::planning {

struct EmitInput {
  const Facts* facts = nullptr;
  const Timeline* timeline = nullptr;
  const Choices* choices = nullptr;
  const HostLayout* host = nullptr;
  const DeviceLayout* device = nullptr;
  std::vector<BufferId> host_ids, device_ids;  // a tier's buffer id → the plan's
};

// In global order, with the dependencies that no memory shows (spilled gradients on disk, the norm, the commit).
[[nodiscard]] std::vector<Operation> emit_operations(const EmitInput& input);
// Plan::redo_operations of a step with early updates.
[[nodiscard]] std::vector<Operation> emit_redo(const EmitInput& input);
// Plan::start_operations and drain_operations of a step with delayed updates.
[[nodiscard]] std::vector<Operation> emit_start(const EmitInput& input);
[[nodiscard]] std::vector<Operation> emit_drain(const EmitInput& input);

// Adds what overlapping bytes demand and drops what lane order or other dependencies imply.
void add_dependencies(std::vector<Operation>& operations, const std::vector<Buffer>& buffers);

}  // namespace headrace::runtime::planning
