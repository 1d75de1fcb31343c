// SPDX-License-Identifier: Apache-2.0
// Functions of whole arrays that several kernels need: exp, sigmoid, maxima, and conversions between element types. The
// SIMD target is chosen once at run time; every function here gives the same bits on every target (fixed lanes,
// explicit FMA).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace headrace::kernels {

// out[i] = e^x[i], error ≤ 1.5 ULP; results below 2^-126 are zero, beyond the range infinite, NaN stays NaN. out may be
// x.
void exp_array(const float* x, float* out, std::int64_t count) noexcept;
// out[i] = 1 / (1 + e^-x[i]), error ≤ 3 ULP while the result is normal. out may be x.
void sigmoid_array(const float* x, float* out, std::int64_t count) noexcept;
// out[i] = e^(x[i] - shift); returns the sum of out, added in 16 fixed lanes. out may be x.
float exp_minus_sum(const float* x, float shift, float* out, std::int64_t count) noexcept;
// The largest element; -infinity when count is 0. Without NaN.
[[nodiscard]] float max_array(const float* x, std::int64_t count) noexcept;

// fp32, bf16 or fp16 to fp32; exact.
void widen_array(DType dtype, const void* source, float* out, std::int64_t count) noexcept;
// fp32 to bf16, round to nearest even; the bits of to_bf16().
void round_to_bf16_array(const float* source, Bf16* out, std::int64_t count) noexcept;

[[nodiscard]] const char* vector_math_target() noexcept;  // "baseline", "avx2", "avx512"

}  // namespace headrace::kernels
