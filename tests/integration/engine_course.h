// SPDX-License-Identifier: Apache-2.0
// Courses of steps that stand, are clipped and are dropped, run under one update policy in every kind of memory, and
// compared bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/core/temporary_folder.h"
#include "tests/integration/engine_run.h"

namespace headrace::models {

inline constexpr std::uint64_t kSteps = 5;
inline constexpr std::array<std::uint64_t, 2> kClippedSteps = {2, 5};
inline constexpr std::uint64_t kNanStep = 4;

inline bool is_clipped(std::uint64_t step) { return step == kClippedSteps[0] || step == kClippedSteps[1]; }

struct Course {
  std::vector<double> clip_norms;  // per step from 1
  std::vector<double> norms;
  std::vector<std::uint64_t> digests;
  std::vector<runtime::StepOutcome> outcomes;
};

// Whose state is looked at: of each step, or of the last one alone, so that nothing comes between two steps.
enum class Look { kEachStep, kEnd };

// Runs the steps with these limits (0 = none); the non-finite step in between (0 = none).
inline Course run_course(const EngineRunOptions& options, const std::vector<double>& clip_norms,
                         std::uint64_t nan_step = kNanStep, Look look = Look::kEachStep) {
  Course course;
  course.clip_norms = clip_norms;
  const TemporaryFolder folder;
  const auto run = EngineRun::start(options, folder.path());
  if (run == nullptr) return course;
  for (std::uint64_t step = 1; step <= clip_norms.size(); ++step) {
    const auto result =
        run->step(step, clip_norms[step - 1], [&](runtime::StepSettings& s) { s.inject_nan = step == nan_step; });
    EXPECT_TRUE(result.ok()) << "step " << step << ": " << (result.ok() ? "" : result.error().to_string());
    if (!result.ok()) return course;
    course.norms.push_back(result->outcome.grad_norm);
    course.outcomes.push_back(result->outcome);
    if (look == Look::kEnd && step < clip_norms.size()) continue;
    const auto digest = run->digest();
    EXPECT_TRUE(digest.ok()) << digest.error().to_string();
    if (!digest.ok()) return course;
    course.digests.push_back(*digest);
  }
  return course;
}

// Limits that clip two of the steps by a hair, so that only the last unit's gradient tells, and no other.
inline std::vector<double> close_limits(const EngineRunOptions& options) {
  std::vector<double> limits(kSteps, 1e9);
  for (const std::uint64_t step : kClippedSteps) {
    const Course known =
        run_course(options, std::vector<double>(limits.begin(), limits.begin() + static_cast<std::ptrdiff_t>(step)));
    if (known.norms.size() == step) limits[step - 1] = known.norms.back() * (1 - 1e-5);
  }
  return limits;
}

inline void expect_same(const Course& early, const Course& late, const std::string& what) {
  ASSERT_EQ(early.digests.size(), late.digests.size()) << what;
  for (std::size_t i = 0; i < late.digests.size(); ++i) {
    EXPECT_EQ(early.digests[i], late.digests[i]) << what << ", step " << i + 1;
    EXPECT_EQ(early.norms[i], late.norms[i]) << what << ", step " << i + 1;
  }
}

struct Variant {
  std::string name;
  EngineRunOptions options;
};

inline std::vector<Variant> variants(const EngineRunOptions& base,
                                     runtime::UpdatePolicy update = runtime::UpdatePolicy::kInBackward) {
  std::vector<Variant> result;
  const auto add = [&](const std::string& name, auto change) {
    Variant variant{name, base};
    variant.options.update = update;
    change(variant.options);
    result.push_back(std::move(variant));
  };
  add("smallest", [](EngineRunOptions&) {});
  add("half held", [](EngineRunOptions& o) { o.more_host_bytes = 700 * kKiB; });
  add("all held", [](EngineRunOptions& o) { o.more_host_bytes = 64 * kMiB; });
  add("weights at home in memory", [](EngineRunOptions& o) { o.weights_home = runtime::Home::kHost; });
  add("optimizer at home in memory", [](EngineRunOptions& o) { o.optimizer_home = runtime::Home::kHost; });
  add("all at home in memory", [](EngineRunOptions& o) { o.weights_home = o.optimizer_home = runtime::Home::kHost; });
  add("forced copies", [](EngineRunOptions& o) { o.force_copies = true; });
  add("forced copies, all held", [](EngineRunOptions& o) { o.force_copies = true, o.more_host_bytes = 64 * kMiB; });
  add("fp32 state", [](EngineRunOptions& o) { o.state_format = cpu_adam::StateFormat::kFp32; });
  add("fp32 state, all held", [](EngineRunOptions& o) {
    o.state_format = cpu_adam::StateFormat::kFp32;
    o.more_host_bytes = 64 * kMiB;
  });
  for (const std::uint64_t seed : {1, 2})
    add("late lanes, seed " + std::to_string(seed), [seed](EngineRunOptions& o) {
      o.executor.lane_delay_us = 300;
      o.executor.seed = seed;
      o.more_host_bytes = seed == 1 ? 0 : 500 * kKiB;
    });
  return result;
}

// Ten steps in fp16 whose loss scale makes gradients infinite by arithmetic; every third one is clipped.
struct ScaledCourse {
  std::uint64_t digest = 0, skipped = 0;
  double loss_scale = 0;
  bool operator==(const ScaledCourse&) const = default;
};
inline ScaledCourse run_scaled_course(runtime::UpdatePolicy update) {
  EngineRunOptions options = accumulating();
  options.weights_dtype = DType::kFp16;
  options.gradient_dtype = DType::kFp32;
  options.state_format = cpu_adam::StateFormat::kFp32;
  options.update = update;
  ScaledCourse course;
  const TemporaryFolder folder;
  const auto run = EngineRun::start(options, folder.path());
  if (run == nullptr) return course;
  runtime::LossScalerOptions scaler_options;
  scaler_options.initial_scale_power = 132;
  scaler_options.hysteresis = 1;
  runtime::LossScaler scaler(scaler_options);
  for (std::uint64_t step = 1; step <= 10; ++step) {
    const double scale = scaler.scale();
    const auto result = run->step(step, step % 3 == 0 ? 1e-2 : 1e9, [&](runtime::StepSettings& settings) {
      settings.loss_scale = scale;
      settings.loss_scaler = &scaler;
    });
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().to_string());
    if (!result.ok()) return course;
    EXPECT_EQ(run->engine().finished().loss_scale, scaler.scale());
    course.skipped += result->outcome.skipped ? 1 : 0;
  }
  const auto digest = run->digest();
  EXPECT_TRUE(digest.ok());
  course.digest = digest.ok() ? *digest : 0;
  course.loss_scale = run->engine().committed().loss_scale;
  EXPECT_EQ(course.loss_scale, scaler.scale());
  return course;
}

}  // namespace headrace::models
