// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/emit_tiles.h"

#include <algorithm>

#include "core/check.h"

namespace headrace::runtime::planning {

namespace {
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
}  // namespace

void add_use(Operation& operation, Role role, BufferId buffer, Bytes offset, Bytes bytes, Access access) {
  if (buffer == kNoBuffer) return;
  operation.uses.push_back({role, buffer, offset, bytes, access != Access::kRead, access != Access::kOverwrite});
}

Operation& add_operation(std::vector<Operation>& operations, OperationKind kind, Lane lane, UnitId unit) {
  Operation operation;
  operation.kind = kind;
  operation.lane = lane;
  operation.unit = unit;
  operations.push_back(std::move(operation));
  return operations.back();
}

TileEmitter::TileEmitter(const EmitInput& input, UpdatePass pass, std::vector<Operation>& operations,
                         const std::vector<OperationId>& last_spill)
    : in_(input),
      facts_(*input.facts),
      choices_(*input.choices),
      host_(*input.host),
      pass_(pass),
      operations_(operations),
      last_spill_(last_spill),
      units_(input.timeline->updated_units(pass)) {
  const bool is_delayed = pass == UpdatePass::kDelayed;
  if (is_delayed)
    std::transform(host_.delayed.begin(), host_.delayed.end(), units_.begin(),
                   [](const DelayedUpdate& update) { return update.unit; });
  open_units_ = is_delayed ? 0 : units_.size();
  resident_ = host_.held_weights;
  if (pass != UpdatePass::kRedo && pass != UpdatePass::kDrain)
    for (std::size_t i = 0; i < host_.runs.size(); ++i)
      if (is_delayed ? host_.runs[i].from_update : host_.runs[i].into_update)
        resident_[at(host_.runs[i].unit)] = host_.run_buffers[i];
  collect();
}

void TileEmitter::collect() {
  const bool redo = pass_ == UpdatePass::kRedo;
  const bool beside_delayed = pass_ == UpdatePass::kAfterNorm && in_.timeline->any_delayed();
  const bool is_second = redo || pass_ == UpdatePass::kDrain || beside_delayed;
  const std::vector<BufferId>& ring = is_second ? host_.second_ring : host_.ring;
  const std::vector<BufferId>& resident = pass_ == UpdatePass::kDelayed ? host_.held_weights : resident_;
  const bool again = !redo || facts_.input->can_clip;  // else the redo only brings back what is held
  std::size_t in_ring = 0;
  for (std::size_t order = 0; order < units_.size(); ++order) {
    const UnitId u = units_[order];
    for (std::int64_t t = 0; t < facts_.unit(u).tiles; ++t) {
      Tile tile;
      tile.order = order;
      tile.unit = u;
      tile.tile = t;
      if (again) tile.needs = tile_needs(facts_, choices_, u, t, resident[at(u)] != kNoBuffer, pass_);
      tile.restore_weights = redo && facts_.nvme_weights && resident_[at(u)] != kNoBuffer;
      tile.restore_optimizer = redo && facts_.nvme_optimizer && host_.held_optimizer[at(u)][at(t)] != kNoBuffer;
      if (tile.needs.any_buffer()) {
        HEADRACE_CHECK(!ring.empty(), "tiles that pass through memory have a buffer");
        tile.ring = ring[in_ring++ % ring.size()];
      }
      tile.in_pipeline =
          tile.ring != kNoBuffer || tile.needs.any_read() || tile.restore_weights || tile.restore_optimizer;
      if (tile.in_pipeline) pipeline_.push_back(tiles_.size());
      tiles_.push_back(tile);
    }
  }
  window_ = ring.empty() ? at(choices_.tile_buffers) : ring.size();
}

TileEmitter::Places TileEmitter::places(const Tile& tile) const {
  const TileFacts& sizes = facts_.tile(tile.unit, tile.tile);
  const PlanInput& input = *facts_.input;
  Places places;
  Bytes next = 0;
  const auto in_ring = [&](bool needed, Place& place, Bytes bytes) {
    if (!needed) return;
    place = {host_id(tile.ring), next};
    next += bytes;
  };
  const std::int64_t first = tile.tile * input.tile_elements;
  places.weights = {host_id(resident_[at(tile.unit)]), first * dtype_bytes(input.weights_dtype)};
  places.optimizer = {host_id(host_.held_optimizer[at(tile.unit)][at(tile.tile)]), 0};
  places.gradient = {host_id(host_.gradients[at(tile.unit)].back()), first * dtype_bytes(input.gradient_dtype)};
  in_ring(tile.needs.buffer_optimizer, places.optimizer, sizes.optimizer);
  in_ring(tile.needs.buffer_weights, places.weights, sizes.weights);
  in_ring(tile.needs.buffer_gradient, places.gradient, sizes.gradient);
  return places;
}

void TileEmitter::issue_first(bool gradients_known) { issue(gradients_known); }

void TileEmitter::open_units(std::size_t count) {
  open_units_ = count;
  issue(true);
}

// Reads as far ahead of the updates as the ring goes.
void TileEmitter::issue(bool gradients_known) {
  while (issued_ < std::min(updated_ + window_, pipeline_.size())) {
    const Tile& tile = tiles_[pipeline_[issued_]];
    if (tile.order >= open_units_ || (!gradients_known && tile.needs.buffer_gradient)) return;
    ++issued_;
    read_tile(tile);
  }
}

void TileEmitter::read_tile(const Tile& tile) {
  if (!tile.needs.any_read() && !tile.restore_weights && !tile.restore_optimizer) return;
  const TileFacts& sizes = facts_.tile(tile.unit, tile.tile);
  const Places place = places(tile);
  Operation& read = add_operation(operations_, OperationKind::kReadState, Lane::kNvmeRead, tile.unit);
  read.tile = tile.tile;
  const auto part = [&](bool needed, Role role, const Place& where, Bytes bytes) {
    if (!needed) return;
    add_use(read, role, where.buffer, where.offset, bytes, Access::kOverwrite);
    read.bytes += facts_.disk(bytes);
  };
  part(tile.needs.buffer_optimizer || tile.restore_optimizer, Role::kOptimizer, place.optimizer, sizes.optimizer);
  part(tile.needs.read_weights || tile.restore_weights, Role::kWeights, place.weights, sizes.weights);
  part(tile.needs.buffer_gradient, Role::kGradient, place.gradient, sizes.gradient);
  if (tile.needs.buffer_gradient && !last_spill_.empty()) read.dependencies.push_back(last_spill_[at(tile.unit)]);
  if (commit_ >= 0) read.dependencies.push_back(commit_);
}

void TileEmitter::update_next_unit(OperationId after) {
  const UnitId unit = units_[next_unit_++];
  for (; next_tile_ < tiles_.size() && tiles_[next_tile_].unit == unit; ++next_tile_) {
    const Tile& tile = tiles_[next_tile_];
    update_tile(tile, after);
    if (!tile.in_pipeline) continue;
    ++updated_;
    issue(true);
  }
}

void TileEmitter::update_all(OperationId after) {
  while (next_unit_ < units_.size()) update_next_unit(after);
}

// State at home in memory goes to its second copy before an early update, and comes back from there.
void TileEmitter::copy_state(const Tile& tile, const Places& places, bool restore) {
  const TileFacts& sizes = facts_.tile(tile.unit, tile.tile);
  const auto copy = [&](Role role, const Place& place, BufferId old, Bytes offset, Bytes bytes) {
    if (old == kNoBuffer) return;
    Operation& op = add_operation(operations_, OperationKind::kCopyState, Lane::kCpuOptimizer, tile.unit);
    op.tile = tile.tile;
    add_use(op, role, place.buffer, place.offset, bytes, restore ? Access::kOverwrite : Access::kRead);
    add_use(op, Role::kOldState, host_id(old), offset, bytes, restore ? Access::kRead : Access::kOverwrite);
    last_update_ = last_id();
  };
  copy(Role::kWeights, places.weights, host_.old_weights[at(tile.unit)], places.weights.offset, sizes.weights);
  copy(Role::kOptimizer, places.optimizer, host_.old_optimizer[at(tile.unit)],
       tile.tile * facts_.unit(tile.unit).full_tile.optimizer, sizes.optimizer);
}

void TileEmitter::update_tile(const Tile& tile, OperationId after) {
  const TileFacts& sizes = facts_.tile(tile.unit, tile.tile);
  const Places place = places(tile);
  if (pass_ == UpdatePass::kEarly || pass_ == UpdatePass::kRedo) copy_state(tile, place, pass_ == UpdatePass::kRedo);
  if (pass_ == UpdatePass::kRedo && !facts_.input->can_clip) return;
  Operation& update = add_operation(operations_, OperationKind::kUpdate, Lane::kCpuOptimizer, tile.unit);
  update.tile = tile.tile;
  if (after >= 0) update.dependencies.push_back(after);
  add_use(update, Role::kOptimizer, place.optimizer.buffer, place.optimizer.offset, sizes.optimizer, Access::kUpdate);
  add_use(update, Role::kWeights, place.weights.buffer, place.weights.offset, sizes.weights,
          facts_.unit(tile.unit).update_reads_weights ? Access::kUpdate : Access::kOverwrite);
  add_use(update, Role::kGradient, place.gradient.buffer, place.gradient.offset, sizes.gradient, Access::kRead);
  last_update_ = last_id();
  if (facts_.any_nvme) write_tile(tile, place);
}

void TileEmitter::write_tile(const Tile& tile, const Places& place) {
  const TileFacts& sizes = facts_.tile(tile.unit, tile.tile);
  Operation& write = add_operation(operations_, OperationKind::kWriteState, Lane::kNvmeWrite, tile.unit);
  write.tile = tile.tile;
  if (commit_ >= 0) write.dependencies.push_back(commit_);
  const auto part = [&](bool needed, Role role, const Place& where, Bytes bytes) {
    if (!needed) return;
    add_use(write, role, where.buffer, where.offset, bytes, Access::kRead);
    write.bytes += facts_.disk(bytes);
  };
  part(facts_.nvme_optimizer, Role::kOptimizer, place.optimizer, sizes.optimizer);
  part(facts_.nvme_weights, Role::kWeights, place.weights, sizes.weights);
}

}  // namespace headrace::runtime::planning
