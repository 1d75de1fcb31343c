// SPDX-License-Identifier: Apache-2.0
// The first and the last unit of a model: token (and position) embeddings; final norm, output matrix and loss. A tied
// head has no matrix of its own and uses the embedding's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/embedding.h"
#include "models/model.h"
#include "models/model_linear.h"

namespace headrace::models {

// Immutable.
class EmbeddingUnit {
 public:
  EmbeddingUnit(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time);

  [[nodiscard]] const runtime::UnitInfo& unit_info() const noexcept { return unit_; }
  void forward(const kernels::Parallel& parallel, const MicroBatch& data, const UnitBuffers& buffers) const;
  void backward(const kernels::Parallel& parallel, const MicroBatch& data, const UnitBuffers& buffers) const;

 private:
  DType dtype_;
  kernels::EmbeddingShape shape_;
  runtime::UnitInfo unit_;
  std::int64_t positions_ = kNone;  // offset; tokens are at 0
};

// Immutable.
class HeadUnit {
 public:
  HeadUnit(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time,
           const runtime::UnitInfo& embedding);

  [[nodiscard]] const runtime::UnitInfo& unit_info() const noexcept { return unit_; }
  LossSum loss(const kernels::Parallel& parallel, const MicroBatch& data, const UnitBuffers& buffers) const;
  LossSum backward(const kernels::Parallel& parallel, const MicroBatch& data, const UnitBuffers& buffers) const;
  void logits(const kernels::Parallel& parallel, const UnitBuffers& buffers, const float* hidden, std::int64_t rows,
              float* out) const;

 private:
  struct Scratch {
    kernels::NormStatistics statistics;  // [rows] each
    float* hidden = nullptr;             // [rows, embed]
    std::byte* loss = nullptr;           // head_cross_entropy's
  };
  [[nodiscard]] Scratch carve(Carver& carver) const;
  [[nodiscard]] FlatWeights matrix_owner(const UnitBuffers& buffers) const;

  ModelConfig config_;
  DType dtype_;
  std::int64_t rows_;
  runtime::UnitInfo unit_, embedding_;
  NormSlots norm_;
  std::int64_t matrix_ = 0;  // offset in the owner's flat space
};

}  // namespace headrace::models
