// SPDX-License-Identifier: Apache-2.0
// The inner loops of the element-wise kernels on one run of contiguous elements, as a table of functions that is chosen
// at run time. Every target performs the same operations in the same order (eight lanes, no fused multiply-add), so
// targets give the same bits. Used by kernels/cpu only.
#pragma once

#include <cstdint>

namespace headrace::kernels {

// Sums over one row that the backward pass of a norm needs; `hat` is (x - center) · scale.
struct NormSums {
  double weighted = 0;      // Σ g·w
  double weighted_hat = 0;  // Σ g·w·hat
};

// One row of a norm's backward pass: d_x = scale · (g·w - mean_weighted - hat · mean_weighted_hat).
struct NormRow {
  const float* gradient = nullptr;  // [n]
  const float* x = nullptr;         // [n]
  const float* weight = nullptr;    // [n]
  float center = 0;
  float scale = 1;
};

struct RowKernels {
  const char* name;
  double (*sum)(const float* x, std::int64_t n);
  double (*sum_squares)(const float* x, float center, std::int64_t n);  // Σ (x - center)²
  // y = (x - center) · scale · weight + bias; bias may be null.
  void (*normalize)(const float* x, float center, float scale, const float* weight, const float* bias, float* y,
                    std::int64_t n);
  NormSums (*norm_sums)(const NormRow& row, std::int64_t n);
  void (*norm_input_gradient)(const NormRow& row, NormSums means, bool accumulate, float* d_x, std::int64_t n);
  void (*add)(const float* x, float* sum, std::int64_t n);  // sum += x
  // sum += g · (x - center) · scale
  void (*add_products)(const float* g, const float* x, float center, float scale, float* sum, std::int64_t n);
  // (a, b) -> (a·cos - b·sin, b·cos + a·sin); `sign` -1 turns the other way.
  void (*rotate)(float* a, float* b, const float* cosine, const float* sine, float sign, std::int64_t n);
  void (*swiglu)(const float* gate, const float* up, float* y, std::int64_t n);
  void (*swiglu_gradient)(const float* gate, const float* up, const float* d_y, float* d_gate, float* d_up,
                          std::int64_t n);
  void (*gelu_tanh)(const float* x, float* y, std::int64_t n);
  void (*gelu_tanh_gradient)(const float* x, const float* d_y, float* d_x, std::int64_t n);
  void (*gelu_erf)(const float* x, float* y, std::int64_t n);
  void (*gelu_erf_gradient)(const float* x, const float* d_y, float* d_x, std::int64_t n);
};

[[nodiscard]] const RowKernels& row_kernels() noexcept;  // the best of this CPU; HEADRACE_CPU_TARGET=scalar lowers it
[[nodiscard]] const RowKernels& row_kernels_baseline() noexcept;  // runs on every x86-64
[[nodiscard]] const RowKernels* row_kernels_avx2() noexcept;      // null where the CPU lacks AVX2

}  // namespace headrace::kernels
