// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding: the random bits are even and unrelated between elements, steps, streams and uses; what is
// rounded keeps its mean, in every plane that is rounded, also over many steps that are too small to be seen one by
// one.
#include <gtest/gtest.h>

#include "cpu_adam/format_random.h"
#include "format_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

constexpr std::uint32_t kSamples = 1U << 20;

double half(std::uint32_t bits, int shift) { return static_cast<double>((bits >> shift) & 0xFFFF) / 65536.0 - 0.5; }

// Correlation of two sequences of numbers that are even on (-1/2, 1/2): within 5 standard deviations of none.
template <class First, class Second>
void expect_unrelated(const char* what, const First& first, const Second& second) {
  double sum = 0;
  for (std::uint32_t i = 0; i < kSamples; ++i) sum += 12.0 * first(i) * second(i);
  const double correlation = sum / kSamples;
  EXPECT_LE(std::abs(correlation), 5.0 / std::sqrt(static_cast<double>(kSamples))) << what << " " << correlation;
}

TEST(RoundingBits, every_bit_is_even_and_halves_fill_their_range_evenly) {
  for (const std::uint64_t seed : {0ULL, 1ULL, 0xFFFFFFFFFFFFFFFFULL}) {
    const RoundingKey key = rounding_key(seed, 1, 0, 0);
    std::vector<int> ones(32), upper(256), lower(256), shared(256);
    for (std::uint32_t i = 0; i < kSamples; ++i) {
      const std::uint32_t bits = rounding_bits(key, i);
      for (std::size_t b = 0; b < 32; ++b) ones[b] += static_cast<int>((bits >> b) & 1U);
      ++upper[bits >> 24];
      ++lower[(bits >> 8) & 0xFF];
      ++shared[(bits >> 16) & 0xFF];
    }
    const double deviation = std::sqrt(kSamples / 4.0);
    for (const int count : ones) EXPECT_NEAR(count, kSamples / 2.0, 5 * deviation) << "seed " << seed;
    for (const auto& counts : {upper, lower, shared}) {
      double chi_squared = 0;  // 255 degrees of freedom: mean 255, deviation 22.6
      for (const int count : counts) chi_squared += std::pow(count - kSamples / 256.0, 2) / (kSamples / 256.0);
      EXPECT_LE(chi_squared, 255 + 5 * 22.6) << "seed " << seed;
    }
  }
}

TEST(RoundingBits, neighbours_steps_streams_seeds_and_uses_are_unrelated) {
  const RoundingKey key = rounding_key(42, 100, 3, 0);
  for (const int shift : {0, 16}) {
    const auto here = [&](std::uint32_t i) { return half(rounding_bits(key, i), shift); };
    for (const std::uint32_t distance : {1U, 2U, 3U, 8U, 16U, 64U, 128U, 4096U, 65536U, 1U << 22}) {
      expect_unrelated("elements apart", here,
                       [&](std::uint32_t i) { return half(rounding_bits(key, i + distance), shift); });
    }
    const RoundingKey others[] = {rounding_key(42, 101, 3, 0), rounding_key(42, 100, 4, 0), rounding_key(43, 100, 3, 0),
                                  rounding_key(42, 100, 3, std::int64_t{1} << 32)};
    for (const RoundingKey& other : others) {
      expect_unrelated("another key", here, [&](std::uint32_t i) { return half(rounding_bits(other, i), shift); });
    }
  }
  expect_unrelated(
      "both moments", [&](std::uint32_t i) { return half(rounding_bits(key, i), 0); },
      [&](std::uint32_t i) { return half(rounding_bits(key, i), 16); });
  expect_unrelated(
      "master and first moment", [&](std::uint32_t i) { return half(rounding_bits(key, i) << 8, 16); },
      [&](std::uint32_t i) { return half(rounding_bits(key, i), 16); });
}

TEST(RoundingBits, one_changed_bit_of_the_index_changes_every_bit_with_even_odds) {
  const RoundingKey key = rounding_key(7, 1, 0, 0);
  constexpr int kTrials = 40000;
  double worst = 0;
  for (std::uint32_t in = 0; in < 32; ++in) {
    std::vector<int> changed(32);
    for (std::uint32_t trial = 0; trial < kTrials; ++trial) {
      const std::uint32_t index = trial * 2654435761U;
      const std::uint32_t difference = rounding_bits(key, index) ^ rounding_bits(key, index ^ (1U << in));
      for (std::size_t b = 0; b < 32; ++b) changed[b] += static_cast<int>((difference >> b) & 1U);
    }
    for (const int count : changed) worst = std::max(worst, std::abs(count / static_cast<double>(kTrials) - 0.5));
  }
  std::printf("[ WORST    ] a changed index bit changes an output bit with odds 1/2 +- %.4f\n", worst);
  EXPECT_LE(worst, 0.03);
}

struct Mean {
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  void see(double x) {
    sum += x;
    squares += x * x;
    ++count;
  }
  [[nodiscard]] double value() const { return sum / static_cast<double>(count); }
  [[nodiscard]] double error() const {  // five standard errors
    const double n = static_cast<double>(count);
    return 5 * std::sqrt(std::max(0.0, squares / n - value() * value()) / n);
  }
};

// With beta1 = beta2 = 0 the moments are the gradient and its square: what is stored must have these means.
TEST(StochasticRounding, the_mean_of_what_is_stored_is_what_was_computed) {
  constexpr std::int64_t kElements = 64 * 6000;
  constexpr std::int64_t kValues = 63;  // the 64th of each block is its largest
  const auto value_at = [](std::int64_t i) {
    const std::int64_t k = i % 64;
    if (k == kValues) return 1.0F;
    return static_cast<float>(std::pow(10.0, -3.0 * static_cast<double>(k) / kValues)) * (k % 2 == 0 ? 0.93F : -0.93F);
  };
  for (const StateFormat format : kNarrowFormats) {
    FormatState state(format, kElements, 0);
    Gradient gradient(DType::kFp32, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, value_at(i));
    AdamWHyper hyper;
    hyper.beta1 = hyper.beta2 = 0;
    adamw_update(state.arrays(gradient), format, hyper, best_target());
    const Wide wide = state.widen();
    std::vector<Mean> m(64), v(64);
    for (std::int64_t i = 0; i < kElements; ++i) {
      m[static_cast<std::size_t>(i % 64)].see(static_cast<double>(wide.exp_avg[static_cast<std::size_t>(i)]));
      v[static_cast<std::size_t>(i % 64)].see(static_cast<double>(wide.exp_avg_sq[static_cast<std::size_t>(i)]));
    }
    for (std::int64_t k = 0; k < 64; ++k) {
      const auto x = static_cast<double>(value_at(k));
      const Mean& mean = m[static_cast<std::size_t>(k)];
      const Mean& square = v[static_cast<std::size_t>(k)];
      EXPECT_NEAR(mean.value(), x, mean.error() + 1e-6 * std::abs(x)) << state_format_name(format) << " " << k;
      EXPECT_NEAR(square.value(), x * x, square.error() + 1e-6 * x * x) << state_format_name(format) << " " << k;
    }
  }
}

// A second moment that approaches its limit by 0.1 % a step: rounded to nearest, a bf16 would stay where it is.
TEST(StochasticRounding, a_thousand_steps_too_small_for_a_bf16_arrive) {
  constexpr std::int64_t kElements = 64 * 100;
  for (const StateFormat format : kNarrowFormats) {
    FormatState state(format, kElements, 0);
    Wide start(kElements);
    for (float& v : start.exp_avg_sq) v = 1.0F;
    state.narrow(start);
    Gradient gradient(DType::kFp32, kElements, 0);
    for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, 0.5F);
    AdamWHyper hyper;
    for (int t = 1; t <= 1000; ++t) {
      hyper.optimizer_step = t;
      adamw_update(state.arrays(gradient), format, hyper, best_target());
    }
    Mean mean;
    for (const float v : state.widen().exp_avg_sq) mean.see(static_cast<double>(v));
    const double want = 0.25 + 0.75 * std::pow(0.999, 1000);
    EXPECT_NEAR(mean.value(), want, mean.error() + 1e-5) << state_format_name(format);
    EXPECT_NEAR(mean.value(), want, 0.01 * want) << state_format_name(format);
    float nearest = 1.0F;
    for (int t = 0; t < 1000; ++t) nearest = to_fp32(to_bf16(0.999F * nearest + 0.001F * 0.25F));
    EXPECT_EQ(nearest, 1.0F) << "round to nearest would have moved after all: this case shows nothing";
  }
}

// 24 bits of master: steps of 1e-7 are a hundredth of what they can tell apart at 1.
TEST(StochasticRounding, the_compact_master_follows_steps_below_its_resolution) {
  constexpr std::int64_t kElements = 64 * 500;
  FormatState state(StateFormat::kCompact, kElements, 0);
  Wide start(kElements);
  for (float& p : start.master) p = 1.5F;
  state.narrow(start);
  Gradient gradient(DType::kFp32, kElements, 0);
  for (std::int64_t i = 0; i < kElements; ++i) gradient.set(i, 1.0F);
  AdamWHyper hyper;
  hyper.lr = 1e-7;
  hyper.beta1 = 0;
  hyper.eps = 0;
  for (int t = 1; t <= 200; ++t) {
    hyper.optimizer_step = t;
    adamw_update(state.arrays(gradient), StateFormat::kCompact, hyper, best_target());
  }
  Mean mean;
  for (const float p : state.widen().master) mean.see(static_cast<double>(p));
  // A step in fp32 is a whole number of its ulp, 1.19e-7: what is added each time is one ulp.
  const double step = static_cast<double>(1.5F - (1.5F - 1e-7F));
  EXPECT_NEAR(mean.value(), 1.5 - 200 * step, mean.error() + 0.02 * 200 * step);
  EXPECT_LT(mean.value(), 1.5 - 100 * step);
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
