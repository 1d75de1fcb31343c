// SPDX-License-Identifier: Apache-2.0
// Emits what one pass over the tiles does: reads into the ring of tile buffers, updates, writes. Private to the
// compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/emit.h"

namespace headrace::runtime::planning {

enum class Access : std::uint8_t { kRead, kOverwrite, kUpdate };
void add_use(Operation& operation, Role role, BufferId buffer, Bytes offset, Bytes bytes, Access access);
Operation& add_operation(std::vector<Operation>& operations, OperationKind kind, Lane lane, UnitId unit);

class TileEmitter {
 public:
  // Appends to `operations`, which must outlive it. `last_spill` has per unit the last write of its spilled gradient in
  // the same list; empty when that is in an earlier list.
  TileEmitter(const EmitInput& input, UpdatePass pass, std::vector<Operation>& operations,
              const std::vector<OperationId>& last_spill);

  // In the order in which they are updated.
  [[nodiscard]] const std::vector<UnitId>& units() const noexcept { return units_; }
  // Starts the ring: reads for as many tiles as it has buffers. `gradients_known` false: only up to the first tile
  // whose gradient comes from disk.
  void issue_first(bool gradients_known);
  // kDelayed: from here on the first `count` units may be read, since the memory for their weights is theirs; none
  // before.
  void open_units(std::size_t count);
  // What is read or written from here on waits for the record of the step before, which makes the slots current.
  void follow(OperationId commit) noexcept { commit_ = commit; }
  // All tiles of the next unit; each update waits for `after` (-1 = only for its data).
  void update_next_unit(OperationId after);
  void update_all(OperationId after);
  [[nodiscard]] OperationId last_update() const noexcept { return last_update_; }

 private:
  struct Tile {
    UnitId unit = -1;
    std::int64_t tile = 0;
    TileNeeds needs;
    bool restore_weights = false, restore_optimizer = false;  // held, and read again from the old slot
    bool in_pipeline = false;
    BufferId ring = kNoBuffer;
    std::size_t order = 0;  // of its unit among units()
  };
  struct Place {
    BufferId buffer = kNoBuffer;
    Bytes offset = 0;
  };
  struct Places {
    Place weights, optimizer, gradient;
  };

  void collect();
  [[nodiscard]] BufferId host_id(BufferId id) const {
    return id == kNoBuffer ? kNoBuffer : in_.host_ids[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] Places places(const Tile& tile) const;
  void issue(bool gradients_known);
  void read_tile(const Tile& tile);
  void copy_state(const Tile& tile, const Places& places, bool restore);
  void update_tile(const Tile& tile, OperationId after);
  void write_tile(const Tile& tile, const Places& places);
  [[nodiscard]] OperationId last_id() const { return static_cast<OperationId>(operations_.size()) - 1; }

  const EmitInput& in_;
  const Facts& facts_;
  const Choices& choices_;
  const HostLayout& host_;
  UpdatePass pass_;
  std::vector<Operation>& operations_;
  const std::vector<OperationId>& last_spill_;
  std::vector<UnitId> units_;
  std::vector<BufferId> resident_;  // per unit: the buffer that has its weights during the update
  std::vector<Tile> tiles_;
  std::vector<std::size_t> pipeline_;     // tiles that are read, or pass through the ring, in order
  std::size_t window_ = 0;                // so many of them are read ahead of the update
  std::size_t issued_ = 0, updated_ = 0;  // tiles of the pipeline
  std::size_t next_tile_ = 0, next_unit_ = 0;
  std::size_t open_units_ = 0;
  OperationId last_update_ = -1, commit_ = -1;
};

}  // namespace headrace::runtime::planning
