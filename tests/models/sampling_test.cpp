// SPDX-License-Identifier: Apache-2.0
#include "models/sampling.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "models/checkpoint_init.h"

namespace headrace::models {
namespace {

TEST(SampleToken, TemperatureZeroTakesTheBestAndTheLowestIdOfEquals) {
  const std::vector<float> logits = {1, 3, -2, 3, 0};
  for (std::uint64_t position = 0; position < 10; ++position) EXPECT_EQ(sample_token(logits, {}, position).value(), 1);
  EXPECT_EQ(sample_token(logits, {.temperature = 2, .top_k = 1}, 5).value(), 1);
}

TEST(SampleToken, FollowsTheSoftmaxOfTheScaledLogits) {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    std::array<int, 4> counts{};
    constexpr int kDraws = 40'000;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      ++counts[static_cast<std::size_t>(sample_token(logits, {.temperature = temperature, .seed = 11}, i).value())];
    }
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    for (std::size_t i = 0; i < 4; ++i) {
      const double expected = std::exp(logits[i] / temperature) / total;
      EXPECT_NEAR(counts[i] / double{kDraws}, expected, 0.013) << i << " at " << temperature;  // 5 deviations
    }
  }
}

TEST(SampleToken, TopKNeverLeavesTheBestK) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 1000) / 500.0F;
  std::array<int, 3> seen{};
  for (std::uint64_t i = 0; i < 300; ++i) {
    const float logit =
        logits[static_cast<std::size_t>(sample_token(logits, {.temperature = 1.5, .top_k = 3}, i).value())];
    const auto rank = static_cast<std::size_t>(std::lround(999 - logit * 500));
    ASSERT_LT(rank, 3U);
    ++seen[rank];
  }
  for (const int count : seen) EXPECT_GT(count, 0);
  EXPECT_TRUE(sample_token(logits, {.temperature = 1, .top_k = 5000}, 0).ok());
}

TEST(SampleToken, DependsOnSeedAndPositionAlone) {
  const std::vector<float> logits(256, 0.0F);
  std::vector<std::int32_t> first, again, other;
  for (std::uint64_t i = 0; i < 64; ++i) {
    first.push_back(sample_token(logits, {.temperature = 1, .seed = 3}, i).value());
    other.push_back(sample_token(logits, {.temperature = 1, .seed = 4}, i).value());
  }
  for (std::uint64_t i = 64; i-- > 0;)
    again.insert(again.begin(), sample_token(logits, {.temperature = 1, .seed = 3}, i).value());
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

TEST(SampleToken, RefusesLogitsAndOptionsWithoutASense) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sample_token(std::vector<float>{1, std::nanf("")}, {}, 0).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(sample_token(std::vector<float>{1, kInfinity}, {}, 0).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(sample_token(std::vector<float>{-kInfinity, -kInfinity}, {}, 0).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(sample_token(std::vector<float>{}, {}, 0).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(sample_token(std::vector<float>{-kInfinity, 1}, {.temperature = 1}, 0).value(), 1);
  EXPECT_EQ(validate(SamplingOptions{.temperature = -1}).error().code, ErrorCode::kUsage);
  EXPECT_EQ(validate(SamplingOptions{.temperature = std::nan("")}).error().code, ErrorCode::kUsage);
  EXPECT_EQ(validate(SamplingOptions{.top_k = -1}).error().code, ErrorCode::kUsage);
}

TEST(FillInit, GivesTheSameBitsForAnySplit) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const auto kind :
       {runtime::InitRule::Kind::kNormal, runtime::InitRule::Kind::kOne, runtime::InitRule::Kind::kZero}) {
    const runtime::InitRule rule{.kind = kind, .deviation = 0.02};
    std::vector<float> whole(10'007), parts(10'007);
    fill_init(rule, seed, "model.norm.weight", 0, whole);
    for (std::size_t done = 0; done < parts.size();) {
      const std::size_t piece = std::min<std::size_t>(parts.size() - done, 1 + random() % 700);
      fill_init(rule, seed, "model.norm.weight", static_cast<std::int64_t>(done),
                std::span(parts).subspan(done, piece));
      done += piece;
    }
    EXPECT_EQ(parts, whole);
  }
}

TEST(FillInit, HasTheAskedMomentsAndDiffersByNameAndSeed) {
  const runtime::InitRule rule{.kind = runtime::InitRule::Kind::kNormal, .deviation = 0.02};
  std::vector<float> values(100'000), other_name(100'000), other_seed(100'000);
  fill_init(rule, 1, "a", 0, values);
  fill_init(rule, 1, "b", 0, other_name);
  fill_init(rule, 2, "a", 0, other_seed);
  double sum = 0, squares = 0, product_name = 0, product_seed = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += static_cast<double>(values[i]) * values[i];
    product_name += static_cast<double>(values[i]) * other_name[i];
    product_seed += static_cast<double>(values[i]) * other_seed[i];
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.02 * 5 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.02 * 0.012);
  EXPECT_NEAR(product_name / count, 0, 0.0004 * 5 / std::sqrt(count));
  EXPECT_NEAR(product_seed / count, 0, 0.0004 * 5 / std::sqrt(count));
}

TEST(FillInit, FillsConstantsForNormsAndBiases) {
  std::vector<float> values(3, 7.0F);
  fill_init({.kind = runtime::InitRule::Kind::kOne}, 1, "a", 5, values);
  EXPECT_EQ(values, std::vector<float>(3, 1.0F));
  fill_init({.kind = runtime::InitRule::Kind::kZero}, 1, "a", 5, values);
  EXPECT_EQ(values, std::vector<float>(3, 0.0F));
}

}  // namespace
}  // namespace headrace::models
