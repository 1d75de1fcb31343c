// SPDX-License-Identifier: Apache-2.0
// The functions of vector_math.h for one SIMD target, as filled in by vector_math_<target>.cpp. Internal; tests use it
// to compare the targets that this CPU has.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace headrace::kernels {

struct VectorMathTable {
  const char* target;
  void (*exp)(const float* x, float* out, std::int64_t count) noexcept;
  void (*sigmoid)(const float* x, float* out, std::int64_t count) noexcept;
  float (*exp_minus_sum)(const float* x, float shift, float* out, std::int64_t count) noexcept;
  float (*max)(const float* x, std::int64_t count) noexcept;
  void (*widen_bf16)(const Bf16* source, float* out, std::int64_t count) noexcept;
  void (*widen_fp16)(const Fp16* source, float* out, std::int64_t count) noexcept;
  void (*round_to_bf16)(const float* source, Bf16* out, std::int64_t count) noexcept;
};

[[nodiscard]] const VectorMathTable& vector_math_avx2() noexcept;
[[nodiscard]] const VectorMathTable& vector_math_avx512() noexcept;
// All that this CPU can run, slowest ("baseline") first.
[[nodiscard]] std::vector<const VectorMathTable*> vector_math_tables();

}  // namespace headrace::kernels
