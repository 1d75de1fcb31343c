// SPDX-License-Identifier: Apache-2.0
// Sums over rows into a row of columns, the shape of every gradient of a norm weight or bias: tasks own columns and
// walk all rows in order, so no partial sums meet and the bits depend on the shape alone. Used by elementwise.cpp and
// norm.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/bytes.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_kernels.h"

namespace headrace::kernels {

// Columns of one task: fewer make short reads of each row, more leave threads idle at small widths.
inline constexpr std::int64_t kSumColumns = 256;

// out[c] = (accumulate ? out[c] : 0) + Σ_rows of what add_row(row, first_column, sum, columns) adds to `sum`.
template <class AddRow>
void sum_rows(const Parallel& parallel, std::int64_t rows, std::int64_t columns, float* out, bool accumulate,
              const AddRow& add_row) {
  const RowKernels& kernels = row_kernels();
  parallel.for_each(ceil_div(columns, kSumColumns), [&](std::int64_t task) {
    const std::int64_t first = task * kSumColumns;
    const std::int64_t count = std::min(kSumColumns, columns - first);
    std::array<float, kSumColumns> total{};
    for (std::int64_t begin = 0; begin < rows; begin += kSumRows) {
      std::array<float, kSumColumns> run{};
      for (std::int64_t row = begin; row < std::min(rows, begin + kSumRows); ++row)
        add_row(row, first, run.data(), count);
      kernels.add(run.data(), total.data(), count);
    }
    if (accumulate) {
      kernels.add(total.data(), out + first, count);
    } else {
      std::copy_n(total.data(), count, out + first);
    }
  });
}

}  // namespace headrace::kernels
