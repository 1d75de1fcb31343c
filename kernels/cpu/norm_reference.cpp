// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/norm.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

double element(const void* source, DType dtype, std::int64_t index) {
  float value = 0;
  widen_array(dtype, static_cast<const std::byte*>(source) + index * dtype_bytes(dtype), &value, 1);
  return static_cast<double>(value);
}

struct RowStatistics {
  double mean = 0;
  double inverse = 0;
};

RowStatistics statistics_of(const NormShape& shape, const float* x, bool centered) {
  RowStatistics row;
  const auto width = static_cast<double>(shape.width);
  for (std::int64_t i = 0; centered && i < shape.width; ++i) row.mean += static_cast<double>(x[i]) / width;
  double square = 0;
  for (std::int64_t i = 0; i < shape.width; ++i)
    square += (static_cast<double>(x[i]) - row.mean) * (static_cast<double>(x[i]) - row.mean);
  row.inverse = 1.0 / std::sqrt(square / width + shape.eps);
  return row;
}

}  // namespace

void norm_forward_reference(const NormShape& shape, const float* x, const NormParameters& parameters,
                            const NormStatistics& statistics, float* y) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* in = x + row * shape.width;
    const RowStatistics of_row = statistics_of(shape, in, statistics.mean != nullptr);
    if (statistics.mean != nullptr) statistics.mean[row] = static_cast<float>(of_row.mean);
    statistics.inverse[row] = static_cast<float>(of_row.inverse);
    for (std::int64_t i = 0; i < shape.width; ++i) {
      const double bias = parameters.bias == nullptr ? 0.0 : element(parameters.bias, parameters.dtype, i);
      const double hat = (static_cast<double>(in[i]) - of_row.mean) * of_row.inverse;
      y[row * shape.width + i] = static_cast<float>(hat * element(parameters.weight, parameters.dtype, i) + bias);
    }
  }
}

void norm_backward_reference(const NormShape& shape, const NormBackward& arguments) {
  const std::int64_t width = shape.width;
  const bool centered = arguments.statistics.mean != nullptr;
  std::vector<double> d_weight(static_cast<std::size_t>(width));
  std::vector<double> d_bias(static_cast<std::size_t>(width));
  std::vector<double> weighted(static_cast<std::size_t>(width));
  std::vector<double> hat(static_cast<std::size_t>(width));
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const float* x = arguments.x + row * width;
    const RowStatistics of_row = statistics_of(shape, x, centered);
    double mean_weighted = 0;
    double mean_weighted_hat = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto gradient = static_cast<double>(arguments.d_y[row * width + i]);
      hat[at] = (static_cast<double>(x[i]) - of_row.mean) * of_row.inverse;
      weighted[at] = gradient * element(arguments.parameters.weight, arguments.parameters.dtype, i);
      d_weight[at] += gradient * hat[at];
      d_bias[at] += gradient;
      if (centered) mean_weighted += weighted[at] / static_cast<double>(width);
      mean_weighted_hat += weighted[at] * hat[at] / static_cast<double>(width);
    }
    for (std::int64_t i = 0; i < width; ++i) {
      const auto at = static_cast<std::size_t>(i);
      float& out = arguments.d_x[row * width + i];
      const double before = arguments.accumulate_d_x ? static_cast<double>(out) : 0.0;
      out = static_cast<float>(before + (weighted[at] - mean_weighted - hat[at] * mean_weighted_hat) * of_row.inverse);
    }
  }
  const bool add = arguments.accumulate_d_parameters;
  for (std::int64_t i = 0; i < width; ++i) {
    float& weight = arguments.d_weight[i];
    weight = static_cast<float>((add ? static_cast<double>(weight) : 0.0) + d_weight[static_cast<std::size_t>(i)]);
    if (arguments.d_bias == nullptr) continue;
    float& bias = arguments.d_bias[i];
    bias = static_cast<float>((add ? static_cast<double>(bias) : 0.0) + d_bias[static_cast<std::size_t>(i)]);
  }
}

}  // namespace headrace::kernels
