// SPDX-License-Identifier: Apache-2.0
// Updates that are left to the next step's forward pass give the bits of late ones, in every kind of memory; and what
// is left is made and committed before anything else looks at the state.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <utility>

#include "io/backends.h"
#include "tests/integration/engine_course.h"
#include "tests/io/fault_backend.h"

namespace headrace::models {
namespace {

using runtime::UpdatePolicy;

// Of the model's five units: all of them, the last two blocks and the tied head, one block and the head, the head.
constexpr std::array<double, 4> kFractions = {1, 0.5, 0.2, 1e-9};

EngineRunOptions delayed(double fraction = 1) {
  EngineRunOptions options = accumulating();
  options.update = UpdatePolicy::kIntoForward;
  options.delayed_fraction = fraction;
  return options;
}

TEST(EngineDelayed, ClippedAndDroppedStepsGiveTheBitsOfLateUpdates) {
  const std::vector<double> limits = close_limits(accumulating());
  const Course late = run_course(accumulating(), limits);
  ASSERT_EQ(late.digests.size(), kSteps);
  std::vector<Variant> all;
  for (const double fraction : {1.0, 0.2})
    for (Variant& variant : variants(delayed(fraction), UpdatePolicy::kIntoForward))
      all.push_back({variant.name + ", " + std::to_string(fraction), std::move(variant.options)});
  for (const Variant& variant : all) {
    expect_same(run_course(variant.options, limits), late, variant.name + ", looked at after each step");
    const Course chain = run_course(variant.options, limits, kNanStep, Look::kEnd);
    ASSERT_EQ(chain.digests.size(), 1U) << variant.name;
    EXPECT_EQ(chain.digests.back(), late.digests.back()) << variant.name;
    EXPECT_EQ(chain.norms, late.norms) << variant.name;
    for (std::size_t i = 0; i < chain.outcomes.size(); ++i) {
      EXPECT_EQ(chain.outcomes[i].clip_factor < 1, is_clipped(i + 1)) << variant.name << ", step " << i + 1;
      EXPECT_EQ(chain.outcomes[i].skipped, i + 1 == kNanStep) << variant.name << ", step " << i + 1;
      EXPECT_EQ(chain.outcomes[i].fresh, i == 0 || i == kNanStep) << variant.name << ", step " << i + 1;
    }
  }
}

TEST(EngineDelayed, OtherGroupSizesToo) {
  for (const std::int32_t size : {1, 3, 4}) {
    EngineRunOptions options = accumulating();
    options.group_size = size;
    const std::vector<double> limits = close_limits(options);
    const Course late = run_course(options, limits);
    options.update = UpdatePolicy::kIntoForward;
    for (const double fraction : kFractions) {
      options.delayed_fraction = fraction;
      const Course chain = run_course(options, limits, kNanStep, Look::kEnd);
      ASSERT_EQ(chain.digests.size(), 1U);
      EXPECT_EQ(chain.digests.back(), late.digests.back()) << "group size " << size << ", " << fraction;
      EXPECT_EQ(chain.norms, late.norms) << "group size " << size << ", " << fraction;
    }
  }
}

// A model with separate head, and one that frees nothing of it between steps.
TEST(EngineDelayed, OtherModelsAndOneSlotToo) {
  for (const char* const model : {"llama_tiny", "gpt2_tiny"}) {
    EngineRunOptions options = accumulating();
    options.model = model;
    options.slots = 1;
    const std::vector<double> limits(4, 0.5);
    const Course late = run_course(options, limits, 3);
    options.update = UpdatePolicy::kIntoForward;
    ASSERT_EQ(late.digests.size(), limits.size()) << model;
    for (const double fraction : kFractions) {
      options.delayed_fraction = fraction;
      const Course chain = run_course(options, limits, 3, Look::kEnd);
      ASSERT_EQ(chain.digests.size(), 1U) << model << ", " << fraction;
      EXPECT_EQ(chain.digests.back(), late.digests.back()) << model << ", " << fraction;
    }
  }
}

class EngineDelayedBytes : public ::testing::TestWithParam<double> {};

TEST_P(EngineDelayedBytes, AreThoseOfThePlan) {
  for (const Bytes more : {Bytes{0}, 500 * kKiB, 64 * kMiB}) {
    EngineRunOptions options = delayed(GetParam());
    options.more_host_bytes = more;
    const TemporaryFolder folder;
    const auto run = EngineRun::start(options, folder.path());
    ASSERT_NE(run, nullptr);
    const runtime::Plan& plan = run->engine().plan();
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto done = run->step(step, 1.0);
      ASSERT_TRUE(done.ok()) << done.error().to_string();
      EXPECT_EQ(done->outcome.nvme_read_bytes, step == 1 ? plan.start_read_bytes : plan.read_bytes_per_step);
      EXPECT_EQ(done->outcome.nvme_write_bytes, step == 1 ? plan.start_write_bytes : plan.write_bytes_per_step);
    }
    runtime::StepOutcome outcome;
    const auto last = run->step(5, 1.0, [&](runtime::StepSettings& settings) {
      settings.metrics_row = [&](const runtime::StepOutcome& told) {
        outcome = told;
        return std::string("{}");
      };
    });
    ASSERT_TRUE(last.ok());
    ASSERT_TRUE(run->engine().has_pending());
    ASSERT_TRUE(run->engine().drain().ok());
    EXPECT_TRUE(outcome.drained);
    EXPECT_EQ(outcome.nvme_read_bytes, plan.read_bytes_per_step + plan.drain_read_bytes);
    EXPECT_EQ(outcome.nvme_write_bytes, plan.write_bytes_per_step + plan.drain_write_bytes);
    EXPECT_GT(outcome.seconds, last->outcome.seconds);
  }
}

INSTANTIATE_TEST_SUITE_P(EngineDelayed, EngineDelayedBytes, ::testing::ValuesIn(kFractions));

TEST(EngineDelayed, TheRecordOfAStepFollowsInTheNextOneOrInADrain) {
  const TemporaryFolder folder;
  const auto run = EngineRun::start(delayed(), folder.path());
  ASSERT_NE(run, nullptr);
  runtime::Engine& engine = run->engine();
  const auto named = [](runtime::StepSettings& settings) {
    settings.metrics_row = [](const runtime::StepOutcome& outcome) { return "step " + std::to_string(outcome.step); };
  };
  const auto stands_at = [&](std::uint64_t committed, std::uint64_t finished, std::uint64_t updates) {
    EXPECT_EQ(engine.committed().step, committed);
    EXPECT_EQ(engine.finished().step, finished);
    EXPECT_EQ(engine.finished().samples_consumed, finished);
    EXPECT_EQ(engine.finished().optimizer_step, updates);
    EXPECT_EQ(engine.has_pending(), committed != finished);
    EXPECT_EQ(engine.committed().metrics_row, committed > 0 ? "step " + std::to_string(committed) : std::string());
  };
  ASSERT_TRUE(run->step(1, 1.0, named).ok());
  stands_at(0, 1, 1);
  ASSERT_TRUE(run->step(2, 1.0, named).ok());
  stands_at(1, 2, 2);
  const auto skipped = run->step(3, 1.0, [&](runtime::StepSettings& settings) {
    named(settings);
    settings.inject_nan = true;
  });
  ASSERT_TRUE(skipped.ok());
  EXPECT_EQ(skipped->outcome.optimizer_step, 2U);
  stands_at(2, 3, 2);
  ASSERT_TRUE(run->step(4, 1.0, named).ok());  // begins with the record of the skipped step
  stands_at(3, 4, 3);
  EXPECT_EQ(engine.committed().skipped_steps, 1U);
  EXPECT_EQ(engine.finished().skipped_in_a_row, 0U);
  ASSERT_TRUE(engine.drain().ok());
  stands_at(4, 4, 3);
  ASSERT_TRUE(engine.drain().ok());  // nothing to do
  ASSERT_TRUE(run->step(5, 1.0, named).ok());
  stands_at(4, 5, 4);
  ASSERT_TRUE(run->evaluate(0).ok());
  stands_at(5, 5, 4);
}

TEST(EngineDelayed, AnEvaluationAfterAnyStepSeesTheWeightsOfThatStep) {
  const auto losses = [](const EngineRunOptions& options) {
    std::vector<double> result;
    const TemporaryFolder folder;
    const auto run = EngineRun::start(options, folder.path());
    for (std::uint64_t step = 1; step <= kSteps && run != nullptr; ++step) {
      const auto done = run->step(step, 0.5, [&](runtime::StepSettings& s) { s.inject_nan = step == kNanStep; });
      EXPECT_TRUE(done.ok()) << done.error().to_string();
      if (step == 1) continue;  // so that one of them follows two steps in a row
      const auto loss = run->evaluate(0);
      EXPECT_TRUE(loss.ok()) << loss.error().to_string();
      result.push_back(loss.ok() ? *loss : 0);
    }
    return result;
  };
  const std::vector<double> late = losses(accumulating());
  ASSERT_EQ(late.size(), kSteps - 1);
  for (const double fraction : {1.0, 0.2})
    for (const Variant& variant : variants(delayed(fraction), UpdatePolicy::kIntoForward))
      EXPECT_EQ(losses(variant.options), late) << variant.name << ", " << fraction;
}

TEST(EngineDelayed, ARunThatEndsWithoutADrainGoesOnFromTheStepBefore) {
  const Course late = run_course(accumulating(), std::vector<double>(4, 0.5), 0);
  for (const auto& [more, fraction] : {std::pair{Bytes{0}, 1.0}, {64 * kMiB, 1.0}, {Bytes{0}, 0.2}, {64 * kMiB, 0.2}}) {
    EngineRunOptions options = delayed(fraction);
    options.more_host_bytes = more;
    const TemporaryFolder folder;
    {
      const auto run = EngineRun::start(options, folder.path());
      ASSERT_NE(run, nullptr);
      for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(run->step(step, 0.5).ok());
    }
    const auto run = EngineRun::start(options, folder.path(), runtime::StartMode::kResume);
    ASSERT_NE(run, nullptr);
    EXPECT_EQ(run->engine().committed().step, 2U);
    for (std::uint64_t step = 3; step <= 4; ++step) ASSERT_TRUE(run->step(step, 0.5).ok());
    const auto digest = run->digest();
    ASSERT_TRUE(digest.ok());
    EXPECT_EQ(*digest, late.digests.back());
  }
}

class EngineDelayedFaults : public ::testing::TestWithParam<double> {};

// Wherever in the delayed phase, or in a drain, the disk fails: a resume finds a whole step and gives the same bits.
TEST_P(EngineDelayedFaults, ADiskThatFailsWithinTheDelayedPhaseLeavesTheLastRecord) {
  const Course late = run_course(accumulating(), std::vector<double>(3, 0.5), 0);
  const bool some = GetParam() < 1;  // a drain of one unit is soon over
  for (const bool in_drain : {false, true})
    for (const io::IoOperation operation : {io::IoOperation::kRead, io::IoOperation::kWrite})
      for (const std::uint64_t number : {1, some && in_drain ? 2 : 7, some && in_drain ? 3 : 20}) {
        SCOPED_TRACE("request " + std::to_string(number) + (in_drain ? " of a drain" : " of a step"));
        const TemporaryFolder folder;
        std::uint64_t stands_at = 0;
        {
          const auto plan = std::make_shared<io::FaultPlan>();
          const io::BackendSeam seam = io::fault_seam(io::IoBackendChoice::kThreads, plan);
          EngineRunOptions options = delayed(GetParam());
          options.volume.seam = &seam;
          const auto run = EngineRun::start(options, folder.path());
          ASSERT_NE(run, nullptr);
          ASSERT_TRUE(run->step(1, 0.5).ok());
          ASSERT_TRUE(run->step(2, 0.5).ok());
          std::uint64_t seen = 0;
          plan->arm([operation, number, seen](const io::IoRequest& request, std::uint64_t) mutable {
            const bool hit = request.operation == operation && ++seen >= number;
            return hit ? io::Fault{io::Fault::Kind::kError, EIO, 0} : io::Fault{};
          });
          const bool failed = in_drain ? !run->engine().drain().ok() : !run->step(3, 0.5).ok();
          EXPECT_TRUE(failed);
          stands_at = run->engine().committed().step;
          EXPECT_GE(stands_at, 1U);  // 2: what failed was of the updates that step 3 makes itself, or of its passes
          EXPECT_LE(stands_at, some && !in_drain ? 2U : 1U);
          plan->arm({});
        }
        const auto run = EngineRun::start(delayed(GetParam()), folder.path(), runtime::StartMode::kResume);
        ASSERT_NE(run, nullptr);
        ASSERT_EQ(run->engine().committed().step, stands_at);
        for (std::uint64_t step = stands_at + 1; step <= 3; ++step) ASSERT_TRUE(run->step(step, 0.5).ok());
        const auto digest = run->digest();
        ASSERT_TRUE(digest.ok());
        EXPECT_EQ(*digest, late.digests.back());
      }
}

INSTANTIATE_TEST_SUITE_P(EngineDelayed, EngineDelayedFaults, ::testing::Values(1.0, 0.5, 0.2));

// The scale of a step is that of its record, which follows one step later.
TEST(EngineDelayed, LossScalingWithOverflowsGivesTheSameBits) {
  const ScaledCourse late = run_scaled_course(UpdatePolicy::kAfterBackward);
  EXPECT_GT(late.skipped, 0U);
  EXPECT_LT(late.skipped, 9U);
  EXPECT_EQ(run_scaled_course(UpdatePolicy::kIntoForward), late);
}

}  // namespace
}  // namespace headrace::models
