// SPDX-License-Identifier: Apache-2.0
// Faults that users of other CPU optimizers met, lr 0, NaN and infinity, zero gradients, large step counters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optimizer_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kElements = 77;

void update(OptimizerKind kind, const OptimizerHyper& hyper, State& state, Gradient& gradient, Target target) {
  const OptimizerArrays arrays = arrays_of(kind, hyper, state, gradient);
  ASSERT_TRUE(validate(kind, arrays, format_of(state.kind), hyper).ok());
  update_span(kind, arrays, format_of(state.kind), hyper, target);
}

// A SIMD Lion that flips the wrong bits leaves the weights as they are.
TEST(OptimizerFaults, the_first_step_of_lion_moves_every_weight_by_exactly_lr) {
  for (const Target target : targets()) {
    for (const std::int64_t n : {std::int64_t{1024}, std::int64_t{22}}) {
      constexpr std::uint64_t kSeed = 20;
      Random random(kSeed);
      State state(Kind::kFp32, n, 0);
      Gradient gradient(DType::kFp32, n, 0);
      for (std::int64_t i = 0; i < n; ++i) {
        state.wide[i] = static_cast<float>(i % 16) * 0.125F;  // the sum with lr is exact
        const float g = random.weight();
        gradient.set(i, g == 0 ? 1e-30F : g * (i % 3 == 0 ? 1e-20F : 1.0F));
      }
      const State before = state;
      OptimizerHyper hyper = default_hyper(OptimizerKind::kLion);
      hyper.lr = 0x1p-10;
      update(OptimizerKind::kLion, hyper, state, gradient, target);
      for (std::int64_t i = 0; i < n; ++i) {
        const float step = gradient.at(i) > 0 ? -0x1p-10F : 0x1p-10F;
        EXPECT_EQ(state.wide[i] - before.wide[i], step) << i << " " << target_name(target) << " seed " << kSeed;
      }
    }
  }
}

TEST(OptimizerFaults, lion_does_not_move_where_there_never_was_a_gradient) {
  for (const Target target : targets()) {
    State state(Kind::kFp32, kElements, 0);
    Gradient gradient(DType::kFp32, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) {
      state.wide[i] = i % 2 == 0 ? 1.5F : -0.0F;
      gradient.set(i, i % 3 == 0 ? -0.0F : 0.0F);
    }
    const State before = state;
    update(OptimizerKind::kLion, default_hyper(OptimizerKind::kLion), state, gradient, target);
    EXPECT_TRUE(state.wide.same_bits(before.wide)) << target_name(target);
  }
}

// The numerator must be the decayed gradient too.
TEST(OptimizerFaults, decay_of_adagrad_is_in_the_numerator_and_in_the_sum) {
  for (const Target target : targets()) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{40}}) {
      State state(Kind::kFp32, n, 0);
      Gradient gradient(DType::kFp32, n, 0);
      for (std::int64_t i = 0; i < n; ++i) {
        state.wide[i] = 1.0F;
        gradient.set(i, 0.1F);
      }
      const Gradient unchanged = gradient;
      OptimizerHyper hyper = default_hyper(OptimizerKind::kAdagrad);
      hyper.weight_decay = 0.5;
      update(OptimizerKind::kAdagrad, hyper, state, gradient, target);
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(state.wide[i], 0.99, 6e-8) << i << " " << target_name(target);
        EXPECT_NEAR(state.exp_avg[i], 0.36, 6e-8) << i << " " << target_name(target);
      }
      EXPECT_TRUE(gradient.wide.same_bits(unchanged.wide)) << "the gradient is only read";
    }
  }
}

// Adam and AdamW with decay are different optimizers, without decay the same.
TEST(OptimizerFaults, adam_is_adamw_bit_for_bit_only_without_decay) {
  for (const double wd : {0.0, 0.1}) {
    Random random(3);
    State adam(Kind::kSplit, kElements, 0);
    Gradient gradient(DType::kBf16, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) adam.set_master(i, random.weight());
    State adamw = adam;
    for (int t = 1; t <= 20; ++t) {
      for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, random.gradient());
      OptimizerHyper hyper = default_hyper(OptimizerKind::kAdam);
      hyper.weight_decay = wd;
      hyper.optimizer_step = t;
      update(OptimizerKind::kAdam, hyper, adam, gradient, best_target());
      update(OptimizerKind::kAdamW, hyper, adamw, gradient, best_target());
    }
    EXPECT_EQ(adam.same_bits(adamw), wd == 0) << "wd " << wd;
  }
}

// A tensor without a gradient on odd steps keeps its own count: its bias correction is that of its own updates.
TEST(OptimizerFaults, the_step_number_is_the_tensors_own) {
  constexpr std::uint64_t kSeed = 6;
  Random random(kSeed);
  State own(Kind::kFp32, kElements, 0);
  std::vector<Textbook<double>> truth(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) {
    own.set_master(i, random.weight());
    truth[static_cast<std::size_t>(i)].p = static_cast<double>(own.wide[i]);
  }
  State global = own;
  Gradient gradient(DType::kFp32, kElements, 0);
  OptimizerHyper hyper = default_hyper(OptimizerKind::kAdam);
  for (int t = 2; t <= 10; t += 2) {
    for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, random.gradient() + 1.0F);
    hyper.optimizer_step = t;
    update(OptimizerKind::kAdam, hyper, global, gradient, best_target());
    hyper.optimizer_step = t / 2;
    update(OptimizerKind::kAdam, hyper, own, gradient, best_target());
    for (std::int64_t i = 0; i < kElements; ++i) {
      truth[static_cast<std::size_t>(i)].step(OptimizerKind::kAdam, static_cast<double>(gradient.at(i)), hyper);
    }
  }
  for (std::int64_t i = 0; i < kElements; ++i) {
    const double p = truth[static_cast<std::size_t>(i)].p;
    EXPECT_NEAR(static_cast<double>(own.wide[i]), p, 2e-6 * (std::abs(p) + 5e-3)) << i << " seed " << kSeed;
    EXPECT_GT(std::abs(static_cast<double>(global.wide[i]) - p), 1e-4) << "another count is another update, " << i;
  }
}

TEST(OptimizerFaults, clipping_by_the_scale_is_the_update_of_the_scaled_gradient) {
  for (const Variant& variant : kVariants) {
    Random random(12);
    State clipped(Kind::kFp32, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) clipped.set_master(i, random.weight());
    State scaled = clipped;
    Gradient full(DType::kFp32, kElements, 0);
    Gradient tenth(DType::kFp32, kElements, 0);
    for (int t = 1; t <= 3; ++t) {
      for (std::int64_t i = 0; i < kElements; ++i) {
        full.set(i, random.gradient());
        tenth.set(i, 0.125F * full.at(i));
      }
      OptimizerHyper hyper = hyper_of(variant, t, 0.1);
      update(variant.kind, hyper, scaled, tenth, best_target());
      hyper.gradient_scale = 0.125F;
      update(variant.kind, hyper, clipped, full, best_target());
    }
    EXPECT_TRUE(clipped.same_bits(scaled)) << variant.name;
  }
}

TEST(OptimizerSpecial, a_learning_rate_of_zero_moves_the_moments_and_nothing_else) {
  for (const Variant& variant : kVariants) {
    for (const Target target : targets()) {
      for (const Kind kind : kAllKinds) {
        State state(kind, kElements, 0);
        Gradient gradient(DType::kFp32, kElements, 0);
        Random random(3);
        for (std::int64_t i = 0; i < kElements; ++i) {
          state.set_master(i, i % 3 == 0 ? -0.0F : (i % 3 == 1 ? std::bit_cast<float>(0x7FA00001U) : random.weight()));
          gradient.set(i, i == 40 ? INFINITY : random.gradient() - 0.5F);
        }
        const State before = state;
        OptimizerHyper hyper = hyper_of(variant, 1, 0.1);
        hyper.lr = 0;
        update(variant.kind, hyper, state, gradient, target);
        EXPECT_TRUE(state.wide.same_bits(before.wide) && state.master.same_bits(before.master) &&
                    state.remainder.same_bits(before.remainder))
            << variant.name << " " << kind_name(kind) << " " << target_name(target);
        if (kind == Kind::kSplit || kind == Kind::kFp32) {
          EXPECT_TRUE(state.half.same_bits(before.half));
        }
        if (num_moments(variant.kind, hyper) == 0) continue;
        for (std::int64_t i = 0; i < kElements; ++i) EXPECT_NE(state.exp_avg[i], 0.0F) << i;
      }
    }
  }
}

TEST(OptimizerSpecial, non_finite_values_stay_with_their_element) {
  for (const Variant& variant : kVariants) {
    for (const Target target : targets()) {
      for (const Kind kind : kAllKinds) {
        for (const DType dtype : kAllDTypes) {
          State state(kind, kElements, 0);
          Gradient gradient(dtype, kElements, 0);
          for (std::int64_t i = 0; i < kElements; ++i) {
            state.set_master(i, 1.0F);
            gradient.set(i, i == 5 ? NAN : (i == 20 ? INFINITY : 0.25F));
          }
          state.set_master(47, NAN);
          const OptimizerHyper hyper = hyper_of(variant, 1, 0.1);
          update(variant.kind, hyper, state, gradient, target);
          for (std::int64_t i = 0; i < kElements; ++i) {
            const std::string where =
                std::string(variant.name) + " " + kind_name(kind) + " " + target_name(target) + " " + std::to_string(i);
            const float p = state.master_at(i);
            if (i == 5 || i == 47) {
              EXPECT_EQ(std::bit_cast<std::uint32_t>(p), 0x7FC00000U) << where;
              if (kind == Kind::kSplit) {
                EXPECT_TRUE(std::isnan(to_fp32(Bf16{state.half[i]}))) << where;
              }
            } else if (i == 20) {  // the sign of an infinity is a step like any other
              EXPECT_EQ(std::isfinite(p), variant.kind == OptimizerKind::kLion) << where;
            } else {
              EXPECT_TRUE(std::isfinite(p)) << where;
            }
            if (num_moments(variant.kind, hyper) == 0) continue;
            if (i == 5) {
              EXPECT_EQ(std::bit_cast<std::uint32_t>(state.exp_avg[i]), 0x7FC00000U) << where;
            }
            EXPECT_EQ(std::isinf(state.exp_avg[i]), i == 20) << where;
          }
        }
      }
    }
  }
}

// What is refused leaves every bit; the message says how many values are at fault.
TEST(OptimizerSpecial, a_gradient_that_is_not_finite_is_refused_before_anything_changes) {
  const ParallelOptimizer optimizer(2);
  for (const Variant& variant : kVariants) {
    for (const DType dtype : kAllDTypes) {
      Random random(2);
      State state(Kind::kSplit, 40000, 0);
      Gradient gradient(dtype, 40000, 0);
      for (std::int64_t i = 0; i < 40000; ++i) {
        state.set_master(i, random.weight());
        gradient.set(i, random.gradient());
      }
      const State before = state;
      gradient.set(39999, INFINITY);
      gradient.set(7, NAN);
      const OptimizerHyper hyper = hyper_of(variant, 1, 0.1);
      const OptimizerArrays arrays = arrays_of(variant.kind, hyper, state, gradient);
      const Result<void> refused = optimizer.checked_update(variant.kind, arrays, StateFormat::kSplit, hyper);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kNumeric);
      EXPECT_THAT(refused.error().message, HasSubstr("2 of the gradient's 40000 values are not finite"));
      EXPECT_TRUE(state.same_bits(before)) << variant.name;
      gradient.set(39999, 1.0F);
      gradient.set(7, 1.0F);
      ASSERT_TRUE(optimizer.checked_update(variant.kind, arrays, StateFormat::kSplit, hyper).ok());
      EXPECT_FALSE(state.same_bits(before)) << variant.name;
      State again = before;
      update(variant.kind, hyper, again, gradient, Target::kScalar);
      EXPECT_TRUE(state.same_bits(again)) << variant.name << ": " << first_difference_of(state, again);
    }
  }
}

TEST(OptimizerSpecial, zero_gradients_on_a_fresh_state_leave_the_weights) {
  for (const Variant& variant : kVariants) {
    for (const Target target : targets()) {
      State state(Kind::kFp32, kElements, 0);
      Gradient gradient(DType::kFp32, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i) state.set_master(i, static_cast<float>(i) - 30.0F);
      update(variant.kind, hyper_of(variant), state, gradient, target);
      for (std::int64_t i = 0; i < kElements; ++i) EXPECT_EQ(state.wide[i], static_cast<float>(i) - 30.0F);
    }
  }
}

// The first update of SGD takes the gradient for the buffer, whatever the buffer held.
TEST(OptimizerSpecial, sgd_starts_its_buffer_with_the_gradient) {
  for (const Target target : targets()) {
    State state(Kind::kFp32, kElements, 0);
    Gradient gradient(DType::kFp32, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) {
      gradient.set(i, 0.5F);
      state.exp_avg[i] = i % 2 == 0 ? NAN : 3.0F;
    }
    const OptimizerHyper hyper = hyper_of({"sgd damped", OptimizerKind::kSgd, 0.9, 0.3});
    update(OptimizerKind::kSgd, hyper, state, gradient, target);
    for (std::int64_t i = 0; i < kElements; ++i) {
      EXPECT_EQ(state.exp_avg[i], 0.5F);
      EXPECT_EQ(state.wide[i], -0.005F);
    }
  }
}

TEST(OptimizerSpecial, large_step_counters_give_the_formulas_values) {
  for (const Target target : targets()) {
    for (const Variant& variant : kVariants) {
      for (const std::int64_t t : {std::int64_t{300}, std::int64_t{5000}, std::int64_t{2000000000}}) {
        State state(Kind::kFp32, kElements, 0);
        Gradient gradient(DType::kFp32, kElements, 0);
        OptimizerHyper hyper = hyper_of(variant, t);
        hyper.lr_decay = 0.01;
        for (std::int64_t i = 0; i < kElements; ++i) {
          state.exp_avg[i] = 1.0F;
          state.exp_avg_sq[i] = 1.0F;
          gradient.set(i, 1.0F);
        }
        Textbook<double> truth;
        truth.m = 1;
        truth.v = 1;
        truth.step(variant.kind, 1, hyper);
        update(variant.kind, hyper, state, gradient, target);
        for (std::int64_t i = 0; i < kElements; ++i) {
          EXPECT_NEAR(static_cast<double>(state.wide[i]), truth.p, 4 * ulp_of(truth.p)) << variant.name << " " << t;
        }
      }
    }
  }
}

// Moments that decay without gradients end at zero where that changes no weight, and not in slow subnormals.
TEST(OptimizerSpecial, moments_without_gradients_end_at_zero_except_where_their_sign_counts) {
  for (const Variant& variant : {kVariants[0], kVariants[1], kVariants[4]}) {
    State state(Kind::kSplit, kElements, 0);
    Gradient gradient(DType::kBf16, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) {
      state.exp_avg[i] = i % 2 == 0 ? 1e-37F : -1e-37F;
      state.exp_avg_sq[i] = 1e-37F;
    }
    OptimizerHyper hyper = hyper_of(variant);
    hyper.beta2 = 0.9;
    for (int t = 1000; t < 1100; ++t) {
      hyper.optimizer_step = t;
      update(variant.kind, hyper, state, gradient, best_target());
    }
    for (std::int64_t i = 0; i < kElements; ++i) {
      EXPECT_EQ(state.exp_avg[i] == 0, variant.kind != OptimizerKind::kLion) << variant.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
