// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace headrace::config {
namespace {

// From 0 to 1 over the warm-up.
double warmup_gamma(WarmupType type, double iteration, double steps) {
  return type == WarmupType::kLog ? std::log(iteration + 1) / std::log(steps) : iteration / steps;
}

double cosine_ratio(const SchedulerConfig& scheduler, double iteration, double warmup) {
  const double total = std::max(1.0, static_cast<double>(scheduler.total_num_steps) - warmup);
  const double progress = std::min(1.0, (iteration - warmup + 1) / total);
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, scheduler.cos_min_ratio + (1 - scheduler.cos_min_ratio) * cosine);
}

}  // namespace

double lr_at(const OptimizerConfig& optimizer, const SchedulerConfig& scheduler, std::int64_t optimizer_step) {
  HEADRACE_CHECK(optimizer_step >= 0, "a number of updates");
  if (scheduler.type == SchedulerType::kNone) return optimizer.hyper.lr;
  const auto iteration = static_cast<double>(optimizer_step);
  const auto warmup = static_cast<double>(std::max<std::int64_t>(2, scheduler.warmup_num_steps));
  const bool warming = iteration < warmup;
  const double gamma = warming ? warmup_gamma(scheduler.warmup_type, iteration, warmup) : 1.0;
  if (scheduler.type == SchedulerType::kWarmupCosine) {
    const double ratio = warming ? scheduler.warmup_min_ratio + gamma * (1 - scheduler.warmup_min_ratio)
                                 : cosine_ratio(scheduler, iteration, warmup);
    return optimizer.hyper.lr * ratio;
  }
  const double span = scheduler.warmup_max_lr - scheduler.warmup_min_lr;
  if (warming || scheduler.type == SchedulerType::kWarmup) return scheduler.warmup_min_lr + span * gamma;
  const auto total = static_cast<double>(scheduler.total_num_steps);
  return scheduler.warmup_min_lr + span * std::max(0.0, (total - iteration) / std::max(1.0, total - warmup));
}

}  // namespace headrace::config
