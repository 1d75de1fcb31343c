// SPDX-License-Identifier: Apache-2.0
// Faults that a test asks a run to make of itself (`debug.inject`): "nan:3" or "nan:3,7-9" makes a gradient element of
// these steps a NaN.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"

namespace headrace::models {

struct Injection {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> nan_steps;  // first and last, included

  [[nodiscard]] bool nan_at(std::uint64_t step) const noexcept {
    for (const auto& [first, last] : nan_steps)
      if (step >= first && step <= last) return true;
    return false;
  }
};
[[nodiscard]] Result<Injection> parse_injection(std::string_view text);  // kConfig; empty text = none

}  // namespace headrace::models
