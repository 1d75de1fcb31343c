// SPDX-License-Identifier: Apache-2.0
// The order of a step before anything is placed: stages (a unit visited in a pass by one group, or updated), a logical
// time for each computation, and who needs which weights and adds to which gradient when. Private to the compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/facts.h"

namespace headrace::runtime::planning {

struct Stage {
  enum class Kind : std::uint8_t { kForward, kBackward, kUpdate };
  Kind kind = Kind::kForward;
  UnitId unit = -1;
  std::int32_t group = -1;
  std::vector<std::int32_t> micro_batches;  // in order of computation
  std::int64_t time = 0;                    // of the reads and copies that start with this stage

  [[nodiscard]] std::int64_t first_compute() const noexcept { return time + 1; }
  [[nodiscard]] std::int64_t last_compute() const noexcept {
    return time + static_cast<std::int64_t>(micro_batches.size());
  }
  [[nodiscard]] std::int64_t out() const noexcept { return last_compute() + 1; }  // of gradients that leave the device
};

// Which pass over the tiles: the only one, the one during the backward pass, the one that follows where that one does
// not stand, the one during the next forward pass, or the one instead of it. A step with delayed updates has kAfterNorm
// too, for units that are not delayed.
enum class UpdatePass : std::uint8_t { kAfterNorm, kEarly, kRedo, kDelayed, kDrain };

// The accumulator of one unit in one group.
struct Accumulation {
  std::int32_t first_stage = -1;  // the stage whose first micro-batch overwrites it
  std::int32_t last_stage = -1;   // after this one it leaves the device
};

struct Timeline {
  std::int32_t group_size = 1, num_groups = 1, num_micro_batches = 1;
  bool is_eval = false;
  bool early = false;            // units are updated when their gradient is complete
  std::vector<bool> delayed;     // per unit, if any: it is updated in the next step, just before its first use
  std::vector<Stage> stages;     // computations, then one update stage per unit (of the redo or the drain, if any)
  std::int32_t num_compute = 0;  // stages that compute
  std::int64_t norm_time = 0, end_time = 0;
  std::vector<std::vector<std::int32_t>> weights_stages;  // per unit: computing stages that read its weights, ascending
  std::vector<std::vector<std::int64_t>> forward_time, backward_time;  // [unit][micro-batch], -1 = none
  std::vector<std::vector<Accumulation>> accumulations;  // [unit][group]; empty for units without gradient

  [[nodiscard]] const Stage& stage(std::int32_t index) const { return stages[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::int32_t update_stage(UnitId unit) const noexcept { return num_compute + unit; }
  // The stage after which the unit's gradient is complete; of trained units.
  [[nodiscard]] std::int32_t last_stage(UnitId unit) const {
    return accumulations[static_cast<std::size_t>(unit)].back().last_stage;
  }
  [[nodiscard]] bool any_delayed() const noexcept { return !delayed.empty(); }
  [[nodiscard]] bool is_delayed(UnitId unit) const { return any_delayed() && delayed[static_cast<std::size_t>(unit)]; }
  // Trained units that are updated in the pass, in that order: early, that in which their gradients are complete.
  [[nodiscard]] std::vector<UnitId> updated_units(UpdatePass pass) const;
};

[[nodiscard]] Timeline make_step_timeline(const Facts& facts, std::int32_t group_size, UpdatePolicy update);
// Forward of every unit, the loss too, for one group; an evaluation repeats it.
[[nodiscard]] Timeline make_eval_timeline(const Facts& facts, std::int32_t group_size);

}  // namespace headrace::runtime::planning
