// SPDX-License-Identifier: Apache-2.0
// The learning rate of each optimizer step, by DeepSpeed's formulas. A pure function: nothing to save or restore.
#pragma once

#include <cstdint>

#include "runtime/config/run_config.h"

namespace headrace::config {

// The rate of the update that follows `optimizer_step` updates (0 for the first one): DeepSpeed's scheduler with that
// number as last_batch_iteration, so the first update has the rate at the start of the warm-up. (DeepSpeed steps its
// scheduler after the update and so begins with one more update at that rate.) A skipped step is no update and does not
// advance the schedule.
[[nodiscard]] double lr_at(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler,
                           std::int64_t optimizer_step);
[[nodiscard]] inline double lr_at(const RunConfig& config, std::int64_t optimizer_step) {
  return lr_at(config.optimizer, config.scheduler, optimizer_step);
}

}  // namespace headrace::config
