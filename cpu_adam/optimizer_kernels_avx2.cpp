// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstring>

#include "cpu_adam/optimizer_kernels.h"

namespace headrace::cpu_adam {
namespace {

// Each stands on those above it.
// clang-format off
#include "cpu_adam/vector_avx2-inl.h"

// 1, -1, or 0 for both zeros; a NaN stays one.
inline Vec::F sign(Vec::F x) noexcept {
  const Vec::F sign_bit = _mm256_and_ps(x, _mm256_set1_ps(-0.0F));
  const Vec::F one = _mm256_or_ps(sign_bit, _mm256_set1_ps(1.0F));
  const Vec::F result = _mm256_and_ps(one, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ));
  return _mm256_blendv_ps(result, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
// a where it is greater, else b.
inline Vec::F maximum(Vec::F a, Vec::F b) noexcept { return _mm256_max_ps(a, b); }
inline void add_squares_to(double* sums, Vec::F x) noexcept {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  _mm256_storeu_pd(sums, _mm256_fmadd_pd(low, low, _mm256_loadu_pd(sums)));
  _mm256_storeu_pd(sums + 4, _mm256_fmadd_pd(high, high, _mm256_loadu_pd(sums + 4)));
}

#include "cpu_adam/loop-inl.h"
#include "cpu_adam/optimizer_rules-inl.h"
#include "cpu_adam/optimizer-inl.h"
#include "cpu_adam/measure-inl.h"
#include "cpu_adam/whole_tensor-inl.h"
#include "cpu_adam/optimizer_table-inl.h"
// clang-format on

}  // namespace

const OptimizerTable kAvx2Optimizers = make_optimizer_table();

}  // namespace headrace::cpu_adam
