// SPDX-License-Identifier: Apache-2.0
// The vectors of the neon target. Included inside that target's anonymous namespace, after <arm_neon.h> and <cstring>.

// Four elements; needs what every AArch64 CPU has.
struct Vec {
  using F = float32x4_t;
  using U = uint32x4_t;
  struct Sums {
    float64x2_t low = vdupq_n_f64(0);
    float64x2_t high = vdupq_n_f64(0);
  };
  struct Count {
    uint32x4_t lanes = vdupq_n_u32(0);  // a chunk has far fewer than 2^32 elements
  };
  struct Nans {
    uint32x4_t lanes = vdupq_n_u32(0);
  };
  static constexpr int kLanes = 4;

  static F set(float value) noexcept { return vdupq_n_f32(value); }
  static F load(const float* from) noexcept { return vld1q_f32(from); }
  static void store(float* to, F x) noexcept { vst1q_f32(to, x); }
  static F load_bf16(const std::uint16_t* from) noexcept {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(from)), 16));
  }
  static F load_fp16(const std::uint16_t* from) noexcept { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
  static F load_split(const std::uint16_t* high, const std::int16_t* low) noexcept {
    const U upper = vshlq_n_u32(vmovl_u16(vld1_u16(high)), 16);
    return from_bits(vaddq_u32(upper, vreinterpretq_u32_s32(vmovl_s16(vld1_s16(low)))));
  }
  static void store_low_halves(std::int16_t* to, F x, F y) noexcept {
    vst1q_s16(to, vuzp1q_s16(vreinterpretq_s16_f32(x), vreinterpretq_s16_f32(y)));
  }
  static void store_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept {
    const U half = vdupq_n_u32(0x8000);
    store_high_halves(to, vaddq_u32(bits_of(x), half), vaddq_u32(bits_of(y), half));
  }
  // The architecture has no such store that intrinsics reach: an ordinary one.
  static void stream_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept { store_rounded_high_halves(to, x, y); }
  static void stream_fp16(std::uint16_t* to, F x, F y) noexcept {
    store_fp16(to, x);
    store_fp16(to + kLanes, y);
  }
  static void fence() noexcept {}
  static F store_bf16(std::uint16_t* to, F x) noexcept {
    const U bits = bits_of(x);
    const U upper = vshrq_n_u32(bits, 16);
    const U odd = vandq_u32(upper, vdupq_n_u32(1));
    const U even = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd), 16);
    const U rounded = vbslq_u32(vceqq_f32(x, x), even, vorrq_u32(upper, vdupq_n_u32(0x40)));
    vst1_u16(to, vmovn_u32(rounded));
    return from_bits(vshlq_n_u32(rounded, 16));
  }
  static F store_fp16(std::uint16_t* to, F x) noexcept {
    const float16x4_t rounded = vcvt_f16_f32(x);
    vst1_u16(to, vreinterpret_u16_f16(rounded));
    return vcvt_f32_f16(rounded);
  }

  static F add(F a, F b) noexcept { return vaddq_f32(a, b); }
  static F mul(F a, F b) noexcept { return vmulq_f32(a, b); }
  static F div(F a, F b) noexcept { return vdivq_f32(a, b); }
  static F sqrt(F a) noexcept { return vsqrtq_f32(a); }
  static F fma(F a, F b, F c) noexcept { return vfmaq_f32(c, a, b); }
  static F negated_fma(F a, F b, F c) noexcept { return vfmsq_f32(c, a, b); }
  static F flush_subnormal(F x) noexcept { return flush_below(x, vdupq_n_f32(0x1p-126F)); }
  // Zero where the magnitude is below the limit, which is not negative.
  static F flush_below(F x, F limit) noexcept { return from_bits(vbicq_u32(bits_of(x), vcaltq_f32(x, limit))); }
  static F canonical_nan(F x) noexcept {
    return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(0x7FC00000)));
  }

  static U set_bits(std::uint32_t value) noexcept { return vdupq_n_u32(value); }
  static U lane_numbers() noexcept {
    static constexpr std::uint32_t kNumbers[kLanes] = {0, 1, 2, 3};
    return vld1q_u32(kNumbers);
  }
  static U bits_of(F x) noexcept { return vreinterpretq_u32_f32(x); }
  static F from_bits(U x) noexcept { return vreinterpretq_f32_u32(x); }
  static F to_float(U x) noexcept { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }
  static U truncate(F x) noexcept { return vreinterpretq_u32_s32(vcvtq_s32_f32(x)); }
  static U add(U a, U b) noexcept { return vaddq_u32(a, b); }
  static U mul(U a, U b) noexcept { return vmulq_u32(a, b); }  // low 32 bits
  static U bit_and(U a, U b) noexcept { return vandq_u32(a, b); }
  static U bit_xor(U a, U b) noexcept { return veorq_u32(a, b); }
  template <int kBits>
  static U shift_right(U x) noexcept {
    return vshrq_n_u32(x, kBits);
  }
  static U larger(U a, U b) noexcept { return vmaxq_u32(a, b); }
  static U smaller(U a, U b) noexcept { return vminq_u32(a, b); }
  static std::uint32_t largest(U x) noexcept { return vmaxvq_u32(x); }
  static F magnitude(F x) noexcept { return vabsq_f32(x); }
  static U add_one_where_greater(U n, F a, F b) noexcept { return vsubq_u32(n, vcgtq_f32(a, b)); }
  static U with_sign_of(U n, F x) noexcept {
    const U sign = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(x), 31));
    return vsubq_u32(veorq_u32(n, sign), sign);
  }

  static U load_signed_bytes(const std::int8_t* from) noexcept {
    return vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(four_bytes(from))))));
  }
  static U load_bytes(const std::uint8_t* from) noexcept {
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(four_bytes(from)))));
  }
  static uint32x2_t four_bytes(const void* from) noexcept {
    std::uint32_t bytes;
    std::memcpy(&bytes, from, 4);
    return vdup_n_u32(bytes);
  }
  // The low bytes of four vectors, in order. Lanes from -128 to 127, and from 0 to 255.
  static void store_signed_bytes(std::int8_t* to, U a, U b, U c, U d) noexcept {
    vst1q_s8(to, vreinterpretq_s8_u8(low_bytes(a, b, c, d)));
  }
  static void store_bytes(std::uint8_t* to, U a, U b, U c, U d) noexcept { vst1q_u8(to, low_bytes(a, b, c, d)); }
  static uint8x16_t low_bytes(U a, U b, U c, U d) noexcept {
    const uint16x8_t ab = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    const uint16x8_t cd = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
    return vuzp1q_u8(vreinterpretq_u8_u16(ab), vreinterpretq_u8_u16(cd));
  }
  // Two vectors from and to alternating elements: the first has those at even places. With 16-bit arrays that takes
  // half the shuffles of two vectors side by side.
  static U load_word_pairs(const void* from) noexcept {  // 16-bit arrays need not be aligned to 4 bytes
    return vreinterpretq_u32_u16(vld1q_u16(static_cast<const std::uint16_t*>(from)));
  }
  static void store_word_pairs(void* to, U pairs) noexcept {
    vst1q_u16(static_cast<std::uint16_t*>(to), vreinterpretq_u16_u32(pairs));
  }
  static void load_bf16_alternating(const std::uint16_t* from, F& even, F& odd) noexcept {
    const U words = load_word_pairs(from);
    even = from_bits(vshlq_n_u32(words, 16));
    odd = from_bits(vandq_u32(words, vdupq_n_u32(0xFFFF0000)));
  }
  static void load_split_alternating(const std::uint16_t* high, const std::int16_t* low, F& even, F& odd) noexcept {
    load_bf16_alternating(high, even, odd);
    const int32x4_t words = vreinterpretq_s32_u32(load_word_pairs(low));
    const int32x4_t low_even = vshrq_n_s32(vshlq_n_s32(words, 16), 16);
    even = from_bits(vaddq_u32(bits_of(even), vreinterpretq_u32_s32(low_even)));
    odd = from_bits(vaddq_u32(bits_of(odd), vreinterpretq_u32_s32(vshrq_n_s32(words, 16))));
  }
  static void alternate(F first, F second, F& even, F& odd) noexcept {
    even = vuzp1q_f32(first, second);
    odd = vuzp2q_f32(first, second);
  }
  static void store_high_halves_alternating(void* to, U even, U odd) noexcept {
    store_word_pairs(to, vsriq_n_u32(odd, even, 16));
  }
  static void store_low_halves_alternating(void* to, U even, U odd) noexcept {
    store_word_pairs(to, vsliq_n_u32(even, odd, 16));
  }
  static void store_high_halves(std::uint16_t* to, U x, U y) noexcept {
    vst1q_u16(to, vuzp2q_u16(vreinterpretq_u16_u32(x), vreinterpretq_u16_u32(y)));
  }
  // Master from a bf16 weight and the eight bits below it.
  static F load_split8(const std::uint16_t* high, const std::int8_t* low) noexcept {
    const U upper = vshlq_n_u32(vmovl_u16(vld1_u16(high)), 16);
    return from_bits(vaddq_u32(upper, vshlq_n_u32(load_signed_bytes(low), 8)));
  }

  static void note_nans(Nans& nans, F x, F y) noexcept {
    nans.lanes = vornq_u32(nans.lanes, vandq_u32(vceqq_f32(x, x), vceqq_f32(y, y)));
  }
  static bool any(const Nans& nans) noexcept { return vmaxvq_u32(nans.lanes) != 0; }

  static void add_squares(Sums& sums, F x) noexcept {
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(x));
    const float64x2_t high = vcvt_high_f64_f32(x);
    sums.low = vfmaq_f64(sums.low, low, low);
    sums.high = vfmaq_f64(sums.high, high, high);
  }
  static void store_sums(double* to, const Sums& sums) noexcept {
    vst1q_f64(to, sums.low);
    vst1q_f64(to + 2, sums.high);
  }
  static void count_non_finite(Count& count, F x) noexcept {
    const U magnitude_bits = bits_of(vabsq_f32(x));
    count.lanes = vsubq_u32(count.lanes, vcgtq_u32(magnitude_bits, vdupq_n_u32(0x7F7FFFFF)));
  }
  static std::int64_t total(const Count& count) noexcept { return vaddvq_u32(count.lanes); }
};
