// SPDX-License-Identifier: Apache-2.0
// Plain passes over fp32 arrays: copies, zeros, residual sums and the column sums that are gradients of biases. Cut by
// shape, so the bits do not depend on the threads.
#pragma once

#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

void copy(const Parallel& parallel, const float* source, float* out, std::int64_t elements);
void fill_zero(const Parallel& parallel, float* out, std::int64_t elements);
void add(const Parallel& parallel, const float* x, float* sum, std::int64_t elements);  // sum += x

// out [columns] = (accumulate ? out : 0) + Σ_rows x [rows, columns]; rows are summed in order, in runs of kSumRows.
inline constexpr std::int64_t kSumRows = 32;
void column_sums(const Parallel& parallel, const float* x, std::int64_t rows, std::int64_t columns, float* out,
                 bool accumulate);

}  // namespace headrace::kernels
