// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/cpu/column_sums-inl.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

// Rows of one task: about 64 KiB of fp32, so that widening the weights once a task costs little.
std::int64_t rows_per_task(std::int64_t width) {
  return std::clamp<std::int64_t>(16384 / std::max<std::int64_t>(width, 1), 1, 64);
}

struct WidenedParameters {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

// The parameters in fp32: as they are, or widened into the thread's scratch.
WidenedParameters widened(const Parallel& parallel, const NormParameters& parameters, std::int64_t width) {
  if (parameters.dtype == DType::kFp32) {
    return {static_cast<const float*>(parameters.weight), static_cast<const float*>(parameters.bias)};
  }
  HEADRACE_CHECK(2 * width * dtype_bytes(DType::kFp32) <= Parallel::kScratchBytes,
                 "a norm's parameters fit the scratch of a thread");
  auto* scratch = reinterpret_cast<float*>(parallel.scratch().data());
  widen_array(parameters.dtype, parameters.weight, scratch, width);
  if (parameters.bias == nullptr) return {scratch, nullptr};
  widen_array(parameters.dtype, parameters.bias, scratch + width, width);
  return {scratch, scratch + width};
}

float center_of(const NormStatistics& statistics, std::int64_t row) {
  return statistics.mean == nullptr ? 0.0F : statistics.mean[row];
}

template <class Row>
void for_each_row(const Parallel& parallel, const NormShape& shape, const NormParameters& parameters, const Row& body) {
  const std::int64_t step = rows_per_task(shape.width);
  parallel.for_each(ceil_div(shape.rows, step), [&](std::int64_t task) {
    const WidenedParameters wide = widened(parallel, parameters, shape.width);
    for (std::int64_t row = task * step; row < std::min(shape.rows, (task + 1) * step); ++row) body(row, wide);
  });
}

}  // namespace

void norm_forward(const Parallel& parallel, const NormShape& shape, const float* x, const NormParameters& parameters,
                  const NormStatistics& statistics, float* y) {
  const RowKernels& kernels = row_kernels();
  const auto width = static_cast<double>(shape.width);
  for_each_row(parallel, shape, parameters, [&](std::int64_t row, const WidenedParameters& wide) {
    const float* in = x + row * shape.width;
    if (statistics.mean != nullptr) statistics.mean[row] = static_cast<float>(kernels.sum(in, shape.width) / width);
    const float center = center_of(statistics, row);
    const double mean_square = kernels.sum_squares(in, center, shape.width) / width;
    statistics.inverse[row] = static_cast<float>(1.0 / std::sqrt(mean_square + shape.eps));
    kernels.normalize(in, center, statistics.inverse[row], wide.weight, wide.bias, y + row * shape.width, shape.width);
  });
}

void norm_apply(const Parallel& parallel, const NormShape& shape, const float* x, const NormParameters& parameters,
                const NormStatistics& statistics, float* y) {
  const RowKernels& kernels = row_kernels();
  for_each_row(parallel, shape, parameters, [&](std::int64_t row, const WidenedParameters& wide) {
    kernels.normalize(x + row * shape.width, center_of(statistics, row), statistics.inverse[row], wide.weight,
                      wide.bias, y + row * shape.width, shape.width);
  });
}

void norm_backward(const Parallel& parallel, const NormShape& shape, const NormBackward& arguments) {
  const RowKernels& kernels = row_kernels();
  const NormStatistics& statistics = arguments.statistics;
  const std::int64_t width = shape.width;
  // Parameters first: d_x may overwrite d_y.
  sum_rows(parallel, shape.rows, width, arguments.d_weight, arguments.accumulate_d_parameters,
           [&](std::int64_t row, std::int64_t first, float* sum, std::int64_t count) {
             const std::int64_t at = row * width + first;
             kernels.add_products(arguments.d_y + at, arguments.x + at, center_of(statistics, row),
                                  statistics.inverse[row], sum, count);
           });
  if (arguments.d_bias != nullptr) {
    column_sums(parallel, arguments.d_y, shape.rows, width, arguments.d_bias, arguments.accumulate_d_parameters);
  }
  for_each_row(parallel, shape, arguments.parameters, [&](std::int64_t row, const WidenedParameters& wide) {
    const NormRow line{.gradient = arguments.d_y + row * width,
                       .x = arguments.x + row * width,
                       .weight = wide.weight,
                       .center = center_of(statistics, row),
                       .scale = statistics.inverse[row]};
    NormSums means = kernels.norm_sums(line, width);
    means.weighted_hat /= static_cast<double>(width);
    // Without centring the mean of x is no function of x, so nothing flows back through it.
    means.weighted = statistics.mean == nullptr ? 0.0 : means.weighted / static_cast<double>(width);
    kernels.norm_input_gradient(line, means, arguments.accumulate_d_x, arguments.d_x + row * width, width);
  });
}

}  // namespace headrace::kernels
