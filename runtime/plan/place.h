// SPDX-License-Identifier: Apache-2.0
// Gives buffers with known lifetimes their offsets in a slab. Private to the compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/plan.h"

namespace headrace::runtime::planning {

struct Life {
  // Logical times, both included; of a held buffer without meaning. With begin > end it lives from `begin` into the
  // next step, until `end` there.
  std::int64_t begin = 0, end = 0;

  [[nodiscard]] bool wraps() const noexcept { return begin > end; }
  [[nodiscard]] bool includes(std::int64_t time) const noexcept {
    return wraps() ? time >= begin || time <= end : begin <= time && time <= end;
  }
};

// Fills the offsets: held buffers end to end from 0, the others above them so that no two that live at a common time
// overlap. All sizes must be multiples of the alignment. Returns the slab's bytes. Deterministic.
[[nodiscard]] Bytes place(std::vector<Buffer>& buffers, const std::vector<Life>& lives);

// Bytes alive at the time when most are, and that time.
struct PeakLoad {
  std::int64_t time = 0;
  Bytes bytes = 0;
};
[[nodiscard]] PeakLoad peak_load(const std::vector<Buffer>& buffers, const std::vector<Life>& lives);

}  // namespace headrace::runtime::planning
