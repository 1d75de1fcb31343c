// SPDX-License-Identifier: Apache-2.0
// What the drivers of the further optimizers hand to the loops of one SIMD target. Internal to cpu_adam; plain types
// only, because the files compiled with instruction-set flags include it and must not emit shared inline functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {

// The weight kinds that these optimizers have: those up to kSplit, whose fp32 master is exact.
inline constexpr int kMasterKinds = 4;
static_assert(static_cast<int>(WeightKind::kSplit) + 1 == kMasterKinds);

// The rules of elementwise updates. kStep is SGD without a buffer and the last pass of Muon.
enum class UpdateRule : std::uint8_t { kAdam, kLion, kAdagrad, kMomentum, kStep };
inline constexpr int kUpdateRules = 5;

// The numbers of one update, each computed in double and rounded to fp32 once. A rule reads its own.
struct OptimizerScalars {
  float gradient_scale;
  float l2;     // weight decay that is added to the gradient
  float decay;  // lr · weight_decay, decoupled
  float beta1;  // kMomentum: the momentum
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;  // kMomentum: 1 - dampening
  float inverse_sqrt_correction2;
  float eps;
  float step_size;
  bool moves;     // lr ≠ 0: master and weights are written
  bool flushes;   // moments below the smallest normal fp32 become zero
  bool first;     // kMomentum: the buffer starts as the gradient
  bool nesterov;  // kMomentum
};

struct OptimizerSpan {
  void* weights;
  float* master;
  std::int16_t* remainder;
  float* moments[2];
  const void* gradient;
  std::int64_t elements;
};

using OptimizerFn = void (*)(const OptimizerSpan& span, const OptimizerScalars& scalars) noexcept;
using MeasureFn = ArriveTotals (*)(const void* gradient, std::int64_t elements) noexcept;

// One row of a gradient; `column_sums` has an entry for each element.
struct SquaresSpan {
  const void* gradient;
  double* column_sums;
  std::int64_t elements;
  float scale;
};
// A part of one row of a matrix under Adafactor.
struct FactoredSpan {
  const void* gradient;
  const float* column_factors;
  float* direction;
  std::int64_t elements;
  float scale;
  float row_factor;
  float floor;
};
// A part of a vector under Adafactor.
struct VarianceSpan {
  const void* gradient;
  float* variance;
  float* direction;
  std::int64_t elements;
  float scale;
  float weight;  // of the new square
  float floor;
};
// A part of a matrix under Muon.
struct MomentumSpan {
  const void* gradient;
  float* buffer;
  float* update;
  std::int64_t elements;
  float scale;
  float momentum;
  float one_minus_momentum;
  bool nesterov;
};

struct OptimizerTable {
  OptimizerFn update[kUpdateRules][kMasterKinds][kGradientKinds];
  MeasureFn measure[kGradientKinds];
  // Those that return a double return the sum of squares of what they wrote.
  ArriveTotals (*square_row[kGradientKinds])(const SquaresSpan& span) noexcept;
  double (*factored_direction[kGradientKinds])(const FactoredSpan& span) noexcept;
  double (*variance_direction[kGradientKinds])(const VarianceSpan& span) noexcept;
  double (*momentum_update[kGradientKinds])(const MomentumSpan& span) noexcept;
  ArriveTotals (*master_squares[kMasterKinds])(const OptimizerSpan& span) noexcept;
};

extern const OptimizerTable kScalarOptimizers;
#ifdef HEADRACE_X86_KERNELS
extern const OptimizerTable kAvx2Optimizers;
extern const OptimizerTable kAvx512Optimizers;
#endif
#ifdef HEADRACE_NEON_KERNELS
extern const OptimizerTable kNeonOptimizers;
#endif

}  // namespace headrace::cpu_adam
