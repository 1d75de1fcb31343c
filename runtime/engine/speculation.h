// SPDX-License-Identifier: Apache-2.0
// Early updates assume that nothing is clipped and every gradient is finite. This keeps what a step has done on that
// assumption, tile by tile, whether it still stands, and whether the last steps make it worth assuming again. Used by
// the engine; moves nothing itself.
#pragma once

#include <atomic>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/plan/plan.h"

namespace headrace::runtime {

// Clipping over the last steps. One owner thread.
class ClipHistory {
 public:
  static constexpr std::size_t kSteps = 32;
  // A redo moves the update's bytes again while the disk has nothing else to do: a quarter of the steps cost about what
  // early updates save. Half of that again before they are tried anew.
  static constexpr std::size_t kTooMany = kSteps / 4, kFewAgain = kSteps / 8;

  void add(bool clipped) {
    clipped_ <<= 1;
    clipped_[0] = clipped;
    worthwhile_ = clipped_.count() <= (worthwhile_ ? kTooMany : kFewAgain);
  }
  [[nodiscard]] bool worthwhile() const noexcept { return worthwhile_; }

 private:
  std::bitset<kSteps> clipped_;
  bool worthwhile_ = true;
};

// One step. The lanes call it in the order of the plan's dependencies; stands() and miss() from any lane.
class Speculation {
 public:
  explicit Speculation(const PlanInput& input) : updated_(input.model.units.size()) {
    for (std::size_t u = 0; u < updated_.size(); ++u)
      updated_[u].resize(static_cast<std::size_t>(num_tiles(input, static_cast<UnitId>(u))));
  }

  // `enabled` false: every early operation is passed over, and the redo does all of the update.
  void begin(bool enabled) {
    for (auto& unit : updated_) unit.assign(unit.size(), 0);
    stands_.store(enabled, std::memory_order_relaxed);
    any_updated_ = false;
    square_sum_ = 0;
  }
  // Never again true in a step once it was false: what waits for an operation that was left out is left out too.
  [[nodiscard]] bool stands() const noexcept { return stands_.load(std::memory_order_relaxed); }
  void miss() noexcept { stands_.store(false, std::memory_order_relaxed); }

  // A unit's gradient is complete: its sum of squares, and the limit that the sum over all units must not pass. Knowing
  // early saves work; the norm decides.
  void add_gradient(double square_sum, bool finite, double limit) noexcept {
    square_sum_ += square_sum;
    if (!finite || !std::isfinite(square_sum_) || (limit > 0 && square_sum_ > limit)) miss();
  }

  // Whether the early update of a tile is to be done.
  [[nodiscard]] bool update(const Operation& operation) {
    if (!stands()) return false;
    updated_[index(operation.unit)][index(operation.tile)] = 1;
    any_updated_ = true;
    return true;
  }
  [[nodiscard]] bool updated(const Operation& operation) const {
    return updated_[index(operation.unit)][index(operation.tile)] != 0;
  }
  [[nodiscard]] bool any_updated() const noexcept { return any_updated_; }

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  std::vector<std::vector<char>> updated_;  // per unit and tile
  std::atomic<bool> stands_{false};
  bool any_updated_ = false;  // written on the optimizer's lane
  double square_sum_ = 0;     // on the lane of gradients
};

}  // namespace headrace::runtime
