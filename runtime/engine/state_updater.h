// SPDX-License-Identifier: Apache-2.0
// Updates a piece of a tile with the run's optimizer, in the run's state format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_adam/optimizer.h"
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
};

// Thread-safe for distinct pieces.
class StateUpdater {
 public:
  explicit StateUpdater(int threads) : workers_(threads) {}

  // `hyper` must be valid for input.optimizer. The seed is that of stochastic rounding.
  void update(const PlanInput& input, const StatePiece& piece, const cpu_adam::OptimizerHyper& hyper,
              std::uint64_t rounding_seed) const;
  // Gradient arrival; see ParallelUpdater.
  [[nodiscard]] const cpu_adam::ParallelUpdater& gradients() const noexcept { return workers_.updater(); }
  [[nodiscard]] cpu_adam::Target target() const noexcept { return workers_.target(); }

 private:
  cpu_adam::ParallelOptimizer workers_;
};

// Weights and state arrays of a tile for conversions between state and fp32 values; moments that the optimizer does not
// have are found in `absent` [length], zeros that stay zeros.
[[nodiscard]] cpu_adam::AdamWArrays state_arrays(const PlanInput& input, std::byte* weights, std::byte* optimizer,
                                                 std::int64_t length, float* absent);

}  // namespace headrace::runtime
