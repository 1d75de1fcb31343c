// SPDX-License-Identifier: Apache-2.0
// What the search may choose, and what follows from a choice for the residency of weights: which visits share one copy
// of a unit's weights and when each copy is read. Private to the compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/timeline.h"

namespace headrace::runtime::planning {

struct Choices {
  std::int32_t prefetch_units = 0;  // stages that a read of weights starts ahead of its use
  std::int32_t tile_buffers = 2;
  bool overlap_out = false;  // gradients leave the device while the next stage computes
  // Weights that are not held stay between two visits that are at most so many stages apart: around the turn from
  // forward to backward of a group, and elsewhere (backward to the next group's forward or to the update). Farthest
  // next use goes first.
  std::int32_t stay_turn = 0, stay_other = 0;
  std::int32_t stay_device = 0;                   // the same of copies in the device's own memory, wherever they stand
  std::vector<bool> spilled, keep, held_weights;  // per unit
  // Where the unit's output, and what it saved where that is kept, are between its forward and its backward pass.
  std::vector<Tier> boundary, saved;
  std::int32_t activations_ahead = 0;    // micro-batches that reads of activations run ahead of the backward pass
  std::vector<std::int64_t> held_tiles;  // per unit: so many optimizer tiles, from the first, stay in memory
};

// One copy of a unit's weights, in host or device memory, from its read (or copy) to its last use.
struct Run {
  UnitId unit = -1;
  std::int32_t start = 0;                        // the stage at whose start it is read or copied
  std::int32_t first = 0, last = 0;              // stages of the first and last visit
  std::int32_t first_visit = 0, last_visit = 0;  // their ordinals among the unit's visits
  bool into_update = false;                      // stays for the unit's update
  bool from_update = false;                      // what the delayed update leaves; read only where none is pending
};

// Where in the next step a delayed update is made: among what starts with stage `start`; stage `need` is the first that
// uses the unit.
struct DelayedUpdate {
  UnitId unit = -1;
  std::int32_t start = 0, need = 0;
};
// Of every trained unit whose update is delayed, in the order of need; both fields ascend. Empty where updates are not
// delayed. The record of the step that they complete is written among what starts with the last one's `start`.
[[nodiscard]] std::vector<DelayedUpdate> delayed_updates(const Facts& facts, const Timeline& timeline,
                                                         const Choices& choices, const std::vector<Run>& device);

// Copies in device memory; empty when compute reads host memory.
[[nodiscard]] std::vector<Run> device_runs(const Facts& facts, const Timeline& timeline, const Choices& choices);
// Streamed weights in host memory. With device copies the visits are the copies' starts.
[[nodiscard]] std::vector<Run> host_runs(const Facts& facts, const Timeline& timeline, const Choices& choices,
                                         const std::vector<Run>& device);
// Distinct distances of successive visits, ascending: the steps in which stay_turn and stay_other grow.
struct Distances {
  std::vector<std::int32_t> turn, other;
};
[[nodiscard]] Distances visit_distances(const Facts& facts, const Timeline& timeline, const Choices& choices);

// The steps in which stay_device grows.
[[nodiscard]] std::vector<std::int32_t> device_distances(const Timeline& timeline);

// Until when the state and the gradient of a unit that is updated early are in use.
[[nodiscard]] std::int64_t early_update_end(const Timeline& timeline, const Choices& choices, UnitId unit);
// What leaves the device in a stage stays a stage longer when moves overlap with compute, so that the next stage need
// not wait for it.
[[nodiscard]] std::int64_t out_end(const Timeline& timeline, const Choices& choices, std::int32_t stage);

// Per unit: its weights are in memory when it is updated.
[[nodiscard]] std::vector<bool> resident_in_update(const Choices& choices, const std::vector<Run>& host);

// What the update of one tile finds in memory.
struct TileNeeds {
  bool buffer_weights = false;  // the tile buffer holds the slice of weights
  bool buffer_optimizer = false, buffer_gradient = false;
  bool read_weights = false;  // from NVMe
  [[nodiscard]] bool any_buffer() const noexcept { return buffer_weights || buffer_optimizer || buffer_gradient; }
  [[nodiscard]] bool any_read() const noexcept { return read_weights || buffer_optimizer || buffer_gradient; }
};
[[nodiscard]] TileNeeds tile_needs(const Facts& facts, const Choices& choices, UnitId unit, std::int64_t tile,
                                   bool weights_resident, UpdatePass pass);

// NVMe bytes of one step.
struct Traffic {
  Bytes read = 0, written = 0;
};
[[nodiscard]] Traffic step_traffic(const Facts& facts, const Timeline& timeline, const Choices& choices,
                                   const std::vector<Run>& host);

}  // namespace headrace::runtime::planning
