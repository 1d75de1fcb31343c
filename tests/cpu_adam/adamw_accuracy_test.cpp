// SPDX-License-Identifier: Apache-2.0
// AdamW against fp64: stored golden values, every target × format × gradient dtype, one step from any state, a thousand
// steps.
#include <cstdlib>
#include <span>

#include <gtest/gtest.h>

#include "adamw_testing.h"
#include "golden.h"

namespace headrace::cpu_adam::testing {
namespace {

std::string place(Kind kind, DType gradient, Target target, std::int64_t n, std::int64_t i) {
  return std::string(kind_name(kind)) + " gradient " + dtype_name(gradient) + " " + target_name(target) +
         " n=" + std::to_string(n) + " i=" + std::to_string(i);
}

struct GoldenCase {
  Target target;
  std::string wd;
  std::string input;
};

void compare_with_golden(const GoldenFile& golden, const GoldenCase& c, Kind kind, Worst& worst) {
  const auto initial = golden.read<float>(c.input + "/param");
  const auto gradients = golden.read<float>(c.input + "/grads");
  const auto n = static_cast<std::int64_t>(initial.size());
  State state(kind, n, 0);
  for (std::int64_t i = 0; i < n; ++i) state.set_master(i, initial[static_cast<std::size_t>(i)]);
  Gradient gradient(DType::kFp32, n, 0);
  AdamWHyper hyper;
  hyper.beta2 = 0.95;
  hyper.weight_decay = std::strtod(c.wd.c_str(), nullptr);
  for (int t = 1; t <= 10; ++t) {
    for (std::int64_t i = 0; i < n; ++i) gradient.set(i, gradients[static_cast<std::size_t>((t - 1) * n + i)]);
    hyper.optimizer_step = t;
    adamw_update(state.arrays(gradient), format_of(kind), hyper, c.target);
    if (t != 1 && t != 2 && t != 10) continue;
    const std::string key = "adamw/wd" + c.wd + "/" + c.input + "/step" + std::to_string(t) + "/";
    const auto p = golden.read<double>(key + "param");
    const auto m = golden.read<double>(key + "exp_avg");
    const auto v = golden.read<double>(key + "exp_avg_sq");
    double m_max = 0;
    double v_max = 0;
    for (const double x : m) m_max = std::max(m_max, std::abs(x));
    for (const double x : v) v_max = std::max(v_max, x);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double error = std::abs(static_cast<double>(state.master_at(i)) - p[at]);
      const double bound = 2e-6 * (std::abs(p[at]) + hyper.lr * t);
      worst.see(error, bound, p[at],
                place(kind, DType::kFp32, c.target, n, i) + " wd=" + c.wd + " t=" + std::to_string(t));
      ASSERT_LE(error, bound) << key << i << " " << target_name(c.target);
      ASSERT_LE(std::abs(static_cast<double>(state.exp_avg[i]) - m[at]), 2e-6 * m_max) << key << i;
      ASSERT_LE(std::abs(static_cast<double>(state.exp_avg_sq[i]) - v[at]), 2e-6 * v_max) << key << i;
    }
  }
}

TEST(AdamWGolden, stored_fp64_results_are_met_by_every_target_and_format) {
  const GoldenFile golden("optimizers.safetensors");
  ASSERT_TRUE(golden.ok()) << "HEADRACE_REFERENCE names the folder of the reference files";
  Worst worst("golden, 1 to 10 steps");
  for (const Target target : targets()) {
    for (const char* wd : {"0", "0.1"}) {
      for (const char* input : {"n1", "n7", "n15", "n16", "n17", "n64", "n127", "n129", "n1003"}) {
        for (const Kind kind : kAllKinds) compare_with_golden(golden, {target, wd, input}, kind, worst);
      }
    }
  }
}

struct SweepCase {
  Kind kind;
  DType gradient;
  Target target;
  std::int64_t n;
  std::int64_t offset;
  int steps;
};

void compare_with_truth(const SweepCase& c, Worst& worst) {
  const std::uint64_t seed = 1000 + static_cast<std::uint64_t>(c.n);
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  State state(c.kind, c.n, c.offset);
  Gradient gradient(c.gradient, c.n, c.offset);
  std::vector<Truth> truth(static_cast<std::size_t>(c.n));
  for (std::int64_t i = 0; i < c.n; ++i) {
    const float p = random.weight();
    state.set_master(i, p);
    truth[static_cast<std::size_t>(i)] = {static_cast<double>(p), 0, 0};
  }
  AdamWHyper hyper;
  hyper.beta2 = 0.95;
  hyper.weight_decay = c.n % 2 == 0 ? 0.1 : 0.0;
  hyper.gradient_scale = 0.37F;
  for (int t = 1; t <= c.steps; ++t) {
    hyper.optimizer_step = t;
    for (std::int64_t i = 0; i < c.n; ++i) {
      gradient.set(i, random.gradient());
      truth[static_cast<std::size_t>(i)].step(static_cast<double>(gradient.at(i)), hyper);
    }
    adamw_update(state.arrays(gradient), format_of(c.kind), hyper, c.target);
  }
  ASSERT_TRUE(state.guards_intact()) << place(c.kind, c.gradient, c.target, c.n, 0) << " wrote outside its arrays";
  for (std::int64_t i = 0; i < c.n; ++i) {
    const double p = truth[static_cast<std::size_t>(i)].p;
    const double error = std::abs(static_cast<double>(state.master_at(i)) - p);
    const double bound = 2e-6 * (std::abs(p) + hyper.lr * c.steps);
    const std::string where = place(c.kind, c.gradient, c.target, c.n, i) + " offset=" + std::to_string(c.offset);
    worst.see(error, bound, p, where);
    ASSERT_LE(error, bound) << where << " got " << state.master_at(i) << " want " << p;
    if (c.kind != Kind::kFp32) {
      ASSERT_EQ(state.half[i], state.expected_weight(state.master_at(i))) << where;
    }
  }
}

TEST(AdamWSizes, ten_steps_stay_near_fp64_at_every_size_and_misalignment) {
  Worst worst("10 steps, all sizes");
  for (const Target target : targets()) {
    for (const Kind kind : kAllKinds) {
      for (const DType gradient : kAllDTypes) {
        for (std::int64_t n = 1; n <= 65; ++n) compare_with_truth({kind, gradient, target, n, n % 16, 3}, worst);
        for (const std::int64_t n : {127, 128, 129, 1003, 4095, 4097}) {
          compare_with_truth({kind, gradient, target, n, n % 7, n < 2000 ? 10 : 2}, worst);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AdamWSizes, ten_steps_of_a_large_array_stay_near_fp64) {
  Worst worst("10 steps, n=100003; 2 steps, n=1048576");
  for (const Target target : targets()) {
    compare_with_truth({Kind::kSplit, DType::kBf16, target, 100003, 1, 10}, worst);
    compare_with_truth({Kind::kFp32, DType::kFp32, target, 100003, 3, 10}, worst);
  }
  compare_with_truth({Kind::kSplit, DType::kFp32, best_target(), 1 << 20, 0, 2}, worst);
}

// Reachable states: |exp_avg| is a few times sqrt(exp_avg_sq) at most. The error of the update itself is relative to
// its size.
TEST(AdamWAccuracy, one_step_from_any_state_is_within_two_ulp_and_a_millionth_of_the_step) {
  constexpr std::int64_t kElements = 20000;
  for (const Target target : targets()) {
    Worst worst(std::string("one step from any state, ") + target_name(target));
    for (const std::int64_t step :
         {std::int64_t{1}, std::int64_t{2}, std::int64_t{300}, std::int64_t{5000}, std::int64_t{10000000000}}) {
      const std::uint64_t seed = 77 + static_cast<std::uint64_t>(step);
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      State state(Kind::kSplit, kElements, 0);
      Gradient gradient(DType::kFp32, kElements, 0);
      std::vector<Truth> truth(kElements);
      AdamWHyper hyper;
      hyper.optimizer_step = step;
      hyper.weight_decay = 0.1;
      hyper.lr = std::pow(10.0, random.uniform(-5, -1));
      for (std::int64_t i = 0; i < kElements; ++i) {
        const float p = random.weight() * static_cast<float>(std::pow(10.0, random.uniform(-6, 1)));
        const double size = std::pow(10.0, random.uniform(-12, 4));  // of sqrt(exp_avg_sq)
        state.set_master(i, p);
        state.exp_avg[i] = static_cast<float>(size * random.uniform(-1, 1));
        state.exp_avg_sq[i] = static_cast<float>(size * size);
        gradient.set(i, static_cast<float>(size * random.uniform(-2, 2)));
        Truth& t = truth[static_cast<std::size_t>(i)];
        t = {static_cast<double>(p), static_cast<double>(state.exp_avg[i]), static_cast<double>(state.exp_avg_sq[i])};
        t.step(static_cast<double>(gradient.at(i)), hyper);
      }
      std::vector<double> before(kElements);
      for (std::int64_t i = 0; i < kElements; ++i)
        before[static_cast<std::size_t>(i)] = static_cast<double>(state.master_at(i));
      adamw_update(state.arrays(gradient), StateFormat::kSplit, hyper, target);
      for (std::int64_t i = 0; i < kElements; ++i) {
        const double p = truth[static_cast<std::size_t>(i)].p;
        const double old = before[static_cast<std::size_t>(i)];
        const double moved = std::abs(p - old) / hyper.lr;
        const double error = std::abs(static_cast<double>(state.master_at(i)) - p);
        const double bound = 2 * ulp_of(std::max(std::abs(p), std::abs(old))) + 1e-6 * hyper.lr * std::max(1.0, moved);
        worst.see(error, bound, p, "i=" + std::to_string(i) + " t=" + std::to_string(step));
        ASSERT_LE(error, bound) << i << " step " << step << " " << target_name(target) << " got " << state.master_at(i)
                                << " want " << p;
      }
    }
  }
}

// Plain fp32, one rounding per operation, in the order of the formula: what a straightforward program gets.
struct PlainFp32 {
  float p, m, v;
  void step(float g, const AdamWHyper& h) {
    const auto t = static_cast<double>(h.optimizer_step);
    p = p * static_cast<float>(1.0 - h.lr * h.weight_decay);
    m = m * static_cast<float>(h.beta1) + static_cast<float>(1.0 - h.beta1) * g;
    v = v * static_cast<float>(h.beta2) + static_cast<float>(1.0 - h.beta2) * g * g;
    const float denominator =
        std::sqrt(v) / static_cast<float>(std::sqrt(1.0 - std::pow(h.beta2, t))) + static_cast<float>(h.eps);
    p = p - static_cast<float>(h.lr / (1.0 - std::pow(h.beta1, t))) * m / denominator;
  }
};

TEST(AdamWAccuracy, a_thousand_steps_err_no_more_than_plain_fp32) {
  constexpr std::int64_t kElements = 1003;
  constexpr std::uint64_t kSeed = 4242;
  for (const Target target : targets()) {
    for (const double wd : {0.0, 0.01, 0.1}) {
      Random random(kSeed);
      State state(Kind::kSplit, kElements, 0);
      Gradient gradient(DType::kFp32, kElements, 0);
      std::vector<Truth> truth(kElements);
      std::vector<PlainFp32> plain(kElements);
      for (std::int64_t i = 0; i < kElements; ++i) {
        const float p = random.weight();
        state.set_master(i, p);
        truth[static_cast<std::size_t>(i)] = {static_cast<double>(p), 0, 0};
        plain[static_cast<std::size_t>(i)] = {p, 0, 0};
      }
      AdamWHyper hyper;
      hyper.weight_decay = wd;
      for (int t = 1; t <= 1000; ++t) {
        hyper.optimizer_step = t;
        for (std::int64_t i = 0; i < kElements; ++i) {
          const float g = random.gradient();
          gradient.set(i, g);
          truth[static_cast<std::size_t>(i)].step(static_cast<double>(g), hyper);
          plain[static_cast<std::size_t>(i)].step(g, hyper);
        }
        adamw_update(state.arrays(gradient), StateFormat::kSplit, hyper, target);
      }
      double worst_ours = 0, worst_plain = 0, square_ours = 0, square_plain = 0;
      for (std::int64_t i = 0; i < kElements; ++i) {
        const double p = truth[static_cast<std::size_t>(i)].p;
        const double ours = std::abs(static_cast<double>(state.master_at(i)) - p);
        const double theirs = std::abs(static_cast<double>(plain[static_cast<std::size_t>(i)].p) - p);
        worst_ours = std::max(worst_ours, ours);
        worst_plain = std::max(worst_plain, theirs);
        square_ours += ours * ours;
        square_plain += theirs * theirs;
      }
      std::printf("[ WORST    ] 1000 steps, wd=%g, %s: maximum %.3g (plain fp32 %.3g), RMS %.3g (plain fp32 %.3g)\n",
                  wd, target_name(target), worst_ours, worst_plain, std::sqrt(square_ours / kElements),
                  std::sqrt(square_plain / kElements));
      EXPECT_LE(worst_ours, 1.5 * worst_plain) << "seed " << kSeed;
      EXPECT_LE(square_ours, 1.5 * 1.5 * square_plain) << "seed " << kSeed;
    }
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
