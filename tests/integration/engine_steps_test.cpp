// SPDX-License-Identifier: Apache-2.0
// What a step does when something is not as planned: gradients that are not finite, lanes that are late, a driver that
// asks for the wrong unit, a disk that fails. And that a run goes on with the same bits after it was stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "io/backends.h"
#include "tests/core/temporary_folder.h"
#include "tests/integration/engine_run.h"
#include "tests/io/fault_backend.h"

namespace headrace::models {
namespace {

constexpr double kClipNorm = 1.0;

std::uint64_t digest_of(EngineRun& run) {
  const auto digest = run.digest();
  EXPECT_TRUE(digest.ok()) << digest.error().to_string();
  return digest.ok() ? *digest : 0;
}

// The digest after `steps` steps, 0 after a failure.
std::uint64_t train(const EngineRunOptions& options, std::uint64_t steps) {
  const TemporaryFolder folder;
  const auto run = EngineRun::start(options, folder.path());
  if (run == nullptr) return 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto result = run->step(step, kClipNorm);
    EXPECT_TRUE(result.ok()) << result.error().to_string();
    if (!result.ok()) return 0;
  }
  return digest_of(*run);
}

class EngineSteps : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(EngineSteps, AGradientThatIsNotFiniteSkipsTheUpdateAndNamesItsTensor) {
  const auto run = EngineRun::start(accumulating(), folder_.path());
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(run->step(1, kClipNorm).ok());
  const std::uint64_t before = digest_of(*run);
  const auto skipped = run->step(2, kClipNorm, [](runtime::StepSettings& settings) { settings.inject_nan = true; });
  ASSERT_TRUE(skipped.ok()) << skipped.error().to_string();
  EXPECT_TRUE(skipped->outcome.skipped);
  EXPECT_EQ(skipped->outcome.non_finite, 1);
  EXPECT_EQ(skipped->outcome.non_finite_tensor, run->model().info().units[0].tensors[0].name);
  EXPECT_EQ(skipped->outcome.optimizer_step, 1U);
  EXPECT_EQ(digest_of(*run), before);
  EXPECT_EQ(run->engine().committed().step, 2U);
  EXPECT_EQ(run->engine().committed().skipped_steps, 1U);
  EXPECT_EQ(run->engine().committed().skipped_in_a_row, 1U);
  const auto next = run->step(3, kClipNorm);
  ASSERT_TRUE(next.ok()) << next.error().to_string();
  EXPECT_EQ(next->outcome.optimizer_step, 2U);
  EXPECT_EQ(run->engine().committed().skipped_in_a_row, 0U);
  EXPECT_NE(digest_of(*run), before);
}

// Here the gradients become infinite by arithmetic, not by injection: the loss is scaled to the end of fp32's range.
TEST_F(EngineSteps, AnOverflowLeavesTheStateUntilTheLossScaleHasComeDown) {
  EngineRunOptions options = accumulating();
  options.weights_dtype = DType::kFp16;
  options.gradient_dtype = DType::kFp32;
  options.state_format = cpu_adam::StateFormat::kFp32;
  const auto run = EngineRun::start(options, folder_.path());
  ASSERT_NE(run, nullptr);
  const std::uint64_t before = digest_of(*run);
  runtime::LossScalerOptions scaler_options;
  scaler_options.initial_scale_power = 132;
  scaler_options.hysteresis = 1;
  runtime::LossScaler scaler(scaler_options);
  std::uint64_t skipped = 0;
  for (std::uint64_t step = 1; step <= 10; ++step) {
    const double scale = scaler.scale();
    const auto result = run->step(step, kClipNorm, [&](runtime::StepSettings& settings) {
      settings.loss_scale = scale;
      settings.loss_scaler = &scaler;
    });
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_EQ(run->engine().committed().loss_scale, scaler.scale());
    if (!result->outcome.skipped) break;
    ++skipped;
    EXPECT_GT(result->outcome.non_finite, 0);
    EXPECT_EQ(scaler.scale(), scale / 2);
    EXPECT_EQ(digest_of(*run), before);
  }
  EXPECT_GT(skipped, 0U);
  EXPECT_EQ(run->engine().committed().skipped_steps, skipped);
  EXPECT_EQ(run->engine().committed().optimizer_step, 1U);
  EXPECT_NE(digest_of(*run), before);
}

TEST_F(EngineSteps, APowerOfTwoAsLossScaleChangesNoBit) {
  const TemporaryFolder other;
  const auto plain = EngineRun::start(accumulating(), folder_.path());
  const auto scaled = EngineRun::start(accumulating(), other.path());
  ASSERT_TRUE(plain != nullptr && scaled != nullptr);
  const auto a = plain->step(1, 0);
  const auto b = scaled->step(1, 0, [](runtime::StepSettings& settings) { settings.loss_scale = 1024; });
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_DOUBLE_EQ(a->outcome.grad_norm, b->outcome.grad_norm);
  EXPECT_EQ(digest_of(*plain), digest_of(*scaled));
}

TEST_F(EngineSteps, TheSmallestMemorySpillsGradientsAndStreamsState) {
  EngineRunOptions options = accumulating();
  const auto run = EngineRun::start(options, folder_.path());
  ASSERT_NE(run, nullptr);
  const runtime::Plan& plan = run->engine().plan();
  EXPECT_TRUE(std::find(plan.gradient_spilled.begin(), plan.gradient_spilled.end(), true) !=
              plan.gradient_spilled.end());
  EXPECT_LT(plan.host_slab_bytes + plan.device_slab_bytes, plan.state_bytes);
  const auto result = run->step(1, kClipNorm);
  ASSERT_TRUE(result.ok()) << result.error().to_string();
  EXPECT_EQ(result->outcome.nvme_read_bytes, plan.read_bytes_per_step);
  EXPECT_GE(result->outcome.nvme_write_bytes, plan.write_bytes_per_step);
}

TEST_F(EngineSteps, LateLanesMoreMemoryAndOtherHomesChangeNoBit) {
  const std::uint64_t expected = train(accumulating(), 3);
  ASSERT_NE(expected, 0U);
  for (const std::uint64_t seed : {1, 2}) {
    EngineRunOptions late = accumulating();
    late.executor.lane_delay_us = 300;
    late.executor.seed = seed;
    EXPECT_EQ(train(late, 3), expected) << "seed " << seed;
  }
  EngineRunOptions roomy = accumulating();
  roomy.more_host_bytes = 64 * kMiB;  // all of it is cached
  EXPECT_EQ(train(roomy, 3), expected);
  EngineRunOptions in_memory = accumulating();
  in_memory.weights_home = in_memory.optimizer_home = runtime::Home::kHost;
  EXPECT_EQ(train(in_memory, 3), expected);
  EngineRunOptions mixed = accumulating();
  mixed.weights_home = runtime::Home::kHost;
  EXPECT_EQ(train(mixed, 3), expected);
  EngineRunOptions one_thread = accumulating();
  one_thread.threads = 1;
  EXPECT_EQ(train(one_thread, 3), expected);
  EngineRunOptions masters = accumulating();
  masters.state_format = cpu_adam::StateFormat::kFp32;
  EXPECT_EQ(train(masters, 3), expected);
}

TEST_F(EngineSteps, AStoppedRunGoesOnWithTheSameBits) {
  const std::uint64_t expected = train(accumulating(), 4);
  {
    const auto run = EngineRun::start(accumulating(), folder_.path());
    ASSERT_NE(run, nullptr);
    ASSERT_TRUE(run->step(1, kClipNorm).ok());
    ASSERT_TRUE(run->step(2, kClipNorm).ok());
  }
  const auto run = EngineRun::start(accumulating(), folder_.path(), runtime::StartMode::kResume);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->engine().committed().step, 2U);
  EXPECT_EQ(run->engine().committed().samples_consumed, 2U);
  ASSERT_TRUE(run->step(3, kClipNorm).ok());
  ASSERT_TRUE(run->step(4, kClipNorm).ok());
  EXPECT_EQ(digest_of(*run), expected);
}

TEST_F(EngineSteps, AskingForTheWrongUnitFailsTheStepWithThatError) {
  const auto run = EngineRun::start(accumulating(), folder_.path());
  ASSERT_NE(run, nullptr);
  const std::uint64_t before = digest_of(*run);
  runtime::Engine& engine = run->engine();
  ASSERT_TRUE(engine.begin_step(run->settings(1, kClipNorm)).ok());
  const auto wrong = engine.acquire(2, runtime::Pass::kForward, 0);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code, ErrorCode::kFailed);
  EXPECT_NE(wrong.error().message.find("unit 2"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(engine.acquire(0, runtime::Pass::kForward, 0).ok());
  const auto finished = engine.finish_step();
  ASSERT_FALSE(finished.ok());
  EXPECT_NE(finished.error().message.find("asks for unit 2"), std::string::npos) << finished.error().message;
  EXPECT_EQ(engine.committed().step, 0U);
  EXPECT_EQ(digest_of(*run), before);
}

TEST_F(EngineSteps, ADiskThatFailsEndsTheStepAndAResumeGivesTheSameBits) {
  const std::uint64_t expected = train(accumulating(), 2);
  for (const io::IoOperation operation : {io::IoOperation::kRead, io::IoOperation::kWrite}) {
    for (const std::uint64_t number : {1, 9, 30}) {
      SCOPED_TRACE("request " + std::to_string(number) + " of operation " +
                   std::to_string(static_cast<int>(operation)));
      const TemporaryFolder folder;
      {
        const auto plan = std::make_shared<io::FaultPlan>();
        const io::BackendSeam seam = io::fault_seam(io::IoBackendChoice::kThreads, plan);
        EngineRunOptions options = accumulating();
        options.volume.seam = &seam;
        const auto run = EngineRun::start(options, folder.path());
        ASSERT_NE(run, nullptr);
        ASSERT_TRUE(run->step(1, kClipNorm).ok());
        std::uint64_t seen = 0;
        plan->arm([operation, number, seen](const io::IoRequest& request, std::uint64_t) mutable {
          const bool hit = request.operation == operation && ++seen >= number;
          return hit ? io::Fault{io::Fault::Kind::kError, EIO, 0} : io::Fault{};
        });
        const auto failed = run->step(2, kClipNorm);
        ASSERT_FALSE(failed.ok());
        EXPECT_EQ(failed.error().code, ErrorCode::kIo) << failed.error().to_string();
        EXPECT_EQ(run->engine().committed().step, 1U);
        plan->arm({});
      }
      const auto run = EngineRun::start(accumulating(), folder.path(), runtime::StartMode::kResume);
      ASSERT_NE(run, nullptr);
      ASSERT_TRUE(run->step(2, kClipNorm).ok());
      EXPECT_EQ(digest_of(*run), expected);
    }
  }
}

TEST_F(EngineSteps, TheMetricsRowIsCommittedWithItsStepAndFoundByAResume) {
  {
    const auto run = EngineRun::start(accumulating(), folder_.path());
    ASSERT_NE(run, nullptr);
    double norm = -1;
    const auto result = run->step(1, kClipNorm, [&](runtime::StepSettings& settings) {
      settings.metrics_row = [&](const runtime::StepOutcome& outcome) {
        norm = outcome.grad_norm;
        return R"({"step":)" + std::to_string(outcome.step) + "}";
      };
    });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(norm, result->outcome.grad_norm);
  }
  const auto run = EngineRun::start(accumulating(), folder_.path(), runtime::StartMode::kResume);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->engine().committed().metrics_row, R"({"step":1})");
}

TEST_F(EngineSteps, AnEvaluationLeavesTheStateAndAFollowingStepAsTheyWere) {
  const std::uint64_t expected = train(accumulating(), 2);
  const auto run = EngineRun::start(accumulating(), folder_.path());
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(run->step(1, kClipNorm).ok());
  const std::uint64_t before = digest_of(*run);
  const auto first = run->evaluate(0), second = run->evaluate(0);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(digest_of(*run), before);
  ASSERT_TRUE(run->step(2, kClipNorm).ok());
  EXPECT_EQ(digest_of(*run), expected);
}

}  // namespace
}  // namespace headrace::models
