// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/dtype.h"

namespace headrace {
namespace {

TEST(SplitMaster, BringsBackAllPatterns) {
  std::uint32_t bits = 0;
  do {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(join_master(split_master(std::bit_cast<float>(bits)))), bits)
        << std::hex << bits;
  } while (++bits != 0);
}

// Against an independent rule: the neighbour with the smaller distance in double, the even one where both are as far.
TEST(Bf16, TakesTheNearestOfAllFinitePatterns) {
  for (std::uint32_t bits = 0; bits < 0x7F7F0000U; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits >> 16);
    const double value = std::bit_cast<float>(bits);
    const double down = value - static_cast<double>(to_fp32(Bf16{low}));
    const double up = static_cast<double>(to_fp32(Bf16{static_cast<std::uint16_t>(low + 1)})) - value;
    const bool take_low = down < up || (down == up && (low & 1U) == 0);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(bits)).bits, take_low ? low : low + 1) << std::hex << bits;
  }
}

}  // namespace
}  // namespace headrace
