// SPDX-License-Identifier: Apache-2.0
// Internal to runtime/engine: memory of its own for one tile on its way in or out, and waiting for its moves.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
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
  explicit TileRoom(const PlanInput& input) : own(AlignedBytes(bytes(input), input.alignment)) {
    divide(input, own->data.get());
  }
  // In bytes() of memory that stays the caller's, aligned as the plan says.
  TileRoom(const PlanInput& input, std::byte* memory) { divide(input, memory); }
  static Bytes bytes(const PlanInput& input) {
    return weight_bytes(input) + round_up(largest_payload(input), input.alignment);
  }
  static Bytes largest_payload(const PlanInput& input) {
    Bytes bytes = 0;
    for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit)
      if (num_tiles(input, unit) > 0) bytes = std::max(bytes, optimizer_layout(input, unit, 0).bytes);
    return bytes;
  }

  std::byte* weights = nullptr;
  std::byte* optimizer = nullptr;
  std::vector<io::Ticket> tickets;

 private:
  static Bytes weight_bytes(const PlanInput& input) {
    return round_up(input.tile_elements * dtype_bytes(input.weights_dtype), input.alignment);
  }
  void divide(const PlanInput& input, std::byte* memory) {
    weights = memory;
    optimizer = memory + weight_bytes(input);
  }
  std::optional<AlignedBytes> own;
};

[[nodiscard]] bool is_frozen(const UnitInfo& unit) noexcept;  // has nothing to train
// Waits for every ticket and empties the list; the first error.
[[nodiscard]] Result<void> wait_all(std::vector<io::Ticket>& tickets);

}  // namespace headrace::runtime
