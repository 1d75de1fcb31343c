// SPDX-License-Identifier: Apache-2.0
// Where the time of an executed step went: by lane, and for the time in which neither the driver nor the optimizer
// worked, what they waited for. Also the step as a Chrome trace. Pure functions of a plan and its times.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/executor.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

// Seconds in which compute and optimizer lanes both stood still, by the kind of operation that was waited for
// ("read_weights", "read_state", "write_state", "commit", …), largest first. Their sum is times.seconds minus the busy
// union.
[[nodiscard]] std::vector<std::pair<std::string, double>> lost_seconds(const std::vector<Operation>& operations,
                                                                       const RunTimes& times);
// Chrome trace events (JSON array elements, comma separated) of one run; `start_us` shifts them on the common clock.
[[nodiscard]] std::string trace_events(const std::vector<Operation>& operations, const RunTimes& times,
                                       double start_us);

}  // namespace headrace::runtime
