// SPDX-License-Identifier: Apache-2.0
// Internal to runtime/engine: memory of its own for one tile on its way in or out, and waiting for its moves.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "core/check.h"
#include "core/result.h"
#include "io/ticket.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

struct AlignedBytes {
  explicit AlignedBytes(Bytes bytes, Bytes alignment)
      : data(static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(alignment),
                                                        static_cast<std::size_t>(round_up(bytes, alignment))))) {
    HEADRACE_CHECK(data != nullptr, "out of memory for a tile");
  }
  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data;
};

// Room for one tile's weights and optimizer payloads.
struct TileRoom {
  explicit TileRoom(const PlanInput& input)
      : weights(input.tile_elements * dtype_bytes(input.weights_dtype), input.alignment),
        optimizer(optimizer_layout(input, input.tile_elements).bytes, input.alignment) {}
  AlignedBytes weights, optimizer;
  std::vector<io::Ticket> tickets;
};

[[nodiscard]] bool is_frozen(const UnitInfo& unit) noexcept;  // has nothing to train
// Waits for every ticket and empties the list; the first error.
[[nodiscard]] Result<void> wait_all(std::vector<io::Ticket>& tickets);

}  // namespace headrace::runtime
