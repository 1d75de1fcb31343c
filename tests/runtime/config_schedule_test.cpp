// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace headrace::config {
namespace {

RunConfig with(SchedulerType type, WarmupType warmup, std::int64_t warmup_steps, std::int64_t total) {
  RunConfig config;
  config.optimizer.hyper.lr = 3e-4;
  config.scheduler.type = type;
  config.scheduler.warmup_type = warmup;
  config.scheduler.warmup_num_steps = warmup_steps;
  config.scheduler.total_num_steps = total;
  config.scheduler.warmup_min_lr = 1e-5;
  config.scheduler.warmup_max_lr = 2e-4;
  config.scheduler.warmup_min_ratio = 0.05;
  config.scheduler.cos_min_ratio = 0.1;
  return config;
}

TEST(Schedule, WithoutSchedulerTheRateIsTheOptimizers) {
  const RunConfig config = with(SchedulerType::kNone, WarmupType::kLog, 10, 100);
  for (const std::int64_t step : {0, 1, 10, 1000}) EXPECT_EQ(lr_at(config, step), 3e-4);
}

TEST(Schedule, WarmupFollowsTheLogarithmOrALine) {
  const RunConfig log = with(SchedulerType::kWarmup, WarmupType::kLog, 20, 0);
  const RunConfig line = with(SchedulerType::kWarmup, WarmupType::kLinear, 20, 0);
  for (int i = 0; i < 20; ++i) {
    EXPECT_DOUBLE_EQ(lr_at(log, i), 1e-5 + (2e-4 - 1e-5) * std::log(i + 1) / std::log(20.0)) << i;
    EXPECT_DOUBLE_EQ(lr_at(line, i), 1e-5 + (2e-4 - 1e-5) * i / 20.0) << i;
  }
  for (const std::int64_t step : {20, 21, 5000}) {
    EXPECT_DOUBLE_EQ(lr_at(log, step), 2e-4);
    EXPECT_DOUBLE_EQ(lr_at(line, step), 2e-4);
  }
}

TEST(Schedule, DecayEndsAtTheMinimum) {
  const RunConfig config = with(SchedulerType::kWarmupDecay, WarmupType::kLinear, 20, 120);
  EXPECT_DOUBLE_EQ(lr_at(config, 0), 1e-5);
  EXPECT_DOUBLE_EQ(lr_at(config, 20), 2e-4);
  for (int i = 20; i < 120; ++i) EXPECT_DOUBLE_EQ(lr_at(config, i), 1e-5 + (2e-4 - 1e-5) * (120 - i) / 100.0) << i;
  EXPECT_DOUBLE_EQ(lr_at(config, 120), 1e-5);
  EXPECT_DOUBLE_EQ(lr_at(config, 5000), 1e-5);
}

TEST(Schedule, CosineEndsAtItsRatioAndStaysThere) {
  const RunConfig config = with(SchedulerType::kWarmupCosine, WarmupType::kLinear, 20, 120);
  EXPECT_DOUBLE_EQ(lr_at(config, 0), 3e-4 * 0.05);
  EXPECT_DOUBLE_EQ(lr_at(config, 10), 3e-4 * (0.05 + 0.95 * 0.5));
  const double pi = std::acos(-1.0);
  for (int i = 20; i < 120; ++i) {
    const double cosine = (1 + std::cos(pi * (i - 20 + 1) / 100.0)) / 2;
    EXPECT_NEAR(lr_at(config, i), 3e-4 * (0.1 + 0.9 * cosine), 1e-18) << i;
  }
  for (const std::int64_t step : {119, 120, 200, 5000}) EXPECT_NEAR(lr_at(config, step), 3e-5, 1e-18) << step;
}

TEST(Schedule, WarmupOfOneStepCountsAsTwo) {
  const RunConfig config = with(SchedulerType::kWarmup, WarmupType::kLog, 1, 0);
  EXPECT_DOUBLE_EQ(lr_at(config, 0), 1e-5);
  EXPECT_DOUBLE_EQ(lr_at(config, 1), 2e-4);
}

TEST(Schedule, CosineWithoutRoomToDecayStaysAtTheFloor) {
  const RunConfig config = with(SchedulerType::kWarmupCosine, WarmupType::kLinear, 20, 20);
  EXPECT_NEAR(lr_at(config, 20), 3e-5, 1e-18);
}

TEST(Schedule, IsFiniteAndBounded) {
  for (const SchedulerType type : {SchedulerType::kWarmup, SchedulerType::kWarmupDecay, SchedulerType::kWarmupCosine}) {
    for (const WarmupType warmup : {WarmupType::kLog, WarmupType::kLinear}) {
      for (const std::int64_t steps : {1, 2, 7, 1000}) {
        const RunConfig config = with(type, warmup, steps, 50);
        for (int i = 0; i < 200; ++i) {
          const double lr = lr_at(config, i);
          ASSERT_TRUE(std::isfinite(lr) && lr >= 0 && lr <= 3e-4 * (1 + 1e-12)) << lr << " at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace::config
