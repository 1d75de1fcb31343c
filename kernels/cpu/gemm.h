// SPDX-License-Identifier: Apache-2.0
// Matrix products with fp32 accumulation and fp32 results, cut into fixed blocks (constants of shape and dtype) of
// which each is one single-threaded oneDNN call, so that the bits do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

// A row-major matrix of `dtype` with leading dimension `stride` (elements). fp16 and bf16 operands are widened panel by
// panel and multiplied in fp32 where the CPU has no fast bf16 product; where it has, an fp32 operand that meets a bf16
// one is rounded to bf16 panel by panel (see gemm_uses_bf16()).
struct MatrixOperand {
  const void* data = nullptr;
  DType dtype = DType::kFp32;
  std::int64_t stride = 0;
  bool transposed = false;  // the stored matrix is the transpose of the operand
};

// c [m,n] = (accumulate ? c : 0) + a [m,k] · b [k,n] + (bias ? bias[n] : 0)
struct GemmArguments {
  std::int64_t m = 0, n = 0, k = 0;
  MatrixOperand a, b;
  float* c = nullptr;
  std::int64_t c_stride = 0;
  bool accumulate = false;
  const void* bias = nullptr;  // [n] of bias_dtype
  DType bias_dtype = DType::kFp32;
};

void gemm(const Parallel& parallel, const GemmArguments& arguments);
void gemm_reference(const GemmArguments& arguments);  // scalar, fp64 accumulation
[[nodiscard]] bool gemm_uses_bf16() noexcept;         // CPU has avx512_bf16 or AMX; HEADRACE_GEMM=fp32 turns it off
[[nodiscard]] const char*
gemm_target() noexcept;  // "fp32 avx2", "fp32 avx512", "bf16 avx512_bf16": part of a run's identity

}  // namespace headrace::kernels
