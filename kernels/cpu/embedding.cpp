// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/embedding.h"

#include <algorithm>
#include <cstddef>

#include "core/check.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kTaskRows = 16;
constexpr std::int64_t kTaskColumns = 256;  // see column_sums-inl.h

void widen_row(const void* table, DType dtype, std::int64_t row, std::int64_t width, float* out) {
  widen_array(dtype, static_cast<const std::byte*>(table) + row * width * dtype_bytes(dtype), out, width);
}

}  // namespace

void embedding_forward(const Parallel& parallel, const EmbeddingShape& shape, const EmbeddingTables& tables,
                       std::span<const std::int32_t> ids, float* out) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  const std::int64_t width = shape.width;
  parallel.for_each(ceil_div(rows, kTaskRows), [&](std::int64_t task) {
    auto* scratch = reinterpret_cast<float*>(parallel.scratch().data());
    for (std::int64_t row = task * kTaskRows; row < std::min(rows, (task + 1) * kTaskRows); ++row) {
      const std::int64_t id = ids[static_cast<std::size_t>(row)];
      HEADRACE_CHECK(id >= 0 && id < shape.vocab, "a token id is one of the vocabulary");
      widen_row(tables.tokens, tables.dtype, id, width, out + row * width);
      if (tables.positions == nullptr) continue;
      widen_row(tables.positions, tables.dtype, row % shape.time, width, scratch);
      row_kernels().add(scratch, out + row * width, width);
    }
  });
}

void embedding_backward(const Parallel& parallel, const EmbeddingShape& shape, std::span<const std::int32_t> ids,
                        const float* d_out, float* d_tokens, float* d_positions) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  const std::int64_t width = shape.width;
  parallel.for_each(ceil_div(width, kTaskColumns), [&](std::int64_t task) {
    const std::int64_t first = task * kTaskColumns;
    const std::int64_t count = std::min(kTaskColumns, width - first);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* from = d_out + row * width + first;
      const std::int64_t id = ids[static_cast<std::size_t>(row)];
      HEADRACE_CHECK(id >= 0 && id < shape.vocab, "a token id is one of the vocabulary");
      row_kernels().add(from, d_tokens + id * width + first, count);
      if (d_positions != nullptr) row_kernels().add(from, d_positions + row % shape.time * width + first, count);
    }
  });
}

}  // namespace headrace::kernels
