// SPDX-License-Identifier: Apache-2.0
// What the compiler derives from its input once: rounded sizes of each unit's shard, tiles and activations, and which
// streams live where. Private to the compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "core/result.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime::planning {

// Extents in a buffer and on disk of one tile's streams.
struct TileFacts {
  std::int64_t length = 0;
  Bytes optimizer = 0, weights = 0, gradient = 0;  // rounded up to the alignment
};

struct UnitFacts {
  std::int64_t elements = 0;  // of the shard, padded
  std::int64_t tiles = 0;
  TileFacts full_tile, last_tile;
  bool trained = false;               // some tensor is not frozen: has gradient, optimizer state and updates
  bool update_reads_weights = false;  // the update needs the old weights (not where they are made from a master)
  Bytes weights_bytes = 0;            // buffer
  Bytes weights_disk_bytes = 0;       // all tiles with padding and trailers
  Bytes gradient_bytes = 0;           // buffer
  Bytes gradient_disk_bytes = 0;
  Bytes accumulator_bytes = 0;
  Bytes boundary_bytes = 0;  // per micro-batch
  Bytes saved_bytes = 0;
  Bytes boundary_disk_bytes = 0, saved_disk_bytes = 0;
  Bytes forward_workspace_bytes = 0, backward_workspace_bytes = 0;
};

struct Facts {
  const PlanInput* input = nullptr;
  std::vector<UnitFacts> units;
  bool nvme_weights = false, nvme_optimizer = false;
  bool any_nvme = false;

  [[nodiscard]] UnitId num_units() const noexcept { return static_cast<UnitId>(units.size()); }
  [[nodiscard]] const UnitInfo& info(UnitId unit) const { return input->model.units[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] const UnitFacts& unit(UnitId unit) const { return units[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] const TileFacts& tile(UnitId unit_id, std::int64_t tile) const {
    const UnitFacts& facts = unit(unit_id);
    return tile + 1 == facts.tiles ? facts.last_tile : facts.full_tile;
  }
  [[nodiscard]] Bytes disk(Bytes extent) const noexcept { return extent > 0 ? extent + input->trailer_bytes : 0; }
};

// kConfig error for contradictions.
[[nodiscard]] Result<void> validate(const PlanInput& input);
[[nodiscard]] Facts make_facts(const PlanInput& input);  // of a valid input

}  // namespace headrace::runtime::planning
