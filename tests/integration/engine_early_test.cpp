// SPDX-License-Identifier: Apache-2.0
// Early updates give the bits of late ones, whatever the norm then says: steps that stand, that are clipped, that are
// dropped, in every kind of memory.
#include <gtest/gtest.h>

#include "tests/integration/engine_course.h"

namespace headrace::models {
namespace {

using runtime::UpdatePolicy;

TEST(EngineEarly, ClippedAndDroppedStepsGiveTheBitsOfLateUpdates) {
  const std::vector<double> limits = close_limits(accumulating());
  const Course late = run_course(accumulating(), limits);
  ASSERT_EQ(late.digests.size(), kSteps);
  for (const Variant& variant : variants(accumulating())) {
    const Course early = run_course(variant.options, limits);
    expect_same(early, late, variant.name);
    for (std::size_t i = 0; i < early.outcomes.size(); ++i) {
      // A miss may be known before the first early update begins.
      const bool stands = !early.outcomes[i].redone && !early.outcomes[i].skipped;
      EXPECT_TRUE(early.outcomes[i].early || !stands) << variant.name << ", step " << i + 1;
      EXPECT_EQ(early.outcomes[i].redone, is_clipped(i + 1)) << variant.name << ", step " << i + 1;
      EXPECT_EQ(early.outcomes[i].skipped, i + 1 == kNanStep) << variant.name << ", step " << i + 1;
    }
  }
}

// The evaluation reads weights by the same operations as a step, also right after a redo that left most of them out.
TEST(EngineEarly, AnEvaluationAfterAnyStepSeesTheWeightsOfThatStep) {
  const auto losses = [](const EngineRunOptions& options) {
    std::vector<double> result;
    const TemporaryFolder folder;
    const auto run = EngineRun::start(options, folder.path());
    for (std::uint64_t step = 1; step <= kNanStep && run != nullptr; ++step) {
      const auto done =
          run->step(step, step == 2 ? 1e-3 : 1e9, [&](runtime::StepSettings& s) { s.inject_nan = step == kNanStep; });
      EXPECT_TRUE(done.ok()) << done.error().to_string();
      const auto loss = run->evaluate(0);
      EXPECT_TRUE(loss.ok()) << loss.error().to_string();
      result.push_back(loss.ok() ? *loss : 0);
    }
    return result;
  };
  const std::vector<double> late = losses(accumulating());
  ASSERT_EQ(late.size(), kNanStep);
  for (const Variant& variant : variants(accumulating())) EXPECT_EQ(losses(variant.options), late) << variant.name;
}

TEST(EngineEarly, OtherGroupSizesToo) {
  for (const std::int32_t size : {1, 3}) {
    EngineRunOptions options = accumulating();
    options.group_size = size;
    const std::vector<double> limits = close_limits(options);
    const Course late = run_course(options, limits);
    options.update = UpdatePolicy::kInBackward;
    expect_same(run_course(options, limits), late, "group size " + std::to_string(size));
  }
}

TEST(EngineEarly, WithoutClippingAGradientIsGivenBackAndADroppedStepStillLeavesNoTrace) {
  const std::vector<double> none(kSteps, 0.0);
  const Course late = run_course(accumulating(), none);
  ASSERT_EQ(late.digests.size(), kSteps);
  EXPECT_EQ(late.digests[kNanStep - 1], late.digests[kNanStep - 2]);
  for (Variant variant : variants(accumulating())) {
    variant.options.can_clip = false;
    expect_same(run_course(variant.options, none), late, variant.name);
  }
}

TEST(EngineEarly, BytesAreThoseOfThePlanUnlessAStepIsRedone) {
  for (const Bytes more : {Bytes{0}, 500 * kKiB, 64 * kMiB}) {
    EngineRunOptions options = accumulating();
    options.update = UpdatePolicy::kInBackward;
    options.more_host_bytes = more;
    const TemporaryFolder folder;
    const auto run = EngineRun::start(options, folder.path());
    ASSERT_NE(run, nullptr);
    const runtime::Plan& plan = run->engine().plan();
    const auto first = run->step(1, 1e9);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->outcome.nvme_read_bytes, plan.read_bytes_per_step);
    const Bytes record = first->outcome.nvme_write_bytes - plan.write_bytes_per_step;
    EXPECT_LT(record, 64 * kKiB);
    const auto probe = run->step(2, 1e9);
    ASSERT_TRUE(probe.ok());
    // Clipped so hard that the first gradient tells: early work stops there.
    const auto hard = run->step(3, 1e-3);
    ASSERT_TRUE(hard.ok());
    EXPECT_TRUE(hard->outcome.redone);
    EXPECT_LE(hard->outcome.nvme_read_bytes, plan.read_bytes_per_step + plan.redo_read_bytes);
    EXPECT_LE(hard->outcome.nvme_write_bytes - record, plan.write_bytes_per_step + plan.redo_write_bytes);
    EXPECT_GE(hard->outcome.nvme_write_bytes - record, plan.redo_write_bytes);
  }
}

TEST(EngineEarly, FrequentClippingEndsTheEarlyUpdatesAndChangesNoBit) {
  EngineRunOptions options = accumulating();
  for (const std::size_t clipped : {runtime::ClipHistory::kTooMany, runtime::ClipHistory::kTooMany + 1}) {
    std::vector<double> limits(clipped, 1e-3);
    limits.push_back(1e9);  // would stand
    options.update = UpdatePolicy::kAfterBackward;
    const Course late = run_course(options, limits, 0);
    options.update = UpdatePolicy::kInBackward;
    const Course early = run_course(options, limits, 0);
    expect_same(early, late, "clipped");
    ASSERT_EQ(early.outcomes.size(), limits.size());
    const bool ended = clipped > runtime::ClipHistory::kTooMany;
    EXPECT_EQ(early.outcomes.back().early, !ended) << clipped;
    EXPECT_EQ(early.outcomes.back().redone, ended) << clipped;
    EXPECT_EQ(early.outcomes.back().clip_factor, 1) << clipped;
  }
}

TEST(EngineEarly, OneSlotWithoutClippingUpdatesEarlyAndCannotDropAStep) {
  EngineRunOptions options = accumulating();
  const Course late = run_course(options, std::vector<double>(3, 0.0));
  options.update = UpdatePolicy::kInBackward;
  options.can_clip = false;
  options.slots = 1;
  const TemporaryFolder folder;
  auto run = EngineRun::start(options, folder.path());
  ASSERT_NE(run, nullptr);
  for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(run->step(step, 0).ok());
  const auto digest = run->digest();
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(*digest, late.digests.back());
  const auto dropped = run->step(4, 0, [](runtime::StepSettings& settings) { settings.inject_nan = true; });
  ASSERT_FALSE(dropped.ok());
  EXPECT_EQ(dropped.error().code, ErrorCode::kNumeric);
  EXPECT_NE(dropped.error().message.find("slots: 1"), std::string::npos) << dropped.error().message;
  run.reset();
  run = EngineRun::start(options, folder.path(), runtime::StartMode::kResume);
  ASSERT_NE(run, nullptr);
  EXPECT_FALSE(run->digest().ok());  // of two versions
}

// The scale makes gradients infinite by arithmetic; early updates must not see anything but what the norm accepts.
TEST(EngineEarly, LossScalingWithOverflowsGivesTheSameBits) {
  const ScaledCourse late = run_scaled_course(UpdatePolicy::kAfterBackward);
  EXPECT_GT(late.skipped, 0U);
  EXPECT_LT(late.skipped, 9U);
  EXPECT_EQ(run_scaled_course(UpdatePolicy::kInBackward), late);
}

}  // namespace
}  // namespace headrace::models
