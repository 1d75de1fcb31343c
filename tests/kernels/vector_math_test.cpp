// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/vector_math_table.h"

namespace headrace::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double ulp_error(float value, double exact) {
  const auto nearest = std::fabs(static_cast<float>(exact));
  const double ulp = static_cast<double>(std::nextafter(nearest, kInfinity)) - static_cast<double>(nearest);
  return std::fabs(static_cast<double>(value) - exact) / ulp;
}

std::vector<float> evenly(float first, float last, int count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    x[static_cast<std::size_t>(i)] = first + (last - first) * static_cast<float>(i) / static_cast<float>(count - 1);
  return x;
}

TEST(VectorMath, ExpIsWithinItsBound) {
  for (const auto* table : vector_math_tables()) {
    const auto x = evenly(-87.3F, 88.7F, 1'000'003);
    std::vector<float> y(x.size());
    table->exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    float where = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulp_error(y[i], std::exp(static_cast<double>(x[i])));
      if (error > worst) worst = error, where = x[i];
    }
    std::printf("exp %s: worst %.3f ULP at x = %.9g\n", table->target, worst, static_cast<double>(where));
    EXPECT_LE(worst, 1.5) << table->target << " at " << where;
  }
}

TEST(VectorMath, SigmoidIsWithinItsBound) {
  for (const auto* table : vector_math_tables()) {
    const auto x = evenly(-87.0F, 87.0F, 1'000'003);
    std::vector<float> y(x.size());
    table->sigmoid(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    float where = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = ulp_error(y[i], 1.0 / (1.0 + std::exp(-static_cast<double>(x[i]))));
      if (error > worst) worst = error, where = x[i];
    }
    std::printf("sigmoid %s: worst %.3f ULP at x = %.9g\n", table->target, worst, static_cast<double>(where));
    EXPECT_LE(worst, 3.0) << table->target << " at " << where;
  }
}

TEST(VectorMath, ExtremesAreWhatIeeeSays) {
  for (const auto* table : vector_math_tables()) {
    std::vector<float> x{0.0F, -0.0F, kInfinity, -kInfinity, 1000.0F, -1000.0F, 89.0F, -87.5F, std::nanf("")};
    std::vector<float> y(x.size());
    table->exp(x.data(), y.data(), 9);
    const std::vector<float> expected{1.0F, 1.0F, kInfinity, 0.0F, kInfinity, 0.0F, kInfinity, 0.0F};
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(y[i], expected[i]) << table->target << " exp " << x[i];
    EXPECT_TRUE(std::isnan(y[8])) << table->target;
    table->sigmoid(x.data(), y.data(), 9);
    const std::vector<float> sigmoids{0.5F, 0.5F, 1.0F, 0.0F, 1.0F, 0.0F, 1.0F, 0.0F};
    for (std::size_t i = 0; i < sigmoids.size(); ++i)
      EXPECT_EQ(y[i], sigmoids[i]) << table->target << " sigmoid " << x[i];
    EXPECT_TRUE(std::isnan(y[8])) << table->target;
  }
}

TEST(VectorMath, AllTargetsGiveTheSameBitsForEveryLength) {
  const auto tables = vector_math_tables();
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 20.0F);
  for (std::int64_t count = 0; count < 70; ++count) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& value : x) value = normal(random);
    std::vector<float> first(x.size());
    std::vector<float> other(x.size());
    for (const auto* table : tables) {
      tables[0]->exp(x.data(), first.data(), count);
      table->exp(x.data(), other.data(), count);
      EXPECT_EQ(first, other) << table->target << " exp, count " << count;
      tables[0]->sigmoid(x.data(), first.data(), count);
      table->sigmoid(x.data(), other.data(), count);
      EXPECT_EQ(first, other) << table->target << " sigmoid, count " << count;
      const float sum = tables[0]->exp_minus_sum(x.data(), 40.0F, first.data(), count);
      EXPECT_EQ(sum, table->exp_minus_sum(x.data(), 40.0F, other.data(), count))
          << table->target << ", count " << count;
      EXPECT_EQ(first, other) << table->target << " exp_minus_sum, count " << count;
      EXPECT_EQ(tables[0]->max(x.data(), count), table->max(x.data(), count)) << table->target << ", count " << count;
    }
  }
}

TEST(VectorMath, SumAndMaximumAreRight) {
  std::vector<float> x(1003);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  const float largest = max_array(x.data(), 1003);
  EXPECT_EQ(largest, *std::max_element(x.begin(), x.end()));
  EXPECT_EQ(max_array(x.data(), 0), -kInfinity);
  double exact = 0;
  for (const float value : x) exact += std::exp(static_cast<double>(value) - static_cast<double>(largest));
  EXPECT_NEAR(exp_minus_sum(x.data(), largest, x.data(), 1003), exact, exact * 1e-6);
}

TEST(VectorMath, AllSixteenBitValuesWidenLikeTheScalarConversion) {
  std::vector<Bf16> bf16(65536);
  std::vector<Fp16> fp16(65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    bf16[bits].bits = static_cast<std::uint16_t>(bits);
    fp16[bits].bits = static_cast<std::uint16_t>(bits);
  }
  for (const auto* table : vector_math_tables()) {
    std::vector<float> out(65536);
    table->widen_bf16(bf16.data(), out.data(), 65536 - 3);
    for (std::size_t i = 0; i < 65536 - 3; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), i << 16) << table->target;
    table->widen_fp16(fp16.data(), out.data(), 65536 - 3);
    for (std::size_t i = 0; i < 65536 - 3; ++i) {
      const float expected = to_fp32(fp16[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out[i])) << table->target << " " << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(expected))
            << table->target << " " << i;
      }
    }
  }
}

TEST(VectorMath, RoundingToBf16HasTheBitsOfTheScalarConversion) {
  std::mt19937 random(3);
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low :
         {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU, static_cast<std::uint32_t>(random() & 0xFFFFU)}) {
      x.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const auto count = static_cast<std::int64_t>(x.size()) - 5;
  for (const auto* table : vector_math_tables()) {
    std::vector<Bf16> out(x.size());
    table->round_to_bf16(x.data(), out.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(out[at].bits, to_bf16(x[at]).bits)
          << table->target << " of " << std::hex << std::bit_cast<std::uint32_t>(x[at]);
    }
  }
}

}  // namespace
}  // namespace headrace::kernels
