// SPDX-License-Identifier: Apache-2.0
// Makes the run's optimizer of what the keys under "optimizer" say. Used by finish.cpp only.
#pragma once

#include "core/result.h"
#include "runtime/config/run_fields.h"

namespace headrace::config {

// kConfig for a parameter that the type does not have, values that exclude each other, a state format that it has not.
[[nodiscard]] Result<void> finish_optimizer(const Draft& draft, Settings& settings, OptimizerConfig& optimizer);

}  // namespace headrace::config
