// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/loss_scaler.h"

#include <gtest/gtest.h>

namespace headrace::runtime {
namespace {

LossScalerOptions small_options() {
  LossScalerOptions options;
  options.initial_scale_power = 4;
  options.window = 3;
  options.hysteresis = 1;
  return options;
}

void good_steps(LossScaler& scaler, int count) {
  for (int i = 0; i < count; ++i) scaler.after_step(false);
}

TEST(LossScaler, HalvesOnASkipAndDoublesAfterAWindowOfGoodSteps) {
  LossScaler scaler(small_options());
  EXPECT_EQ(scaler.scale(), 16);
  scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 8);
  good_steps(scaler, 2);
  EXPECT_EQ(scaler.scale(), 8);
  good_steps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 16);
  good_steps(scaler, 3);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, ASkipStartsTheWindowAgain) {
  LossScaler scaler(small_options());
  good_steps(scaler, 2);
  scaler.after_step(true);
  good_steps(scaler, 2);
  EXPECT_EQ(scaler.scale(), 8);
  good_steps(scaler, 1);
  EXPECT_EQ(scaler.scale(), 16);
}

TEST(LossScaler, HysteresisBearsSkipsUntilItIsUsedUpAndIsRefilledByADoubling) {
  LossScalerOptions options = small_options();
  options.hysteresis = 3;
  LossScaler scaler(options);
  scaler.after_step(true);
  scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.after_step(true);  // used up: every further skip halves
  EXPECT_EQ(scaler.scale(), 4);
  good_steps(scaler, 2);
  scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 2);
  good_steps(scaler, 3);
  EXPECT_EQ(scaler.scale(), 4);
  scaler.after_step(true);
  scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 4);
}

TEST(LossScaler, ConsecutiveHysteresisIsRefilledByEveryGoodStep) {
  LossScalerOptions options = small_options();
  options.hysteresis = 2;
  options.consecutive_hysteresis = true;
  options.window = 1000;
  LossScaler scaler(options);
  for (int i = 0; i < 5; ++i) {
    scaler.after_step(true);
    scaler.after_step(false);
  }
  EXPECT_EQ(scaler.scale(), 16);
  scaler.after_step(true);
  scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, NeverFallsBelowTheSmallestScaleAndSaysThatItIsExhausted) {
  LossScalerOptions options = small_options();
  options.min_scale = 4;
  LossScaler scaler(options);
  EXPECT_FALSE(scaler.exhausted());
  for (int i = 0; i < 10; ++i) scaler.after_step(true);
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(scaler.exhausted());
}

TEST(LossScaler, AFixedScaleStays) {
  LossScalerOptions options = small_options();
  options.fixed_scale = 100;
  LossScaler scaler(options);
  scaler.after_step(true);
  good_steps(scaler, 10);
  EXPECT_EQ(scaler.scale(), 100);
  EXPECT_TRUE(scaler.exhausted());
}

TEST(LossScaler, GoesOnFromARecordAsIfItHadNeverStopped) {
  LossScalerOptions options = small_options();
  options.hysteresis = 2;
  LossScaler straight(options), before(options);
  const bool skipped[] = {false, true, false, true, false, false, false, true, false, false, true, true};
  std::size_t i = 0;
  for (; i < 5; ++i) {
    straight.after_step(skipped[i]);
    before.after_step(skipped[i]);
  }
  StepRecord record;
  before.save(record);
  LossScaler after(options);
  after.restore(record);
  for (; i < std::size(skipped); ++i) {
    EXPECT_EQ(after.scale(), straight.scale()) << "step " << i;
    straight.after_step(skipped[i]);
    after.after_step(skipped[i]);
  }
  EXPECT_EQ(after.scale(), straight.scale());
}

}  // namespace
}  // namespace headrace::runtime
