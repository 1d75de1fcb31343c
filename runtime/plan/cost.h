// SPDX-License-Identifier: Apache-2.0
// What an operation of a plan costs on a machine: the rates of its parts, measured or read from a hardware file, the
// time and the share of each resource that one operation takes alone, and the bound that follows from the sums. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/plan.h"

namespace headrace::runtime {

// The network of a job of several ranks. A collective over ranks of one machine uses its links, one over several
// machines is bound by the slower of both.
struct Network {
  int ranks_per_node = 1;
  double intra_bytes_per_s = 0;  // per rank and direction, within a machine; 0 = none
  double inter_bytes_per_s = 0;  // per rank and direction, between machines; 0 = none
  double latency_seconds = 0;    // of one hop
};

// Rates of the machine, measured alone at start or read from a hardware file. Those of host and disks are one rank's
// share where several ranks use a machine.
struct Rates {
  std::vector<double> forward_seconds;         // per unit and micro-batch, in memory
  std::vector<double> backward_seconds;        // without recompute
  double update_seconds_per_element = 0;       // without the matrices of Muon …
  double update_seconds_per_product_flop = 0;  // … whose updates take this for all that they do
  double gradient_out_seconds_per_element = 0;
  double copy_bytes_per_s = 0;  // host to device where copies are made
  double read_bytes_per_s = 0, write_bytes_per_s = 0, mixed_bytes_per_s = 0;
  double io_cpu_seconds_per_byte = 0;  // of one core
  int cores = 1;                       // threads that compute
  // What a simulation takes into account where it is known; 0 = not known, and without effect.
  int machine_cores = 0;  // that the process may use; fewer than `cores` means `cores`
  double read_latency_seconds = 0, write_latency_seconds = 0;
  double commit_seconds = 0;      // of the commit record
  double memory_bytes_per_s = 0;  // of host memory, all traffic together
  // A device with arithmetic and memory of its own, behind a link that carries both directions at once.
  bool has_device = false;
  double d2h_bytes_per_s = 0;  // copy_bytes_per_s is the other direction
  double link_latency_seconds = 0;
  Network network;
};

// One rank's view of a job of several: what collectives move, per unit. Empty for one rank.
struct Collectives {
  int world_size = 1;
  int units_in_flight = 2;  // gathered beside each other: one computes, the others come; 1 = one after the other
  std::vector<Bytes> weights_bytes;   // of the whole unit, gathered before each visit
  std::vector<Bytes> gradient_bytes;  // of the whole unit, reduced and scattered after its last micro-batch of a group
};

// One collective of a step: a stage (a unit visited in a pass by one group) gathers the weights that it reads before
// its first computation, and a backward stage reduces and scatters the gradients that it made after its last.
struct CollectiveUse {
  bool is_gather = false;
  UnitId unit = -1;
  std::int32_t stage = 0;             // counted over both passes
  OperationId first = -1, last = -1;  // of the stage's computations
  Bytes bytes = 0;
};
// In the order of the collective lane: a stage's gather stands before the scatter of the stage before it.
[[nodiscard]] std::vector<CollectiveUse> collective_uses(const Plan& plan, const Collectives& collectives);

// An operation alone on the machine.
struct OperationCost {
  double seconds = 0;       // without latency
  double latency = 0;       // added once, while the lane may already serve the next operation
  double threads = 0;       // cores that it keeps busy while it runs
  double memory_bytes = 0;  // of host memory traffic, all in all
  Bytes disk_bytes = 0;
};
[[nodiscard]] OperationCost cost_of(const Plan& plan, const Operation& operation, const Rates& rates);
// What reads and writes get while both run: half of the mixed rate each, or the rest where one cannot use its half.
[[nodiscard]] std::pair<double, double> mixed_rates(const Rates& rates);

// Seconds of an all-gather that leaves `bytes` on every rank, or of a reduce-scatter that starts from them: over a ring
// (each rank passes on (n-1)/n of them in n-1 hops) or a tree (log2 n hops, the same bytes), whichever is faster.
// Between machines the ranks of each machine first share what they fetch, so that each byte crosses a machine's network
// once.
[[nodiscard]] double collective_seconds(Bytes bytes, int world_size, const Network& network);
// Seconds of an all-reduce of one small value: latency alone, there and back over a tree.
[[nodiscard]] double barrier_seconds(int world_size, const Network& network);

// The least time the step can take: the largest total work of one resource at its rate (design §2 "the number that
// matters").
struct Bound {
  double cores_seconds = 0;  // compute + optimizer + gradients + copies + CPU time of I/O
  double compute_seconds = 0, optimizer_seconds = 0, io_cpu_seconds = 0;
  double copy_seconds = 0;  // of the copying thread
  double disk_seconds = 0;  // max(R/B_r, W/B_w, both), both the least of (R+W)/B_mixed, taking turns, mixing first
  // Only with a device of its own, whose compute_seconds are then none of the cores'.
  double device_seconds = 0, h2d_seconds = 0, d2h_seconds = 0, network_seconds = 0;
  [[nodiscard]] double seconds() const noexcept;
  [[nodiscard]] const char* resource() const noexcept;  // "cores", "disk", "device", "h2d", "d2h", "network"
};
[[nodiscard]] Bound bound_of(const Plan& plan, const Rates& rates);
[[nodiscard]] Bound bound_of(const Plan& plan, const Rates& rates, const Collectives& collectives);
// Of another list of the plan's operations, which moves so many bytes on NVMe.
[[nodiscard]] Bound bound_of(const Plan& plan, const std::vector<Operation>& operations, Bytes read_bytes,
                             Bytes write_bytes, const Rates& rates);

// The fewest NVMe bytes that any schedule must move in a step of this job when every weight is used once forward and
// once backward and memory keeps `kept_bytes` of state between uses: read >= (1-c)(s+2w), written >= s+w (write-through
// saves no writes), s and w the optimizer's and the weights' bytes, c the kept fraction of s+2w.
struct TrafficFloor {
  double read_bytes = 0, write_bytes = 0;
};
[[nodiscard]] TrafficFloor traffic_floor(const Plan& plan, Bytes kept_bytes);

}  // namespace headrace::runtime
