// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/stall.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::runtime {

namespace {

const Operation& at(const Schedule& schedule, OperationId id) {
  return (*schedule.operations)[static_cast<std::size_t>(id)];
}

// "update unit 3 "layers.2" tile 7"
std::string with_name(const Schedule& schedule, const Operation& operation) {
  std::string text = describe(operation);
  if (schedule.plan == nullptr || operation.unit < 0) return text;
  const std::string number = fmt::format("unit {}", operation.unit);
  const std::string& name = schedule.plan->input.model.units[static_cast<std::size_t>(operation.unit)].name;
  return text.replace(text.find(number), number.size(), fmt::format("{} \"{}\"", number, name));
}

// The first buffer whose bytes both operations touch, one of them writing.
std::string shared_buffer(const Schedule& schedule, const Operation& a, const Operation& b) {
  if (schedule.plan == nullptr) return {};
  const auto& buffers = schedule.plan->buffers;
  for (const BufferUse& x : a.uses) {
    for (const BufferUse& y : b.uses) {
      if (x.buffer == kNoBuffer || y.buffer == kNoBuffer || (!x.write && !y.write)) continue;
      const Buffer& mine = buffers[static_cast<std::size_t>(x.buffer)];
      const Buffer& other = buffers[static_cast<std::size_t>(y.buffer)];
      const Bytes first = mine.offset + x.offset, second = other.offset + y.offset;
      if (mine.tier != other.tier || first >= second + y.bytes || second >= first + x.bytes) continue;
      return fmt::format(" over buffer {} ({}{}, {} at {} of the {} slab)", x.buffer, buffer_kind_name(mine.kind),
                         mine.unit >= 0 ? fmt::format(" of unit {}", mine.unit) : std::string(),
                         format_bytes(mine.bytes), mine.offset, mine.tier == Tier::kHost ? "host" : "device");
    }
  }
  return {};
}

// What a lane with nothing undone before it stands at.
std::string state_of(const Schedule& schedule, OperationId id, bool has_begun) {
  return fmt::format("{} on lane {} has {}", with_name(schedule, at(schedule, id)), lane_name(at(schedule, id).lane),
                     has_begun ? "begun and not ended" : "not begun");
}

}  // namespace

std::string describe_stall(const Schedule& schedule, const Operation& waiting, const std::vector<char>& is_done,
                           const std::vector<char>& has_begun) {
  const auto undone = [&](const Operation& operation) {
    const auto it = std::find_if(operation.dependencies.begin(), operation.dependencies.end(),
                                 [&](OperationId id) { return is_done[static_cast<std::size_t>(id)] == 0; });
    return it == operation.dependencies.end() ? OperationId{-1} : *it;
  };
  std::string text = with_name(schedule, waiting);
  const OperationId missing = undone(waiting);
  if (missing < 0) return text + " waits for its lane";
  text += fmt::format(" waits for {}{}", with_name(schedule, at(schedule, missing)),
                      shared_buffer(schedule, waiting, at(schedule, missing)));
  OperationId root = missing;
  while (undone(at(schedule, root)) >= 0) root = undone(at(schedule, root));
  return text + "; " + state_of(schedule, root, has_begun[static_cast<std::size_t>(root)] != 0);
}

}  // namespace headrace::runtime
