// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numbers>

#include "numeric_support.h"

namespace headrace::kernels {
namespace {

RopeFrequencies scaled() {
  return {.theta = 10000,
          .scaled = true,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_max_position = 64};
}

TEST(Rope, turns_within_2_ulp_of_the_pair) {
  const Parallel parallel(2);
  for (const RopeFrequencies& frequencies : {RopeFrequencies{}, scaled()}) {
    for (const std::int64_t head_dim : {std::int64_t{2}, std::int64_t{10}, std::int64_t{64}, std::int64_t{152}}) {
      constexpr std::int64_t kTime = 97;
      constexpr std::int64_t kRows = 3 * kTime;
      constexpr std::int64_t kHeads = 3;
      const RopeTable table = make_rope_table(frequencies, kTime, head_dim);
      for (const Turn turn : {Turn::kForward, Turn::kBackward}) {
        Values got = random_values(1, kRows * kHeads * head_dim);
        Values want = got;
        rope(parallel, table, got.data(), kRows, kHeads, turn);
        rope_reference(frequencies, kTime, head_dim, want.data(), kRows, kHeads, turn);
        const WorstUlp worst = worst_ulp(got, want, 1.0F);
        EXPECT_LE(worst.ulps, 3) << worst.text() << " head_dim " << head_dim;
      }
    }
  }
}

TEST(Rope, turning_back_undoes_a_turn) {
  const Parallel parallel(2);
  const RopeTable table = make_rope_table({}, 50, 32);
  const Values before = random_values(2, 100 * 4 * 32);
  Values x = before;
  rope(parallel, table, x.data(), 100, 4, Turn::kForward);
  EXPECT_FALSE(same_bits(x, before));
  rope(parallel, table, x.data(), 100, 4, Turn::kBackward);
  const WorstUlp worst = worst_ulp(x, before, 1.0F);
  EXPECT_LE(worst.ulps, 6) << worst.text();
}

TEST(Rope, position_zero_is_left_alone) {
  const RopeTable table = make_rope_table({}, 4, 8);
  const Values before = random_values(3, 8);
  Values x = before;
  rope(Parallel(1), table, x.data(), 1, 1, Turn::kForward);
  EXPECT_TRUE(same_bits(x, before));
}

TEST(Rope, llama3_scaling_keeps_short_wavelengths_and_stretches_long_ones) {
  const RopeFrequencies frequencies = scaled();
  const RopeFrequencies plain;
  constexpr std::int64_t kHeadDim = 64;
  bool kept = false;
  bool blended = false;
  bool stretched = false;
  for (std::int64_t pair = 0; pair < kHeadDim / 2; ++pair) {
    const double before = rope_inverse_frequency(plain, pair, kHeadDim);
    const double after = rope_inverse_frequency(frequencies, pair, kHeadDim);
    const double wavelength = 2 * std::numbers::pi / before;
    if (wavelength < 16) {
      EXPECT_EQ(after, before);
      kept = true;
    } else if (wavelength > 64) {
      EXPECT_EQ(after, before / 8);
      stretched = true;
    } else {
      EXPECT_GT(after, before / 8);
      EXPECT_LT(after, before);
      blended = true;
    }
  }
  EXPECT_TRUE(kept && blended && stretched);
}

TEST(Rope, far_positions_keep_fp64_angles) {
  constexpr std::int64_t kTime = 8192;
  const RopeTable table = make_rope_table({}, kTime, 64);
  // The first pair turns by one radian a position: cos(8191) in fp32 arithmetic of the angle would be right too, but
  // pair 1's angle 8191 · 10000^(-1/32) is off by up to 2.4e-4 when it is rounded to fp32 first.
  const double angle = 8191.0 * std::pow(10000.0, -2.0 / 64.0);
  EXPECT_EQ(table.cosine[8191U * 32U + 1U], static_cast<float>(std::cos(angle)));
  EXPECT_EQ(table.sine[8191U * 32U + 1U], static_cast<float>(std::sin(angle)));
}

}  // namespace
}  // namespace headrace::kernels
