// SPDX-License-Identifier: Apache-2.0
// Gradient arrival: rounding, the sum with what is stored, chunk norms in a fixed order, counts of non-finite values.
#include <algorithm>

#include <gtest/gtest.h>

#include "adamw_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

constexpr std::int64_t kChunk = ParallelUpdater::kNormChunk;

struct Arrived {
  Gradient stored;
  std::vector<double> sums;
  std::vector<std::int64_t> non_finite;
};

Arrived arrive(const ParallelUpdater& updater, GuardedArray<float>& source, const Gradient& before, std::int64_t n,
               bool add) {
  const auto chunks = static_cast<std::size_t>(ceil_div(n, kChunk));
  Arrived result{before, std::vector<double>(chunks), std::vector<std::int64_t>(chunks)};
  updater.arrive({source.data(), result.stored.data(), before.dtype, add, n}, result.sums, result.non_finite);
  return result;
}

// The definition, written out: sixteen interleaved sums per chunk, halved until one is left.
double chunk_sum(const Gradient& stored, std::int64_t begin, std::int64_t end) {
  std::vector<double> lanes(16);
  for (std::int64_t i = begin; i < end; ++i) {
    const auto x = static_cast<double>(stored.at(i));
    lanes[static_cast<std::size_t>((i - begin) % 16)] += x * x;
  }
  while (lanes.size() > 1) {
    const std::size_t half = lanes.size() / 2;
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    lanes.resize(half);
  }
  return lanes[0];
}

std::uint16_t half_bits(DType dtype, float value) {
  return dtype == DType::kBf16 ? to_bf16(value).bits : to_fp16(value).bits;
}

TEST(Arrive, stored_values_are_rounded_to_nearest_even_and_norms_are_of_what_is_stored) {
  for (const Target target : targets()) {
    const ParallelUpdater updater(2, target);
    for (const DType dtype : kAllDTypes) {
      for (const bool add : {false, true}) {
        for (const std::int64_t n : {1, 3, 15, 16, 17, 33, 4095, 4096, 4097, 100003}) {
          const auto seed = static_cast<std::uint64_t>(n);
          Random random(seed);
          GuardedArray<float> source(n, n % 5);
          Gradient before(dtype, n, n % 9);
          for (std::int64_t i = 0; i < n; ++i) {
            source[i] = random.gradient();
            before.set(i, random.gradient());
          }
          const Arrived got = arrive(updater, source, before, n, add);
          for (std::int64_t i = 0; i < n; ++i) {
            const float want = add ? source[i] + before.at(i) : source[i];
            if (dtype == DType::kFp32) {
              ASSERT_EQ(std::bit_cast<std::uint32_t>(got.stored.wide[i]), std::bit_cast<std::uint32_t>(want))
                  << i << " seed " << seed;
            } else {
              ASSERT_EQ(got.stored.half[i], half_bits(dtype, want))
                  << i << " seed " << seed << " " << target_name(target);
            }
          }
          ASSERT_TRUE(got.stored.wide.guards_intact() && got.stored.half.guards_intact()) << n;
          for (std::size_t c = 0; c < got.sums.size(); ++c) {
            const auto begin = static_cast<std::int64_t>(c) * kChunk;
            ASSERT_EQ(got.sums[c], chunk_sum(got.stored, begin, std::min(n, begin + kChunk)))
                << "chunk " << c << " n=" << n << " " << dtype_name(dtype) << " " << target_name(target) << " seed "
                << seed;
            ASSERT_EQ(got.non_finite[c], 0);
          }
        }
      }
    }
  }
}

TEST(Arrive, non_finite_values_are_counted_in_their_chunk_and_keep_their_kind) {
  constexpr std::int64_t kElements = 3 * kChunk + 5;
  for (const Target target : targets()) {
    const ParallelUpdater updater(1, target);
    for (const DType dtype : kAllDTypes) {
      GuardedArray<float> source(kElements, 0);
      Gradient before(dtype, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i) source[i] = 1.0F;
      source[7] = INFINITY;
      source[kChunk + 1] = NAN;
      source[kChunk + 2] = -NAN;
      source[kChunk + 3] = -INFINITY;
      source[3 * kChunk + 4] = std::bit_cast<float>(0x7F800001U);  // a NaN whose payload is lost by truncation
      source[2 * kChunk] = 70000.0F;                               // beyond fp16
      const Arrived got = arrive(updater, source, before, kElements, false);
      EXPECT_EQ(got.non_finite, (std::vector<std::int64_t>{1, 3, dtype == DType::kFp16 ? 1 : 0, 1}))
          << dtype_name(dtype);
      EXPECT_TRUE(std::isinf(got.stored.at(7)) && std::isnan(got.stored.at(kChunk + 1)));
      EXPECT_TRUE(std::isnan(got.stored.at(3 * kChunk + 4)));
      EXPECT_TRUE(std::signbit(got.stored.at(kChunk + 2)) && std::signbit(got.stored.at(kChunk + 3)));
      EXPECT_TRUE(std::isinf(got.sums[0]));
      EXPECT_TRUE(std::isnan(got.sums[1]));
    }
  }
}

TEST(Arrive, every_target_and_thread_count_gives_the_same_bits_for_any_pattern) {
  constexpr std::int64_t kElements = 40 * kChunk + 77;
  constexpr std::uint64_t kSeed = 12;
  for (const DType dtype : kAllDTypes) {
    for (const bool add : {false, true}) {
      std::mt19937_64 engine(kSeed);
      GuardedArray<float> source(kElements, 0);
      Gradient before(dtype, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i) {
        source[i] = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
        if (dtype == DType::kFp32) before.wide[i] = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
        if (dtype != DType::kFp32) before.half[i] = static_cast<std::uint16_t>(engine());
      }
      const Arrived truth = arrive(ParallelUpdater(1, Target::kScalar), source, before, kElements, add);
      for (const Target target : targets()) {
        for (const int threads : {1, 2, 3}) {
          const Arrived got = arrive(ParallelUpdater(threads, target), source, before, kElements, add);
          const auto where =
              std::string(dtype_name(dtype)) + " " + target_name(target) + " seed " + std::to_string(kSeed);
          ASSERT_TRUE(got.stored.wide.same_bits(truth.stored.wide) && got.stored.half.same_bits(truth.stored.half))
              << where;
          ASSERT_EQ(std::memcmp(got.sums.data(), truth.sums.data(), got.sums.size() * sizeof(double)), 0) << where;
          ASSERT_EQ(got.non_finite, truth.non_finite) << where;
        }
      }
    }
  }
}

// In bf16 the sum would stop at 2^-5, where half a spacing is more than what is added.
TEST(Arrive, four_thousand_small_gradients_add_up_in_an_fp32_accumulator) {
  constexpr std::int64_t kElements = 37;
  const float small = to_fp32(to_bf16(1e-4F));
  for (const Target target : targets()) {
    const ParallelUpdater updater(1, target);
    const std::vector<float> source(kElements, small);
    std::vector<float> accumulator(kElements, 0.0F);
    std::vector<double> sums(1);
    std::vector<std::int64_t> non_finite(1);
    float expected = 0;
    for (int k = 0; k < 4096; ++k) {
      updater.arrive({source.data(), accumulator.data(), DType::kFp32, true, kElements}, sums, non_finite);
      expected += small;
    }
    EXPECT_NEAR(expected, 4096 * small, 1e-4 * 4096 * small);
    for (const float sum : accumulator) EXPECT_EQ(sum, expected) << target_name(target);
  }
}

TEST(Arrive, an_fp32_accumulator_may_arrive_in_place) {
  constexpr std::int64_t kElements = 5000;
  Gradient accumulator(DType::kFp32, kElements, 0);
  for (std::int64_t i = 0; i < kElements; ++i) accumulator.set(i, 0.5F);
  std::vector<double> sums(2);
  std::vector<std::int64_t> non_finite(2, -1);
  ParallelUpdater(2).arrive({accumulator.wide.data(), accumulator.wide.data(), DType::kFp32, false, kElements}, sums,
                            non_finite);
  EXPECT_EQ(sums, (std::vector<double>{1024.0, 226.0}));
  EXPECT_EQ(non_finite, (std::vector<std::int64_t>{0, 0}));
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
