// SPDX-License-Identifier: Apache-2.0
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cstddef>
#include <functional>

#include "core/check.h"
#include "cpu_adam/adamw.h"
#include "cpu_adam/dispatch.h"

namespace headrace::cpu_adam {
namespace {

template <class Body>
void for_each_grain(const ParallelUpdater& pool, std::int64_t elements, const Body& body) {
  const auto run_grain = [&](std::int64_t grain) {
    const std::int64_t begin = grain * kGrainElements;
    body(begin, std::min(kGrainElements, elements - begin));
  };
  pool.for_each(ceil_div(elements, kGrainElements), std::cref(run_grain));
}

}  // namespace

struct ParallelUpdater::Impl {
  // TBB has no more workers than CPUs: asking for more only makes it print a warning.
  Impl(int threads, Target wanted) : arena(std::min(threads, tbb::info::default_concurrency())), target(wanted) {}
  tbb::task_arena arena;
  Target target;
};

ParallelUpdater::ParallelUpdater(int threads, Target target) : impl_(nullptr) {
  HEADRACE_CHECK(threads >= 1, "a ParallelUpdater needs at least one thread");
  HEADRACE_CHECK(target_available(target), "the CPU does not have this SIMD target");
  impl_ = new Impl(threads, target);
}

ParallelUpdater::~ParallelUpdater() { delete impl_; }

Target ParallelUpdater::target() const noexcept { return impl_->target; }

void ParallelUpdater::for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const {
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

void ParallelUpdater::update(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper) const {
  const UpdateCall call(arrays, format, hyper, impl_->target);
  for_each_grain(*this, arrays.elements, [&](std::int64_t begin, std::int64_t elements) { call.run(begin, elements); });
}

void ParallelUpdater::arrive(const Arrival& arrival, std::span<double> chunk_sums,
                             std::span<std::int64_t> chunk_non_finite) const {
  const std::int64_t chunks = ceil_div(arrival.elements, kNormChunk);
  HEADRACE_CHECK(arrival.elements >= 0, "an arrival has a negative number of elements");
  HEADRACE_CHECK(std::ssize(chunk_sums) == chunks && std::ssize(chunk_non_finite) == chunks,
                 "an arrival needs one sum and one count for each chunk");
  const auto kind = static_cast<std::size_t>(gradient_kind(arrival.dtype));
  const ArriveFn arrive_chunk = kernel_table(impl_->target).arrive[kind][arrival.add ? 1 : 0];
  for_each_grain(*this, arrival.elements, [&](std::int64_t begin, std::int64_t elements) {
    for (std::int64_t at = begin; at < begin + elements; at += kNormChunk) {
      auto* destination = static_cast<std::byte*>(arrival.destination) + at * dtype_bytes(arrival.dtype);
      const ArriveTotals totals =
          arrive_chunk({arrival.source + at, destination, std::min(kNormChunk, begin + elements - at)});
      const auto chunk = static_cast<std::size_t>(at / kNormChunk);
      chunk_sums[chunk] = totals.sum_of_squares;
      chunk_non_finite[chunk] = totals.non_finite;
    }
  });
}

}  // namespace headrace::cpu_adam
