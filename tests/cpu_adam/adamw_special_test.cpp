// SPDX-License-Identifier: Apache-2.0
// lr 0, zero gradients, NaN and infinity, large step counters, ties of the split rule, targets by name.
#include <gtest/gtest.h>

#include "adamw_testing.h"
#include "cpu_adam/target.h"

namespace headrace::cpu_adam::testing {
namespace {

constexpr std::int64_t kElements = 77;

// Weights beside a master may hold anything before: an update makes them anew.
void expect_made_from_master(const State& state, Kind kind, std::int64_t i) {
  const float master = state.master_at(i);
  if (kind == Kind::kBf16Master) {
    EXPECT_EQ(state.half[i], split_master(master).hi) << i;
  } else if (std::isnan(master)) {
    EXPECT_TRUE(std::isnan(to_fp32(Fp16{state.half[i]}))) << i;
  } else {
    EXPECT_EQ(state.half[i], to_fp16(master).bits) << i;
  }
}

TEST(AdamWSpecial, a_learning_rate_of_zero_moves_the_moments_and_nothing_else) {
  for (const Target target : targets()) {
    for (const Kind kind : kAllKinds) {
      State state(kind, kElements, 0);
      Gradient gradient(DType::kFp32, kElements, 0);
      Random random(3);
      for (std::int64_t i = 0; i < kElements; ++i) {
        state.set_master(i, i % 3 == 0 ? -0.0F : (i % 3 == 1 ? std::bit_cast<float>(0x7FA00001U) : random.weight()));
        gradient.set(i, i == 40 ? INFINITY : random.gradient() - 0.5F);
        if (kind != Kind::kFp32 && kind != Kind::kSplit) state.half[i] = static_cast<std::uint16_t>(i * 811);
      }
      const State before = state;
      AdamWHyper hyper;
      hyper.lr = 0;
      hyper.weight_decay = 0.1;
      adamw_update(state.arrays(gradient), format_of(kind), hyper, target);
      EXPECT_TRUE(state.wide.same_bits(before.wide) && state.master.same_bits(before.master) &&
                  state.remainder.same_bits(before.remainder))
          << kind_name(kind) << " " << target_name(target);
      if (kind == Kind::kBf16Master || kind == Kind::kFp16Master) {
        for (std::int64_t i = 0; i < kElements; ++i) expect_made_from_master(state, kind, i);
      } else {
        EXPECT_TRUE(state.half.same_bits(before.half)) << kind_name(kind) << " " << target_name(target);
      }
      for (std::int64_t i = 0; i < kElements; ++i) EXPECT_NE(state.exp_avg[i], 0.0F) << i;
    }
  }
}

TEST(AdamWSpecial, non_finite_values_stay_with_their_element) {
  for (const Target target : targets()) {
    for (const Kind kind : kAllKinds) {
      for (const DType dtype : kAllDTypes) {
        State state(kind, kElements, 0);
        Gradient gradient(dtype, kElements, 0);
        for (std::int64_t i = 0; i < kElements; ++i) {
          state.set_master(i, 1.0F);
          gradient.set(i, 0.25F);
        }
        gradient.set(5, NAN);
        gradient.set(20, INFINITY);
        gradient.set(33, -INFINITY);
        state.set_master(47, NAN);
        state.set_master(66, INFINITY);
        AdamWHyper hyper;
        adamw_update(state.arrays(gradient), format_of(kind), hyper, target);
        for (std::int64_t i = 0; i < kElements; ++i) {
          const float p = state.master_at(i);
          const bool is_nan = i == 5 || i == 20 || i == 33 || i == 47;  // infinity / infinity is NaN
          EXPECT_EQ(std::isnan(p), is_nan) << i << " " << kind_name(kind) << " " << target_name(target);
          EXPECT_EQ(std::isinf(p), i == 66) << i << " " << kind_name(kind) << " " << target_name(target);
          if (kind == Kind::kBf16Master || kind == Kind::kSplit) {
            EXPECT_EQ(std::isnan(to_fp32(Bf16{state.half[i]})), is_nan)
                << "the bf16 weight alone shows the NaN, i=" << i;
          }
          if (kind == Kind::kFp16Master) {
            EXPECT_EQ(std::isnan(to_fp32(Fp16{state.half[i]})), is_nan) << i;
          }
          EXPECT_EQ(std::isinf(state.exp_avg[i]), i == 20 || i == 33) << i;
          EXPECT_EQ(std::isinf(state.exp_avg_sq[i]), i == 20 || i == 33) << i;
          EXPECT_EQ(std::isnan(state.exp_avg[i]), i == 5) << i;
        }
      }
    }
  }
}

TEST(AdamWSpecial, zero_gradients_on_a_fresh_state_leave_the_weights) {
  for (const Target target : targets()) {
    State state(Kind::kFp32, kElements, 0);
    Gradient gradient(DType::kFp32, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) state.set_master(i, static_cast<float>(i) - 30.0F);
    adamw_update(state.arrays(gradient), StateFormat::kFp32, AdamWHyper{}, target);
    for (std::int64_t i = 0; i < kElements; ++i) EXPECT_EQ(state.wide[i], static_cast<float>(i) - 30.0F);
  }
}

// A subnormal moment would never reach zero by itself and slows every later step; without eps it still decides the
// step.
TEST(AdamWSpecial, moments_without_gradients_end_at_zero_and_not_in_subnormals) {
  for (const Target target : targets()) {
    for (const double eps : {1e-8, 0.0}) {
      State state(Kind::kSplit, kElements, 0);
      Gradient gradient(DType::kBf16, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i) {
        state.exp_avg[i] = i % 2 == 0 ? 1e-3F : -1e-3F;
        state.exp_avg_sq[i] = 1e-6F;
      }
      AdamWHyper hyper;
      hyper.beta2 = 0.95;
      hyper.eps = eps;
      for (int t = 1000; t < 3000; ++t) {
        hyper.optimizer_step = t;
        adamw_update(state.arrays(gradient), StateFormat::kSplit, hyper, target);
      }
      for (std::int64_t i = 0; i < kElements; ++i) {
        EXPECT_EQ(state.exp_avg[i] == 0, eps > 0) << i << " " << target_name(target) << " eps " << eps;
        EXPECT_EQ(state.exp_avg_sq[i] == 0, eps > 0) << i << " " << target_name(target) << " eps " << eps;
        EXPECT_TRUE(std::isfinite(state.master_at(i))) << i;
      }
    }
  }
}

TEST(AdamWSpecial, at_a_large_step_counter_the_bias_correction_is_gone) {
  for (const Target target : targets()) {
    for (const std::int64_t t : {300, 5000, 2000000000}) {
      State state(Kind::kFp32, kElements, 0);
      Gradient gradient(DType::kFp32, kElements, 0);
      AdamWHyper hyper;
      hyper.optimizer_step = t;
      for (std::int64_t i = 0; i < kElements; ++i) {
        state.exp_avg[i] = 1.0F;
        state.exp_avg_sq[i] = 1.0F;
        gradient.set(i, 1.0F);
      }
      Truth truth = {0, 1, 1};
      truth.step(1, hyper);
      adamw_update(state.arrays(gradient), StateFormat::kFp32, hyper, target);
      for (std::int64_t i = 0; i < kElements; ++i)
        EXPECT_NEAR(static_cast<double>(state.wide[i]), truth.p, 3 * ulp_of(truth.p)) << t;
    }
  }
}

// A weight that the update leaves alone goes through split and join; the stored halves must be those of core/dtype.h.
TEST(AdamWSpecial, ties_of_the_split_rule_go_away_from_zero_on_every_target) {
  constexpr std::uint32_t kTies[] = {0x3F7F8000U, 0x3F808000U, 0x3F818000U, 0x3F828000U, 0x3FFF8000U,
                                     0x40008000U, 0x007F8000U, 0x00808000U, 0xC09F8000U, 0xC0A08000U,
                                     0x3F807FFFU, 0x3F808001U, 0x7F7F8000U, 0x80000000U};
  for (const Target target : targets()) {
    for (const Kind kind : {Kind::kSplit, Kind::kBf16Master}) {
      State state(kind, kElements, 0);
      Gradient gradient(DType::kBf16, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i)
        state.set_master(i, std::bit_cast<float>(kTies[i % std::ssize(kTies)]));
      adamw_update(state.arrays(gradient), format_of(kind), AdamWHyper{}, target);
      for (std::int64_t i = 0; i < kElements; ++i) {
        const std::uint32_t bits = kTies[i % std::ssize(kTies)];
        EXPECT_EQ(std::bit_cast<std::uint32_t>(state.master_at(i)), bits) << std::hex << bits;
        EXPECT_EQ(state.half[i], static_cast<std::uint16_t>((bits + 0x8000U) >> 16))
            << std::hex << bits << " " << target_name(target);
      }
    }
  }
}

TEST(Target, a_wish_lowers_the_target_and_never_raises_it) {
  EXPECT_EQ(choose_target("scalar"), Target::kScalar);
  EXPECT_EQ(choose_target(target_name(choose_target(""))), choose_target(""));
  EXPECT_EQ(choose_target("avx512") == Target::kAvx512, target_available(Target::kAvx512));
  for (const Target wish : {Target::kAvx2, Target::kNeon}) {
    EXPECT_EQ(choose_target(target_name(wish)), target_available(wish) ? wish : Target::kScalar) << target_name(wish);
  }
  EXPECT_TRUE(target_available(choose_target("")));
  EXPECT_TRUE(target_available(Target::kScalar));
}

TEST(Target, an_unknown_wish_is_reported_and_runs_scalar) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(choose_target("axv2"), Target::kScalar);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("axv2"), std::string::npos);
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
