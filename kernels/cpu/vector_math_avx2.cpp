// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "kernels/cpu/vector_math_table.h"

namespace headrace::kernels {
namespace {

struct V {
  static constexpr std::int64_t kLanes = 8;
  __m256 v;
  static V load(const float* p) noexcept { return {_mm256_loadu_ps(p)}; }
  static void store(float* p, V a) noexcept { _mm256_storeu_ps(p, a.v); }
  static __m256i first(std::int64_t count) noexcept {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  }
  static V load_first(const float* p, std::int64_t count, float rest) noexcept {
    const __m256i mask = first(count);
    return {_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask))};
  }
  static void store_first(float* p, V a, std::int64_t count) noexcept { _mm256_maskstore_ps(p, first(count), a.v); }
  static V keep_first(V a, std::int64_t count) noexcept {
    return {_mm256_and_ps(a.v, _mm256_castsi256_ps(first(count)))};
  }
  static V set(float a) noexcept { return {_mm256_set1_ps(a)}; }
  static V zero() noexcept { return {_mm256_setzero_ps()}; }
  static V fma(V a, V b, V c) noexcept { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static V add(V a, V b) noexcept { return {_mm256_add_ps(a.v, b.v)}; }
  static V sub(V a, V b) noexcept { return {_mm256_sub_ps(a.v, b.v)}; }
  static V mul(V a, V b) noexcept { return {_mm256_mul_ps(a.v, b.v)}; }
  static V div(V a, V b) noexcept { return {_mm256_div_ps(a.v, b.v)}; }
  static V max(V a, V b) noexcept { return {_mm256_max_ps(a.v, b.v)}; }
  static V min(V a, V b) noexcept { return {_mm256_min_ps(a.v, b.v)}; }
  static V neg_abs(V a) noexcept { return {_mm256_or_ps(a.v, _mm256_set1_ps(-0.0F))}; }
  static V round(V a) noexcept { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static V half_floor(V a) noexcept { return {_mm256_floor_ps(_mm256_mul_ps(a.v, _mm256_set1_ps(0.5F)))}; }
  static V exp2_int(V a) noexcept {
    return {
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127)), 23))};
  }
  static V select_less(V x, V y, V a, V b) noexcept {
    return {_mm256_blendv_ps(b.v, a.v, _mm256_cmp_ps(x.v, y.v, _CMP_LT_OQ))};
  }
};

#include "kernels/cpu/vector_math-inl.h"

void widen_bf16(const Bf16* source, float* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  for (; i < count; ++i) out[i] = to_fp32(source[i]);
}

void widen_fp16(const Fp16* source, float* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  }
  for (; i < count; ++i) out[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(source[i].bits)));
}

void round_to_bf16(const float* source, Bf16* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(source + i);
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x0040));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), packed);
  }
  for (; i < count; ++i) out[i] = to_bf16(source[i]);
}

constexpr VectorMathTable kTable{"avx2",      exp_loop<V>, sigmoid_loop<V>, exp_minus_sum_loop<V>,
                                 max_loop<V>, widen_bf16,  widen_fp16,      round_to_bf16};

}  // namespace

const VectorMathTable& vector_math_avx2() noexcept { return kTable; }

}  // namespace headrace::kernels
