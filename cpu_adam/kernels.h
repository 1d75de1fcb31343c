// SPDX-License-Identifier: Apache-2.0
// What the drivers of this folder hand to the loops of one SIMD target. Internal to cpu_adam; plain types only, because
// the files compiled with instruction-set flags include it and must not emit shared inline functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::cpu_adam {

enum class WeightKind : std::uint8_t { kFp32, kBf16Master, kFp16Master, kSplit };
enum class GradientKind : std::uint8_t { kFp32, kBf16, kFp16 };
inline constexpr int kWeightKinds = 4;
inline constexpr int kGradientKinds = 3;

// The numbers of one update, each computed in double and rounded to fp32 once (docs/numerics.md).
struct AdamWScalars {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;  // lr / (1 - beta1^t)
  float decay;      // lr · weight_decay
  bool moves;       // lr ≠ 0: master and weights are written
  bool decays;      // decay ≠ 0
  bool flushes;     // moments below the smallest normal fp32 become zero
};

struct AdamWSpan {
  void* weights;
  float* master;
  std::int16_t* remainder;
  float* exp_avg;
  float* exp_avg_sq;
  const void* gradient;
  std::int64_t elements;
};

// Partial sums of squares of one chunk: element i of the chunk belongs to partial sum i mod kNormLanes.
inline constexpr int kNormLanes = 16;

// One chunk of at most ParallelUpdater::kNormChunk elements.
struct ArriveSpan {
  const float* source;
  void* destination;
  std::int64_t elements;
};
struct ArriveTotals {
  double sum_of_squares;
  std::int64_t non_finite;
};

using AdamWFn = void (*)(const AdamWSpan& span, const AdamWScalars& scalars) noexcept;
using ArriveFn = ArriveTotals (*)(const ArriveSpan& span) noexcept;

struct KernelTable {
  AdamWFn adamw[kWeightKinds][kGradientKinds];
  ArriveFn arrive[kGradientKinds][2];  // [dtype][add]
};

extern const KernelTable kScalarKernels;
#ifdef HEADRACE_X86_KERNELS
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace headrace::cpu_adam
