// SPDX-License-Identifier: Apache-2.0
// Every elementwise optimizer against fp64, element by element: stored golden values, all sizes, one step from any
// state, a thousand steps.
#include <cstdlib>

#include <gtest/gtest.h>

#include "golden.h"
#include "optimizer_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

std::string place(const Variant& v, Kind kind, DType gradient, Target target, std::int64_t n, std::int64_t i) {
  return std::string(v.name) + " " + kind_name(kind) + " gradient " + dtype_name(gradient) + " " + target_name(target) +
         " n=" + std::to_string(n) + " i=" + std::to_string(i);
}

struct GoldenCase {
  const char* key;  // in the file
  Variant variant;
  const char* state;
};
constexpr GoldenCase kGoldenCases[] = {
    {"adam", {"adam", OptimizerKind::kAdam}, "exp_avg"},
    {"adagrad", {"adagrad", OptimizerKind::kAdagrad}, "sum"},
    {"lion", {"lion", OptimizerKind::kLion}, "exp_avg"},
    {"sgd", {"sgd", OptimizerKind::kSgd, 0.9}, "momentum_buffer"},
    {"sgd_nesterov", {"sgd nesterov", OptimizerKind::kSgd, 0.9, 0, true}, "momentum_buffer"},
};

void expect_state_near(const GuardedArray<float>& state, const std::vector<double>& truth, const std::string& what) {
  double largest = 0;
  for (const double x : truth) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    ASSERT_LE(std::abs(static_cast<double>(state[at]) - truth[i]), 2e-6 * largest) << what << " i=" << i;
  }
}

void compare_with_golden(const GoldenFile& golden, const GoldenCase& c, Target target, Kind kind, const char* wd,
                         const std::string& input, Worst& worst) {
  const auto initial = golden.read<float>(input + "/param");
  const auto gradients = golden.read<float>(input + "/grads");
  const auto n = static_cast<std::int64_t>(initial.size());
  State state(kind, n, 0);
  for (std::int64_t i = 0; i < n; ++i) state.set_master(i, initial[static_cast<std::size_t>(i)]);
  Gradient gradient(DType::kFp32, n, 0);
  for (int t = 1; t <= 10; ++t) {
    for (std::int64_t i = 0; i < n; ++i) gradient.set(i, gradients[static_cast<std::size_t>((t - 1) * n + i)]);
    const OptimizerHyper hyper = hyper_of(c.variant, t, std::strtod(wd, nullptr));
    const OptimizerArrays arrays = arrays_of(c.variant.kind, hyper, state, gradient);
    ASSERT_TRUE(validate(c.variant.kind, arrays, format_of(kind), hyper).ok());
    update_span(c.variant.kind, arrays, format_of(kind), hyper, target);
    if (t != 1 && t != 2 && t != 10) continue;
    const std::string key = std::string(c.key) + "/wd" + wd + "/" + input + "/step" + std::to_string(t) + "/";
    const auto p = golden.read<double>(key + "param");
    for (std::int64_t i = 0; i < n; ++i) {
      const double truth = p[static_cast<std::size_t>(i)];
      const double error = std::abs(static_cast<double>(state.master_at(i)) - truth);
      // Steps of SGD are as large as the gradients; those of the others at most lr.
      const double bound = c.variant.kind == OptimizerKind::kSgd ? 5e-6 : 2e-6 * (std::abs(truth) + hyper.lr * t);
      const std::string where =
          place(c.variant, kind, DType::kFp32, target, n, i) + " wd=" + wd + " t=" + std::to_string(t);
      worst.see(error, bound, truth, where);
      ASSERT_LE(error, bound) << where;
    }
    expect_state_near(state.exp_avg, golden.read<double>(key + c.state), key + c.state);
    if (c.variant.kind == OptimizerKind::kAdam) {
      expect_state_near(state.exp_avg_sq, golden.read<double>(key + "exp_avg_sq"), key + "exp_avg_sq");
    }
  }
}

TEST(OptimizerGolden, stored_fp64_results_are_met_by_every_target_and_format) {
  const GoldenFile golden("optimizers.safetensors");
  ASSERT_TRUE(golden.ok()) << "HEADRACE_REFERENCE names the folder of the reference files";
  for (const GoldenCase& c : kGoldenCases) {
    Worst worst(std::string("golden ") + c.key);
    for (const Target target : targets()) {
      for (const char* wd : {"0", "0.1"}) {
        for (const char* input : {"n1", "n7", "n15", "n16", "n17", "n64", "n127", "n129", "n1003"}) {
          for (const Kind kind : kAllKinds) compare_with_golden(golden, c, target, kind, wd, input, worst);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

struct SweepCase {
  Variant variant;
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
  std::vector<Textbook<double>> truth(static_cast<std::size_t>(c.n));
  for (std::int64_t i = 0; i < c.n; ++i) {
    const float p = random.weight();
    state.set_master(i, p);
    truth[static_cast<std::size_t>(i)].p = static_cast<double>(p);
  }
  double lr = 0;
  for (int t = 1; t <= c.steps; ++t) {
    OptimizerHyper hyper = hyper_of(c.variant, t, c.n % 2 == 0 ? 0.1 : 0.0);
    hyper.gradient_scale = 0.37F;
    hyper.lr_decay = c.n % 3 == 0 ? 0.05 : 0.0;
    lr = hyper.lr;
    for (std::int64_t i = 0; i < c.n; ++i) {
      gradient.set(i, random.gradient());
      truth[static_cast<std::size_t>(i)].step(c.variant.kind, static_cast<double>(gradient.at(i)), hyper);
    }
    update_span(c.variant.kind, arrays_of(c.variant.kind, hyper, state, gradient), format_of(c.kind), hyper, c.target);
  }
  ASSERT_TRUE(state.guards_intact()) << place(c.variant, c.kind, c.gradient, c.target, c.n, 0) << " wrote outside";
  for (std::int64_t i = 0; i < c.n; ++i) {
    const Textbook<double>& element = truth[static_cast<std::size_t>(i)];
    ASSERT_FALSE(element.doubtful) << "choose another seed: a sign of Lion is not certain at i=" << i;
    const double error = std::abs(static_cast<double>(state.master_at(i)) - element.p);
    const double bound = 2e-6 * (std::abs(element.p) + std::max(lr * c.steps, element.travelled));
    const std::string where =
        place(c.variant, c.kind, c.gradient, c.target, c.n, i) + " offset=" + std::to_string(c.offset);
    worst.see(error, bound, element.p, where);
    ASSERT_LE(error, bound) << where << " got " << state.master_at(i) << " want " << element.p;
    if (c.kind != Kind::kFp32) {
      ASSERT_EQ(state.half[i], state.expected_weight(state.master_at(i))) << where;
    }
  }
}

TEST(OptimizerSizes, steps_stay_near_fp64_at_every_size_and_misalignment) {
  for (const Variant& variant : kVariants) {
    Worst worst(std::string(variant.name) + ", all sizes");
    for (const Target target : targets()) {
      for (const Kind kind : kAllKinds) {
        for (const DType gradient : kAllDTypes) {
          for (std::int64_t n = 1; n <= 65; ++n)
            compare_with_truth({variant, kind, gradient, target, n, n % 16, 3}, worst);
          for (const std::int64_t n : {127, 128, 129, 1003}) {
            compare_with_truth({variant, kind, gradient, target, n, n % 7, 10}, worst);
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(OptimizerSizes, ten_steps_of_a_large_array_stay_near_fp64) {
  for (const Variant& variant : kVariants) {
    Worst worst(std::string(variant.name) + ", n=50021");
    for (const Target target : targets()) {
      compare_with_truth({variant, Kind::kSplit, DType::kBf16, target, 50021, 1, 5}, worst);
      if (HasFatalFailure()) return;
    }
  }
}

// The state of one element that steps can lead to.
Textbook<double> reachable(const Variant& variant, Random& random, double size) {
  Textbook<double> t;
  t.p = static_cast<double>(random.weight() * static_cast<float>(std::pow(10.0, random.uniform(-6, 1))));
  t.m = static_cast<double>(static_cast<float>(size * random.uniform(-1, 1)));
  t.v = static_cast<double>(static_cast<float>(size * size));
  if (variant.kind == OptimizerKind::kAdagrad) t.m = static_cast<double>(static_cast<float>(size * size));
  return t;
}

TEST(OptimizerAccuracy, one_step_from_any_state_is_within_two_ulp_and_a_millionth_of_the_step) {
  constexpr std::int64_t kElements = 5000;
  for (const Variant& variant : kVariants) {
    Worst worst(std::string(variant.name) + ", one step from any state");
    for (const Target target : targets()) {
      for (const std::int64_t step : {std::int64_t{1}, std::int64_t{2}, std::int64_t{300}, std::int64_t{2000000000}}) {
        const std::uint64_t seed = 77 + static_cast<std::uint64_t>(step);
        SCOPED_TRACE("seed " + std::to_string(seed));
        Random random(seed);
        State state(Kind::kSplit, kElements, 0);
        Gradient gradient(DType::kFp32, kElements, 0);
        std::vector<Textbook<double>> truth(kElements);
        OptimizerHyper hyper = hyper_of(variant, step);
        hyper.lr = std::pow(10.0, random.uniform(-5, -1));
        // Decay that is added to the gradient cancels it in some elements: that is tested by the golden values.
        hyper.weight_decay = variant.kind == OptimizerKind::kAdamW || variant.kind == OptimizerKind::kLion ? 0.1 : 0.0;
        std::vector<double> old(kElements);
        for (std::int64_t i = 0; i < kElements; ++i) {
          const double size = std::pow(10.0, random.uniform(-12, 4));
          Textbook<double>& t = truth[static_cast<std::size_t>(i)];
          t = reachable(variant, random, size);
          state.set_master(i, static_cast<float>(t.p));
          state.exp_avg[i] = static_cast<float>(t.m);
          state.exp_avg_sq[i] = static_cast<float>(t.v);
          gradient.set(i, static_cast<float>(size * random.uniform(-2, 2)));
          t.p = static_cast<double>(state.master_at(i));
          old[static_cast<std::size_t>(i)] = t.p;
          t.step(variant.kind, static_cast<double>(gradient.at(i)), hyper);
        }
        update_span(variant.kind, arrays_of(variant.kind, hyper, state, gradient), StateFormat::kSplit, hyper, target);
        for (std::int64_t i = 0; i < kElements; ++i) {
          const Textbook<double>& t = truth[static_cast<std::size_t>(i)];
          if (t.doubtful) continue;
          const double before = old[static_cast<std::size_t>(i)];
          const double error = std::abs(static_cast<double>(state.master_at(i)) - t.p);
          double terms = t.travelled;  // the buffer and the gradient may cancel in their sum
          if (variant.kind == OptimizerKind::kSgd) {
            terms = hyper.lr * 2 * (std::abs(static_cast<double>(gradient.at(i))) + std::abs(t.m));
          }
          const double bound = 2 * ulp_of(std::max(std::abs(t.p), std::abs(before))) + 1e-6 * std::max(hyper.lr, terms);
          const std::string where = "i=" + std::to_string(i) + " t=" + std::to_string(step) + " " + target_name(target);
          worst.see(error, bound, t.p, where);
          ASSERT_LE(error, bound) << variant.name << " " << where << " got " << state.master_at(i) << " want " << t.p;
        }
      }
    }
  }
}

struct Drift {
  double worst_ours = 0, worst_plain = 0, square_ours = 0, square_plain = 0, worst_relative = 0;
};

Drift thousand_steps(const Variant& variant, double wd, Target target, std::uint64_t seed) {
  constexpr std::int64_t kElements = 501;
  Random random(seed);
  State state(Kind::kSplit, kElements, 0);
  Gradient gradient(DType::kFp32, kElements, 0);
  std::vector<Textbook<double>> truth(kElements);
  std::vector<Textbook<float>> plain(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) {
    const float p = random.weight();
    state.set_master(i, p);
    truth[static_cast<std::size_t>(i)].p = static_cast<double>(p);
    plain[static_cast<std::size_t>(i)].p = p;
  }
  for (int t = 1; t <= 1000; ++t) {
    const OptimizerHyper hyper = hyper_of(variant, t, wd);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const float g = random.gradient();
      gradient.set(i, g);
      truth[static_cast<std::size_t>(i)].step(variant.kind, static_cast<double>(g), hyper);
      plain[static_cast<std::size_t>(i)].step(variant.kind, g, hyper);
    }
    update_span(variant.kind, arrays_of(variant.kind, hyper, state, gradient), StateFormat::kSplit, hyper, target);
  }
  Drift drift;
  std::int64_t compared = 0;
  for (std::int64_t i = 0; i < kElements; ++i) {
    const Textbook<double>& element = truth[static_cast<std::size_t>(i)];
    if (element.doubtful) continue;  // of a sign that is not certain, both programs may take either
    ++compared;
    const double ours = std::abs(static_cast<double>(state.master_at(i)) - element.p);
    const double theirs = std::abs(static_cast<double>(plain[static_cast<std::size_t>(i)].p) - element.p);
    drift.worst_ours = std::max(drift.worst_ours, ours);
    drift.worst_plain = std::max(drift.worst_plain, theirs);
    drift.worst_relative = std::max(drift.worst_relative, ours / std::max(1.0, std::abs(element.p)));
    drift.square_ours += ours * ours;
    drift.square_plain += theirs * theirs;
  }
  EXPECT_GE(compared, kElements / 2) << variant.name;
  return drift;
}

TEST(OptimizerAccuracy, a_thousand_steps_err_no_more_than_plain_fp32) {
  constexpr std::uint64_t kSeed = 4242;
  for (const Variant& variant : kVariants) {
    for (const double wd : {0.0, 0.1}) {
      const Drift d = thousand_steps(variant, wd, best_target(), kSeed);
      std::printf("[ WORST    ] 1000 steps, %s, wd=%g: maximum %.3g (plain fp32 %.3g), RMS %.2f of plain fp32\n",
                  variant.name, wd, d.worst_ours, d.worst_plain, std::sqrt(d.square_ours / d.square_plain));
      EXPECT_LE(d.worst_ours, 1.5 * d.worst_plain) << variant.name << " wd=" << wd << " seed " << kSeed;
      EXPECT_LE(d.square_ours, 1.5 * 1.5 * d.square_plain) << variant.name << " wd=" << wd << " seed " << kSeed;
    }
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
