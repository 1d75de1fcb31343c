// SPDX-License-Identifier: Apache-2.0
// Small shards for tests of the stores: a plan input with odd tile lengths, aligned payloads whose bytes follow from
// tile and version, and waiting.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/store/shard_geometry.h"
#include "runtime/store/tier_store.h"

namespace headrace::runtime {

template <class T>
std::string text_of(const Result<T>& result) {
  return result.ok() ? "ok" : result.error().to_string();
}

inline UnitInfo make_store_unit(const std::string& name, std::int64_t elements, bool frozen) {
  UnitInfo unit;
  unit.name = name;
  TensorInfo tensor;
  tensor.name = name + ".weight";
  tensor.shape = {elements};
  tensor.frozen = frozen;
  unit.tensors.push_back(tensor);
  lay_out(unit);
  return unit;
}

// Units of one short tile, exactly one tile, two tiles and a bit, and a frozen one of one and a bit.
inline PlanInput make_store_input() {
  PlanInput input;
  input.tile_elements = 4096;
  input.model.units = {make_store_unit("short", 63, false), make_store_unit("whole", 4096, false),
                       make_store_unit("odd", 2 * 4096 + 65, false), make_store_unit("frozen", 4096 + 191, true)};
  return input;
}

inline bool is_trained(const PlanInput& input, const TileId& id) {
  return !input.model.units[static_cast<std::size_t>(id.unit)].tensors.front().frozen;
}

// Every weights and optimizer tile of the input; trained ones alone from the second version on.
inline std::vector<TileId> tiles_of(const PlanInput& input, bool with_frozen) {
  std::vector<TileId> tiles;
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit)
    for (const StateStream stream : {StateStream::kWeights, StateStream::kOptimizer})
      for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile) {
        const TileId id{unit, stream, tile};
        if (is_trained(input, id) || (with_frozen && stream == StateStream::kWeights)) tiles.push_back(id);
      }
  return tiles;
}

inline Bytes payload_bytes_of(const PlanInput& input, const TileId& id) {
  const std::int64_t length = tile_length(input, id.unit, id.tile);
  return id.stream == StateStream::kWeights ? length * dtype_bytes(input.weights_dtype)
                                            : optimizer_layout(input, length).bytes;
}

// Memory of one tile's payload, rounded up to the alignment, all 0xEE at first.
class TilePayload {
 public:
  TilePayload(const PlanInput& input, const TileId& id)
      : id_(id), bytes_(static_cast<std::size_t>(payload_bytes_of(input, id))) {
    const auto extent =
        static_cast<std::size_t>(round_up(static_cast<Bytes>(bytes_), static_cast<Bytes>(input.alignment)));
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(input.alignment), extent)));
    std::memset(memory_.get(), 0xEE, extent);
  }
  TilePayload& fill(std::uint64_t version) {
    const std::vector<std::byte> bytes = expected(version);
    std::memcpy(memory_.get(), bytes.data(), bytes_);
    return *this;
  }
  [[nodiscard]] bool holds(std::uint64_t version) const {
    return std::memcmp(memory_.get(), expected(version).data(), bytes_) == 0;
  }
  [[nodiscard]] TileMove move() const { return {id_, memory_.get()}; }
  [[nodiscard]] const TileId& id() const { return id_; }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] Bytes bytes() const { return static_cast<Bytes>(bytes_); }

 private:
  [[nodiscard]] std::vector<std::byte> expected(std::uint64_t version) const {
    std::mt19937_64 random(version * 1'000'003 + static_cast<std::uint64_t>(id_.unit) * 1009 +
                           static_cast<std::uint64_t>(id_.stream) * 101 + static_cast<std::uint64_t>(id_.tile));
    std::vector<std::byte> bytes(bytes_);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  TileId id_;
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

inline std::vector<TilePayload> payloads_of(const PlanInput& input, const std::vector<TileId>& tiles) {
  std::vector<TilePayload> payloads;
  for (const TileId& id : tiles) payloads.emplace_back(input, id);
  return payloads;
}

inline std::vector<TileMove> moves_of(const std::vector<TilePayload>& payloads) {
  std::vector<TileMove> moves;
  for (const TilePayload& payload : payloads) moves.push_back(payload.move());
  return moves;
}

inline Result<void> wait_for(Result<io::Ticket> ticket) {
  if (!ticket.ok()) return std::move(ticket).error();
  return ticket->wait(std::chrono::steady_clock::now() + std::chrono::minutes(1));
}

// Stores trained tiles (and with version 0 the frozen ones) as `version`, every byte known.
inline Result<void> store_version(const PlanInput& input, TierStore& store, std::uint64_t version) {
  std::vector<TilePayload> payloads = payloads_of(input, tiles_of(input, version == 0));
  for (TilePayload& payload : payloads) payload.fill(version);
  return wait_for(store.store(moves_of(payloads), version, {}));
}

// Loads every trained tile as `version`, and the frozen ones as version 0, one by one; the first fault, named.
inline std::string check_version(const PlanInput& input, TierStore& store, std::uint64_t version) {
  for (const TileId& id : tiles_of(input, true)) {
    const std::uint64_t wanted = is_trained(input, id) ? version : 0;
    TilePayload payload(input, id);
    const TileMove move = payload.move();
    const Result<void> loaded = wait_for(store.load({&move, 1}, wanted, {}));
    if (!loaded.ok()) return loaded.error().to_string();
    if (!payload.holds(wanted))
      return "unit " + std::to_string(id.unit) + " tile " + std::to_string(id.tile) + ": other bytes came back";
  }
  return "ok";
}

}  // namespace headrace::runtime
