// SPDX-License-Identifier: Apache-2.0
// The planes of a tile, and the way from fp32 into each format and back: what is lost, what is refused, and that a
// state survives export and import bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu_adam/format_compact.h"
#include "format_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::HasSubstr;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(StatePlanes, each_format_has_the_bytes_of_the_design) {
  constexpr std::int64_t kTile = 1 << 20;
  const auto bytes = [](StateFormat format, DType weights) { return state_planes(format, weights, kTile).bytes; };
  EXPECT_EQ(bytes(StateFormat::kFp32, DType::kFp32), 8 * kTile);
  EXPECT_EQ(bytes(StateFormat::kFp32, DType::kBf16), 12 * kTile);
  EXPECT_EQ(bytes(StateFormat::kFp32, DType::kFp16), 12 * kTile);
  EXPECT_EQ(bytes(StateFormat::kSplit, DType::kBf16), 10 * kTile);
  EXPECT_EQ(bytes(StateFormat::kSplitBf16, DType::kBf16), 6 * kTile);
  EXPECT_EQ(bytes(StateFormat::kCompact, DType::kBf16), 3 * kTile + kTile / 32);
}

TEST(StatePlanes, planes_lie_end_to_end_and_start_at_multiples_of_64_elements) {
  const StatePlanes split = state_planes(StateFormat::kSplit, DType::kBf16, 100);
  EXPECT_EQ(std::tuple(split.master, split.remainder, split.exp_avg, split.exp_avg_sq, split.bytes),
            std::tuple(StatePlanes::kNone, 0, 256, 768, 1280));
  const StatePlanes narrow = state_planes(StateFormat::kSplitBf16, DType::kBf16, 100);
  EXPECT_EQ(std::tuple(narrow.remainder, narrow.exp_avg, narrow.exp_avg_sq, narrow.exp_avg_scale, narrow.bytes),
            std::tuple(0, 256, 512, StatePlanes::kNone, 768));
  const StatePlanes compact = state_planes(StateFormat::kCompact, DType::kBf16, 100);
  EXPECT_EQ(std::tuple(compact.remainder, compact.exp_avg, compact.exp_avg_sq, compact.exp_avg_scale,
                       compact.exp_avg_sq_scale, compact.bytes),
            std::tuple(0, 128, 256, 384, 448, 512));
}

TEST(StatePlanes, arrays_point_at_the_element_that_is_asked_for) {
  alignas(64) std::byte tile[8192] = {};
  constexpr std::int64_t kAt = 128;
  for (const StateFormat format : kBf16Formats) {
    const StatePlanes planes = state_planes(format, DType::kBf16, 512);
    AdamWArrays a;
    point_at_state(a, format, planes, tile, kAt);
    const auto offset = [&](const void* array) -> Bytes {
      return array == nullptr ? StatePlanes::kNone : static_cast<const std::byte*>(array) - tile;
    };
    const Bytes moment = (planes.exp_avg_sq - planes.exp_avg) / 512;
    EXPECT_EQ(offset(a.exp_avg), planes.exp_avg + kAt * moment) << state_format_name(format);
    EXPECT_EQ(offset(a.exp_avg_sq), planes.exp_avg_sq + kAt * moment);
    EXPECT_EQ(offset(a.master), format == StateFormat::kFp32 ? kAt * 4 : StatePlanes::kNone);
    const Bytes remainder = format == StateFormat::kCompact ? 1 : 2;
    EXPECT_EQ(offset(a.remainder), format == StateFormat::kFp32 ? StatePlanes::kNone : kAt * remainder);
    const bool compact = format == StateFormat::kCompact;
    EXPECT_EQ(offset(a.exp_avg_scale), compact ? planes.exp_avg_scale + 2 : StatePlanes::kNone);
    EXPECT_EQ(offset(a.exp_avg_sq_scale), compact ? planes.exp_avg_sq_scale + 2 : StatePlanes::kNone);
  }
}

TEST(Convert, zero_bytes_are_a_fresh_state) {
  for (const StateFormat format : kBf16Formats) {
    FormatState state(format, 200, 0);
    const Wide wide = state.widen();
    for (std::size_t i = 0; i < 200; ++i) {
      EXPECT_EQ(bits_of(wide.master[i]) | bits_of(wide.exp_avg[i]) | bits_of(wide.exp_avg_sq[i]), 0U) << i;
    }
  }
}

TEST(Convert, a_state_survives_export_and_import_bit_for_bit) {
  constexpr std::int64_t kElements = 20011;
  for (const StateFormat format : kBf16Formats) {
    constexpr std::uint64_t kSeed = 23;
    Random random(kSeed);
    FormatState state(format, kElements, 0);
    state.narrow(random_state(kElements, random, 6));
    Gradient gradient(DType::kBf16, kElements, 0);
    for (int t = 1; t <= 40; ++t) {
      AdamWHyper hyper;
      hyper.optimizer_step = t;
      hyper.gradient_scale = t % 7 == 0 ? 30.0F : 1.0F;
      fill_gradient(gradient, kElements, random);
      adamw_update(state.arrays(gradient), format, hyper, best_target());
      FormatState back(format, kElements, 3);
      const Wide wide = state.widen();
      back.narrow(wide);
      const Wide again = back.widen();
      ASSERT_EQ(wide.master, again.master) << state_format_name(format) << " t=" << t << " seed " << kSeed;
      ASSERT_EQ(wide.exp_avg, again.exp_avg) << state_format_name(format) << " t=" << t << " seed " << kSeed;
      ASSERT_EQ(wide.exp_avg_sq, again.exp_avg_sq) << state_format_name(format) << " t=" << t << " seed " << kSeed;
      // And it goes on alike.
      AdamWHyper next = hyper;
      next.optimizer_step = t + 1;
      FormatState original = state;
      adamw_update(original.arrays(gradient), format, next, best_target());
      adamw_update(back.arrays(gradient), format, next, best_target());
      ASSERT_TRUE(original.same_bits(back)) << state_format_name(format) << " t=" << t << " seed " << kSeed;
    }
  }
}

TEST(Convert, narrowing_takes_the_nearest_value_and_no_second_moment_to_zero) {
  constexpr std::int64_t kElements = 64 * 500;
  Random random(4);
  const Wide wide = random_state(kElements, random, 9);
  double worst_m = 0, worst_v = 0, worst_p = 0;
  for (const StateFormat format : kNarrowFormats) {
    FormatState state(format, kElements, 0);
    state.narrow(wide);
    const Wide got = state.widen();
    for (std::size_t i = 0; i < wide.master.size(); ++i) {
      ASSERT_GT(got.exp_avg_sq[i], 0) << i << " " << state_format_name(format);
      const auto relative = [](float a, float b) { return std::abs(static_cast<double>(a / b) - 1); };
      if (format == StateFormat::kSplitBf16) {
        ASSERT_EQ(bits_of(got.master[i]), bits_of(wide.master[i]));
        ASSERT_EQ(got.exp_avg[i], to_fp32(to_bf16(wide.exp_avg[i])));
        ASSERT_EQ(got.exp_avg_sq[i], to_fp32(to_bf16(wide.exp_avg_sq[i])));
        continue;
      }
      worst_p = std::max(worst_p, relative(got.master[i], wide.master[i]));
      // In steps of the block, (n + 1)^2 - n^2 and the same of fourth powers, of which half is the most.
      const std::size_t block = i / 64;
      const double m_unit = static_cast<double>(exp_avg_of(1, state.planes[3][static_cast<std::int64_t>(block)]));
      const double v_unit = static_cast<double>(exp_avg_sq_of(1, state.planes[4][static_cast<std::int64_t>(block)]));
      const double n = std::floor(std::sqrt(std::abs(static_cast<double>(wide.exp_avg[i])) / m_unit));
      const double k = std::floor(std::sqrt(std::sqrt(static_cast<double>(wide.exp_avg_sq[i]) / v_unit)));
      const double m_error = std::abs(static_cast<double>(got.exp_avg[i]) - static_cast<double>(wide.exp_avg[i]));
      const double v_error = std::abs(static_cast<double>(got.exp_avg_sq[i]) - static_cast<double>(wide.exp_avg_sq[i]));
      worst_m = std::max(worst_m, m_error / ((2 * n + 1) * m_unit));
      if (k >= 2) worst_v = std::max(worst_v, v_error / ((std::pow(k + 1, 4) - std::pow(k, 4)) * v_unit));
    }
  }
  std::printf("[ WORST    ] compact, narrowed: master %.3g of its value, moments %.6f and %.6f of a gap\n", worst_p,
              worst_m, worst_v);
  EXPECT_LE(worst_p, 0x1p-16);
  EXPECT_LE(worst_m, 0.50001);
  EXPECT_LE(worst_v, 0.50001);
}

// Every 24-bit pattern comes back; the bf16 weight is that of the rule of all formats.
TEST(CompactMaster, all_patterns_come_back_and_the_weight_is_the_rounded_master) {
  for (std::uint64_t upper = 0; upper < (1U << 24); ++upper) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(upper << 8));
    if (value != value) continue;
    const CompactMaster split = split_compact(value);
    ASSERT_EQ(bits_of(join_compact(split.high, split.low)), bits_of(value)) << upper;
    ASSERT_EQ(split.high, split_master(value).hi) << upper;
  }
}

TEST(CompactMaster, ties_nan_infinity_and_subnormals) {
  struct Case {
    std::uint32_t from, to;
  };
  constexpr Case kCases[] = {
      {0x3F800080U, 0x3F800000U}, {0x3F800180U, 0x3F800200U}, {0x3F800081U, 0x3F800100U}, {0x3F80007FU, 0x3F800000U},
      {0x3FFFFFFFU, 0x40000000U}, {0xBF800180U, 0xBF800200U}, {0x7F800000U, 0x7F800000U}, {0xFF800000U, 0xFF800000U},
      {0x7F7FFFFFU, 0x7F800000U}, {0x7F800001U, 0x7FC00000U}, {0xFFFFFFFFU, 0x7FC00000U}, {0x00000001U, 0x00000000U},
      {0x00000081U, 0x00000100U}, {0x80000000U, 0x80000000U}, {0x007FFFFFU, 0x00800000U}, {0x3F808000U, 0x3F808000U},
  };
  for (const Case& c : kCases) {
    const CompactMaster split = split_compact(std::bit_cast<float>(c.from));
    EXPECT_EQ(bits_of(join_compact(split.high, split.low)), c.to) << std::hex << c.from;
  }
}

TEST(CompactCodes, every_code_of_every_scale_is_found_again) {
  for (int scale = 15; scale <= 253; ++scale) {
    std::int8_t codes[64] = {};
    for (int first = -127; first < 127; first += 60) {
      std::vector<float> values = {exp_avg_of(120, static_cast<std::uint8_t>(scale))};
      for (int n = first; n < std::min(first + 60, 128); ++n)
        values.push_back(exp_avg_of(static_cast<std::int8_t>(n), static_cast<std::uint8_t>(scale)));
      const std::uint8_t found = narrow_exp_avg(values, codes);
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(exp_avg_of(codes[i], found), values[i]) << scale;
    }
  }
  for (int scale = 67; scale <= 190; ++scale) {
    std::uint8_t codes[64] = {};
    for (int first = 2; first < 256; first += 60) {
      std::vector<float> values = {exp_avg_sq_of(240, static_cast<std::uint8_t>(scale)), 0.0F};
      for (int n = first; n < std::min(first + 60, 256); ++n)
        values.push_back(exp_avg_sq_of(static_cast<std::uint8_t>(n), static_cast<std::uint8_t>(scale)));
      for (std::size_t i = 2; i < values.size(); ++i) ASSERT_GT(values[i], 0) << scale;
      const std::uint8_t found = narrow_exp_avg_sq(values, codes);
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(exp_avg_sq_of(codes[i], found), values[i]) << scale;
    }
  }
}

TEST(Convert, what_a_format_cannot_keep_is_refused_before_anything_is_written) {
  for (const StateFormat format : kBf16Formats) {
    FormatState state(format, 100, 0);
    const FormatState before = state;
    Wide wide(100);
    wide.master[3] = 7;
    wide.exp_avg_sq[70] = -1e-9F;
    Result<void> done = narrow_state(wide.master, wide.exp_avg, wide.exp_avg_sq, format, state.arrays());
    ASSERT_FALSE(done.ok());
    EXPECT_THAT(done.error().message, HasSubstr("element 70"));
    EXPECT_THAT(done.error().message, HasSubstr(state_format_name(format)));
    EXPECT_TRUE(state.same_bits(before));
    wide.exp_avg_sq[70] = 0;
    wide.exp_avg[5] = NAN;
    done = narrow_state(wide.master, wide.exp_avg, wide.exp_avg_sq, format, state.arrays());
    EXPECT_EQ(done.ok(), format != StateFormat::kCompact) << state_format_name(format);
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
