// SPDX-License-Identifier: Apache-2.0
// The least time a plan can take, and its dry run on a virtual clock.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "runtime/plan/compile.h"

namespace headrace::runtime {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double over(double amount, double rate) { return amount > 0 && rate > 0 ? amount / rate : 0; }

Bytes copied_bytes(const Operation& op) {
  for (const BufferUse& use : op.uses)
    if (use.role == Role::kDestination) return use.bytes;
  return 0;
}

double compute_seconds(const Operation& op, const Rates& rates) {
  HEADRACE_CHECK(at(op.unit) < rates.forward_seconds.size() && at(op.unit) < rates.backward_seconds.size(),
                 "there is a rate for every unit");
  if (op.kind == OperationKind::kForward) return rates.forward_seconds[at(op.unit)];
  return rates.backward_seconds[at(op.unit)] + (op.recompute ? rates.forward_seconds[at(op.unit)] : 0);
}

double seconds_of(const Plan& plan, const Operation& op, const Rates& rates) {
  switch (op.kind) {
    case OperationKind::kForward:
    case OperationKind::kBackward: return compute_seconds(op, rates);
    case OperationKind::kUpdate:
      return static_cast<double>(tile_length(plan.input, op.unit, op.tile)) * rates.update_seconds_per_element;
    case OperationKind::kGradientOut:
      return static_cast<double>(plan.input.model.units[at(op.unit)].flat_elements) *
             rates.gradient_out_seconds_per_element;
    case OperationKind::kCopyToDevice: return over(static_cast<double>(copied_bytes(op)), rates.copy_bytes_per_s);
    case OperationKind::kReadWeights:
    case OperationKind::kReadState:
    case OperationKind::kReadGradient: return over(static_cast<double>(op.bytes), rates.read_bytes_per_s);
    case OperationKind::kWriteState:
    case OperationKind::kWriteGradient: return over(static_cast<double>(op.bytes), rates.write_bytes_per_s);
    case OperationKind::kNorm:
    case OperationKind::kCommit: return 0;
  }
  return 0;
}

}  // namespace

Bound bound_of(const Plan& plan, const Rates& rates) {
  Bound bound;
  for (const Operation& op : plan.operations) {
    const double seconds = seconds_of(plan, op, rates);
    if (op.lane == Lane::kCompute) bound.compute_seconds += seconds;
    if (op.kind == OperationKind::kUpdate || op.kind == OperationKind::kGradientOut) bound.optimizer_seconds += seconds;
    if (op.kind == OperationKind::kCopyToDevice) bound.copy_seconds += seconds;
  }
  const auto read = static_cast<double>(plan.read_bytes_per_step),
             written = static_cast<double>(plan.write_bytes_per_step);
  bound.io_cpu_seconds = (read + written) * rates.io_cpu_seconds_per_byte / std::max(1, rates.cores);
  bound.cores_seconds = bound.compute_seconds + bound.optimizer_seconds + bound.copy_seconds + bound.io_cpu_seconds;
  bound.disk_seconds = std::max({over(read, rates.read_bytes_per_s), over(written, rates.write_bytes_per_s),
                                 over(read + written, rates.mixed_bytes_per_s)});
  return bound;
}

Result<double> dry_run(const Plan& plan, const Rates& rates) {
  const std::vector<Operation>& operations = plan.operations;
  const auto count = static_cast<OperationId>(operations.size());
  std::array<std::vector<OperationId>, kNumLanes> lanes;
  for (OperationId id = 0; id < count; ++id) {
    lanes[at(static_cast<int>(operations[at(id)].lane))].push_back(id);
    for (const OperationId dependency : operations[at(id)].dependencies)
      if (dependency < 0 || dependency >= count)
        return make_error(ErrorCode::kFailed,
                          fmt::format("operation {} waits for {}, which does not exist", id, dependency));
  }
  std::vector<double> end(at(count), -1);
  std::array<std::size_t, kNumLanes> next{};
  std::array<double, kNumLanes> lane_time{};
  double makespan = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      for (; next[lane] < lanes[lane].size(); ++next[lane], moved = true) {
        const Operation& op = operations[at(lanes[lane][next[lane]])];
        double start = lane_time[lane];
        bool ready = true;
        for (const OperationId dependency : op.dependencies) {
          ready = ready && end[at(dependency)] >= 0;
          start = std::max(start, end[at(dependency)]);
        }
        if (!ready) break;
        lane_time[lane] = end[at(lanes[lane][next[lane]])] = start + seconds_of(plan, op, rates);
        makespan = std::max(makespan, lane_time[lane]);
      }
    }
  }
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    if (next[lane] == lanes[lane].size()) continue;
    const OperationId stuck = lanes[lane][next[lane]];
    return make_error(
        ErrorCode::kFailed,
        fmt::format("the plan cannot go on: operation {} ({}) on lane {} waits for ever", stuck,
                    operation_kind_name(operations[at(stuck)].kind), lane_name(operations[at(stuck)].lane)));
  }
  return makespan;
}

}  // namespace headrace::runtime
