// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {

void ParallelOptimizer::update(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format,
                               const OptimizerHyper& hyper) const {
  for_each(ceil_div(arrays.elements, kGrainElements), [&](std::int64_t grain) {
    const std::int64_t begin = grain * kGrainElements;
    const std::int64_t elements = std::min(kGrainElements, arrays.elements - begin);
    update_span(kind, slice(arrays, begin, elements), format, hyper, target());
  });
}

Result<void> ParallelOptimizer::checked_update(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format,
                                               const OptimizerHyper& hyper) const {
  HEADRACE_RETURN_IF_ERROR(validate(kind, hyper));
  HEADRACE_RETURN_IF_ERROR(validate(kind, arrays, format, hyper));
  const GradientMeasure measured = measure(arrays.gradient, arrays.gradient_dtype, arrays.elements);
  HEADRACE_RETURN_IF_ERROR(refuse_non_finite(kind, "gradient", measured.non_finite, arrays.elements));
  update(kind, arrays, format, hyper);
  return {};
}

GradientMeasure ParallelOptimizer::measure(const void* gradient, DType dtype, std::int64_t elements) const {
  constexpr std::int64_t kChunk = ParallelUpdater::kNormChunk;
  const MeasureFn measure_chunk = optimizer_table(target()).measure[gradient_index(dtype)];
  std::vector<ArriveTotals> chunks(static_cast<std::size_t>(ceil_div(elements, kChunk)));
  for_each(ceil_div(elements, kGrainElements), [&](std::int64_t grain) {
    const std::int64_t end = std::min(elements, (grain + 1) * kGrainElements);
    for (std::int64_t at = grain * kGrainElements; at < end; at += kChunk) {
      const auto* part = static_cast<const std::byte*>(gradient) + at * dtype_bytes(dtype);
      chunks[static_cast<std::size_t>(at / kChunk)] = measure_chunk(part, std::min(kChunk, end - at));
    }
  });
  return add_in_order(chunks);
}

}  // namespace headrace::cpu_adam
