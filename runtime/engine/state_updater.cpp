// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/state_updater.h"

namespace headrace::runtime {

namespace {

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

}  // namespace

void StateUpdater::update(const PlanInput& input, const StatePiece& piece, const cpu_adam::OptimizerHyper& hyper,
                          std::uint64_t rounding_seed) const {
  if (input.optimizer == cpu_adam::OptimizerKind::kAdamW)
    return update_adamw(gradients(), input, piece, hyper, rounding_seed);
  cpu_adam::OptimizerArrays arrays;
  arrays.weights = piece.weights + piece.at * dtype_bytes(input.weights_dtype);
  arrays.weights_dtype = input.weights_dtype;
  cpu_adam::point_at_state(arrays, *piece.layout, piece.optimizer, piece.at);
  arrays.gradient = piece.gradient + piece.at * dtype_bytes(input.gradient_dtype);
  arrays.gradient_dtype = input.gradient_dtype;
  arrays.elements = piece.elements;
  workers_.update(input.optimizer, arrays, input.state_format, hyper);
}

cpu_adam::AdamWArrays state_arrays(const PlanInput& input, std::byte* weights, std::byte* optimizer,
                                   std::int64_t length, float* absent) {
  cpu_adam::AdamWArrays arrays;
  arrays.weights = weights;
  arrays.weights_dtype = input.weights_dtype;
  arrays.elements = length;
  const OptimizerLayout layout = optimizer_layout(input, length);
  cpu_adam::point_at_state(arrays, input.state_format, layout, optimizer, 0);
  if (layout.exp_avg < 0) arrays.exp_avg = absent;
  if (layout.exp_avg_sq < 0) arrays.exp_avg_sq = absent;
  return arrays;
}

}  // namespace headrace::runtime
