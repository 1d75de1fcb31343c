// SPDX-License-Identifier: Apache-2.0
// A plan on a virtual clock: every operation of a step starts as soon as its lane has come to it and what it depends on
// is done, as in the executor, and runs as fast as the cores, the disk and the links that it shares with others let it.
// Deterministic and pure. A step begins when the one before has committed, so one step is the steady state.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "runtime/plan/cost.h"

namespace headrace::runtime {

struct OperationTime {  // seconds since the step began
  double start = 0, end = 0;
};

struct CollectiveTime {
  CollectiveUse use;
  OperationTime time;
};

struct Simulation {
  double step_seconds = 0;
  double critical_path_seconds = 0;         // the longest chain of dependencies and lane order, each operation alone
  std::array<double, kNumLanes> busy{};     // with at least one operation in flight
  std::vector<OperationTime> times;         // per operation of the plan
  std::vector<CollectiveTime> collectives;  // of a job of several ranks, in the order of their lane
};

// Resources and how they are shared:
//  cores    every operation that computes on the host asks for so many threads; all threads get equal time until each
//           has what it asks for, and an operation is as fast as its worst-served share. The CPU time of I/O is one
//           more thread.
//  disk     reads at B_r, writes at B_w; while both run they share B_mixed, half each unless one asks for less.
//           One direction serves its operations one after another; a latency delays completion, not the next one.
//  memory   where its rate is known and the sum asked for exceeds it, everybody is slowed by the same factor.
//  links    each direction of the device's link is its lane's alone; so is the network.
// Fails where the lane orders deadlock.
[[nodiscard]] Result<Simulation> simulate(const Plan& plan, const Rates& rates);
[[nodiscard]] Result<Simulation> simulate(const Plan& plan, const Rates& rates, const Collectives& collectives);

}  // namespace headrace::runtime
