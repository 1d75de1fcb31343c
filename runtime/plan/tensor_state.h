// SPDX-License-Identifier: Apache-2.0
// Where each tensor's optimizer state lies in a tile, for optimizers that update whole tensors (Adafactor, Muon): their
// tile is a unit. What they keep is not one number for each element, so the planes of moments have lengths of their
// own: Muon's exp_avg is as long as the unit and its exp_avg_sq holds what AdamW updates beside it, tensor after
// tensor; Adafactor's exp_avg holds the variances, tensor after tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/plan/plan.h"

namespace headrace::runtime {

struct TensorState {
  cpu_adam::OptimizerKind optimizer = cpu_adam::OptimizerKind::kAdamW;  // AdamW where Muon is of no use
  // Its first element in the planes exp_avg and exp_avg_sq, and how many it has there.
  std::int64_t exp_avg = 0, exp_avg_elements = 0;
  std::int64_t exp_avg_sq = 0, exp_avg_sq_elements = 0;
};
// Of a tensor of the unit. For elementwise optimizers the planes are the tile's and not asked for here.
[[nodiscard]] TensorState tensor_state(const PlanInput& input, UnitId unit, std::size_t tensor);
// Muon is for the matrices within a model; embeddings, the head and vectors are AdamW's, as its author advises.
[[nodiscard]] cpu_adam::OptimizerKind optimizer_of(cpu_adam::OptimizerKind run, const TensorInfo& tensor) noexcept;
// The payload of a unit's only tile.
[[nodiscard]] OptimizerLayout whole_unit_layout(const PlanInput& input, UnitId unit);
// The smallest number of elements that holds any unit in one tile.
[[nodiscard]] std::int64_t whole_unit_tile(const ModelInfo& model) noexcept;
// What an update of a tile computes: elements that are updated one by one, and the floating-point operations of Muon's
// products for the matrices, which take the most of its time.
struct UpdateWork {
  double elements = 0, product_flops = 0;
};
[[nodiscard]] UpdateWork update_work(const PlanInput& input, UnitId unit, std::int64_t tile);
// What an update of the largest tensor works in; 0 for elementwise optimizers.
[[nodiscard]] Bytes update_workspace_bytes(const PlanInput& input) noexcept;

}  // namespace headrace::runtime
