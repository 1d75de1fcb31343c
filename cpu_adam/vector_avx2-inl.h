// SPDX-License-Identifier: Apache-2.0
// The vectors of the avx2 target. Included inside that target's anonymous namespace, after <immintrin.h> and <cstring>.

// Eight elements; needs AVX2, FMA and F16C.
struct Vec {
  using F = __m256;
  using U = __m256i;  // eight 32-bit integers
  struct Sums {
    __m256d low = _mm256_setzero_pd();
    __m256d high = _mm256_setzero_pd();
  };
  struct Count {
    __m256i lanes = _mm256_setzero_si256();  // minus the count: a chunk has far fewer than 2^31 elements
  };
  struct Nans {
    __m256 lanes = _mm256_setzero_ps();
  };
  static constexpr int kLanes = 8;

  static F set(float value) noexcept { return _mm256_set1_ps(value); }
  static F load(const float* from) noexcept { return _mm256_loadu_ps(from); }
  static void store(float* to, F x) noexcept { _mm256_storeu_ps(to, x); }
  static __m128i load_words(const void* from) noexcept { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  // The low halves of eight 32-bit lanes.
  static void store_words(void* to, __m256i lanes) noexcept {
    const __m256i packed = _mm256_packus_epi32(lanes, lanes);
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  static F load_bf16(const std::uint16_t* from) noexcept {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(from)), 16));
  }
  static F load_fp16(const std::uint16_t* from) noexcept { return _mm256_cvtph_ps(load_words(from)); }
  static F load_split(const std::uint16_t* high, const std::int16_t* low) noexcept {
    const __m256i upper = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(high)), 16);
    return _mm256_castsi256_ps(_mm256_add_epi32(upper, _mm256_cvtepi16_epi32(load_words(low))));
  }
  // Sixteen lanes below 2^16, in order.
  static __m256i word_pair(__m256i x, __m256i y) noexcept {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xD8);  // packed within each half: quarters 0, 2 | 1, 3
  }
  static void store_word_pair(void* to, __m256i x, __m256i y) noexcept {
    _mm256_storeu_si256(static_cast<__m256i*>(to), word_pair(x, y));
  }
  static void store_low_halves(std::int16_t* to, F x, F y) noexcept {
    const __m256i low = _mm256_set1_epi32(0xFFFF);
    store_word_pair(to, _mm256_and_si256(_mm256_castps_si256(x), low), _mm256_and_si256(_mm256_castps_si256(y), low));
  }
  static void store_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept {
    const __m256i half = _mm256_set1_epi32(0x8000);
    store_word_pair(to, _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), half), 16),
                    _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(y), half), 16));
  }
  // Past the caches, to a multiple of 32 bytes; in order with other stores once fence() was called.
  static void stream_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept {
    const __m256i half = _mm256_set1_epi32(0x8000);
    const __m256i words = word_pair(_mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), half), 16),
                                    _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(y), half), 16));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), words);
  }
  static void stream_fp16(std::uint16_t* to, F x, F y) noexcept {
    auto* at = reinterpret_cast<__m128i*>(to);
    _mm_stream_si128(at, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    _mm_stream_si128(at + 1, _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
  }
  static void fence() noexcept { _mm_sfence(); }
  static F store_bf16(std::uint16_t* to, F x) noexcept {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i even =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(even, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), is_nan);
    store_words(to, rounded);
    return _mm256_castsi256_ps(_mm256_slli_epi32(rounded, 16));
  }
  static F store_fp16(std::uint16_t* to, F x) noexcept {
    const __m128i rounded = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded);
    return _mm256_cvtph_ps(rounded);
  }

  static F add(F a, F b) noexcept { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) noexcept { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) noexcept { return _mm256_div_ps(a, b); }
  static F sqrt(F a) noexcept { return _mm256_sqrt_ps(a); }
  static F fma(F a, F b, F c) noexcept { return _mm256_fmadd_ps(a, b, c); }
  static F negated_fma(F a, F b, F c) noexcept { return _mm256_fnmadd_ps(a, b, c); }
  static F flush_subnormal(F x) noexcept {
    const F magnitude = _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)));
    const F smallest_normal = _mm256_castsi256_ps(_mm256_set1_epi32(0x00800000));
    return _mm256_and_ps(x, _mm256_cmp_ps(magnitude, smallest_normal, _CMP_NLT_UQ));
  }
  // Zero where the magnitude is below the limit.
  static F flush_below(F x, F limit) noexcept {
    return _mm256_and_ps(x, _mm256_cmp_ps(magnitude(x), limit, _CMP_NLT_UQ));
  }
  static F canonical_nan(F x) noexcept {
    const F canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(x, canonical, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }

  static U set_bits(std::uint32_t value) noexcept { return _mm256_set1_epi32(static_cast<int>(value)); }
  static U lane_numbers() noexcept { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static U bits_of(F x) noexcept { return _mm256_castps_si256(x); }
  static F from_bits(U x) noexcept { return _mm256_castsi256_ps(x); }
  static F to_float(U x) noexcept { return _mm256_cvtepi32_ps(x); }
  static U truncate(F x) noexcept { return _mm256_cvttps_epi32(x); }
  static U add(U a, U b) noexcept { return _mm256_add_epi32(a, b); }
  static U mul(U a, U b) noexcept { return _mm256_mullo_epi32(a, b); }  // low 32 bits
  static U bit_and(U a, U b) noexcept { return _mm256_and_si256(a, b); }
  static U bit_xor(U a, U b) noexcept { return _mm256_xor_si256(a, b); }
  template <int kBits>
  static U shift_right(U x) noexcept {
    return _mm256_srli_epi32(x, kBits);
  }
  static U larger(U a, U b) noexcept { return _mm256_max_epu32(a, b); }
  static U smaller(U a, U b) noexcept { return _mm256_min_epu32(a, b); }
  static std::uint32_t largest(U x) noexcept {
    __m128i y = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0x4E));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0xB1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(y));
  }
  static F magnitude(F x) noexcept { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF))); }
  static U add_one_where_greater(U n, F a, F b) noexcept {
    return _mm256_sub_epi32(n, _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
  }
  static U with_sign_of(U n, F x) noexcept { return _mm256_sign_epi32(n, _mm256_castps_si256(x)); }

  static U load_signed_bytes(const std::int8_t* from) noexcept {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static U load_bytes(const std::uint8_t* from) noexcept {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  // The low bytes of four vectors, in order. Lanes from -128 to 127, and from 0 to 255.
  static void store_signed_bytes(std::int8_t* to, U a, U b, U c, U d) noexcept {
    store_mixed_quarters(to, _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)));
  }
  static void store_bytes(std::uint8_t* to, U a, U b, U c, U d) noexcept {
    store_mixed_quarters(to, _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)));
  }
  static void store_mixed_quarters(void* to, U packed) noexcept {  // a b c d of the lower half, then of the upper
    const U in_order = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(static_cast<__m256i*>(to), in_order);
  }
  // Two vectors from and to alternating elements: the first has those at even places. With 16-bit arrays that takes
  // half the shuffles of two vectors side by side.
  static void load_bf16_alternating(const std::uint16_t* from, F& even, F& odd) noexcept {
    const U words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536)));
  }
  static void load_split_alternating(const std::uint16_t* high, const std::int16_t* low, F& even, F& odd) noexcept {
    load_bf16_alternating(high, even, odd);
    const U words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
    even = from_bits(_mm256_add_epi32(bits_of(even), _mm256_srai_epi32(_mm256_slli_epi32(words, 16), 16)));
    odd = from_bits(_mm256_add_epi32(bits_of(odd), _mm256_srai_epi32(words, 16)));
  }
  static void alternate(F first, F second, F& even, F& odd) noexcept {
    const F low = _mm256_permute2f128_ps(first, second, 0x20);
    const F high = _mm256_permute2f128_ps(first, second, 0x31);
    even = _mm256_shuffle_ps(low, high, 0x88);
    odd = _mm256_shuffle_ps(low, high, 0xDD);
  }
  static void store_high_halves_alternating(void* to, U even, U odd) noexcept {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA));
  }
  static void store_low_halves_alternating(void* to, U even, U odd) noexcept {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA));
  }
  static void store_high_halves(std::uint16_t* to, U x, U y) noexcept {
    store_word_pair(to, _mm256_srli_epi32(x, 16), _mm256_srli_epi32(y, 16));
  }
  // Master from a bf16 weight and the eight bits below it.
  static F load_split8(const std::uint16_t* high, const std::int8_t* low) noexcept {
    const U upper = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(high)), 16);
    return _mm256_castsi256_ps(_mm256_add_epi32(upper, _mm256_slli_epi32(load_signed_bytes(low), 8)));
  }

  static void note_nans(Nans& nans, F x, F y) noexcept {
    nans.lanes = _mm256_or_ps(nans.lanes, _mm256_cmp_ps(x, y, _CMP_UNORD_Q));
  }
  static bool any(const Nans& nans) noexcept { return _mm256_movemask_ps(nans.lanes) != 0; }

  static void add_squares(Sums& sums, F x) noexcept {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sums.low = _mm256_fmadd_pd(low, low, sums.low);
    sums.high = _mm256_fmadd_pd(high, high, sums.high);
  }
  static void store_sums(double* to, const Sums& sums) noexcept {
    _mm256_storeu_pd(to, sums.low);
    _mm256_storeu_pd(to + 4, sums.high);
  }
  static void count_non_finite(Count& count, F x) noexcept {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
    count.lanes = _mm256_add_epi32(count.lanes, _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F7FFFFF)));
  }
  static std::int64_t total(const Count& count) noexcept {
    alignas(32) std::int32_t lanes[kLanes];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), count.lanes);
    std::int64_t total = 0;
    for (const std::int32_t lane : lanes) total -= lane;
    return total;
  }
};
