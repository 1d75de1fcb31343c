// SPDX-License-Identifier: Apache-2.0
// The random bits of stochastic rounding, included once per SIMD target after adamw-inl.h. Lane by lane the function of
// format_random.h: 32 bits from (key, index) by two multiplications, nothing kept between calls.

struct RoundingBits {
  explicit RoundingBits(const AdamWScalars& s) noexcept
      : key0(Vec::set_bits(s.rounding_key[0])), key1(Vec::set_bits(s.rounding_key[1])) {}

  [[nodiscard]] Vec::U at(Vec::U index) const noexcept {
    Vec::U x = Vec::bit_xor(index, key0);
    x = Vec::bit_xor(x, Vec::shift_right<16>(x));
    x = Vec::add(Vec::mul(x, Vec::set_bits(kRoundingMultiplier0)), key1);
    x = Vec::bit_xor(x, Vec::shift_right<15>(x));
    x = Vec::mul(x, Vec::set_bits(kRoundingMultiplier1));
    return Vec::bit_xor(x, Vec::shift_right<16>(x));
  }
  Vec::U key0, key1;
};

// Which of the 32 bits serve what. The lowest bits of a use hardly correlate with its value, so a byte is used twice.
inline Vec::U bits_for_exp_avg(Vec::U random) noexcept { return Vec::shift_right<16>(random); }
inline Vec::U bits_for_exp_avg_sq(Vec::U random) noexcept { return Vec::bit_and(random, Vec::set_bits(0xFFFF)); }
inline Vec::U bits_for_master(Vec::U random) noexcept {
  return Vec::bit_and(Vec::shift_right<16>(random), Vec::set_bits(0xFF));
}
