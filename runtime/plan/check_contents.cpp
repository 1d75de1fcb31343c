// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/check_contents.h"

#include <fmt/format.h>

#include <iterator>

#include "runtime/plan/check_order.h"

namespace headrace::runtime::checking {

std::string describe(const Content& content) {
  const auto aged = [&](const char* what) {
    const std::string age = content.version == 0   ? "old"
                            : content.version == 1 ? "new"
                            : content.version == 2 ? "exact"
                                                   : fmt::format("{} times updated", content.version);
    return fmt::format("{} {} of unit {}", age, what, content.unit);
  };
  switch (content.kind) {
    case Content::Kind::kNothing: return "nothing";
    case Content::Kind::kWeights: return aged("weights");
    case Content::Kind::kOptimizer: return fmt::format("{}, tile {}", aged("optimizer state"), content.index);
    case Content::Kind::kGradient:
      return fmt::format("gradient of unit {} over {} groups of step {}", content.unit, content.version, content.step);
    case Content::Kind::kAccumulator:
      return fmt::format("accumulator of unit {} in group {} with {} contributions", content.unit, content.index,
                         content.version);
    case Content::Kind::kBoundary:
      return fmt::format("output of unit {} for micro-batch {}", content.unit, content.index);
    case Content::Kind::kBoundaryGradient:
      return fmt::format("gradient of the output of unit {} for micro-batch {}", content.unit, content.index);
    case Content::Kind::kSaved:
      return fmt::format("activations saved by unit {} for micro-batch {}", content.unit, content.index);
  }
  return "nothing";
}

void Memory::cut_at(Bytes where) {
  const auto it = std::prev(pieces_.upper_bound(where));
  if (it->first != where) pieces_.emplace(where, it->second);
}

void Memory::write(Bytes begin, Bytes bytes, const Content& content, Bytes from) {
  if (bytes == 0) return;
  cut_at(begin);
  cut_at(begin + bytes);
  pieces_.erase(pieces_.find(begin), pieces_.find(begin + bytes));
  pieces_[begin] = {content, from - begin};
}

Result<void> Memory::expect(Bytes begin, Bytes bytes, const Content& content, Bytes from) const {
  auto it = std::prev(pieces_.upper_bound(begin));
  for (; it != pieces_.end() && it->first < begin + bytes; ++it) {
    if (it->second.content == content && it->second.shift == from - begin) continue;
    if (it->second.content == content)
      return fault(fmt::format("needs bytes from {} of the {} and finds another part of it", from, describe(content)));
    return fault(fmt::format("needs the {} and finds {}", describe(content), describe(it->second.content)));
  }
  return {};
}

}  // namespace headrace::runtime::checking
