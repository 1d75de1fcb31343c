// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/plan.h"

#include <algorithm>

#include "core/check.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {

const char* lane_name(Lane lane) noexcept {
  switch (lane) {
    case Lane::kNvmeRead: return "nvme_read";
    case Lane::kNvmeWrite: return "nvme_write";
    case Lane::kHostToDevice: return "h2d";
    case Lane::kDeviceToHost: return "d2h";
    case Lane::kCompute: return "compute";
    case Lane::kCollective: return "collective";
    case Lane::kCpuOptimizer: return "cpu_optimizer";
  }
  return "unknown";
}

const char* buffer_kind_name(BufferKind kind) noexcept {
  switch (kind) {
    case BufferKind::kWeights: return "weights";
    case BufferKind::kDeviceWeights: return "device_weights";
    case BufferKind::kOptimizer: return "optimizer";
    case BufferKind::kTile: return "tile";
    case BufferKind::kGradient: return "gradient";
    case BufferKind::kAccumulator: return "accumulator";
    case BufferKind::kBoundary: return "boundary";
    case BufferKind::kBoundaryGradient: return "boundary_gradient";
    case BufferKind::kSaved: return "saved";
    case BufferKind::kWorkspace: return "workspace";
    case BufferKind::kOldState: return "old_state";
  }
  return "unknown";
}

const char* operation_kind_name(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::kReadWeights: return "read_weights";
    case OperationKind::kReadState: return "read_state";
    case OperationKind::kReadGradient: return "read_gradient";
    case OperationKind::kWriteState: return "write_state";
    case OperationKind::kWriteGradient: return "write_gradient";
    case OperationKind::kCopyToDevice: return "copy_to_device";
    case OperationKind::kActivationOut: return "activation_out";
    case OperationKind::kWriteActivation: return "write_activation";
    case OperationKind::kReadActivation: return "read_activation";
    case OperationKind::kActivationIn: return "activation_in";
    case OperationKind::kForward: return "forward";
    case OperationKind::kBackward: return "backward";
    case OperationKind::kGradientOut: return "gradient_out";
    case OperationKind::kNorm: return "norm";
    case OperationKind::kUpdate: return "update";
    case OperationKind::kCopyState: return "copy_state";
    case OperationKind::kCommit: return "commit";
  }
  return "unknown";
}

const char* update_policy_name(UpdatePolicy update) noexcept {
  switch (update) {
    case UpdatePolicy::kAuto: return "auto";
    case UpdatePolicy::kAfterBackward: return "after_backward";
    case UpdatePolicy::kInBackward: return "in_backward";
    case UpdatePolicy::kIntoForward: return "into_forward";
  }
  return "unknown";
}

double delayed_share(const Plan& plan) {
  double all = 0, delayed = 0;
  for (std::size_t u = 0; u < plan.update_delayed.size(); ++u) {
    const UnitInfo& unit = plan.input.model.units[u];
    const auto elements = static_cast<double>(unit.flat_elements);
    if (std::any_of(unit.tensors.begin(), unit.tensors.end(), [](const TensorInfo& tensor) { return !tensor.frozen; }))
      all += elements;
    if (plan.update_delayed[u]) delayed += elements;
  }
  return all > 0 ? delayed / all : 0;
}

namespace {
std::int64_t shard_elements(const PlanInput& input, UnitId unit) {
  const UnitInfo& info = input.model.units[static_cast<std::size_t>(unit)];
  return partition_range(info.flat_elements, input.rank, input.world_size).padded_elements;
}
}  // namespace

std::int64_t num_tiles(const PlanInput& input, UnitId unit) {
  return ceil_div(shard_elements(input, unit), input.tile_elements);
}

std::int64_t tile_begin(const PlanInput& input, UnitId unit, std::int64_t tile) {
  const UnitInfo& info = input.model.units[static_cast<std::size_t>(unit)];
  return partition_range(info.flat_elements, input.rank, input.world_size).begin + tile * input.tile_elements;
}

std::int64_t tile_length(const PlanInput& input, UnitId unit, std::int64_t tile) {
  return std::min(input.tile_elements, shard_elements(input, unit) - tile * input.tile_elements);
}

OptimizerLayout optimizer_layout(const PlanInput& input, UnitId unit, std::int64_t tile) {
  if (!cpu_adam::is_elementwise(input.optimizer)) return whole_unit_layout(input, unit);
  return optimizer_layout(input, tile_length(input, unit, tile));
}

OptimizerLayout optimizer_layout(const PlanInput& input, std::int64_t length) {
  HEADRACE_CHECK(cpu_adam::is_elementwise(input.optimizer), "whole tensors have no state of a part");
  return cpu_adam::state_planes(input.state_format, input.weights_dtype, length, input.moments);
}

Bytes optimizer_bytes(const PlanInput& input, UnitId unit, std::int64_t elements) {
  if (cpu_adam::is_elementwise(input.optimizer)) return optimizer_layout(input, elements).bytes;
  const std::int64_t whole = std::max<std::int64_t>(1, tile_length(input, unit, 0));
  return ceil_div(whole_unit_layout(input, unit).bytes, whole) * elements;
}

}  // namespace headrace::runtime
