// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/column_sums-inl.h"
#include "kernels/cpu/row_kernels.h"

namespace headrace::kernels {
namespace {

// Elements of one task: 128 KiB of fp32, enough to hide the hand-over of a task, few enough to balance.
constexpr std::int64_t kTaskElements = 32768;

template <class Body>
void for_each_run(const Parallel& parallel, std::int64_t elements, const Body& body) {
  parallel.for_each(ceil_div(elements, kTaskElements), [&](std::int64_t task) {
    const std::int64_t first = task * kTaskElements;
    body(first, std::min(kTaskElements, elements - first));
  });
}

std::size_t bytes_of(std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(float); }

}  // namespace

void copy(const Parallel& parallel, const float* source, float* out, std::int64_t elements) {
  for_each_run(parallel, elements, [&](std::int64_t first, std::int64_t count) {
    std::memcpy(out + first, source + first, bytes_of(count));
  });
}

void fill_zero(const Parallel& parallel, float* out, std::int64_t elements) {
  for_each_run(parallel, elements,
               [&](std::int64_t first, std::int64_t count) { std::memset(out + first, 0, bytes_of(count)); });
}

void add(const Parallel& parallel, const float* x, float* sum, std::int64_t elements) {
  for_each_run(parallel, elements,
               [&](std::int64_t first, std::int64_t count) { row_kernels().add(x + first, sum + first, count); });
}

void column_sums(const Parallel& parallel, const float* x, std::int64_t rows, std::int64_t columns, float* out,
                 bool accumulate) {
  sum_rows(parallel, rows, columns, out, accumulate,
           [&](std::int64_t row, std::int64_t first, float* sum, std::int64_t count) {
             row_kernels().add(x + row * columns + first, sum, count);
           });
}

}  // namespace headrace::kernels
