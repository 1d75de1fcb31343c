// SPDX-License-Identifier: Apache-2.0
// The vectors of the scalar target. Included inside that target's anonymous namespace, after <cmath>, <cstring> and
// core/dtype.h.

// One element at a time, by the standard library and core/dtype.h: the truth that the SIMD targets are compared with.
struct Vec {
  using F = float;
  using U = std::uint32_t;
  using Sums = double;
  using Count = std::int64_t;
  using Nans = bool;
  static constexpr int kLanes = 1;

  static F set(float value) noexcept { return value; }
  static F load(const float* from) noexcept { return *from; }
  static void store(float* to, F x) noexcept { *to = x; }
  static F load_bf16(const std::uint16_t* from) noexcept { return to_fp32(Bf16{*from}); }
  static F load_fp16(const std::uint16_t* from) noexcept { return to_fp32(Fp16{*from}); }
  static F load_split(const std::uint16_t* high, const std::int16_t* low) noexcept {
    return join_master({*high, *low});
  }
  // For both halves: the ties-away rule of core/dtype.h.
  static void store_low_halves(std::int16_t* to, F x, F y) noexcept {
    to[0] = split_master(x).lo;
    to[1] = split_master(y).lo;
  }
  static void store_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept {
    to[0] = split_master(x).hi;
    to[1] = split_master(y).hi;
  }
  // Ordinary stores: nothing passes the caches.
  static void stream_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept { store_rounded_high_halves(to, x, y); }
  static void stream_fp16(std::uint16_t* to, F x, F y) noexcept {
    store_fp16(to, x);
    store_fp16(to + kLanes, y);
  }
  static void fence() noexcept {}
  static F store_bf16(std::uint16_t* to, F x) noexcept {
    const Bf16 rounded = to_bf16(x);
    *to = rounded.bits;
    return to_fp32(rounded);
  }
  static F store_fp16(std::uint16_t* to, F x) noexcept {
    const Fp16 rounded = to_fp16(x);
    *to = rounded.bits;
    return to_fp32(rounded);
  }

  static F add(F a, F b) noexcept { return a + b; }
  static F mul(F a, F b) noexcept { return a * b; }
  static F div(F a, F b) noexcept { return a / b; }
  static F sqrt(F a) noexcept { return std::sqrt(a); }
  static F fma(F a, F b, F c) noexcept { return std::fma(a, b, c); }
  static F negated_fma(F a, F b, F c) noexcept { return std::fma(-a, b, c); }
  static F flush_subnormal(F x) noexcept { return std::abs(x) < 0x1p-126F ? 0.0F : x; }  // zeros lose their sign
  static F flush_below(F x, F limit) noexcept { return std::abs(x) < limit ? 0.0F : x; }
  static F canonical_nan(F x) noexcept { return x == x ? x : std::bit_cast<float>(0x7FC00000U); }

  static U set_bits(std::uint32_t value) noexcept { return value; }
  static U lane_numbers() noexcept { return 0; }
  static U bits_of(F x) noexcept { return std::bit_cast<std::uint32_t>(x); }
  static F from_bits(U x) noexcept { return std::bit_cast<float>(x); }
  static F to_float(U x) noexcept { return static_cast<float>(static_cast<std::int32_t>(x)); }
  static U truncate(F x) noexcept { return static_cast<std::uint32_t>(static_cast<std::int32_t>(x)); }
  static U add(U a, U b) noexcept { return a + b; }
  static U mul(U a, U b) noexcept { return a * b; }
  static U bit_and(U a, U b) noexcept { return a & b; }
  static U bit_xor(U a, U b) noexcept { return a ^ b; }
  template <int kBits>
  static U shift_right(U x) noexcept {
    return x >> kBits;
  }
  static U larger(U a, U b) noexcept { return a > b ? a : b; }
  static U smaller(U a, U b) noexcept { return a < b ? a : b; }
  static std::uint32_t largest(U x) noexcept { return x; }
  static F magnitude(F x) noexcept { return std::abs(x); }
  static U add_one_where_greater(U n, F a, F b) noexcept { return a > b ? n + 1 : n; }
  static U with_sign_of(U n, F x) noexcept { return std::signbit(x) ? 0 - n : n; }

  static U load_signed_bytes(const std::int8_t* from) noexcept {
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(*from));
  }
  static U load_bytes(const std::uint8_t* from) noexcept { return *from; }
  // Of lanes from -128 to 127, and from 0 to 255.
  static void store_signed_bytes(std::int8_t* to, U a, U b, U c, U d) noexcept {
    const U lanes[] = {a, b, c, d};
    for (int j = 0; j < 4; ++j) to[j] = static_cast<std::int8_t>(lanes[j]);
  }
  static void store_bytes(std::uint8_t* to, U a, U b, U c, U d) noexcept {
    const U lanes[] = {a, b, c, d};
    for (int j = 0; j < 4; ++j) to[j] = static_cast<std::uint8_t>(lanes[j]);
  }
  static void load_bf16_alternating(const std::uint16_t* from, F& even, F& odd) noexcept {
    even = load_bf16(from);
    odd = load_bf16(from + 1);
  }
  static void load_split_alternating(const std::uint16_t* high, const std::int16_t* low, F& even, F& odd) noexcept {
    even = load_split(high, low);
    odd = load_split(high + 1, low + 1);
  }
  static void alternate(F first, F second, F& even, F& odd) noexcept {
    even = first;
    odd = second;
  }
  static void store_high_halves_alternating(void* to, U even, U odd) noexcept {
    store_high_halves(static_cast<std::uint16_t*>(to), even, odd);
  }
  static void store_low_halves_alternating(void* to, U even, U odd) noexcept {
    store_low_halves(static_cast<std::int16_t*>(to), from_bits(even), from_bits(odd));
  }
  static void store_high_halves(std::uint16_t* to, U x, U y) noexcept {
    to[0] = static_cast<std::uint16_t>(x >> 16);
    to[1] = static_cast<std::uint16_t>(y >> 16);
  }
  // Master from a bf16 weight and the eight bits below it.
  static F load_split8(const std::uint16_t* high, const std::int8_t* low) noexcept {
    return from_bits((static_cast<std::uint32_t>(*high) << 16) + (load_signed_bytes(low) << 8));
  }

  static void note_nans(Nans& nans, F x, F y) noexcept { nans = nans || x != x || y != y; }
  static bool any(Nans nans) noexcept { return nans; }

  static void add_squares(Sums& sums, F x) noexcept {
    const auto wide = static_cast<double>(x);
    sums += wide * wide;
  }
  static void store_sums(double* to, Sums sums) noexcept { *to = sums; }
  static void count_non_finite(Count& count, F x) noexcept { count += std::isfinite(x) ? 0 : 1; }
  static std::int64_t total(Count count) noexcept { return count; }
};
