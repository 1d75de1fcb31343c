// SPDX-License-Identifier: Apache-2.0
// The words for a step that stands still: which operation of which unit waits, for what, and over which buffer.
// Internal to runtime/engine.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/executor.h"

namespace headrace::runtime {

// `is_done` and `has_begun` per operation of the schedule.
[[nodiscard]] std::string describe_stall(const Schedule& schedule, const Operation& waiting,
                                         const std::vector<char>& is_done, const std::vector<char>& has_begun);

}  // namespace headrace::runtime
