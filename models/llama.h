// SPDX-License-Identifier: Apache-2.0
// A block of a Llama-type model: x += o(attention(norm(x))); x += down(silu(gate(h)) · up(h)), h = norm(x). Forward
// saves what the products of backward need; outputs of norms and of SwiGLU are cheap and made again.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/rope.h"
#include "models/model.h"
#include "models/model_linear.h"

namespace headrace::models {

// Immutable; one object serves all blocks, which have the same shapes.
class LlamaBlock {
 public:
  LlamaBlock(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time);

  [[nodiscard]] runtime::UnitInfo unit_info(std::int64_t layer) const;
  void forward(const kernels::Parallel& parallel, const UnitBuffers& buffers) const;
  void backward(const kernels::Parallel& parallel, const UnitBuffers& buffers, bool recompute) const;

 private:
  struct Activations {
    float *inverse1 = nullptr, *inverse2 = nullptr;     // [rows]
    float *q = nullptr, *k = nullptr, *v = nullptr;     // after rope: [rows, heads · D], [rows, kv_heads · D]
    float *attended = nullptr, *log_sum_exp = nullptr;  // [rows, heads · D], [batch, heads, time]
    float* middle = nullptr;                            // [rows, embed]: the residual after attention
    float *gate = nullptr, *up = nullptr;               // [rows, inner]
  };
  struct ForwardScratch {
    float* normed = nullptr;   // [rows, embed]
    float* product = nullptr;  // [rows, inner]: silu(gate) · up
  };
  struct BackwardScratch {
    float *normed = nullptr, *d_normed = nullptr;  // [rows, embed]
    float *d_gate = nullptr, *d_up = nullptr;      // [rows, inner]; share memory with the following
    float *d_attended = nullptr, *d_q = nullptr, *d_k = nullptr, *d_v = nullptr, *delta = nullptr;
  };
  void carve_attention(Carver& carver, Activations& activations) const;
  [[nodiscard]] Activations carve_saved(Carver& carver) const;
  // Places of a forward pass that keeps nothing: what the feed-forward layer makes lies over what attention has
  // finished with.
  [[nodiscard]] ForwardScratch carve_unsaved(Carver& carver, float* output, Activations& activations) const;
  [[nodiscard]] ForwardScratch carve_forward(Carver& carver) const;
  [[nodiscard]] BackwardScratch carve_backward(Carver& carver) const;

  // input → middle; middle → gate and up.
  void attend(const Rows& rows, const FlatWeights& weights, const float* input, const Activations& activations,
              float* normed) const;
  void expand(const Rows& rows, const FlatWeights& weights, const Activations& activations, float* normed) const;
  void feed_forward_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                             const BackwardScratch& scratch) const;
  void attention_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                          const BackwardScratch& scratch) const;
  [[nodiscard]] kernels::NormShape norm_shape() const { return {rows_, config_.embed, config_.norm_eps}; }
  [[nodiscard]] kernels::AttentionShape attention_shape() const;
  [[nodiscard]] std::int64_t q_width() const { return config_.heads * config_.head_dim; }
  [[nodiscard]] std::int64_t k_width() const { return config_.kv_heads * config_.head_dim; }
  [[nodiscard]] double forward_flops() const;

  ModelConfig config_;
  DType dtype_;
  std::int64_t batch_, time_, rows_;
  kernels::RopeTable rope_;
  NormSlots input_norm_, post_norm_;
  LinearSlots q_, k_, v_, o_, gate_, up_, down_;
};

}  // namespace headrace::models
