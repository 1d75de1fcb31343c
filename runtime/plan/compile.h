// SPDX-License-Identifier: Apache-2.0
// The plan compiler and its independent checker: pure functions of their inputs.
#pragma once

#include "core/result.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

// kDoesNotFit with the smallest budgets that work (which then do work), naming what needs them; kConfig for
// contradictions.
[[nodiscard]] Result<Plan> compile_plan(const PlanInput& input);

// Shares no code with the compiler. Proves for the step and the evaluation pass: dependencies point backwards and no
// lane order deadlocks; any two operations that touch overlapping bytes, one of them writing, are ordered; every read
// sees the version it should (old weights until the unit's update, every micro-batch's gradient exactly once, …); held
// buffers overlap nothing; offsets are aligned and within the slabs; budgets hold; bytes per step are the sum over the
// operations. First fault as message.
[[nodiscard]] Result<void> check_plan(const Plan& plan);

// Rates of the machine, measured alone at start or read from a hardware file.
struct Rates {
  std::vector<double> forward_seconds;   // per unit and micro-batch, in memory
  std::vector<double> backward_seconds;  // without recompute
  double update_seconds_per_element = 0;
  double gradient_out_seconds_per_element = 0;
  double copy_bytes_per_s = 0;  // host to device where copies are made
  double read_bytes_per_s = 0, write_bytes_per_s = 0, mixed_bytes_per_s = 0;
  double io_cpu_seconds_per_byte = 0;  // of one core
  int cores = 1;
};

// The least time the step can take: the largest total work of one resource at its rate (design §2 "the number that
// matters").
struct Bound {
  double cores_seconds = 0;  // compute + optimizer + gradients + copies + CPU time of I/O
  double compute_seconds = 0, optimizer_seconds = 0, io_cpu_seconds = 0, copy_seconds = 0;
  double disk_seconds = 0;  // max(R/B_r, W/B_w, (R+W)/B_mixed)
  [[nodiscard]] double seconds() const noexcept { return cores_seconds > disk_seconds ? cores_seconds : disk_seconds; }
  [[nodiscard]] const char* resource() const noexcept { return cores_seconds > disk_seconds ? "cores" : "disk"; }
};
[[nodiscard]] Bound bound_of(const Plan& plan, const Rates& rates);

// Runs the operations on a virtual clock, one at a time per lane; gives the makespan. Fails where the lane orders
// deadlock.
[[nodiscard]] Result<double> dry_run(const Plan& plan, const Rates& rates);

}  // namespace headrace::runtime
