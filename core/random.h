// SPDX-License-Identifier: Apache-2.0
// Random numbers by counting: value i of a stream is a function of (seed, stream, i) alone, so any part can be made
// anywhere, in any order, on any number of threads. Philox4x32-10 (Salmon et al., SC'11). Also a permutation without a
// table.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace headrace {

using PhiloxBlock = std::array<std::uint32_t, 4>;

[[nodiscard]] constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

// Immutable and cheap to copy.
class CounterRng {
 public:
  constexpr CounterRng(std::uint64_t seed, std::uint64_t stream) noexcept : seed_(seed), stream_(stream) {}

  [[nodiscard]] constexpr PhiloxBlock block(std::uint64_t index) const noexcept {
    return philox4x32({low(index), high(index), low(stream_), high(stream_)}, {low(seed_), high(seed_)});
  }
  [[nodiscard]] constexpr std::uint32_t bits(std::uint64_t index) const noexcept { return block(index / 4)[index % 4]; }
  [[nodiscard]] constexpr double uniform(std::uint64_t index) const noexcept {
    return bits(index) * 0x1p-32;
  }                                                                 // [0, 1)
  [[nodiscard]] double normal(std::uint64_t index) const noexcept;  // mean 0, deviation 1, |value| < 6.8

  // out[i] = deviation · normal(first + i), rounded to fp32.
  void fill_normal(std::span<float> out, std::uint64_t first, double deviation) const noexcept;

 private:
  static constexpr std::uint32_t low(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value); }
  static constexpr std::uint32_t high(std::uint64_t value) noexcept { return static_cast<std::uint32_t>(value >> 32); }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

// A permutation of 0 … n−1 by (seed, epoch) in O(1) memory: a keyed Feistel network on the next power of four, walked
// until the value falls below n (on average fewer than four rounds of it). Immutable.
class Permutation {
 public:
  Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) noexcept;  // n ≥ 1
  [[nodiscard]] std::int64_t size() const noexcept { return n_; }
  [[nodiscard]] std::int64_t at(std::int64_t position) const noexcept;  // 0 ≤ position < n

 private:
  [[nodiscard]] std::uint64_t scramble(std::uint64_t value) const noexcept;

  std::int64_t n_;
  std::uint32_t half_bits_;
  CounterRng keys_;
};

}  // namespace headrace
