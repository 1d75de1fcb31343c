// SPDX-License-Identifier: Apache-2.0
// Dependencies from the bytes that operations touch: a read waits for the last write, a write for the last write and
// for the reads since. That covers data and the reuse of memory alike.
#include <algorithm>
#include <array>
#include <map>

#include "runtime/plan/emit.h"

namespace headrace::runtime::planning {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// On the NVMe lanes an operation starts, but need not end, before the next one starts.
bool is_asynchronous(Lane lane) { return lane == Lane::kNvmeRead || lane == Lane::kNvmeWrite; }

// The last users of every byte of a slab.
class Accesses {
 public:
  explicit Accesses(const std::vector<Operation>& operations) : operations_(operations) { segments_[0] = {}; }

  void touch(OperationId id, Bytes begin, Bytes end, bool write, std::vector<OperationId>& dependencies) {
    split(begin);
    split(end);
    const auto last = segments_.find(end);
    for (auto it = segments_.find(begin); it != last; ++it) {
      Segment& segment = it->second;
      if (segment.writer >= 0) dependencies.push_back(segment.writer);
      if (!write) {
        add_reader(segment, id);
        continue;
      }
      dependencies.insert(dependencies.end(), segment.readers.begin(), segment.readers.end());
    }
    if (!write) return;
    auto first = segments_.find(begin);
    first->second.writer = id;
    first->second.readers.clear();
    segments_.erase(std::next(first), last);  // one segment again
  }

 private:
  struct Segment {
    OperationId writer = -1;
    std::vector<OperationId> readers;  // since the write; of a synchronous lane only the last
  };

  void split(Bytes position) {
    const auto next = segments_.lower_bound(position);
    if (next != segments_.end() && next->first == position) return;
    segments_.emplace_hint(next, position, std::prev(next)->second);
  }

  void add_reader(Segment& segment, OperationId id) {
    const Lane lane = operations_[at(id)].lane;
    for (OperationId& reader : segment.readers) {
      if (operations_[at(reader)].lane != lane || is_asynchronous(lane)) continue;
      reader = id;
      return;
    }
    segment.readers.push_back(id);
  }

  const std::vector<Operation>& operations_;
  std::map<Bytes, Segment> segments_;  // by first byte; the last one is open
};

// Knows what has happened when an operation starts, and drops the dependencies that add nothing.
class Pruner {
 public:
  explicit Pruner(std::size_t operations) : clocks_(operations), waiting_(operations, nothing()) {
    lane_clock_.fill(nothing());
  }

  void prune(Operation& op, OperationId id, const std::vector<Operation>& operations) {
    const auto lane = at(static_cast<int>(op.lane));
    Clock clock = lane_clock_[lane];
    std::sort(op.dependencies.begin(), op.dependencies.end(), std::greater<>());
    op.dependencies.erase(std::unique(op.dependencies.begin(), op.dependencies.end()), op.dependencies.end());
    std::vector<OperationId> kept;
    for (const OperationId dependency : op.dependencies) {
      if (is_implied(dependency, clock, operations)) continue;
      kept.push_back(dependency);
      const Clock& other = clocks_[at(dependency)];
      for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
      if (waiting_[at(dependency)][lane] < 0) waiting_[at(dependency)][lane] = id;
    }
    std::reverse(kept.begin(), kept.end());
    op.dependencies = std::move(kept);
    clock[lane] = id;
    lane_clock_[lane] = clocks_[at(id)] = clock;
  }

 private:
  // Per lane the last operation that is known to be complete; on an asynchronous lane: to have started.
  using Clock = std::array<OperationId, kNumLanes>;
  static Clock nothing() {
    Clock clock;
    clock.fill(-1);
    return clock;
  }

  [[nodiscard]] bool is_implied(OperationId dependency, const Clock& clock,
                                const std::vector<Operation>& operations) const {
    const Lane lane = operations[at(dependency)].lane;
    if (!is_asynchronous(lane)) return clock[at(static_cast<int>(lane))] >= dependency;
    const Clock& waiting = waiting_[at(dependency)];  // it was complete when any of these started
    for (std::size_t i = 0; i < waiting.size(); ++i)
      if (waiting[i] >= 0 && clock[i] >= waiting[i]) return true;
    return false;
  }

  std::vector<Clock> clocks_;   // when the operation is complete
  std::vector<Clock> waiting_;  // per lane: the first operation that waits for it
  std::array<Clock, kNumLanes> lane_clock_;
};

}  // namespace

void add_dependencies(std::vector<Operation>& operations, const std::vector<Buffer>& buffers) {
  Accesses host(operations), device(operations);
  Pruner pruner(operations.size());
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    Operation& op = operations[at(id)];
    std::vector<OperationId> found;
    for (const BufferUse& use : op.uses) {
      if (use.buffer == kNoBuffer || use.bytes == 0) continue;
      const Buffer& buffer = buffers[at(use.buffer)];
      const Bytes begin = buffer.offset + use.offset;
      (buffer.tier == Tier::kDevice ? device : host).touch(id, begin, begin + use.bytes, use.write, found);
    }
    std::copy_if(found.begin(), found.end(), std::back_inserter(op.dependencies),
                 [&](OperationId other) { return other != id; });
    pruner.prune(op, id, operations);
  }
}

}  // namespace headrace::runtime::planning
