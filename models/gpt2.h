// SPDX-License-Identifier: Apache-2.0
// A block of a GPT-2-type model: x += c_proj(attention(ln_1(x))); x += c_proj(gelu(c_fc(ln_2(x)))). Its matrices are
// stored [in, out] (Conv1D). Forward saves what the products of backward need; outputs of norms and of GELU are made
// again.
#pragma once

#include <cstdint>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "models/model.h"
#include "models/model_linear.h"

namespace headrace::models {

// Immutable; one object serves all blocks, which have the same shapes.
class Gpt2Block {
 public:
  Gpt2Block(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time);

  [[nodiscard]] runtime::UnitInfo unit_info(std::int64_t layer) const;
  void forward(const kernels::Parallel& parallel, const UnitBuffers& buffers) const;
  void backward(const kernels::Parallel& parallel, const UnitBuffers& buffers, bool recompute) const;

 private:
  struct Activations {
    kernels::NormStatistics norm1, norm2;               // [rows] each
    float* qkv = nullptr;                               // [rows, 3 · embed]
    float *attended = nullptr, *log_sum_exp = nullptr;  // [rows, embed], [batch, heads, time]
    float* middle = nullptr;                            // [rows, embed]: the residual after attention
    float* expanded = nullptr;                          // [rows, inner]: before GELU
  };
  struct ForwardScratch {
    float* normed = nullptr;     // [rows, embed]
    float* activated = nullptr;  // [rows, inner]
  };
  struct BackwardScratch {
    float *normed = nullptr, *d_normed = nullptr;       // [rows, embed]
    float *activated = nullptr, *d_expanded = nullptr;  // [rows, inner]; share memory with the following
    float *d_attended = nullptr, *d_qkv = nullptr, *delta = nullptr;
  };
  void carve_attention(Carver& carver, Activations& activations) const;
  [[nodiscard]] kernels::NormStatistics carve_statistics(Carver& carver) const;
  [[nodiscard]] Activations carve_saved(Carver& carver) const;
  // Places of a forward pass that keeps nothing: what the feed-forward layer makes lies over what attention has
  // finished with.
  [[nodiscard]] ForwardScratch carve_unsaved(Carver& carver, float* output, Activations& activations) const;
  [[nodiscard]] ForwardScratch carve_forward(Carver& carver) const;
  [[nodiscard]] BackwardScratch carve_backward(Carver& carver) const;

  // input → middle; middle → expanded.
  void attend(const Rows& rows, const FlatWeights& weights, const float* input, const Activations& activations,
              float* normed) const;
  void expand(const Rows& rows, const FlatWeights& weights, const Activations& activations, float* normed) const;
  void feed_forward_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                             const BackwardScratch& scratch) const;
  void attention_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                          const BackwardScratch& scratch) const;
  [[nodiscard]] kernels::NormShape norm_shape() const { return {rows_, config_.embed, config_.norm_eps}; }
  [[nodiscard]] kernels::AttentionShape attention_shape() const;
  [[nodiscard]] kernels::Gelu gelu() const {
    return config_.activation == Activation::kGeluErf ? kernels::Gelu::kErf : kernels::Gelu::kTanh;
  }
  [[nodiscard]] double forward_flops() const;

  ModelConfig config_;
  DType dtype_;
  std::int64_t batch_, time_, rows_;
  NormSlots norm1_, norm2_;
  LinearSlots qkv_, project_, expand_, contract_;
};

}  // namespace headrace::models
