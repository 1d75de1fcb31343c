// SPDX-License-Identifier: Apache-2.0
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/check.h"
#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {

struct ParallelOptimizer::Impl {
  // TBB has no more workers than CPUs: asking for more only makes it print a warning.
  Impl(int threads, Target wanted) : arena(std::min(threads, tbb::info::default_concurrency())), target(wanted) {}
  tbb::task_arena arena;
  Target target;
};

ParallelOptimizer::ParallelOptimizer(int threads, Target target) : impl_(nullptr) {
  HEADRACE_CHECK(threads >= 1, "a ParallelOptimizer needs at least one thread");
  HEADRACE_CHECK(target_available(target), "the CPU does not have this SIMD target");
  impl_ = new Impl(threads, target);
}

ParallelOptimizer::~ParallelOptimizer() { delete impl_; }

Target ParallelOptimizer::target() const noexcept { return impl_->target; }

void ParallelOptimizer::for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const {
  if (count <= 1 || impl_->arena.max_concurrency() == 1) {  // nothing to share: the caller does it, without a hand-over
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, count, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          for (std::int64_t i = range.begin(); i != range.end(); ++i) body(i);
        },
        tbb::auto_partitioner());
  });
}

void ParallelOptimizer::update(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format,
                               const OptimizerHyper& hyper) const {
  for_each(ceil_div(arrays.elements, kOptimizerGrain), [&](std::int64_t grain) {
    const std::int64_t begin = grain * kOptimizerGrain;
    const std::int64_t elements = std::min(kOptimizerGrain, arrays.elements - begin);
    update_span(kind, slice(arrays, begin, elements), format, hyper, impl_->target);
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
  const MeasureFn measure_chunk = optimizer_table(impl_->target).measure[gradient_index(dtype)];
  std::vector<ArriveTotals> chunks(static_cast<std::size_t>(ceil_div(elements, kChunk)));
  for_each(ceil_div(elements, kOptimizerGrain), [&](std::int64_t grain) {
    const std::int64_t end = std::min(elements, (grain + 1) * kOptimizerGrain);
    for (std::int64_t at = grain * kOptimizerGrain; at < end; at += kChunk) {
      const auto* part = static_cast<const std::byte*>(gradient) + at * dtype_bytes(dtype);
      chunks[static_cast<std::size_t>(at / kChunk)] = measure_chunk(part, std::min(kChunk, end - at));
    }
  });
  return add_in_order(chunks);
}

}  // namespace headrace::cpu_adam
