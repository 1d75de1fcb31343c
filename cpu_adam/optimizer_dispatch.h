// SPDX-License-Identifier: Apache-2.0
// From the public arguments of the further optimizers to the loops of a target. Internal to cpu_adam; shared by the
// one-thread entry, the parallel driver and the optimizers of whole tensors.
#pragma once

#include "cpu_adam/optimizer.h"
#include "cpu_adam/optimizer_kernels.h"

namespace headrace::cpu_adam {

// Elements of one task. Smaller: scheduling (about a microsecond) shows beside the work; larger: a tile of a few
// million elements no longer divides evenly over many cores. A multiple of kNormChunk, so that no chunk is shared.
inline constexpr std::int64_t kOptimizerGrain = 32768;
static_assert(kOptimizerGrain % ParallelUpdater::kNormChunk == 0);

[[nodiscard]] const OptimizerTable& optimizer_table(Target target) noexcept;  // the target must be available
[[nodiscard]] MasterKind master_kind(DType weights_dtype, StateFormat format) noexcept;
[[nodiscard]] std::size_t gradient_index(DType dtype) noexcept;
// The sum over whole chunks in order, and the count, of the chunks begin … begin + elements of a gradient.
[[nodiscard]] GradientMeasure add_in_order(std::span<const ArriveTotals> chunks) noexcept;

}  // namespace headrace::cpu_adam
