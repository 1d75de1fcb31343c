// SPDX-License-Identifier: Apache-2.0
// From the public arguments of the further optimizers to the loops of a target. Internal to cpu_adam; shared by the
// one-thread entry, the parallel driver and the optimizers of whole tensors.
#pragma once

#include "cpu_adam/dispatch.h"
#include "cpu_adam/optimizer.h"
#include "cpu_adam/optimizer_kernels.h"

namespace headrace::cpu_adam {

[[nodiscard]] const OptimizerTable& optimizer_table(Target target) noexcept;  // the target must be available
[[nodiscard]] WeightKind master_kind(DType weights_dtype, StateFormat format) noexcept;
[[nodiscard]] std::size_t gradient_index(DType dtype) noexcept;
// The sums of chunks in order, and the count.
[[nodiscard]] GradientMeasure add_in_order(std::span<const ArriveTotals> chunks) noexcept;
[[nodiscard]] OptimizerSpan make_span(const OptimizerArrays& arrays) noexcept;

// What validate() checks, for any kind.
[[nodiscard]] Result<void> validate_arrays(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format,
                                           const OptimizerHyper& hyper);
[[nodiscard]] Result<void> validate_matrix(OptimizerKind kind, const OptimizerArrays& arrays, std::int64_t rows,
                                           std::int64_t columns);
[[nodiscard]] Result<void> validate_workspace(OptimizerKind kind, std::span<const std::byte> workspace, Bytes needed);
[[nodiscard]] Result<void> refuse_non_finite(OptimizerKind kind, const char* array, std::int64_t non_finite,
                                             std::int64_t elements);

// p -= decay·p, then p -= step_size·direction, for a part of a tensor. `direction` is fp32; all else is `part`'s.
struct StepSizes {
  float step_size = 0;
  float decay = 0;
  bool moves = true;
};
void step_span(const OptimizerArrays& part, StateFormat format, const float* direction, const StepSizes& sizes,
               Target target) noexcept;

}  // namespace headrace::cpu_adam
