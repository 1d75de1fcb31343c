// SPDX-License-Identifier: Apache-2.0
// Updates a piece of a tile with the run's optimizer, in the run's state format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/result.h"
#include "cpu_adam/optimizer.h"
#include "runtime/engine/whole_tensor_updater.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

// `elements` elements of one tensor, from element `at` of the tile on.
struct StatePiece {
  std::byte* weights = nullptr;  // of the tile, as are the following
  std::byte* optimizer = nullptr;
  const std::byte* gradient = nullptr;
  const OptimizerLayout* layout = nullptr;  // of the tile
  std::int64_t at = 0, elements = 0;
  std::int64_t first_element = 0;  // place of the piece in the unit's flat space
  UnitId unit = 0;
  int tensor = -1;  // its index in the unit, and the piece is all of it: for optimizers of whole tensors
};

// Elementwise updates are thread-safe for distinct pieces; of whole tensors one is made at a time.
class StateUpdater {
 public:
  // `products` computes Muon's products and must outlive this; null for the others.
  StateUpdater(int threads, Bytes workspace_bytes, const kernels::Parallel* products)
      : workers_(threads), whole_(workspace_bytes, products) {}

  // `hyper` must be valid for input.optimizer. The seed is that of stochastic rounding. kNumeric, of optimizers of
  // whole tensors only: values that are not finite or beyond fp32; the piece has not changed.
  [[nodiscard]] Result<void> update(const PlanInput& input, const StatePiece& piece,
                                    const cpu_adam::OptimizerHyper& hyper, std::uint64_t rounding_seed) const;
  // Gradient arrival; see ParallelUpdater.
  [[nodiscard]] const cpu_adam::ParallelUpdater& gradients() const noexcept { return workers_.updater(); }
  [[nodiscard]] cpu_adam::Target target() const noexcept { return workers_.target(); }

 private:
  cpu_adam::ParallelOptimizer workers_;
  WholeTensorUpdater whole_;
};

// The part of the planes of moments that a tile really has: fp32 values of optimizers of whole tensors.
struct MomentPlanes {
  std::span<const float> exp_avg, exp_avg_sq;
};
[[nodiscard]] MomentPlanes moment_planes(const OptimizerLayout& layout, const std::byte* optimizer);
// Weights and state arrays of `length` elements of a tile, from element `at` (a multiple of the quantisation block),
// for conversions between state and fp32 values; moments that are not one number for each element are found in `absent`
// [length], zeros that stay zeros.
[[nodiscard]] cpu_adam::AdamWArrays state_arrays(const PlanInput& input, const OptimizerLayout& layout,
                                                 std::byte* weights, std::byte* optimizer, std::int64_t at,
                                                 std::int64_t length, float* absent);

}  // namespace headrace::runtime
