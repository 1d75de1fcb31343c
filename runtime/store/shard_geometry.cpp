// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/shard_geometry.h"

#include <algorithm>

#include "core/check.h"

namespace headrace::runtime {

namespace {

bool is_frozen(const UnitInfo& unit) {
  return std::all_of(unit.tensors.begin(), unit.tensors.end(), [](const TensorInfo& tensor) { return tensor.frozen; });
}

Bytes payload_of(const PlanInput& input, StateStream stream, UnitId unit, std::int64_t tile) {
  const std::int64_t length = tile_length(input, unit, tile);
  switch (stream) {
    case StateStream::kWeights: return length * dtype_bytes(input.weights_dtype);
    case StateStream::kOptimizer: return optimizer_layout(input, unit, tile).bytes;
    case StateStream::kGradient: return length * dtype_bytes(input.gradient_dtype);
    case StateStream::kBoundary:
    case StateStream::kSaved: break;  // of micro-batches
  }
  return 0;
}

ShardGeometry::Stream stream_of(const PlanInput& input, UnitId unit, StateStream stream, std::int32_t slots,
                                ShardGeometry::Kind kind) {
  const std::int64_t tiles = num_tiles(input, unit);
  ShardGeometry::Stream result;
  result.unit = unit;
  result.stream = stream;
  result.tiles = tiles;
  result.slots = slots;
  result.kind = kind;
  if (tiles > 0) {
    result.tile_payload_bytes = payload_of(input, stream, unit, 0);
    result.last_tile_payload_bytes = payload_of(input, stream, unit, tiles - 1);
  }
  return result;
}

}  // namespace

ShardGeometry ShardGeometry::of_state(const PlanInput& input, std::int32_t slots) {
  ShardGeometry geometry;
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    const bool frozen = is_frozen(input.model.units[static_cast<std::size_t>(unit)]);
    if (input.weights_home == Home::kNvme)
      geometry.add(
          stream_of(input, unit, StateStream::kWeights, frozen ? 1 : slots, frozen ? Kind::kFrozen : Kind::kTrained));
    if (input.optimizer_home == Home::kNvme && !frozen)
      geometry.add(stream_of(input, unit, StateStream::kOptimizer, slots, Kind::kTrained));
  }
  return geometry;
}

ShardGeometry ShardGeometry::of_spill(const Plan& plan) {
  ShardGeometry geometry;
  for (UnitId unit = 0; unit < static_cast<UnitId>(plan.input.model.units.size()); ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    if (plan.gradient_spilled[u])
      geometry.add(stream_of(plan.input, unit, StateStream::kGradient, 1, Kind::kTransient));
    const auto add_activations = [&](Tier tier, StateStream stream, Bytes bytes) {
      if (tier == Tier::kNvme) geometry.add({unit, stream, plan.input.group_size, bytes, bytes, 1, Kind::kTransient});
    };
    add_activations(plan.boundary_tier[u], StateStream::kBoundary, plan.input.model.units[u].output_bytes);
    add_activations(plan.saved_tier[u], StateStream::kSaved, plan.input.model.units[u].saved_bytes);
  }
  return geometry;
}

void ShardGeometry::add(Stream stream) {
  const std::size_t position = key(stream.unit, stream.stream);
  if (index_by_unit_.size() <= position) index_by_unit_.resize(position + 1, -1);
  index_by_unit_[position] = static_cast<std::int32_t>(streams_.size());
  first_tile_.push_back(total_tiles_);
  total_tiles_ += stream.tiles;
  streams_.push_back(stream);
}

bool ShardGeometry::has(UnitId unit, StateStream stream) const noexcept {
  const std::size_t position = key(unit, stream);
  return position < index_by_unit_.size() && index_by_unit_[position] >= 0;
}

std::uint32_t ShardGeometry::stream_index(UnitId unit, StateStream stream) const {
  HEADRACE_CHECK(has(unit, stream), "the store does not keep this stream");
  return static_cast<std::uint32_t>(index_by_unit_[key(unit, stream)]);
}

std::int64_t ShardGeometry::tile_index(std::uint32_t stream, std::int64_t tile) const {
  return first_tile_[stream] + tile;
}

Bytes ShardGeometry::payload_bytes(std::uint32_t stream, std::int64_t tile) const {
  const Stream& s = streams_[stream];
  return tile + 1 == s.tiles ? s.last_tile_payload_bytes : s.tile_payload_bytes;
}

io::VolumeGeometry ShardGeometry::volume_geometry(Bytes record_payload_bytes) const {
  io::VolumeGeometry geometry;
  geometry.record_payload_bytes = record_payload_bytes;
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    const Stream& s = streams_[i];
    geometry.streams.push_back({i, s.tiles, s.tile_payload_bytes, s.last_tile_payload_bytes, s.slots});
  }
  return geometry;
}

}  // namespace headrace::runtime
