// SPDX-License-Identifier: Apache-2.0
// What the times of a step's operations say, simulated or measured: where the time went in which nothing computed, and
// how full each tier was when. Pure functions of a plan and times.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/simulate.h"

namespace headrace::runtime {

// Why neither driver nor optimizer worked.
enum class Waiting : std::uint8_t {
  kStart,    // the step's first reads: nothing can be computed yet
  kRead,     // NVMe reads that are under way
  kBuffer,   // a read that could not begin: its buffer was still in use
  kWrite,    // NVMe writes that keep a buffer in use
  kNetwork,  // a collective
  kNorm,     // the global norm
  kEnd,      // the last writes and the commit
  kOther,
};
inline constexpr int kNumWaitings = 8;
[[nodiscard]] const char* waiting_name(Waiting waiting) noexcept;  // "a read", "a free buffer", …

struct Waited {
  Waiting waiting = Waiting::kOther;
  double seconds = 0;
};
// Largest first; the sum is the step less the time in which something was computed, updated or copied. `collectives`
// is empty for one rank.
[[nodiscard]] std::vector<Waited> where_time_went(const Plan& plan, const std::vector<OperationTime>& times,
                                                  const std::vector<CollectiveTime>& collectives, double step_seconds);

struct MemoryPoint {
  double seconds = 0;
  Bytes bytes = 0;  // in buffers that are in use from this time on
};
// Ascending in time; the first point is at 0. Buffers that are held count always, the others from the first operation
// that touches them to the last.
[[nodiscard]] std::vector<MemoryPoint> memory_over_time(const Plan& plan, const std::vector<OperationTime>& times,
                                                        Tier tier);

}  // namespace headrace::runtime
