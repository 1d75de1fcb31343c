// SPDX-License-Identifier: Apache-2.0
// The narrow formats where values are special: lr 0, zero gradients, NaN and infinity, outliers, sizes at the ends of
// fp32; and the arguments that validate() refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kElements = 64 * 3 + 5;

TEST(AdamWFormatSpecial, a_learning_rate_of_zero_moves_the_moments_and_nothing_else) {
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      FormatState state(format, kElements, 0);
      Random random(3);
      state.narrow(random_state(kElements, random, 3));
      for (std::int64_t i = 0; i < kElements; i += 5) state.weights[i] = static_cast<std::uint16_t>(0x7F80 + i);
      Gradient gradient(DType::kFp32, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, 1.0F);
      const FormatState before = state;
      AdamWHyper hyper;
      hyper.lr = 0;
      hyper.weight_decay = 0.1;
      adamw_update(state.arrays(gradient), format, hyper, target);
      EXPECT_TRUE(state.weights.same_bits(before.weights)) << state_format_name(format) << " " << target_name(target);
      EXPECT_TRUE(state.planes[0].same_bits(before.planes[0])) << state_format_name(format);
      EXPECT_FALSE(state.planes[1].same_bits(before.planes[1])) << state_format_name(format);
      EXPECT_FALSE(state.planes[2].same_bits(before.planes[2])) << state_format_name(format);
    }
  }
}

TEST(AdamWFormatSpecial, non_finite_values_stay_with_their_element) {
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      for (const DType dtype : kAllDTypes) {
        FormatState state(format, kElements, 0);
        Wide wide(kElements);
        for (float& p : wide.master) p = 1.0F;
        wide.master[47] = NAN;
        wide.master[66] = INFINITY;
        state.narrow(wide);
        Gradient gradient(dtype, kElements, 0);
        for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, 0.25F);
        gradient.set(5, NAN);
        gradient.set(20, INFINITY);
        gradient.set(33, -INFINITY);
        AdamWHyper hyper;
        for (int t = 1; t <= 3; ++t) {
          hyper.optimizer_step = t;
          adamw_update(state.arrays(gradient), format, hyper, target);
          for (std::int64_t i : {5, 20, 33}) gradient.set(i, 0.25F);  // once is enough
        }
        const Wide got = state.widen();
        for (std::int64_t i = 0; i < kElements; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const bool is_nan = i == 5 || i == 20 || i == 33 || i == 47;  // infinity / infinity is NaN
          const std::string where = std::to_string(i) + " " + state_format_name(format) + " " + target_name(target);
          EXPECT_EQ(std::isnan(got.master[at]), is_nan) << where;
          EXPECT_EQ(std::isnan(to_fp32(Bf16{state.weights[i]})), is_nan) << where << ": the weight alone shows it";
          EXPECT_EQ(std::isinf(got.master[at]), i == 66) << where;
          if (is_nan && i != 47) continue;
          EXPECT_NEAR(static_cast<double>(got.exp_avg[at]), 0.25 * (1 - 0.9 * 0.9 * 0.9), 0.01) << where;
          EXPECT_NEAR(static_cast<double>(got.exp_avg_sq[at]), 0.0625 * 0.002997, 1e-5) << where;
        }
      }
    }
  }
}

TEST(AdamWFormatSpecial, a_compact_block_keeps_finite_moments_whatever_the_gradients) {
  for (const Target target : targets()) {
    FormatState state(StateFormat::kCompact, kElements, 0);
    Gradient gradient(DType::kFp32, kElements, 0);
    AdamWHyper hyper;
    for (int t = 1; t <= 200; ++t) {
      for (std::int64_t i = 0; i < kElements; ++i) {
        gradient.set(i, std::pow(10.0F, static_cast<float>((i * 7 + t * 11) % 77 - 38)) * (i % 2 == 0 ? 1.0F : -1.0F));
      }
      hyper.optimizer_step = t;
      hyper.gradient_scale = t % 50 == 0 ? 3e38F : 1.0F;
      adamw_update(state.arrays(gradient), StateFormat::kCompact, hyper, target);
      const Wide wide = state.widen();
      for (std::size_t i = 0; i < wide.master.size(); ++i) {
        ASSERT_TRUE(std::isfinite(wide.exp_avg[i]) && std::isfinite(wide.exp_avg_sq[i])) << i << " t=" << t;
      }
    }
  }
}

TEST(AdamWFormatSpecial, zero_gradients_on_a_fresh_state_leave_the_weights_and_moments) {
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      FormatState state(format, kElements, 0);
      Wide start(kElements);
      for (std::size_t i = 0; i < start.master.size(); ++i) start.master[i] = static_cast<float>(i) - 30.0F;
      state.narrow(start);
      Gradient gradient(DType::kFp32, kElements, 0);
      adamw_update(state.arrays(gradient), format, AdamWHyper{}, target);
      const Wide got = state.widen();
      EXPECT_EQ(got.master, start.master) << state_format_name(format) << " " << target_name(target);
      EXPECT_EQ(got.exp_avg, start.exp_avg) << state_format_name(format) << " " << target_name(target);
      EXPECT_EQ(got.exp_avg_sq, start.exp_avg_sq) << state_format_name(format) << " " << target_name(target);
    }
  }
}

TEST(AdamWFormatSpecial, moments_without_gradients_end_at_zero) {
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      FormatState state(format, kElements, 0);
      Wide start(kElements);
      for (std::size_t i = 0; i < start.exp_avg.size(); ++i) {
        start.exp_avg[i] = i % 2 == 0 ? 1e-3F : -1e-3F;
        start.exp_avg_sq[i] = 1e-6F;
      }
      state.narrow(start);
      Gradient gradient(DType::kBf16, kElements, 0);
      AdamWHyper hyper;
      hyper.beta2 = 0.95;
      for (int t = 1000; t < 3000; ++t) {
        hyper.optimizer_step = t;
        adamw_update(state.arrays(gradient), format, hyper, target);
      }
      const Wide got = state.widen();
      for (std::size_t i = 0; i < got.exp_avg.size(); ++i) {
        EXPECT_EQ(got.exp_avg[i], 0) << i << " " << state_format_name(format) << " " << target_name(target);
        EXPECT_LT(got.exp_avg_sq[i], 1e-36F) << i << " " << state_format_name(format) << " " << target_name(target);
        EXPECT_TRUE(std::isfinite(got.master[i])) << i;
      }
    }
  }
}

// One gradient a million times the others: they neither vanish nor explode, and the outlier is no other element's.
TEST(AdamWFormatSpecial, an_outlier_leaves_its_block_a_step_of_at_most_the_learning_rate) {
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      FormatState state(format, kElements, 0);
      Gradient gradient(DType::kFp32, kElements, 0);
      AdamWHyper hyper;
      for (int t = 1; t <= 300; ++t) {
        for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, i % 64 == 7 && t % 100 == 50 ? 1e4F : 1e-2F);
        hyper.optimizer_step = t;
        const Wide before = state.widen();
        adamw_update(state.arrays(gradient), format, hyper, target);
        const Wide after = state.widen();
        for (std::size_t i = 0; i < after.master.size(); ++i) {
          const double step = std::abs(static_cast<double>(after.master[i]) - static_cast<double>(before.master[i]));
          ASSERT_LE(step, 4 * hyper.lr) << i << " t=" << t << " " << state_format_name(format);
        }
      }
    }
  }
}

TEST(ValidateFormats, what_does_not_belong_to_the_format_is_named) {
  struct Case {
    StateFormat format;
    void (*change)(AdamWArrays&);
    const char* words;
  };
  static float other[kElements] = {};
  const Case cases[] = {
      {StateFormat::kSplitBf16, [](AdamWArrays& a) { a.weights_dtype = DType::kFp16; },
       "the split_bf16 format keeps bf16 weights, not fp16"},
      {StateFormat::kCompact, [](AdamWArrays& a) { a.weights_dtype = DType::kFp32; },
       "the compact format keeps bf16 weights, not fp32"},
      {StateFormat::kSplitBf16, [](AdamWArrays& a) { a.remainder = nullptr; }, "remainder is null"},
      {StateFormat::kSplitBf16, [](AdamWArrays& a) { a.master = other; }, "master is given"},
      {StateFormat::kSplitBf16, [](AdamWArrays& a) { a.exp_avg_scale = reinterpret_cast<std::uint8_t*>(other); },
       "exp_avg_scale is given"},
      {StateFormat::kSplitBf16, [](AdamWArrays& a) { a.exp_avg = static_cast<std::byte*>(a.exp_avg) + 1; },
       "exp_avg at 0x"},
      {StateFormat::kCompact, [](AdamWArrays& a) { a.exp_avg_sq_scale = nullptr; },
       "exp_avg_sq_scale is null with 4 elements"},
      {StateFormat::kCompact, [](AdamWArrays& a) { a.exp_avg_scale = static_cast<std::uint8_t*>(a.exp_avg) + 100; },
       "exp_avg and exp_avg_scale overlap"},
      {StateFormat::kCompact, [](AdamWArrays& a) { a.first_element = 100; }, "first_element is 100"},
      {StateFormat::kSplitBf16, [](AdamWArrays& a) { a.first_element = -64; }, "first_element is -64"},
      {StateFormat::kCompact, [](AdamWArrays& a) { a.elements = -1; }, "-1 elements"},
  };
  for (const Case& c : cases) {
    FormatState state(c.format, kElements, 0);
    Gradient gradient(DType::kBf16, kElements, 0);
    AdamWArrays arrays = state.arrays(gradient);
    ASSERT_TRUE(validate(arrays, c.format).ok()) << validate(arrays, c.format).error().message;
    c.change(arrays);
    const Result<void> result = validate(arrays, c.format);
    ASSERT_FALSE(result.ok()) << c.words;
    EXPECT_THAT(result.error().message, HasSubstr(c.words));
  }
  EXPECT_FALSE(validate(AdamWArrays{}, static_cast<StateFormat>(9)).ok());
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
