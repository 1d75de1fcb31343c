// SPDX-License-Identifier: Apache-2.0
// The limits that control groups put on this process, of both kernel interfaces. A limit may stand on any parent.
#pragma once

#include <optional>
#include <string>

#include "core/bytes.h"

namespace headrace {

struct CgroupLimits {
  std::optional<Bytes> memory;      // the smallest on the way up; none when unlimited
  std::optional<double> cpu_cores;  // CPU time per time, the smallest on the way up
};

// `root` stands before every path read; tests give a folder that plays the system.
[[nodiscard]] CgroupLimits read_cgroup_limits(const std::string& root = "");

}  // namespace headrace
