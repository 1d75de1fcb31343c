// SPDX-License-Identifier: Apache-2.0
// The host-memory tier: the tiles whose home is host memory, kept in the plan's held buffers. Nothing survives the
// process.
#pragma once

#include <memory>
#include <vector>

#include "runtime/store/tier_store.h"

namespace headrace::runtime {

// Loads and stores are done when the call returns.
class HostStore final : public TierStore {
 public:
  explicit HostStore(std::size_t num_units) : units_(num_units) {}

  // Memory of one tile's payload, [bytes], owned by the plan's slab. Every tile is added before the first load or
  // store.
  void add(const TileId& id, std::byte* data, Bytes bytes);

  [[nodiscard]] Result<io::Ticket> load(std::span<const TileMove> moves, std::uint64_t version,
                                        io::CompletionSink sink) override;
  [[nodiscard]] Result<io::Ticket> store(std::span<const TileMove> moves, std::uint64_t version,
                                         io::CompletionSink sink) override;
  [[nodiscard]] Result<void> commit(std::uint64_t version) override;

 private:
  struct Tile {
    std::byte* data = nullptr;
    Bytes bytes = 0;
    std::uint64_t version = kNeverStored;
  };
  static constexpr std::uint64_t kNeverStored = ~std::uint64_t{0};
  [[nodiscard]] Result<Tile*> find(const TileId& id);

  struct UnitTiles {
    std::vector<Tile> streams[3];
  };
  std::vector<UnitTiles> units_;
};

}  // namespace headrace::runtime
