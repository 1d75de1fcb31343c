// SPDX-License-Identifier: Apache-2.0
// From the public arguments to the loops of a target: which function of its table runs, and with which numbers.
// Internal to cpu_adam; shared by the one-thread entry and the parallel driver.
#pragma once

#include "cpu_adam/adamw.h"
#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {

[[nodiscard]] const KernelTable& kernel_table(Target target) noexcept;  // the target must be available
[[nodiscard]] AdamWScalars make_scalars(const AdamWHyper& hyper) noexcept;
[[nodiscard]] AdamWFn select_adamw(const AdamWArrays& arrays, StateFormat format, Target target) noexcept;
[[nodiscard]] WeightKind weight_kind(DType weights_dtype, StateFormat format) noexcept;
[[nodiscard]] GradientKind gradient_kind(DType dtype) noexcept;

// Elements of one task. Smaller: scheduling (about a microsecond) shows beside the 50 µs of work; larger: a tile of a
// few million elements no longer divides evenly over many cores. A multiple of kNormChunk, so that no chunk is shared.
inline constexpr std::int64_t kGrainElements = 32768;
static_assert(kGrainElements % ParallelUpdater::kNormChunk == 0);

// One update, to be run in any pieces: for kCompact they begin at multiples of kCompactBlockElements. The arrays must
// outlive it. Immutable.
class UpdateCall {
 public:
  UpdateCall(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper, Target target) noexcept;
  void run(std::int64_t begin, std::int64_t elements) const noexcept;

 private:
  const AdamWArrays& arrays_;
  StateFormat format_;
  AdamWScalars scalars_;
  std::int64_t step_;
  std::uint64_t seed_;
  AdamWFn update_;
};

}  // namespace headrace::cpu_adam
