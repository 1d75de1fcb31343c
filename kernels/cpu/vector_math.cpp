// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"

#include <cpuid.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/vector_math_table.h"

namespace headrace::kernels {
namespace {

// One float, for CPUs without AVX2 and as what the SIMD targets are compared with.
struct V {
  static constexpr std::int64_t kLanes = 1;
  float v;
  static V load(const float* p) noexcept { return {*p}; }
  static void store(float* p, V a) noexcept { *p = a.v; }
  // Of one lane the first `count` ≥ 1 are all.
  static V load_first(const float* p, std::int64_t /*count*/, float /*rest*/) noexcept { return {*p}; }
  static void store_first(float* p, V a, std::int64_t /*count*/) noexcept { *p = a.v; }
  static V keep_first(V a, std::int64_t /*count*/) noexcept { return a; }
  static V set(float a) noexcept { return {a}; }
  static V zero() noexcept { return {0.0F}; }
  static V fma(V a, V b, V c) noexcept { return {std::fma(a.v, b.v, c.v)}; }
  static V add(V a, V b) noexcept { return {a.v + b.v}; }
  static V sub(V a, V b) noexcept { return {a.v - b.v}; }
  static V mul(V a, V b) noexcept { return {a.v * b.v}; }
  static V div(V a, V b) noexcept { return {a.v / b.v}; }
  static V max(V a, V b) noexcept { return {a.v > b.v ? a.v : b.v}; }
  static V min(V a, V b) noexcept { return {a.v < b.v ? a.v : b.v}; }
  static V neg_abs(V a) noexcept { return {-std::fabs(a.v)}; }
  static V round(V a) noexcept { return {std::nearbyint(a.v)}; }
  static V half_floor(V a) noexcept { return {std::floor(a.v * 0.5F)}; }
  static V exp2_int(V a) noexcept {
    if (std::isnan(a.v)) return a;  // the conversion below would be undefined
    return {std::bit_cast<float>((static_cast<std::int32_t>(a.v) + 127) << 23)};
  }
  static V select_less(V x, V y, V a, V b) noexcept { return x.v < y.v ? a : b; }
};

#include "kernels/cpu/vector_math-inl.h"

void widen_bf16(const Bf16* source, float* out, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_fp32(source[i]);
}
void widen_fp16(const Fp16* source, float* out, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_fp32(source[i]);
}
void round_to_bf16(const float* source, Bf16* out, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_bf16(source[i]);
}

constexpr VectorMathTable kBaseline{"baseline",  exp_loop<V>, sigmoid_loop<V>, exp_minus_sum_loop<V>,
                                    max_loop<V>, widen_bf16,  widen_fp16,      round_to_bf16};

// GCC and clang do not both know "f16c" in __builtin_cpu_supports.
bool has_f16c() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1U << 29)) != 0;
}

const VectorMathTable& table() noexcept {
  static const VectorMathTable& chosen = *vector_math_tables().back();
  return chosen;
}

}  // namespace

std::vector<const VectorMathTable*> vector_math_tables() {
  std::vector<const VectorMathTable*> tables{&kBaseline};
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (has_avx2) tables.push_back(&vector_math_avx2());
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    tables.push_back(&vector_math_avx512());
  }
  return tables;
}

void exp_array(const float* x, float* out, std::int64_t count) noexcept { table().exp(x, out, count); }
void sigmoid_array(const float* x, float* out, std::int64_t count) noexcept { table().sigmoid(x, out, count); }
float exp_minus_sum(const float* x, float shift, float* out, std::int64_t count) noexcept {
  return table().exp_minus_sum(x, shift, out, count);
}
float max_array(const float* x, std::int64_t count) noexcept { return table().max(x, count); }

void widen_array(DType dtype, const void* source, float* out, std::int64_t count) noexcept {
  switch (dtype) {
    case DType::kFp32: std::memcpy(out, source, static_cast<std::size_t>(count) * sizeof(float)); return;
    case DType::kBf16: table().widen_bf16(static_cast<const Bf16*>(source), out, count); return;
    case DType::kFp16: table().widen_fp16(static_cast<const Fp16*>(source), out, count); return;
  }
}
void round_to_bf16_array(const float* source, Bf16* out, std::int64_t count) noexcept {
  table().round_to_bf16(source, out, count);
}
const char* vector_math_target() noexcept { return table().target; }

}  // namespace headrace::kernels
