// SPDX-License-Identifier: Apache-2.0
// The language-model head and its loss in one: logits = hidden · weightsᵀ are made for a block of tokens and a block of
// the vocabulary at a time (running softmax where the vocabulary is larger than one block), so that all logits never
// exist.
#pragma once

#include <cstdint>

#include "core/bytes.h"
#include "core/dtype.h"
#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

struct HeadCrossEntropy {
  std::int64_t tokens = 0, embed = 0, vocab = 0;
  const float* hidden = nullptr;  // [tokens, embed]
  const void* weights = nullptr;  // [vocab, embed] of weights_dtype
  DType weights_dtype = DType::kFp32;
  const std::int32_t* labels = nullptr;  // [tokens]; -100 = ignored
  float gradient_scale = 1.0F;           // d loss_sum is multiplied by this (1 / all counted tokens of the step)
  float* d_hidden = nullptr;             // [tokens, embed], overwritten; null = forward only
  float* d_weights = nullptr;            // [vocab, embed]; null = forward only
  bool accumulate_d_weights = false;
  std::byte* workspace = nullptr;  // head_cross_entropy_workspace_bytes
};
struct HeadCrossEntropyResult {
  double loss_sum = 0;       // Σ -log softmax(logits)[label] over counted tokens
  std::int64_t counted = 0;  // labels that are not -100
};
[[nodiscard]] Bytes head_cross_entropy_workspace_bytes(std::int64_t tokens, std::int64_t embed,
                                                       std::int64_t vocab) noexcept;
HeadCrossEntropyResult head_cross_entropy(const Parallel& parallel, const HeadCrossEntropy& arguments);
HeadCrossEntropyResult head_cross_entropy_reference(const HeadCrossEntropy& arguments);  // scalar, fp64

}  // namespace headrace::kernels
