// SPDX-License-Identifier: Apache-2.0
// A Llama- or GPT-2-type transformer as units: what each needs (ModelInfo) and its forward and backward arithmetic on
// buffers that somebody else (the plan) has placed. Unit 0 is the embedding, then the blocks, the last one is final
// norm + head + loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/result.h"
#include "kernels/cpu/parallel.h"
#include "runtime/unit.h"

namespace headrace::models {

enum class Architecture : std::uint8_t { kLlama, kGpt2 };
enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGeluErf };

struct RopeScaling {  // llama3
  bool enabled = false;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4, original_max_position = 8192;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::int64_t vocab = 0, embed = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, inner = 0;
  std::int64_t max_positions = 0;
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  Activation activation = Activation::kSilu;
  bool attention_bias = false, mlp_bias = false;  // Llama; GPT-2 always has them
  bool tied = false;                              // the head uses the embedding
};
// kConfig error that names the value, what it must be and why.
[[nodiscard]] Result<void> validate(const ModelConfig& config);
// Also that a micro-batch of `batch` × `time` fits the model and the sizes that follow from it fit 64 bits.
[[nodiscard]] Result<void> validate(const ModelConfig& config, std::int64_t batch, std::int64_t time);
[[nodiscard]] std::int64_t parameter_count(const ModelConfig& config);  // of a valid config; a tied tensor counts once

// One micro-batch: `batch` sequences of `time` tokens; labels[i] is the token to predict at i, -100 = ignored.
struct MicroBatch {
  std::span<const std::int32_t> inputs, labels;
  float gradient_scale = 1.0F;  // 1 / counted tokens of the whole step
};

// Where the plan put things. Activations and gradients are fp32 [batch·time, embed]; weights are in the model's dtype.
// All start at multiples of 64 bytes and none overlaps another; `saved` is only read by backward.
struct UnitBuffers {
  const std::byte* weights = nullptr;
  std::span<const std::byte* const> used_weights;  // UnitInfo::uses
  const float* input = nullptr;                    // null for the embedding
  float* output = nullptr;                         // forward; null for the head
  const float* output_gradient = nullptr;          // backward; null for the head
  float* input_gradient = nullptr;                 // backward; null for the embedding
  std::byte* saved = nullptr;                      // UnitInfo::saved_bytes
  std::byte* workspace = nullptr;                  // forward_ or backward_workspace_bytes
  float* gradient = nullptr;                       // the unit's flat space, fp32
  bool first = false;                              // overwrite (zero all of it, padding too) instead of adding
  std::span<float* const> used_gradients;
  bool first_used = false;
};

struct LossSum {
  double sum = 0;  // Σ -log p(label)
  std::int64_t counted = 0;
};

// Immutable after construction; thread-safe for distinct buffers.
class Model {
 public:
  // The arguments have passed validate().
  Model(const ModelConfig& config, DType weights_dtype, std::int64_t batch, std::int64_t time);
  ~Model();

  [[nodiscard]] const ModelConfig& config() const noexcept;
  [[nodiscard]] const runtime::ModelInfo& info() const noexcept;

  // Forward of embedding and blocks; fills `saved` when it is not null. For the head: the loss alone (output unused).
  LossSum forward(const kernels::Parallel& parallel, runtime::UnitId unit, const MicroBatch& data,
                  const UnitBuffers& buffers) const;
  // Backward of any unit. With `recompute` it fills `saved` from `input` first. For the head: loss and gradients at
  // once.
  LossSum backward(const kernels::Parallel& parallel, runtime::UnitId unit, const MicroBatch& data,
                   const UnitBuffers& buffers, bool recompute) const;
  // Logits [rows, vocab] of `rows` ≤ batch·time final hidden states (rows × embed, before the final norm) for
  // generation and tests; uses weights, used_weights and the forward workspace of `head`.
  void logits(const kernels::Parallel& parallel, const UnitBuffers& head, const float* hidden, std::int64_t rows,
              float* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::models
