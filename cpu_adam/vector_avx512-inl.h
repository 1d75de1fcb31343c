// SPDX-License-Identifier: Apache-2.0
// The vectors of the avx512 target. Included inside that target's anonymous namespace, after <immintrin.h> and
// <cstring>.

struct WordPicks {
  constexpr explicit WordPicks(int first) noexcept : words() {
    for (int k = 0; k < 32; ++k) words[k] = static_cast<std::int16_t>(2 * k + first);
  }
  std::int16_t words[32];
};

// Sixteen elements; needs AVX-512 F, BW, DQ and VL.
struct Vec {
  using F = __m512;
  using U = __m512i;  // sixteen 32-bit integers
  struct Sums {
    __m512d low = _mm512_setzero_pd();
    __m512d high = _mm512_setzero_pd();
  };
  struct Count {
    std::int64_t value = 0;
  };
  using Nans = __mmask16;
  static constexpr int kLanes = 16;

  static F set(float value) noexcept { return _mm512_set1_ps(value); }
  static F load(const float* from) noexcept { return _mm512_loadu_ps(from); }
  static void store(float* to, F x) noexcept { _mm512_storeu_ps(to, x); }
  static __m256i load_words(const void* from) noexcept { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  // The low halves of sixteen 32-bit lanes.
  static void store_words(void* to, __m512i lanes) noexcept {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(lanes));
  }
  static F load_bf16(const std::uint16_t* from) noexcept {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from)), 16));
  }
  static F load_fp16(const std::uint16_t* from) noexcept { return _mm512_cvtph_ps(load_words(from)); }
  static F load_split(const std::uint16_t* high, const std::int16_t* low) noexcept {
    const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(high)), 16);
    return _mm512_castsi512_ps(_mm512_add_epi32(upper, _mm512_cvtepi16_epi32(load_words(low))));
  }
  // Word `first` of each lane of x, then of y: one permutation, where narrowing each vector takes two.
  template <int kFirst>
  static __m512i word_of_lanes(__m512i x, __m512i y) noexcept {
    alignas(64) static constexpr WordPicks kPicks(kFirst);
    return _mm512_permutex2var_epi16(x, _mm512_load_si512(kPicks.words), y);
  }
  template <int kFirst>
  static void store_word_of_lanes(void* to, __m512i x, __m512i y) noexcept {
    _mm512_storeu_si512(to, word_of_lanes<kFirst>(x, y));
  }
  static void store_low_halves(std::int16_t* to, F x, F y) noexcept {
    store_word_of_lanes<0>(to, _mm512_castps_si512(x), _mm512_castps_si512(y));
  }
  static void store_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept {
    const __m512i half = _mm512_set1_epi32(0x8000);
    store_word_of_lanes<1>(to, _mm512_add_epi32(_mm512_castps_si512(x), half),
                           _mm512_add_epi32(_mm512_castps_si512(y), half));
  }
  // Past the caches, to a multiple of 64 bytes; in order with other stores once fence() was called.
  static void stream_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i words = word_of_lanes<1>(_mm512_add_epi32(_mm512_castps_si512(x), half),
                                           _mm512_add_epi32(_mm512_castps_si512(y), half));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), words);
  }
  static void stream_fp16(std::uint16_t* to, F x, F y) noexcept {
    auto* at = reinterpret_cast<__m256i*>(to);
    _mm256_stream_si256(at, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    _mm256_stream_si256(at + 1, _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
  }
  static void fence() noexcept { _mm_sfence(); }
  static F store_bf16(std::uint16_t* to, F x) noexcept {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i even =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(even, is_nan, upper, _mm512_set1_epi32(0x40));
    store_words(to, rounded);
    return _mm512_castsi512_ps(_mm512_slli_epi32(rounded, 16));
  }
  static F store_fp16(std::uint16_t* to, F x) noexcept {
    const __m256i rounded = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
    return _mm512_cvtph_ps(rounded);
  }

  static F add(F a, F b) noexcept { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) noexcept { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) noexcept { return _mm512_div_ps(a, b); }
  static F sqrt(F a) noexcept { return _mm512_sqrt_ps(a); }
  static F fma(F a, F b, F c) noexcept { return _mm512_fmadd_ps(a, b, c); }
  static F negated_fma(F a, F b, F c) noexcept { return _mm512_fnmadd_ps(a, b, c); }
  static F flush_subnormal(F x) noexcept {
    constexpr int kSubnormalOrZero = 0x26;
    return _mm512_maskz_mov_ps(_knot_mask16(_mm512_fpclass_ps_mask(x, kSubnormalOrZero)), x);
  }
  // Zero where the magnitude is below the limit.
  static F flush_below(F x, F limit) noexcept {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(magnitude(x), limit, _CMP_NLT_UQ), x);
  }
  static F canonical_nan(F x) noexcept {
    const F canonical = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), canonical);
  }

  static U set_bits(std::uint32_t value) noexcept { return _mm512_set1_epi32(static_cast<int>(value)); }
  static U lane_numbers() noexcept { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static U bits_of(F x) noexcept { return _mm512_castps_si512(x); }
  static F from_bits(U x) noexcept { return _mm512_castsi512_ps(x); }
  static F to_float(U x) noexcept { return _mm512_cvtepi32_ps(x); }
  static U truncate(F x) noexcept { return _mm512_cvttps_epi32(x); }
  static U add(U a, U b) noexcept { return _mm512_add_epi32(a, b); }
  static U mul(U a, U b) noexcept { return _mm512_mullo_epi32(a, b); }  // low 32 bits
  static U bit_and(U a, U b) noexcept { return _mm512_and_si512(a, b); }
  static U bit_xor(U a, U b) noexcept { return _mm512_xor_si512(a, b); }
  template <int kBits>
  static U shift_right(U x) noexcept {
    return _mm512_srli_epi32(x, kBits);
  }
  static U larger(U a, U b) noexcept { return _mm512_max_epu32(a, b); }
  static U smaller(U a, U b) noexcept { return _mm512_min_epu32(a, b); }
  static std::uint32_t largest(U x) noexcept {
    const __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(x), _mm512_extracti32x8_epi32(x, 1));
    __m128i y = _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0x4E));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0xB1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(y));
  }
  static F magnitude(F x) noexcept { return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FFFFFFF))); }
  static U add_one_where_greater(U n, F a, F b) noexcept {
    return _mm512_mask_add_epi32(n, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), n, _mm512_set1_epi32(1));
  }
  static U with_sign_of(U n, F x) noexcept {
    return _mm512_mask_sub_epi32(n, _mm512_movepi32_mask(_mm512_castps_si512(x)), _mm512_setzero_si512(), n);
  }

  static U load_signed_bytes(const std::int8_t* from) noexcept {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static U load_bytes(const std::uint8_t* from) noexcept {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // The low bytes of four vectors, in order. Lanes from -128 to 127, and from 0 to 255.
  static void store_signed_bytes(std::int8_t* to, U a, U b, U c, U d) noexcept { store_low_bytes(to, a, b, c, d); }
  static void store_bytes(std::uint8_t* to, U a, U b, U c, U d) noexcept { store_low_bytes(to, a, b, c, d); }
  static void store_low_bytes(void* to, U a, U b, U c, U d) noexcept {
    auto* at = static_cast<__m128i*>(to);
    _mm_storeu_si128(at, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128(at + 1, _mm512_cvtepi32_epi8(b));
    _mm_storeu_si128(at + 2, _mm512_cvtepi32_epi8(c));
    _mm_storeu_si128(at + 3, _mm512_cvtepi32_epi8(d));
  }
  // Two vectors from and to alternating elements: the first has those at even places. With 16-bit arrays that takes
  // half the shuffles of two vectors side by side.
  static void load_bf16_alternating(const std::uint16_t* from, F& even, F& odd) noexcept {
    const U words = _mm512_loadu_si512(from);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)));
  }
  static void load_split_alternating(const std::uint16_t* high, const std::int16_t* low, F& even, F& odd) noexcept {
    load_bf16_alternating(high, even, odd);
    const U words = _mm512_loadu_si512(low);
    even = from_bits(_mm512_add_epi32(bits_of(even), _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16)));
    odd = from_bits(_mm512_add_epi32(bits_of(odd), _mm512_srai_epi32(words, 16)));
  }
  static void alternate(F first, F second, F& even, F& odd) noexcept {
    const U places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_ps(first, places, second);
    odd = _mm512_permutex2var_ps(first, _mm512_add_epi32(places, _mm512_set1_epi32(1)), second);
  }
  static void store_high_halves_alternating(void* to, U even, U odd) noexcept {
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd));
  }
  static void store_low_halves_alternating(void* to, U even, U odd) noexcept {
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xAAAAAAAA, even, _mm512_slli_epi32(odd, 16)));
  }
  static void store_high_halves(std::uint16_t* to, U x, U y) noexcept { store_word_of_lanes<1>(to, x, y); }
  // Master from a bf16 weight and the eight bits below it.
  static F load_split8(const std::uint16_t* high, const std::int8_t* low) noexcept {
    const U upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(high)), 16);
    return _mm512_castsi512_ps(_mm512_add_epi32(upper, _mm512_slli_epi32(load_signed_bytes(low), 8)));
  }

  static void note_nans(Nans& nans, F x, F y) noexcept {
    nans = _kor_mask16(nans, _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q));
  }
  static bool any(Nans nans) noexcept { return nans != 0; }

  static void add_squares(Sums& sums, F x) noexcept {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sums.low = _mm512_fmadd_pd(low, low, sums.low);
    sums.high = _mm512_fmadd_pd(high, high, sums.high);
  }
  static void store_sums(double* to, const Sums& sums) noexcept {
    _mm512_storeu_pd(to, sums.low);
    _mm512_storeu_pd(to + 8, sums.high);
  }
  static void count_non_finite(Count& count, F x) noexcept {
    constexpr int kNanOrInfinity = 0x99;  // quiet NaN, +inf, -inf, signalling NaN
    count.value += __builtin_popcount(_mm512_fpclass_ps_mask(x, kNanOrInfinity));
  }
  static std::int64_t total(const Count& count) noexcept { return count.value; }
};
