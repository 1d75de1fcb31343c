// SPDX-License-Identifier: Apache-2.0
// The narrow state formats give the same bits from every target, thread count, split and place in memory; and they
// are what docs/numerics.md says: written out here once more, from the fp32 update and the random bits.
#include <gtest/gtest.h>

#include "cpu_adam/format_random.h"
#include "format_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

AdamWHyper hyper_at(int t) {
  AdamWHyper hyper;
  hyper.optimizer_step = t;
  hyper.beta2 = 0.95;
  hyper.weight_decay = 0.1;
  hyper.gradient_scale = 0.731F;
  hyper.rounding_seed = 0x1234567890ULL;
  if (t % 2 == 0) hyper.eps = 0;  // keeps subnormal moments
  return hyper;
}

// Any bits at all in the planes, as a damaged or foreign state would have them, and odd gradients.
void make_odd(FormatState& state, Gradient& gradient, Random& random) {
  for (std::int64_t i = 0; i < state.elements; ++i) {
    if (random.below(8) == 0) state.weights[i] = static_cast<std::uint16_t>(random.below(65536));
    if (random.below(8) != 0) continue;
    const float odd = odd_value(random);
    if (gradient.dtype == DType::kFp32) gradient.wide[i] = odd;
    if (gradient.dtype != DType::kFp32) gradient.half[i] = static_cast<std::uint16_t>(random.below(65536));
  }
  if (state.format == StateFormat::kSplitBf16) {
    const AdamWArrays a = state.arrays();
    for (void* moment : {a.exp_avg, a.exp_avg_sq}) {
      for (std::int64_t i = 0; i < state.elements; i += 1 + random.below(9)) {
        static_cast<std::uint16_t*>(moment)[i] = static_cast<std::uint16_t>(random.below(65536));
      }
    }
  }
  if (state.format == StateFormat::kCompact) {
    for (std::int64_t i = 0; i < state.elements; ++i) {
      state.planes[1][i] = static_cast<std::uint8_t>(random.below(256));
      state.planes[2][i] = static_cast<std::uint8_t>(random.below(256));
    }
    for (std::int64_t i = 0; i < ceil_div(state.elements, kCompactBlockElements); ++i) {
      state.planes[3][i] = static_cast<std::uint8_t>(random.below(254));
      state.planes[4][i] = static_cast<std::uint8_t>(random.below(192));
    }
  }
}

TEST(AdamWFormatBits, every_target_gives_the_bits_of_scalar_also_for_odd_values) {
  const std::vector<Target> all = targets();
  for (const StateFormat format : kNarrowFormats) {
    for (const DType dtype : kAllDTypes) {
      for (const bool odd : {false, true}) {
        for (const std::int64_t n : {1, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1003, 10007}) {
          const std::uint64_t seed = static_cast<std::uint64_t>(n) * 8 + (odd ? 1 : 0);
          Random random(seed);
          FormatState truth(format, n, n % 5);
          truth.narrow(random_state(n, random, 4));
          Gradient gradient(dtype, n, 3);
          fill_gradient(gradient, n, random);
          if (odd) make_odd(truth, gradient, random);
          std::vector<FormatState> states(all.size(), truth);
          for (int t = 1; t <= 4; ++t) {
            if (t > 1) fill_gradient(gradient, n, random);
            AdamWHyper hyper = hyper_at(t);
            if (t == 4) hyper.lr = 0;
            for (std::size_t k = 0; k < all.size(); ++k) {
              adamw_update(states[k].arrays(gradient), format, hyper, all[k]);
              ASSERT_TRUE(states[k].same_bits(states[0]))
                  << state_format_name(format) << " gradient " << dtype_name(dtype) << " n=" << n << " t=" << t
                  << " seed=" << seed << " odd=" << odd << " " << target_name(all[k]);
              ASSERT_TRUE(states[k].guards_intact()) << n << " " << target_name(all[k]);
            }
          }
        }
      }
    }
  }
}

TEST(AdamWFormatBits, thread_counts_and_splits_do_not_change_a_bit) {
  constexpr std::int64_t kElements = 100007;
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      constexpr std::uint64_t kSeed = 5;
      Random random(kSeed);
      FormatState before(format, kElements, 0);
      before.narrow(random_state(kElements, random, 3));
      Gradient gradient(DType::kBf16, kElements, 0);
      fill_gradient(gradient, kElements, random);
      FormatState whole = before;
      adamw_update(whole.arrays(gradient), format, hyper_at(7), target);
      for (const int threads : {1, 2, 3}) {
        FormatState state = before;
        ParallelUpdater(threads, target).update(state.arrays(gradient), format, hyper_at(7));
        ASSERT_TRUE(state.same_bits(whole)) << threads << " threads " << target_name(target) << " seed " << kSeed;
      }
      const std::int64_t quantum = format == StateFormat::kCompact ? kCompactBlockElements : 1;
      FormatState pieces = before;
      for (std::int64_t at = 0; at < kElements;) {
        const std::int64_t end = std::min(kElements, at + quantum * (1 + random.below(40)));
        adamw_update(pieces.part(gradient, at, end), format, hyper_at(7), target);
        at = end;
      }
      ASSERT_TRUE(pieces.same_bits(whole)) << state_format_name(format) << " seed " << kSeed;
    }
  }
}

// Around a multiple of 2^32 the key changes within a call.
TEST(AdamWFormatBits, an_array_across_four_billion_elements_is_rounded_as_its_pieces) {
  constexpr std::int64_t kElements = 1024;
  constexpr std::int64_t kFirst = (std::int64_t{3} << 32) - 512;
  for (const Target target : targets()) {
    for (const StateFormat format : kNarrowFormats) {
      Random random(8);
      FormatState whole(format, kElements, 0);
      whole.narrow(random_state(kElements, random, 3));
      Gradient gradient(DType::kFp32, kElements, 0);
      fill_gradient(gradient, kElements, random);
      FormatState pieces = whole;
      FormatState elsewhere = whole;
      AdamWArrays a = whole.arrays(gradient);
      a.first_element = kFirst;
      adamw_update(a, format, hyper_at(3), target);
      for (const std::int64_t begin : {std::int64_t{0}, kElements / 2}) {
        AdamWArrays part = pieces.part(gradient, begin, begin + kElements / 2);
        part.first_element = kFirst + begin;
        adamw_update(part, format, hyper_at(3), target);
      }
      EXPECT_TRUE(whole.same_bits(pieces)) << state_format_name(format) << " " << target_name(target);
      adamw_update(elsewhere.arrays(gradient), format, hyper_at(3), target);
      EXPECT_FALSE(whole.same_bits(elsewhere)) << "another place, other random bits";
    }
  }
}

// split_bf16 from its definition: the fp32 update of the widened moments, then 16 random bits each and a cut.
TEST(AdamWFormatBits, split_bf16_is_the_fp32_update_with_moments_cut_after_random_bits) {
  constexpr std::int64_t kElements = 4099;
  constexpr std::uint64_t kSeed = 17;
  for (const Target target : targets()) {
    Random random(kSeed);
    FormatState state(StateFormat::kSplitBf16, kElements, 0);
    state.narrow(random_state(kElements, random, 4));
    Gradient gradient(DType::kFp32, kElements, 0);
    for (int t = 1; t <= 5; ++t) {
      fill_gradient(gradient, kElements, random);
      FormatState exact(StateFormat::kSplit, kElements, 0);
      exact.narrow(state.widen());
      AdamWArrays a = state.arrays(gradient);
      a.stream = 9;
      a.first_element = 1000;
      adamw_update(a, StateFormat::kSplitBf16, hyper_at(t), target);
      adamw_update(exact.arrays(gradient), StateFormat::kSplit, hyper_at(t), target);
      const RoundingKey key = rounding_key(hyper_at(t).rounding_seed, t, 9, 1000);
      const Wide wide = exact.widen();
      for (std::int64_t i = 0; i < kElements; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const std::uint32_t bits = rounding_bits(key, static_cast<std::uint32_t>(1000 + i));
        const auto m =
            static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(wide.exp_avg[at]) + (bits >> 16)) >> 16);
        const auto v =
            static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(wide.exp_avg_sq[at]) + (bits & 0xFFFF)) >> 16);
        ASSERT_EQ(static_cast<std::uint16_t*>(a.exp_avg)[i], m) << i << " t=" << t << " seed " << kSeed;
        ASSERT_EQ(static_cast<std::uint16_t*>(a.exp_avg_sq)[i], v) << i << " t=" << t << " seed " << kSeed;
        ASSERT_EQ(state.weights[i], exact.weights[i]) << i;
      }
      ASSERT_TRUE(state.planes[0].same_bits(exact.planes[0])) << "the master is exact, t=" << t;
    }
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
