// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace headrace {
namespace {

// Known answers that come with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, GivesThePublishedAnswers) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(philox4x32({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, {0xA4093822U, 0x299F31D0U}),
            (PhiloxBlock{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
  static_assert(philox4x32({0, 0, 0, 0}, {0, 0})[0] == 0x6627E8D5U);
}

TEST(CounterRng, DependsOnSeedStreamAndIndexAlone) {
  const CounterRng rng(1, 2);
  EXPECT_EQ(rng.bits(5), CounterRng(1, 2).bits(5));
  EXPECT_NE(rng.bits(5), CounterRng(1, 3).bits(5));
  EXPECT_NE(rng.bits(5), CounterRng(2, 2).bits(5));
  EXPECT_NE(rng.bits(5), rng.bits(6));
  EXPECT_NE(rng.block(0), rng.block(std::uint64_t{1} << 32));
}

TEST(CounterRng, FillsTheSameNormalsWhereverItStarts) {
  const CounterRng rng(42, 7);
  std::vector<float> whole(1003);
  rng.fill_normal(whole, 0, 0.02);
  for (const std::size_t first : {0UL, 1UL, 2UL, 3UL, 4UL, 517UL, 1002UL}) {
    std::vector<float> part(whole.size() - first);
    rng.fill_normal(part, first, 0.02);
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[first + i]) << first << "+" << i;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], static_cast<float>(0.02 * rng.normal(i)));
}

TEST(CounterRng, HasTheMomentsOfItsDistributions) {
  const std::uint64_t seed = 3;
  const CounterRng rng(seed, 0);
  constexpr int kCount = 200'000;
  double sum = 0, squares = 0, fourths = 0, neighbours = 0, uniforms = 0, last = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double value = rng.normal(i);
    ASSERT_LT(std::abs(value), 6.8) << i;
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
    neighbours += value * last;
    last = value;
    const double uniform = rng.uniform(i);
    ASSERT_GE(uniform, 0.0);
    ASSERT_LT(uniform, 1.0);
    uniforms += uniform;
  }
  const double deviation = 1 / std::sqrt(kCount);  // bounds: five standard errors
  EXPECT_NEAR(sum / kCount, 0, 5 * deviation) << "seed " << seed;
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0) * deviation);
  EXPECT_NEAR(fourths / kCount, 3, 5 * std::sqrt(96.0) * deviation);
  EXPECT_NEAR(neighbours / kCount, 0, 5 * deviation);
  EXPECT_NEAR(uniforms / kCount, 0.5, 5 * std::sqrt(1.0 / 12) * deviation);
}

TEST(Permutation, MeetsEveryElementOnce) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 4097, 65'536, 100'003}) {
    const Permutation permutation(n, 9, 4);
    std::vector<bool> met(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t value = permutation.at(i);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, n);
      ASSERT_FALSE(met[static_cast<std::size_t>(value)]) << "n " << n << ": " << value << " twice";
      met[static_cast<std::size_t>(value)] = true;
    }
  }
}

TEST(Permutation, ChangesWithSeedAndEpochAndLooksShuffled) {
  constexpr std::int64_t kCount = 10'000;
  const Permutation first(kCount, 1, 0);
  const Permutation again(kCount, 1, 0);
  const Permutation next_epoch(kCount, 1, 1);
  const Permutation other_seed(kCount, 2, 0);
  int same_epoch = 0, same_seed = 0, fixed = 0, ascending = 0;
  double products = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(first.at(i), again.at(i));
    same_epoch += first.at(i) == next_epoch.at(i) ? 1 : 0;
    same_seed += first.at(i) == other_seed.at(i) ? 1 : 0;
    fixed += first.at(i) == i ? 1 : 0;
    if (i > 0) ascending += first.at(i) > first.at(i - 1) ? 1 : 0;
    products += (static_cast<double>(i) / kCount - 0.5) * (static_cast<double>(first.at(i)) / kCount - 0.5);
  }
  // Two random permutations agree in one place on average (Poisson): 12 has a chance below 1e-9.
  EXPECT_LT(same_epoch, 12);
  EXPECT_LT(same_seed, 12);
  EXPECT_LT(fixed, 12);
  EXPECT_NEAR(ascending, kCount / 2, 5 * std::sqrt(kCount / 12.0));
  EXPECT_NEAR(12 * products / kCount, 0, 5 / std::sqrt(kCount));
}

TEST(Permutation, ReachesManyOrdersOfAFewElements) {
  std::vector<int> orders(216);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const Permutation permutation(3, seed, 0);
    ++orders[static_cast<std::size_t>(permutation.at(0) * 36 + permutation.at(1) * 6 + permutation.at(2))];
  }
  int met = 0;
  for (const int count : orders) met += count > 100 ? 1 : 0;
  EXPECT_EQ(met, 6) << "each of the six orders should come about 333 times in 2000";
}

}  // namespace
}  // namespace headrace
