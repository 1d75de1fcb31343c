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
  explicit Speculation(const Plan& plan) : is_read_(plan.input.model.units.size()), tiles_(is_read_.size()) {
    for (std::size_t u = 0; u < is_read_.size(); ++u) {
      is_read_[u].assign(static_cast<std::size_t>(num_tiles(plan.input, static_cast<UnitId>(u))), false);
      tiles_[u].assign(is_read_[u].size(), Tile::kUntouched);
    }
    for (const Operation& operation : plan.operations)
      if (operation.kind == OperationKind::kReadState) is_read_[index(operation.unit)][index(operation.tile)] = true;
  }

  // `enabled` false: every early operation is passed over, and the redo does all of the update.
  void begin(bool enabled) {
    for (auto& unit : tiles_) unit.assign(unit.size(), Tile::kUntouched);
    stands_.store(enabled, std::memory_order_relaxed);
    any_updated_ = false;
    square_sum_ = 0;
  }
  [[nodiscard]] bool stands() const noexcept { return stands_.load(std::memory_order_relaxed); }
  void miss() noexcept { stands_.store(false, std::memory_order_relaxed); }

  // A unit's gradient is complete: its sum of squares, and the limit that the sum over all units must not pass. Knowing
  // early saves work; the norm decides.
  void add_gradient(double square_sum, bool finite, double limit) noexcept {
    square_sum_ += square_sum;
    if (!finite || !std::isfinite(square_sum_) || (limit > 0 && square_sum_ > limit)) miss();
  }

  // Whether the early read, update, write of a tile is to be done.
  [[nodiscard]] bool read(const Operation& operation) {
    if (!stands()) return false;
    tile(operation) = Tile::kRead;
    return true;
  }
  [[nodiscard]] bool update(const Operation& operation) {
    const bool is_there = !is_read_[index(operation.unit)][index(operation.tile)] || tile(operation) == Tile::kRead;
    if (!stands() || !is_there) return false;
    tile(operation) = Tile::kUpdated;
    any_updated_ = true;
    return true;
  }
  [[nodiscard]] bool updated(const Operation& operation) { return tile(operation) == Tile::kUpdated; }
  [[nodiscard]] bool any_updated() const noexcept { return any_updated_; }

 private:
  enum class Tile : std::uint8_t { kUntouched, kRead, kUpdated };
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] Tile& tile(const Operation& operation) { return tiles_[index(operation.unit)][index(operation.tile)]; }

  std::vector<std::vector<bool>> is_read_;  // per unit and tile: the update waits for a read
  std::vector<std::vector<Tile>> tiles_;
  std::atomic<bool> stands_{false};
  bool any_updated_ = false;  // written on the optimizer's lane
  double square_sum_ = 0;     // on the lane of gradients
};

}  // namespace headrace::runtime
