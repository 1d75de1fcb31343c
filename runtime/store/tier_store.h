// SPDX-License-Identifier: Apache-2.0
// The seam to a tier that keeps tiles: host memory or NVMe. A tile is stored under a version (the step that wrote it)
// and can be loaded only at the version it was stored with, so that stale or torn state is an error and never a bad
// loss curve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/result.h"
#include "io/ticket.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

struct TileId {
  UnitId unit = 0;
  StateStream stream = StateStream::kWeights;
  std::int64_t tile = 0;
};

// `data` is the caller's, aligned to PlanInput::alignment, with room for the payload rounded up to that alignment, and
// must outlive the ticket.
struct TileMove {
  TileId id;
  std::byte* data = nullptr;
};

// Thread-safe for distinct tiles. One tile is never loaded and stored at once (the plan orders that).
class TierStore {
 public:
  virtual ~TierStore() = default;

  // Loads tiles at `version`; kIo error at once, naming the tile, when the store does not have that version of it (the
  // sink is not notified then); faults of the move itself are the ticket's.
  [[nodiscard]] virtual Result<io::Ticket> load(std::span<const TileMove> moves, std::uint64_t version,
                                                io::CompletionSink sink) = 0;
  // Stores tiles as `version`. The version last committed stays loadable until commit() where the tile has two slots.
  [[nodiscard]] virtual Result<io::Ticket> store(std::span<const TileMove> moves, std::uint64_t version,
                                                 io::CompletionSink sink) = 0;
  // Makes everything stored as `version` the current state. Every store must have completed.
  [[nodiscard]] virtual Result<void> commit(std::uint64_t version) = 0;
};

}  // namespace headrace::runtime
