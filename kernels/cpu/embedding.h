// SPDX-License-Identifier: Apache-2.0
// Token and position embeddings: gathered rows and the scatter of their gradients, which adds the tokens in order
// (tasks own columns), so that the bits do not depend on the threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

struct EmbeddingShape {
  std::int64_t vocab = 0;
  std::int64_t width = 0;
  std::int64_t time = 0;  // row r of the output stands at position r mod time
};
struct EmbeddingTables {
  const void* tokens = nullptr;     // [vocab, width]
  const void* positions = nullptr;  // [≥ time, width]; null without position embeddings
  DType dtype = DType::kFp32;
};

// out [ids.size(), width] = tokens[id] + positions[row mod time]. Every id is in [0, vocab).
void embedding_forward(const Parallel& parallel, const EmbeddingShape& shape, const EmbeddingTables& tables,
                       std::span<const std::int32_t> ids, float* out);
// Adds d_out [ids.size(), width] to d_tokens [vocab, width] and, where not null, d_positions [≥ time, width].
void embedding_backward(const Parallel& parallel, const EmbeddingShape& shape, std::span<const std::int32_t> ids,
                        const float* d_out, float* d_tokens, float* d_positions);

}  // namespace headrace::kernels
