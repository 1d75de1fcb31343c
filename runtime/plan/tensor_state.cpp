// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/tensor_state.h"

#include <algorithm>

#include "core/check.h"
#include "cpu_adam/adafactor.h"
#include "cpu_adam/muon.h"

namespace headrace::runtime {

namespace {

using cpu_adam::OptimizerKind;

constexpr std::int64_t kTileQuantum = 4096;

std::int64_t rows_of(const TensorInfo& tensor) { return tensor.shape.size() == 2 ? tensor.shape[0] : 1; }
std::int64_t columns_of(const TensorInfo& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.back(); }

// Each tensor's part of a plane begins at a line, as the tensors themselves do.
std::int64_t padded(std::int64_t elements) { return round_up(elements, kTensorAlignmentElements); }

std::int64_t second_elements(OptimizerKind optimizer, const TensorInfo& tensor) {
  return tensor.frozen || optimizer_of(optimizer, tensor) != OptimizerKind::kAdamW ? 0 : tensor.elements;
}

std::int64_t variance_elements(const TensorInfo& tensor) {
  if (tensor.frozen) return 0;
  return cpu_adam::adafactor_state_elements(rows_of(tensor), columns_of(tensor), tensor.shape.size() != 2);
}

}  // namespace

OptimizerKind optimizer_of(OptimizerKind run, const TensorInfo& tensor) noexcept {
  if (run != OptimizerKind::kMuon) return run;
  return tensor.shape.size() == 2 && !tensor.embedding ? OptimizerKind::kMuon : OptimizerKind::kAdamW;
}

TensorState tensor_state(const PlanInput& input, UnitId unit, std::size_t tensor) {
  HEADRACE_CHECK(!cpu_adam::is_elementwise(input.optimizer), "state of whole tensors");
  const std::vector<TensorInfo>& tensors = input.model.units[static_cast<std::size_t>(unit)].tensors;
  const bool is_muon = input.optimizer == OptimizerKind::kMuon;
  TensorState state;
  state.optimizer = optimizer_of(input.optimizer, tensors[tensor]);
  for (std::size_t i = 0; i < tensor; ++i) {
    if (is_muon) state.exp_avg_sq += padded(second_elements(input.optimizer, tensors[i]));
    if (!is_muon) state.exp_avg += padded(variance_elements(tensors[i]));
  }
  if (is_muon) {
    state.exp_avg = tensors[tensor].offset;
    state.exp_avg_elements = tensors[tensor].elements;
    state.exp_avg_sq_elements = second_elements(input.optimizer, tensors[tensor]);
  } else {
    state.exp_avg_elements = variance_elements(tensors[tensor]);
  }
  return state;
}

OptimizerLayout whole_unit_layout(const PlanInput& input, UnitId unit) {
  const std::size_t tensors = input.model.units[static_cast<std::size_t>(unit)].tensors.size();
  OptimizerLayout layout =
      cpu_adam::state_planes(input.state_format, input.weights_dtype, tile_length(input, unit, 0), 0);
  std::int64_t first = 0, second = 0;
  if (tensors > 0) {
    const TensorState last = tensor_state(input, unit, tensors - 1);
    first = padded(last.exp_avg + last.exp_avg_elements);
    second = padded(last.exp_avg_sq + last.exp_avg_sq_elements);
  }
  const auto lay = [&layout](std::int64_t elements) {
    const Bytes at = layout.bytes;
    layout.bytes += elements * Bytes{sizeof(float)};
    return elements == 0 ? OptimizerLayout::kNone : at;
  };
  layout.exp_avg = lay(first);
  layout.exp_avg_sq = lay(second);
  return layout;
}

std::int64_t whole_unit_tile(const ModelInfo& model) noexcept {
  std::int64_t largest = 1;
  for (const UnitInfo& unit : model.units) largest = std::max(largest, unit.flat_elements);
  return round_up(largest, kTileQuantum);
}

// Each step makes X·Xᵀ, its square and one more product with X of the shorter side m and the longer side n.
UpdateWork update_work(const PlanInput& input, UnitId unit, std::int64_t tile) {
  UpdateWork work;
  work.elements = static_cast<double>(tile_length(input, unit, tile));
  if (input.optimizer != cpu_adam::OptimizerKind::kMuon) return work;
  for (const TensorInfo& tensor : input.model.units[static_cast<std::size_t>(unit)].tensors) {
    if (tensor.frozen || optimizer_of(input.optimizer, tensor) != cpu_adam::OptimizerKind::kMuon) continue;
    const auto m = static_cast<double>(std::min(tensor.shape[0], tensor.shape[1]));
    const auto n = static_cast<double>(std::max(tensor.shape[0], tensor.shape[1]));
    work.elements -= static_cast<double>(tensor.elements);
    work.product_flops += input.newton_schulz_steps * (4 * m * m * n + 2 * m * m * m);
  }
  return work;
}

Bytes update_workspace_bytes(const PlanInput& input) noexcept {
  Bytes most = 0;
  for (const UnitInfo& unit : input.model.units) {
    for (const TensorInfo& tensor : unit.tensors) {
      const OptimizerKind kind = optimizer_of(input.optimizer, tensor);
      if (tensor.frozen || cpu_adam::is_elementwise(kind)) continue;
      const bool is_vector = tensor.shape.size() != 2;
      most = std::max(most, kind == OptimizerKind::kMuon
                                ? cpu_adam::muon_workspace_bytes(rows_of(tensor), columns_of(tensor))
                                : cpu_adam::adafactor_workspace_bytes(rows_of(tensor), columns_of(tensor), is_vector));
    }
  }
  return most;
}

}  // namespace headrace::runtime
