// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace headrace {
namespace {

// Box–Muller on one block: its words 0 and 1 give normals 0 and 1, words 2 and 3 give normals 2 and 3.
std::array<double, 4> normals(const PhiloxBlock& block) noexcept {
  std::array<double, 4> out{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double radius =
        std::sqrt(-2.0 * std::log((block[pair] + 0.5) * 0x1p-32));  // + 0.5 keeps the logarithm finite
    const double angle = 2.0 * std::numbers::pi * block[pair + 1] * 0x1p-32;
    out[pair] = radius * std::cos(angle);
    out[pair + 1] = radius * std::sin(angle);
  }
  return out;
}

constexpr std::uint64_t kPermutationStream = 0x7065726d75746174;  // keeps its keys apart from other uses of the seed
constexpr int kFeistelRounds = 6;  // three are pseudo-random against few queries; twice that against all of them

}  // namespace

double CounterRng::normal(std::uint64_t index) const noexcept { return normals(block(index / 4))[index % 4]; }

void CounterRng::fill_normal(std::span<float> out, std::uint64_t first, double deviation) const noexcept {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first + done;
    const std::array<double, 4> values = normals(block(index / 4));
    for (std::size_t i = index % 4; i < 4 && done < out.size(); ++i)
      out[done++] = static_cast<float>(deviation * values[i]);
  }
}

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept
    : n_(n), half_bits_(1), keys_(seed, kPermutationStream ^ epoch) {
  HEADRACE_CHECK(n >= 1, "a permutation needs at least one element");
  const auto bits = static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
  if (bits > 2) half_bits_ = (bits + 1) / 2;
}

std::uint64_t Permutation::scramble(std::uint64_t value) const noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kFeistelRounds; ++round) {
    const std::uint64_t mixed = left ^ (keys_.block((round << 32) | right)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

std::int64_t Permutation::at(std::int64_t position) const noexcept {
  HEADRACE_CHECK(position >= 0 && position < n_, "a position outside of the permutation");
  auto value = static_cast<std::uint64_t>(position);
  do {
    value = scramble(value);
  } while (value >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(value);
}

}  // namespace headrace
