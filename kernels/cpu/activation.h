// SPDX-License-Identifier: Apache-2.0
// The non-linearities of feed-forward layers and their gradients, element by element on fp32: SwiGLU (silu(gate) · up)
// and GELU with tanh (GPT-2's "gelu_new") or erf. Outputs may be any of the inputs.
#pragma once

#include <cstdint>

#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

void swiglu_forward(const Parallel& parallel, const float* gate, const float* up, float* y, std::int64_t elements);

struct SwigluBackward {
  const float* gate = nullptr;
  const float* up = nullptr;
  const float* d_y = nullptr;
  float* d_gate = nullptr;
  float* d_up = nullptr;
  std::int64_t elements = 0;
};
void swiglu_backward(const Parallel& parallel, const SwigluBackward& arguments);

enum class Gelu : std::uint8_t { kTanh, kErf };
void gelu_forward(const Parallel& parallel, Gelu kind, const float* x, float* y, std::int64_t elements);
void gelu_backward(const Parallel& parallel, Gelu kind, const float* x, const float* d_y, float* d_x,
                   std::int64_t elements);

// Scalar, fp64.
void swiglu_forward_reference(const float* gate, const float* up, float* y, std::int64_t elements);
void swiglu_backward_reference(const SwigluBackward& arguments);
void gelu_forward_reference(Gelu kind, const float* x, float* y, std::int64_t elements);
void gelu_backward_reference(Gelu kind, const float* x, const float* d_y, float* d_x, std::int64_t elements);

}  // namespace headrace::kernels
