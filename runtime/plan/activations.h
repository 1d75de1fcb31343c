// SPDX-License-Identifier: Apache-2.0
// Activations that leave the device after the forward pass and come back before the backward pass: which ones, and at
// what logical times they do so. Private to the compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/residency.h"

namespace headrace::runtime::planning {

// One activation of one micro-batch. Times are those of computations.
struct ActivationMove {
  StateStream stream = StateStream::kBoundary;  // the unit's output, or kSaved
  UnitId unit = -1;
  std::int32_t micro_batch = -1, group = -1;
  Tier tier = Tier::kNvme;
  Bytes bytes = 0, disk_bytes = 0;  // of the buffer
  std::int64_t made = 0;            // by this computation
  std::int64_t out_end = 0;         // until then its device buffer lives …
  std::int64_t staged_end = 0;      // … and the host buffer on its way to NVMe
  std::int64_t read = 0;            // it is read from NVMe just before this computation …
  std::int64_t copied = 0;          // … and copied into the device just before this one
  std::int64_t used = 0;            // by this one
};

// Whether anything else is computed between the last use in the forward pass and the use in the backward pass; without
// that it would come back at once.
[[nodiscard]] bool can_leave(const Facts& facts, const Timeline& timeline, StateStream stream, UnitId unit);
// In the order in which they are made.
[[nodiscard]] std::vector<ActivationMove> activation_moves(const Facts& facts, const Timeline& timeline,
                                                           const Choices& choices);

}  // namespace headrace::runtime::planning
