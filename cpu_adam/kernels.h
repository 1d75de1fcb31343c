// SPDX-License-Identifier: Apache-2.0
// What the drivers of this folder hand to the loops of one SIMD target. Internal to cpu_adam; plain types only, because
// the files compiled with instruction-set flags include it and must not emit shared inline functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::cpu_adam {

// What a loop finds: dtype of the weights and state format in one.
enum class WeightKind : std::uint8_t { kFp32, kBf16Master, kFp16Master, kSplit, kSplitBf16, kCompact };
enum class GradientKind : std::uint8_t { kFp32, kBf16, kFp16 };
inline constexpr int kWeightKinds = 6;
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
  float step_size;                // lr / (1 - beta1^t)
  float decay;                    // lr · weight_decay
  bool moves;                     // lr ≠ 0: master and weights are written
  bool decays;                    // decay ≠ 0
  bool flushes;                   // moments below the smallest normal fp32 become zero
  std::uint32_t rounding_key[2];  // of stochastic rounding, for elements of this span (format_random.h)
};

// Types of the arrays by format as in AdamWArrays.
struct AdamWSpan {
  void* weights;
  float* master;
  void* remainder;
  void* exp_avg;
  void* exp_avg_sq;
  std::uint8_t* exp_avg_scale;
  std::uint8_t* exp_avg_sq_scale;
  const void* gradient;
  std::int64_t elements;
  std::uint32_t first_index;  // of element 0, lower half; no span crosses a multiple of 2^32
  bool streams_weights;       // weights that have a master go past the caches: they begin at a multiple of 64 bytes
};

// Stochastic rounding (format_random.h): a mixer whose two multiplications change every output bit with nearly even
// odds for every input bit (C. Wellons' search for such constants).
inline constexpr std::uint32_t kRoundingMultiplier0 = 0x7FEB352DU;
inline constexpr std::uint32_t kRoundingMultiplier1 = 0x846CA68BU;

// The compact format (format_state.h). A scale byte is the exponent field of a power of two above every magnitude of
// its block of 64. Below the lowest scales, and from the largest magnitudes on, the reciprocal of a step would leave
// fp32.
inline constexpr std::int64_t kCompactBlock = 64;
inline constexpr float kExpAvgSteps = 127.0F * 127.0F;     // value = scale * (code / 127)^2, with the sign of the code
inline constexpr float kExpAvgSqSteps = 255.0F * 255.0F;   // root = scale * (code / 255)^2, value = root^2
inline constexpr std::uint32_t kLowestExpAvgScale = 15;    // 2^-112
inline constexpr std::uint32_t kLowestExpAvgSqScale = 67;  // 2^-60: the square of the lowest step is not zero
inline constexpr std::uint32_t kExpAvgLimitBits = 0x7E800000U;  // 2^126
inline constexpr std::uint32_t kRootLimitBits = 0x5F000000U;    // 2^63
// A second moment that is not zero has at least this code, so that its root is no smaller against its block than one
// step of the first moment against its own: a first moment rounded up to a step meets no vanishing denominator.
inline constexpr std::uint32_t kLowestExpAvgSqCode = 2;

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
#ifdef HEADRACE_NEON_KERNELS
extern const KernelTable kNeonKernels;
#endif

}  // namespace headrace::cpu_adam
