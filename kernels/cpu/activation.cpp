// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/row_kernels.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kTaskElements = 16384;  // 64 KiB of each array a task

template <class Body>
void for_each_run(const Parallel& parallel, std::int64_t elements, const Body& body) {
  parallel.for_each(ceil_div(elements, kTaskElements), [&](std::int64_t task) {
    const std::int64_t first = task * kTaskElements;
    body(first, std::min(kTaskElements, elements - first));
  });
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

struct Curve {
  double value = 0;
  double slope = 0;
};

Curve gelu(Gelu kind, double x) {
  if (kind == Gelu::kErf) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    const double probability = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    return {x * probability, probability + x * density};
  }
  const double factor = 2.0 * std::sqrt(2.0 / std::numbers::pi);
  const double s = sigmoid(factor * (x + 0.044715 * x * x * x));
  return {x * s, s + x * s * (1.0 - s) * factor * (1.0 + 3.0 * 0.044715 * x * x)};
}

}  // namespace

void swiglu_forward(const Parallel& parallel, const float* gate, const float* up, float* y, std::int64_t elements) {
  for_each_run(parallel, elements, [&](std::int64_t first, std::int64_t count) {
    row_kernels().swiglu(gate + first, up + first, y + first, count);
  });
}

void swiglu_backward(const Parallel& parallel, const SwigluBackward& arguments) {
  for_each_run(parallel, arguments.elements, [&](std::int64_t first, std::int64_t count) {
    row_kernels().swiglu_gradient(arguments.gate + first, arguments.up + first, arguments.d_y + first,
                                  arguments.d_gate + first, arguments.d_up + first, count);
  });
}

void gelu_forward(const Parallel& parallel, Gelu kind, const float* x, float* y, std::int64_t elements) {
  const auto kernel = kind == Gelu::kTanh ? row_kernels().gelu_tanh : row_kernels().gelu_erf;
  for_each_run(parallel, elements,
               [&](std::int64_t first, std::int64_t count) { kernel(x + first, y + first, count); });
}

void gelu_backward(const Parallel& parallel, Gelu kind, const float* x, const float* d_y, float* d_x,
                   std::int64_t elements) {
  const auto kernel = kind == Gelu::kTanh ? row_kernels().gelu_tanh_gradient : row_kernels().gelu_erf_gradient;
  for_each_run(parallel, elements,
               [&](std::int64_t first, std::int64_t count) { kernel(x + first, d_y + first, d_x + first, count); });
}

void swiglu_forward_reference(const float* gate, const float* up, float* y, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto g = static_cast<double>(gate[i]);
    y[i] = static_cast<float>(g * sigmoid(g) * static_cast<double>(up[i]));
  }
}

void swiglu_backward_reference(const SwigluBackward& arguments) {
  for (std::int64_t i = 0; i < arguments.elements; ++i) {
    const auto g = static_cast<double>(arguments.gate[i]);
    const auto u = static_cast<double>(arguments.up[i]);
    const auto d = static_cast<double>(arguments.d_y[i]);
    const double s = sigmoid(g);
    arguments.d_gate[i] = static_cast<float>(d * u * s * (1.0 + g * (1.0 - s)));
    arguments.d_up[i] = static_cast<float>(d * g * s);
  }
}

void gelu_forward_reference(Gelu kind, const float* x, float* y, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) y[i] = static_cast<float>(gelu(kind, static_cast<double>(x[i])).value);
}

void gelu_backward_reference(Gelu kind, const float* x, const float* d_y, float* d_x, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; ++i) {
    d_x[i] = static_cast<float>(static_cast<double>(d_y[i]) * gelu(kind, static_cast<double>(x[i])).slope);
  }
}

}  // namespace headrace::kernels
