// SPDX-License-Identifier: Apache-2.0
// The dry run of a plan: the proof that its lane orders cannot deadlock.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/plan/compile.h"

namespace headrace::runtime {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

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
        lane_time[lane] = end[at(lanes[lane][next[lane]])] = start + cost_of(plan, op, rates).seconds;
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
