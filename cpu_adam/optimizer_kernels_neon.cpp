// SPDX-License-Identifier: Apache-2.0
#include <arm_neon.h>

#include <cstring>

#include "cpu_adam/optimizer_kernels.h"

namespace headrace::cpu_adam {
namespace {

// Each stands on those above it.
// clang-format off
#include "cpu_adam/vector_neon-inl.h"

// 1, -1, or 0 for both zeros; a NaN stays one.
inline Vec::F sign(Vec::F x) noexcept {
  const Vec::U sign_bit = vandq_u32(Vec::bits_of(x), vdupq_n_u32(0x80000000));
  const Vec::U one = vorrq_u32(sign_bit, Vec::bits_of(vdupq_n_f32(1.0F)));
  const Vec::F result = Vec::from_bits(vbicq_u32(one, vceqzq_f32(x)));
  return vbslq_f32(vceqq_f32(x, x), result, x);
}
// a where it is greater, else b.
inline Vec::F maximum(Vec::F a, Vec::F b) noexcept { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline void add_squares_to(double* sums, Vec::F x) noexcept {
  const float64x2_t low = vcvt_f64_f32(vget_low_f32(x));
  const float64x2_t high = vcvt_high_f64_f32(x);
  vst1q_f64(sums, vfmaq_f64(vld1q_f64(sums), low, low));
  vst1q_f64(sums + 2, vfmaq_f64(vld1q_f64(sums + 2), high, high));
}

#include "cpu_adam/loop-inl.h"
#include "cpu_adam/optimizer_rules-inl.h"
#include "cpu_adam/optimizer-inl.h"
#include "cpu_adam/measure-inl.h"
#include "cpu_adam/whole_tensor-inl.h"
#include "cpu_adam/optimizer_table-inl.h"
// clang-format on

}  // namespace

const OptimizerTable kNeonOptimizers = make_optimizer_table();

}  // namespace headrace::cpu_adam
