// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstring>

#include "cpu_adam/optimizer_kernels.h"

namespace headrace::cpu_adam {
namespace {

// Each stands on those above it.
// clang-format off
#include "cpu_adam/vector_avx512-inl.h"

// 1, -1, or 0 for both zeros; a NaN stays one.
inline Vec::F sign(Vec::F x) noexcept {
  const Vec::F sign_bit = _mm512_and_ps(x, _mm512_set1_ps(-0.0F));
  const Vec::F one = _mm512_or_ps(sign_bit, _mm512_set1_ps(1.0F));
  const Vec::F result = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ), one);
  return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
// a where it is greater, else b.
inline Vec::F maximum(Vec::F a, Vec::F b) noexcept { return _mm512_max_ps(a, b); }
inline void add_squares_to(double* sums, Vec::F x) noexcept {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
  _mm512_storeu_pd(sums, _mm512_fmadd_pd(low, low, _mm512_loadu_pd(sums)));
  _mm512_storeu_pd(sums + 8, _mm512_fmadd_pd(high, high, _mm512_loadu_pd(sums + 8)));
}

#include "cpu_adam/loop-inl.h"
#include "cpu_adam/optimizer_rules-inl.h"
#include "cpu_adam/optimizer-inl.h"
#include "cpu_adam/measure-inl.h"
#include "cpu_adam/whole_tensor-inl.h"
#include "cpu_adam/optimizer_table-inl.h"
// clang-format on

}  // namespace

const OptimizerTable kAvx512Optimizers = make_optimizer_table();

}  // namespace headrace::cpu_adam
