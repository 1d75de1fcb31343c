// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/trace.h"

#include <algorithm>
#include <array>
#include <map>

namespace headrace::runtime {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

bool does_arithmetic(const Operation& operation) {
  return operation.lane == Lane::kCompute || operation.lane == Lane::kCpuOptimizer ||
         operation.lane == Lane::kDeviceToHost || operation.lane == Lane::kHostToDevice;
}

class Gaps {
 public:
  Gaps(const Plan& plan, const std::vector<OperationTime>& times, const std::vector<CollectiveTime>& collectives)
      : plan_(plan), times_(times) {
    for (const CollectiveTime& collective : collectives)
      if (collective.use.is_gather) {
        double& end = gathered_[collective.use.first];
        end = std::max(end, collective.time.end);
      }
  }

  std::vector<Waited> find(double step_seconds) {
    std::vector<OperationId> order;
    for (std::size_t i = 0; i < plan_.operations.size(); ++i)
      if (does_arithmetic(plan_.operations[i]) && times_[i].end > times_[i].start)
        order.push_back(static_cast<OperationId>(i));
    std::stable_sort(order.begin(), order.end(),
                     [&](OperationId a, OperationId b) { return times_[at(a)].start < times_[at(b)].start; });
    double covered = 0;
    for (const OperationId id : order) {
      if (times_[at(id)].start > covered) explain(id, covered, times_[at(id)].start);
      covered = std::max(covered, times_[at(id)].end);
    }
    add(Waiting::kEnd, step_seconds - covered);
    std::vector<Waited> result;
    for (int i = 0; i < kNumWaitings; ++i)
      if (sums_[at(i)] > 0) result.push_back({static_cast<Waiting>(i), sums_[at(i)]});
    std::stable_sort(result.begin(), result.end(),
                     [](const Waited& a, const Waited& b) { return a.seconds > b.seconds; });
    return result;
  }

 private:
  void add(Waiting waiting, double seconds) {
    if (seconds > 0) sums_[at(static_cast<int>(waiting))] += seconds;
  }

  [[nodiscard]] OperationId latest_dependency(const Operation& op) const {
    OperationId latest = -1;
    for (const OperationId id : op.dependencies)
      if (latest < 0 || times_[at(id)].end >= times_[at(latest)].end) latest = id;
    return latest;
  }

  // Nothing computed from `begin` until `id` could start at `end`.
  void explain(OperationId id, double begin, double end) {
    if (begin == 0) return add(Waiting::kStart, end);
    const Operation& op = plan_.operations[at(id)];
    const OperationId latest = latest_dependency(op);
    const auto gathered = gathered_.find(id);
    if (gathered != gathered_.end() && (latest < 0 || gathered->second > times_[at(latest)].end))
      return add(Waiting::kNetwork, end - begin);
    if (latest < 0) return add(Waiting::kOther, end - begin);
    const Operation& waited = plan_.operations[at(latest)];
    if (waited.kind == OperationKind::kNorm) return add(Waiting::kNorm, end - begin);
    if (waited.lane == Lane::kNvmeWrite) return add(Waiting::kWrite, end - begin);
    if (waited.lane != Lane::kNvmeRead) return add(Waiting::kOther, end - begin);
    const double started = std::clamp(times_[at(latest)].start, begin, end);
    add(Waiting::kRead, end - started);
    add(Waiting::kBuffer, started - begin);
  }

  const Plan& plan_;
  const std::vector<OperationTime>& times_;
  std::map<OperationId, double> gathered_;  // a stage's first computation: when its weights were there
  std::array<double, kNumWaitings> sums_{};
};

}  // namespace

const char* waiting_name(Waiting waiting) noexcept {
  switch (waiting) {
    case Waiting::kStart: return "the first read";
    case Waiting::kRead: return "a read";
    case Waiting::kBuffer: return "a free buffer";
    case Waiting::kWrite: return "a write";
    case Waiting::kNetwork: return "the network";
    case Waiting::kNorm: return "the norm";
    case Waiting::kEnd: return "the last writes and the commit";
    case Waiting::kOther: break;
  }
  return "another lane";
}

std::vector<Waited> where_time_went(const Plan& plan, const std::vector<OperationTime>& times,
                                    const std::vector<CollectiveTime>& collectives, double step_seconds) {
  return Gaps(plan, times, collectives).find(step_seconds);
}

std::vector<MemoryPoint> memory_over_time(const Plan& plan, const std::vector<OperationTime>& times, Tier tier) {
  struct Use {
    double begin = 0, end = -1;
  };
  std::vector<Use> uses(plan.buffers.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i)
    for (const BufferUse& use : plan.operations[i].uses) {
      if (use.buffer == kNoBuffer) continue;
      Use& span = uses[at(use.buffer)];
      if (span.end < 0) span.begin = times[i].start;
      span.begin = std::min(span.begin, times[i].start);
      span.end = std::max(span.end, times[i].end);
    }
  std::map<double, Bytes> changes{{0.0, 0}};
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.tier != tier) continue;
    if (buffer.held) {
      changes[0.0] += buffer.bytes;
    } else if (uses[i].end >= 0) {
      changes[uses[i].begin] += buffer.bytes;
      changes[uses[i].end] -= buffer.bytes;
    }
  }
  std::vector<MemoryPoint> points;
  Bytes bytes = 0;
  for (const auto& [seconds, change] : changes) {
    bytes += change;
    if (points.empty() || change != 0) points.push_back({seconds, bytes});
  }
  return points;
}

}  // namespace headrace::runtime
