// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "kernels/cpu/vector_math_table.h"

namespace headrace::kernels {
namespace {

struct V {
  static constexpr std::int64_t kLanes = 16;
  __m512 v;
  static V load(const float* p) noexcept { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, V a) noexcept { _mm512_storeu_ps(p, a.v); }
  static __mmask16 first(std::int64_t count) noexcept { return static_cast<__mmask16>((1U << count) - 1U); }
  static V load_first(const float* p, std::int64_t count, float rest) noexcept {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(rest), first(count), p)};
  }
  static void store_first(float* p, V a, std::int64_t count) noexcept { _mm512_mask_storeu_ps(p, first(count), a.v); }
  static V keep_first(V a, std::int64_t count) noexcept { return {_mm512_maskz_mov_ps(first(count), a.v)}; }
  static V set(float a) noexcept { return {_mm512_set1_ps(a)}; }
  static V zero() noexcept { return {_mm512_setzero_ps()}; }
  static V fma(V a, V b, V c) noexcept { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static V add(V a, V b) noexcept { return {_mm512_add_ps(a.v, b.v)}; }
  static V sub(V a, V b) noexcept { return {_mm512_sub_ps(a.v, b.v)}; }
  static V mul(V a, V b) noexcept { return {_mm512_mul_ps(a.v, b.v)}; }
  static V div(V a, V b) noexcept { return {_mm512_div_ps(a.v, b.v)}; }
  static V max(V a, V b) noexcept { return {_mm512_max_ps(a.v, b.v)}; }
  static V min(V a, V b) noexcept { return {_mm512_min_ps(a.v, b.v)}; }
  static V neg_abs(V a) noexcept {
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(INT32_MIN)))};
  }
  static V round(V a) noexcept { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static V half_floor(V a) noexcept {
    return {_mm512_roundscale_ps(_mm512_mul_ps(a.v, _mm512_set1_ps(0.5F)), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  }
  static V exp2_int(V a) noexcept {
    return {
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127)), 23))};
  }
  static V select_less(V x, V y, V a, V b) noexcept {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
  }
};

#include "kernels/cpu/vector_math-inl.h"

void widen_bf16(const Bf16* source, float* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    _mm512_storeu_ps(out + i, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
  }
  for (; i < count; ++i) out[i] = to_fp32(source[i]);
}

void widen_fp16(const Fp16* source, float* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i))));
  }
  for (; i < count; ++i) out[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(source[i].bits)));
}

// Integer arithmetic rather than vcvtneps2bf16, which flushes subnormals.
void round_to_bf16(const float* source, Bf16* out, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512 value = _mm512_loadu_ps(source + i);
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x0040));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(rounded));
  }
  for (; i < count; ++i) out[i] = to_bf16(source[i]);
}

constexpr VectorMathTable kTable{"avx512",    exp_loop<V>, sigmoid_loop<V>, exp_minus_sum_loop<V>,
                                 max_loop<V>, widen_bf16,  widen_fp16,      round_to_bf16};

}  // namespace

const VectorMathTable& vector_math_avx512() noexcept { return kTable; }

}  // namespace headrace::kernels
