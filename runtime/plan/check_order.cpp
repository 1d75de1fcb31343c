// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/check_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

namespace headrace::runtime::checking {

namespace {

constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

std::size_t idx(std::int64_t index) { return static_cast<std::size_t>(index); }
std::size_t lane_of(const Operation& op) { return static_cast<std::size_t>(op.lane); }
bool ends_in_order(Lane lane) { return lane != Lane::kNvmeRead && lane != Lane::kNvmeWrite; }

Lane right_lane(OperationKind kind) {
  switch (kind) {
    case OperationKind::kReadWeights:
    case OperationKind::kReadState:
    case OperationKind::kReadGradient:
    case OperationKind::kReadActivation: return Lane::kNvmeRead;
    case OperationKind::kWriteState:
    case OperationKind::kWriteGradient:
    case OperationKind::kWriteActivation:
    case OperationKind::kCommit: return Lane::kNvmeWrite;
    case OperationKind::kActivationIn:
    case OperationKind::kCopyToDevice: return Lane::kHostToDevice;
    case OperationKind::kForward:
    case OperationKind::kBackward: return Lane::kCompute;
    case OperationKind::kActivationOut:
    case OperationKind::kGradientOut: return Lane::kDeviceToHost;
    case OperationKind::kNorm:
    case OperationKind::kCopyState:
    case OperationKind::kUpdate: return Lane::kCpuOptimizer;
  }
  return Lane::kCollective;
}

// Byte ranges of one slab with who wrote them last and who has read them since.
struct Range {
  OperationId writer = -1;
  std::vector<OperationId> readers;
};

class RangeMap {
 public:
  RangeMap() { ranges_[0]; }

  std::pair<std::map<Bytes, Range>::iterator, std::map<Bytes, Range>::iterator> cut(Bytes begin, Bytes end) {
    const auto first = cut_at(begin);
    return {first, cut_at(end)};
  }

 private:
  std::map<Bytes, Range>::iterator cut_at(Bytes where) {
    auto it = std::prev(ranges_.upper_bound(where));
    if (it->first == where) return it;
    return ranges_.emplace(where, it->second).first;
  }
  std::map<Bytes, Range> ranges_;
};

Result<void> check_uses(const Plan& plan, const std::vector<Operation>& operations, OperationId id) {
  const Operation& op = operations[idx(id)];
  std::vector<std::pair<const BufferUse*, std::pair<Bytes, Bytes>>> ranges;
  for (const BufferUse& use : op.uses) {
    if (use.buffer == kNoBuffer) {
      if (use.bytes != 0 || use.read || use.write)
        return fault(fmt::format("{} uses bytes of no buffer", describe(operations, id)));
      continue;
    }
    if (use.buffer < 0 || idx(use.buffer) >= plan.buffers.size())
      return fault(fmt::format("{} uses buffer {}, which does not exist", describe(operations, id), use.buffer));
    const Buffer& buffer = plan.buffers[idx(use.buffer)];
    if (use.offset < 0 || use.bytes < 0 || use.offset + use.bytes > buffer.bytes)
      return fault(fmt::format("{} uses bytes {} … {} of buffer {}, which has {}", describe(operations, id), use.offset,
                               use.offset + use.bytes, use.buffer, buffer.bytes));
    if (!use.read && !use.write)
      return fault(fmt::format("{} neither reads nor writes a buffer", describe(operations, id)));
    const Bytes begin = buffer.offset + use.offset;
    for (const auto& [other, range] : ranges)
      if (plan.buffers[idx(other->buffer)].tier == buffer.tier && (use.write || other->write) && begin < range.second &&
          range.first < begin + use.bytes)
        return fault(fmt::format("{} uses the same bytes twice (buffers {} and {})", describe(operations, id),
                                 other->buffer, use.buffer));
    ranges.push_back({&use, {begin, begin + use.bytes}});
  }
  return {};
}

}  // namespace

std::string describe(const std::vector<Operation>& operations, OperationId id) {
  const Operation& op = operations[idx(id)];
  std::string text = fmt::format("operation {} ({}", id, operation_kind_name(op.kind));
  if (op.unit >= 0) text += fmt::format(" unit {}", op.unit);
  if (op.micro_batch >= 0) text += fmt::format(" micro-batch {}", op.micro_batch);
  if (op.tile >= 0) text += fmt::format(" tile {}", op.tile);
  if (op.group >= 0) text += fmt::format(" group {}", op.group);
  return text + ")";
}

Error fault(std::string message) { return make_error(ErrorCode::kFailed, "the plan is wrong: " + std::move(message)); }

Order::Order(const std::vector<Operation>& operations) : operations_(operations) {
  const std::size_t count = operations.size();
  PerLane next_position{};
  position_.resize(count);
  for (std::size_t id = 0; id < count; ++id) position_[id] = next_position[lane_of(operations[id])]++;
  PerLane never;
  never.fill(kNever);
  after_.assign(count, never);
  // with_[id]: per lane the earliest position that starts no earlier than `id` does. Backwards, so that everything that
  // can follow an operation is known when it is looked at.
  std::vector<PerLane> with(count, never);
  std::array<PerLane, kNumLanes> lane_front;  // `with` of the next operation of each lane
  lane_front.fill(never);
  const auto join = [](PerLane& into, const PerLane& from) {
    for (std::size_t lane = 0; lane < into.size(); ++lane) into[lane] = std::min(into[lane], from[lane]);
  };
  for (std::size_t id = count; id-- > 0;) {
    const Operation& op = operations[id];
    if (ends_in_order(op.lane)) join(after_[id], lane_front[lane_of(op)]);
    with[id] = after_[id];  // the dependents have added theirs
    join(with[id], lane_front[lane_of(op)]);
    with[id][lane_of(op)] = position_[id];
    lane_front[lane_of(op)] = with[id];
    for (const OperationId dependency : op.dependencies) join(after_[idx(dependency)], with[id]);
  }
}

bool Order::holds(OperationId before, OperationId after) const {
  return after_[idx(before)][lane_of(operations_[idx(after)])] <= position_[idx(after)];
}

Result<void> check_structure(const Plan& plan, const std::vector<Operation>& operations) {
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    const Operation& op = operations[idx(id)];
    if (op.lane != right_lane(op.kind))
      return fault(fmt::format("{} is on lane {}", describe(operations, id), lane_name(op.lane)));
    for (const OperationId dependency : op.dependencies)
      if (dependency < 0 || dependency >= id)
        return fault(
            fmt::format("{} waits for operation {}, which is not before it", describe(operations, id), dependency));
    HEADRACE_RETURN_IF_ERROR(check_uses(plan, operations, id));
  }
  return {};
}

Result<void> check_buffers(const Plan& plan) {
  std::array<std::vector<const Buffer*>, 2> held;  // device, host
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.tier == Tier::kNvme) return fault(fmt::format("buffer {} is in no memory", i));
    const Bytes slab = buffer.tier == Tier::kHost ? plan.host_slab_bytes : plan.device_slab_bytes;
    if (buffer.bytes <= 0 || buffer.offset < 0 || buffer.offset + buffer.bytes > slab)
      return fault(fmt::format("buffer {} at {} with {} bytes is not within its slab of {}", i, buffer.offset,
                               buffer.bytes, slab));
    if (buffer.offset % plan.input.alignment != 0)
      return fault(fmt::format("buffer {} at {} is not aligned to {}", i, buffer.offset, plan.input.alignment));
    if (buffer.held) held[buffer.tier == Tier::kHost ? 1 : 0].push_back(&buffer);
  }
  const auto starts_before = [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; };
  for (auto& list : held) std::sort(list.begin(), list.end(), starts_before);
  for (const auto& list : held)
    for (std::size_t i = 1; i < list.size(); ++i)
      if (list[i - 1]->offset + list[i - 1]->bytes > list[i]->offset)
        return fault(fmt::format("two held buffers overlap at {}", list[i]->offset));
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.held) continue;
    const auto& list = held[buffer.tier == Tier::kHost ? 1 : 0];
    auto it = std::upper_bound(list.begin(), list.end(), &buffer, starts_before);
    const bool overlaps = (it != list.end() && (*it)->offset < buffer.offset + buffer.bytes) ||
                          (it != list.begin() && (*std::prev(it))->offset + (*std::prev(it))->bytes > buffer.offset);
    if (overlaps) return fault(fmt::format("buffer {} overlaps a held buffer", i));
  }
  return {};
}

Result<void> check_conflicts(const Plan& plan, const std::vector<Operation>& operations, const Order& order) {
  std::array<RangeMap, 2> slabs;
  for (OperationId id = 0; id < static_cast<OperationId>(operations.size()); ++id) {
    for (const BufferUse& use : operations[idx(id)].uses) {
      if (use.buffer == kNoBuffer || use.bytes == 0) continue;
      const Buffer& buffer = plan.buffers[idx(use.buffer)];
      const Bytes begin = buffer.offset + use.offset;
      const auto [first, last] = slabs[buffer.tier == Tier::kHost ? 1 : 0].cut(begin, begin + use.bytes);
      const auto ordered = [&](OperationId other) { return other < 0 || other == id || order.holds(other, id); };
      for (auto it = first; it != last; ++it) {
        Range& range = it->second;
        const auto early = std::find_if_not(range.readers.begin(), range.readers.end(), ordered);
        const bool write_early = use.write && early != range.readers.end();
        if (!ordered(range.writer) || write_early)
          return fault(fmt::format("{} touches byte {} of the {} slab and may start before {} is complete",
                                   describe(operations, id), it->first, buffer.tier == Tier::kHost ? "host" : "device",
                                   describe(operations, write_early ? *early : range.writer)));
        if (use.write) {
          range = {id, {}};
        } else {
          const Lane lane = operations[idx(id)].lane;
          std::erase_if(range.readers,
                        [&](OperationId r) { return ends_in_order(lane) && operations[idx(r)].lane == lane; });
          range.readers.push_back(id);
        }
      }
    }
  }
  return {};
}

}  // namespace headrace::runtime::checking
