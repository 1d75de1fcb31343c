// SPDX-License-Identifier: Apache-2.0
// The narrow formats against fp64: one step from any state at every size, target and gradient type, and a thousand
// steps.
#include <gtest/gtest.h>

#include "format_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

// Spacing of what the format keeps around `value`: of the master in units of its ulp, of a moment relative to its
// neighbours.
double bf16_gap(double value) { return 65536 * ulp_of(value); }

// How far apart the two values of a compact moment around `value` lie, in a block whose largest is `largest`.
double exp_avg_gap(double value, double largest) {
  const double unit = 2 * largest / (127.0 * 127.0);  // the scale is at most twice the largest
  return unit * (2 * std::sqrt(std::abs(value) / unit) + 1);
}
double exp_avg_sq_gap(double value, double largest) {
  const double unit = 2 * std::sqrt(largest) / (255.0 * 255.0);  // of the root
  const double n = std::max(2.0, std::sqrt(std::sqrt(value) / unit));
  return unit * unit * (std::pow(n + 1, 4) - std::pow(n, 4)) + 16 * unit * unit;
}

struct StepCase {
  StateFormat format;
  DType gradient;
  Target target;
  std::int64_t n;
  std::int64_t offset;
};

struct Worsts {
  Worst master{"one step, master"};
  Worst exp_avg{"one step, exp_avg, bound one gap"};
  Worst exp_avg_sq{"one step, exp_avg_sq, bound one gap"};
};

struct Block {
  double largest_m = 0, largest_v = 0;
};

std::vector<Block> blocks_of(const std::vector<Truth>& truth) {
  std::vector<Block> blocks((truth.size() + 63) / 64);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    blocks[i / 64].largest_m = std::max(blocks[i / 64].largest_m, std::abs(truth[i].m));
    blocks[i / 64].largest_v = std::max(blocks[i / 64].largest_v, truth[i].v);
  }
  return blocks;
}

void compare_one_step(const StepCase& c, std::uint64_t seed, Worsts& worst) {
  Random random(seed);
  FormatState state(c.format, c.n, c.offset);
  state.narrow(random_state(c.n, random, 3));
  Gradient gradient(c.gradient, c.n, c.offset);
  fill_gradient(gradient, c.n, random);
  AdamWHyper hyper;
  hyper.optimizer_step = 1 + random.below(2000);
  hyper.weight_decay = c.n % 2 == 0 ? 0.1 : 0.0;
  hyper.gradient_scale = 0.37F;
  const Wide before = state.widen();
  std::vector<Truth> truth(before.master.size());
  for (std::size_t i = 0; i < truth.size(); ++i) {
    truth[i] = {static_cast<double>(before.master[i]), static_cast<double>(before.exp_avg[i]),
                static_cast<double>(before.exp_avg_sq[i])};
    truth[i].step(static_cast<double>(gradient.at(static_cast<std::int64_t>(i))), hyper);
  }
  adamw_update(state.arrays(gradient), c.format, hyper, c.target);
  const Wide after = state.widen();
  const std::vector<Block> blocks = blocks_of(truth);
  const bool compact = c.format == StateFormat::kCompact;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const Truth& want = truth[i];
    const std::string where = std::string(state_format_name(c.format)) + " gradient " + dtype_name(c.gradient) + " " +
                              target_name(c.target) + " n=" + std::to_string(c.n) + " i=" + std::to_string(i) +
                              " seed=" + std::to_string(seed);
    const double old = std::abs(static_cast<double>(before.master[i]));
    const double moved = std::abs(want.p - static_cast<double>(before.master[i])) / hyper.lr;
    const double ulp = ulp_of(std::max(std::abs(want.p), old));
    const double p_bound = (compact ? 257 : 2) * ulp + 1e-6 * hyper.lr * std::max(1.0, moved);
    const double p_error = std::abs(static_cast<double>(after.master[i]) - want.p);
    const Block& block = blocks[i / 64];
    const double m_bound = 1.00001 * (compact ? exp_avg_gap(want.m, block.largest_m) : bf16_gap(want.m));
    const double v_bound = 1.00001 * (compact ? exp_avg_sq_gap(want.v, block.largest_v) : bf16_gap(want.v));
    const double m_error = std::abs(static_cast<double>(after.exp_avg[i]) - want.m);
    const double v_error = std::abs(static_cast<double>(after.exp_avg_sq[i]) - want.v);
    worst.master.see(p_error, p_bound, want.p, where);
    worst.exp_avg.see(m_error, m_bound, want.m, where);
    worst.exp_avg_sq.see(v_error, v_bound, want.v, where);
    ASSERT_LE(p_error, p_bound) << where;
    ASSERT_LE(m_error, m_bound) << where << " want " << want.m;
    ASSERT_LE(v_error, v_bound) << where << " want " << want.v;
    ASSERT_EQ(after.exp_avg_sq[i] > 0, want.v > 0) << where;
  }
}

TEST(AdamWFormatAccuracy, one_step_from_any_state_is_as_near_as_the_format_can_tell) {
  for (const StateFormat format : kNarrowFormats) {
    Worsts worst;
    for (const Target target : targets()) {
      for (const DType gradient : kAllDTypes) {
        for (std::int64_t n = 1; n <= 65; ++n) {
          compare_one_step({format, gradient, target, n, n % 16}, 3000 + static_cast<std::uint64_t>(n), worst);
        }
        for (const std::int64_t n : {127, 128, 129, 1003, 4095, 4097, 20011}) {
          compare_one_step({format, gradient, target, n, n % 7}, static_cast<std::uint64_t>(n), worst);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

struct Errors {
  double maximum = 0, squares = 0;
};

// Against fp64 over the same gradients; relative to how far the weights went.
TEST(AdamWFormatAccuracy, a_thousand_steps_stay_within_a_fraction_of_the_way) {
  constexpr std::int64_t kElements = 64 * 16;
  constexpr std::uint64_t kSeed = 4242;
  struct Limit {
    StateFormat format;
    double maximum, rms;  // of the RMS way
  };
  // Twice what was measured.
  for (const Limit& limit : {Limit{StateFormat::kSplit, 2.2e-4, 2.5e-5}, Limit{StateFormat::kSplitBf16, 0.044, 0.008},
                             Limit{StateFormat::kCompact, 0.12, 0.026}}) {
    for (const double beta2 : {0.95, 0.999}) {
      Random random(kSeed);
      FormatState state(limit.format, kElements, 0);
      Wide start(kElements);
      for (float& p : start.master) p = random.weight();
      state.narrow(start);
      start = state.widen();
      std::vector<Truth> truth(start.master.size());
      for (std::size_t i = 0; i < truth.size(); ++i) truth[i] = {static_cast<double>(start.master[i]), 0, 0};
      Gradient gradient(DType::kBf16, kElements, 0);
      AdamWHyper hyper;
      hyper.beta2 = beta2;
      hyper.weight_decay = 0.1;
      for (int t = 1; t <= 1000; ++t) {
        hyper.optimizer_step = t;
        fill_gradient(gradient, kElements, random);
        for (std::size_t i = 0; i < truth.size(); ++i) {
          truth[i].step(static_cast<double>(gradient.at(static_cast<std::int64_t>(i))), hyper);
        }
        adamw_update(state.arrays(gradient), limit.format, hyper, best_target());
      }
      const Wide end = state.widen();
      Errors errors;
      double way = 0;
      for (std::size_t i = 0; i < truth.size(); ++i) {
        const double error = std::abs(static_cast<double>(end.master[i]) - truth[i].p);
        errors.maximum = std::max(errors.maximum, error);
        errors.squares += error * error;
        way += std::pow(truth[i].p - static_cast<double>(start.master[i]), 2);
      }
      const double rms = std::sqrt(errors.squares / way);
      const double maximum = errors.maximum / std::sqrt(way / kElements);
      std::printf("[ WORST    ] 1000 steps, %s, beta2=%g: maximum %.3g, RMS %.3g of the RMS way of a weight\n",
                  state_format_name(limit.format), beta2, maximum, rms);
      EXPECT_LE(maximum, limit.maximum) << state_format_name(limit.format) << " seed " << kSeed;
      EXPECT_LE(rms, limit.rms) << state_format_name(limit.format) << " seed " << kSeed;
    }
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
