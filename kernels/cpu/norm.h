// SPDX-License-Identifier: Apache-2.0
// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over rows of fp32. RMSNorm is the case without
// centring and bias. Row sums are made in fp64 of short fp32 runs; gradients of the weights are summed over rows in a
// fixed order.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

struct NormShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  double eps = 1e-5;  // inside the root
};
// Weight and bias [width] of `dtype`; bias may be null.
struct NormParameters {
  const void* weight = nullptr;
  const void* bias = nullptr;
  DType dtype = DType::kFp32;
};
// What forward keeps of each row: [rows]. A null mean makes the norm an RMSNorm.
struct NormStatistics {
  float* mean = nullptr;
  float* inverse = nullptr;  // 1 / sqrt(variance or mean square + eps)
};

// y = (x - mean) · inverse · weight + bias; fills the statistics. y may be x.
void norm_forward(const Parallel& parallel, const NormShape& shape, const float* x, const NormParameters& parameters,
                  const NormStatistics& statistics, float* y);
// The same y from statistics that forward has filled.
void norm_apply(const Parallel& parallel, const NormShape& shape, const float* x, const NormParameters& parameters,
                const NormStatistics& statistics, float* y);

struct NormBackward {
  const float* d_y = nullptr;
  const float* x = nullptr;
  NormParameters parameters;
  NormStatistics statistics;
  float* d_x = nullptr;  // [rows, width]; may be d_y when it is not accumulated into
  bool accumulate_d_x = false;
  float* d_weight = nullptr;  // [width]
  float* d_bias = nullptr;    // [width]; null without bias
  bool accumulate_d_parameters = false;
};
void norm_backward(const Parallel& parallel, const NormShape& shape, const NormBackward& arguments);

// Scalar, fp64.
void norm_forward_reference(const NormShape& shape, const float* x, const NormParameters& parameters,
                            const NormStatistics& statistics, float* y);
void norm_backward_reference(const NormShape& shape, const NormBackward& arguments);

}  // namespace headrace::kernels
