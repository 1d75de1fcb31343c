// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/state_updater.h"

#include "core/check.h"

namespace headrace::runtime {

namespace {

using cpu_adam::OptimizerKind;

void update_adamw(const cpu_adam::ParallelUpdater& updater, const PlanInput& input, const StatePiece& piece,
                  const cpu_adam::OptimizerHyper& hyper, std::uint64_t rounding_seed) {
  cpu_adam::AdamWArrays arrays;
  arrays.weights = piece.weights + piece.at * dtype_bytes(input.weights_dtype);
  arrays.weights_dtype = input.weights_dtype;
  cpu_adam::point_at_state(arrays, input.state_format, *piece.layout, piece.optimizer, piece.at);
  arrays.gradient = piece.gradient + piece.at * dtype_bytes(input.gradient_dtype);
  arrays.gradient_dtype = input.gradient_dtype;
  arrays.elements = piece.elements;
  arrays.first_element = piece.first_element;
  arrays.stream = static_cast<std::uint32_t>(piece.unit);
  cpu_adam::AdamWHyper adamw = cpu_adam::adamw_hyper(hyper);
  adamw.rounding_seed = rounding_seed;
  updater.update(arrays, input.state_format, adamw);
}

// `elements` > 0: of the plane that begins at `offset`.
float* plane(const StatePiece& piece, Bytes offset, std::int64_t first, std::int64_t elements) {
  if (offset == OptimizerLayout::kNone || elements == 0) return nullptr;
  return reinterpret_cast<float*>(piece.optimizer + offset) + first;
}

}  // namespace

Result<void> StateUpdater::update(const PlanInput& input, const StatePiece& piece,
                                  const cpu_adam::OptimizerHyper& hyper, std::uint64_t rounding_seed) const {
  TensorState state{input.optimizer, piece.at, piece.elements, piece.at, piece.elements};
  if (!cpu_adam::is_elementwise(input.optimizer)) {
    HEADRACE_CHECK(piece.tensor >= 0, "a piece of an optimizer of whole tensors is a tensor");
    state = tensor_state(input, piece.unit, static_cast<std::size_t>(piece.tensor));
  }
  if (state.optimizer == OptimizerKind::kAdamW && input.optimizer == OptimizerKind::kAdamW) {
    update_adamw(gradients(), input, piece, hyper, rounding_seed);
    return {};
  }
  cpu_adam::OptimizerArrays arrays;
  arrays.weights = piece.weights + piece.at * dtype_bytes(input.weights_dtype);
  arrays.weights_dtype = input.weights_dtype;
  cpu_adam::point_at_state(arrays, *piece.layout, piece.optimizer, piece.at);
  arrays.moments = {plane(piece, piece.layout->exp_avg, state.exp_avg, state.exp_avg_elements),
                    plane(piece, piece.layout->exp_avg_sq, state.exp_avg_sq, state.exp_avg_sq_elements)};
  arrays.gradient = piece.gradient + piece.at * dtype_bytes(input.gradient_dtype);
  arrays.gradient_dtype = input.gradient_dtype;
  arrays.elements = piece.elements;
  if (cpu_adam::is_elementwise(state.optimizer)) {
    workers_.update(state.optimizer, arrays, input.state_format, hyper);
    return {};
  }
  const UnitInfo& unit = input.model.units[static_cast<std::size_t>(piece.unit)];
  const WholeTensor tensor{&unit.tensors[static_cast<std::size_t>(piece.tensor)], state, arrays};
  return whole_.update(workers_, tensor, input.state_format, hyper);
}

MomentPlanes moment_planes(const OptimizerLayout& layout, const std::byte* optimizer) {
  const auto values = [&](Bytes from, Bytes to) -> std::span<const float> {
    if (from == OptimizerLayout::kNone) return {};
    return {reinterpret_cast<const float*>(optimizer + from), static_cast<std::size_t>(to - from) / sizeof(float)};
  };
  const Bytes second = layout.exp_avg_sq == OptimizerLayout::kNone ? layout.bytes : layout.exp_avg_sq;
  return {values(layout.exp_avg, second), values(layout.exp_avg_sq, layout.bytes)};
}

cpu_adam::AdamWArrays state_arrays(const PlanInput& input, const OptimizerLayout& layout, std::byte* weights,
                                   std::byte* optimizer, std::int64_t at, std::int64_t length, float* absent) {
  cpu_adam::AdamWArrays arrays;
  arrays.weights = weights + at * dtype_bytes(input.weights_dtype);
  arrays.weights_dtype = input.weights_dtype;
  arrays.elements = length;
  cpu_adam::point_at_state(arrays, input.state_format, layout, optimizer, at);
  const bool is_elementwise = cpu_adam::is_elementwise(input.optimizer);
  if (layout.exp_avg < 0 || !is_elementwise) arrays.exp_avg = absent;
  if (layout.exp_avg_sq < 0 || !is_elementwise) arrays.exp_avg_sq = absent;
  return arrays;
}

}  // namespace headrace::runtime
