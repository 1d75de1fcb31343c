// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace headrace::runtime {

namespace {

bool does_arithmetic(const Operation& operation) {
  return operation.lane == Lane::kCompute || operation.lane == Lane::kCpuOptimizer ||
         operation.lane == Lane::kDeviceToHost || operation.lane == Lane::kHostToDevice;
}

// The last operation to end among those that `operation` depends on; what its lane waited for.
const Operation* latest_dependency(const std::vector<Operation>& operations, const RunTimes& times,
                                   const Operation& operation) {
  const Operation* latest = nullptr;
  double end = 0;
  for (const OperationId id : operation.dependencies) {
    const auto i = static_cast<std::size_t>(id);
    if (times.spans[i].end >= end) {
      end = times.spans[i].end;
      latest = &operations[i];
    }
  }
  return latest;
}

}  // namespace

std::vector<std::pair<std::string, double>> lost_seconds(const std::vector<Operation>& operations,
                                                         const RunTimes& times) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < operations.size(); ++i)
    if (does_arithmetic(operations[i])) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return times.spans[a].start < times.spans[b].start; });
  std::map<std::string, double> lost;
  double covered = 0;
  for (const std::size_t i : order) {
    const OperationSpan& span = times.spans[i];
    if (span.start > covered) {
      const Operation* const waited = latest_dependency(operations, times, operations[i]);
      const bool real = waited != nullptr && !does_arithmetic(*waited);
      lost[real ? operation_kind_name(waited->kind) : "hand-over"] += span.start - covered;
    }
    covered = std::max(covered, span.end);
  }
  if (times.seconds > covered) lost["write_state and commit at the end"] += times.seconds - covered;
  std::vector<std::pair<std::string, double>> result(lost.begin(), lost.end());
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

std::string trace_events(const std::vector<Operation>& operations, const RunTimes& times, double start_us) {
  std::string events;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const OperationSpan& span = times.spans[i];
    if (!events.empty()) events += ",\n";
    // Operations of an NVMe lane overlap: each is an asynchronous event of its own, which need not nest.
    const bool overlaps = operation.lane == Lane::kNvmeRead || operation.lane == Lane::kNvmeWrite;
    const double begin = start_us + span.start * 1e6;
    const double length = (span.end - span.start) * 1e6;
    const std::string common =
        fmt::format(R"("pid":1,"tid":{},"cat":"{}","name":"{}")", static_cast<int>(operation.lane),
                    lane_name(operation.lane), describe(operation));
    if (overlaps) {
      events += fmt::format(R"({{"ph":"b","id":{},"ts":{:.1f},{}}},)", i, begin, common);
      events += "\n";
      events += fmt::format(R"({{"ph":"e","id":{},"ts":{:.1f},{}}})", i, begin + length, common);
    } else {
      events += fmt::format(R"({{"ph":"X","ts":{:.1f},"dur":{:.1f},{}}})", begin, length, common);
    }
  }
  return events;
}

}  // namespace headrace::runtime
