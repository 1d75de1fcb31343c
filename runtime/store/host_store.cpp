// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/host_store.h"

#include <fmt/format.h>

#include <cstring>

#include "core/check.h"

namespace headrace::runtime {

void HostStore::add(const TileId& id, std::byte* data, Bytes bytes) {
  auto& tiles = units_[static_cast<std::size_t>(id.unit)].streams[static_cast<std::size_t>(id.stream)];
  const auto index = static_cast<std::size_t>(id.tile);
  if (tiles.size() <= index) tiles.resize(index + 1);
  HEADRACE_CHECK(tiles[index].data == nullptr, "a tile was added twice");
  tiles[index].data = data;
  tiles[index].bytes = bytes;
}

Result<HostStore::Tile*> HostStore::find(const TileId& id) {
  if (static_cast<std::size_t>(id.unit) < units_.size()) {
    auto& tiles = units_[static_cast<std::size_t>(id.unit)].streams[static_cast<std::size_t>(id.stream)];
    if (static_cast<std::size_t>(id.tile) < tiles.size() && tiles[static_cast<std::size_t>(id.tile)].data != nullptr)
      return &tiles[static_cast<std::size_t>(id.tile)];
  }
  return make_error(ErrorCode::kIo, fmt::format("unit {} tile {}: not kept in host memory", id.unit, id.tile));
}

Result<io::Ticket> HostStore::load(std::span<const TileMove> moves, std::uint64_t version, io::CompletionSink sink) {
  for (const TileMove& move : moves) {
    HEADRACE_TRY(const Tile* tile, find(move.id));
    if (tile->version != version)
      return make_error(ErrorCode::kIo,
                        tile->version == kNeverStored
                            ? fmt::format("unit {} tile {}: never stored", move.id.unit, move.id.tile)
                            : fmt::format("unit {} tile {}: version {} asked for, version {} is current", move.id.unit,
                                          move.id.tile, version, tile->version));
    if (move.data != tile->data) std::memcpy(move.data, tile->data, static_cast<std::size_t>(tile->bytes));
  }
  if (sink.notify != nullptr) sink.notify(sink.context, sink.tag);
  return io::Ticket();
}

Result<io::Ticket> HostStore::store(std::span<const TileMove> moves, std::uint64_t version, io::CompletionSink sink) {
  for (const TileMove& move : moves) {
    HEADRACE_TRY(Tile* const tile, find(move.id));
    if (move.data != tile->data) std::memcpy(tile->data, move.data, static_cast<std::size_t>(tile->bytes));
    tile->version = version;
  }
  if (sink.notify != nullptr) sink.notify(sink.context, sink.tag);
  return io::Ticket();
}

Result<void> HostStore::commit(std::uint64_t) { return {}; }

}  // namespace headrace::runtime
