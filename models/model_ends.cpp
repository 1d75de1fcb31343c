// SPDX-License-Identifier: Apache-2.0
#include "models/model_ends.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/norm.h"

namespace headrace::models {
namespace {

constexpr double kDeviation = 0.02;

bool is_llama(const ModelConfig& config) { return config.architecture == Architecture::kLlama; }

}  // namespace

EmbeddingUnit::EmbeddingUnit(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time)
    : dtype_(dtype), shape_{.vocab = config.vocab, .width = config.embed, .time = time} {
  UnitBuilder builder("embedding");
  builder.embedding(is_llama(config) ? "model.embed_tokens.weight" : "transformer.wte.weight", config.vocab,
                    config.embed, kDeviation);
  if (!is_llama(config)) builder.embedding("transformer.wpe.weight", config.max_positions, config.embed, kDeviation);
  unit_ = builder.finish();
  positions_ = offset_of(unit_, "wpe.weight");
  unit_.output_bytes = batch * time * config.embed * Bytes{sizeof(float)};
}

void EmbeddingUnit::forward(const kernels::Parallel& parallel, const MicroBatch& data,
                            const UnitBuffers& buffers) const {
  const FlatWeights weights{buffers.weights, dtype_};
  const kernels::EmbeddingTables tables{weights.at(0), positions_ == kNone ? nullptr : weights.at(positions_), dtype_};
  kernels::embedding_forward(parallel, shape_, tables, data.inputs, buffers.output);
}

void EmbeddingUnit::backward(const kernels::Parallel& parallel, const MicroBatch& data,
                             const UnitBuffers& buffers) const {
  if (buffers.first) kernels::fill_zero(parallel, buffers.gradient, unit_.flat_elements);
  kernels::embedding_backward(parallel, shape_, data.inputs, buffers.output_gradient, buffers.gradient,
                              positions_ == kNone ? nullptr : buffers.gradient + positions_);
}

HeadUnit::HeadUnit(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time,
                   const runtime::UnitInfo& embedding)
    : config_(config), dtype_(dtype), rows_(batch * time), embedding_(embedding) {
  using Kind = runtime::InitRule::Kind;
  UnitBuilder builder("head");
  if (is_llama(config)) {
    builder.vector("model.norm.weight", config.embed, Kind::kOne);
  } else {
    builder.vector("transformer.ln_f.weight", config.embed, Kind::kOne);
    builder.vector("transformer.ln_f.bias", config.embed, Kind::kZero);
  }
  if (!config.tied) builder.embedding("lm_head.weight", config.vocab, config.embed, kDeviation);
  unit_ = builder.finish();
  norm_.weight = unit_.tensors[0].offset;
  norm_.bias = is_llama(config) ? kNone : unit_.tensors[1].offset;
  matrix_ = config.tied ? embedding_.tensors[0].offset : unit_.tensors.back().offset;
  if (config.tied) unit_.uses = {0};
  unit_.fused_loss = true;
  Carver carver(nullptr);
  (void)carve(carver);
  unit_.forward_workspace_bytes = unit_.backward_workspace_bytes = carver.used();
  unit_.forward_flops =
      2.0 * static_cast<double>(rows_) * static_cast<double>(config.embed) * static_cast<double>(config.vocab);
}

HeadUnit::Scratch HeadUnit::carve(Carver& carver) const {
  Scratch scratch;
  if (!is_llama(config_)) scratch.statistics.mean = carver.floats(rows_);
  scratch.statistics.inverse = carver.floats(rows_);
  scratch.hidden = carver.floats(rows_ * config_.embed);
  scratch.loss = carver.bytes(kernels::head_cross_entropy_workspace_bytes(rows_, config_.embed, config_.vocab));
  return scratch;
}

FlatWeights HeadUnit::matrix_owner(const UnitBuffers& buffers) const {
  return {config_.tied ? buffers.used_weights[0] : buffers.weights, dtype_};
}

namespace {

// The part of the loss's arguments that forward and backward share.
kernels::HeadCrossEntropy loss_arguments(const ModelConfig& config, std::int64_t rows, const MicroBatch& data,
                                         const float* hidden, const void* matrix, DType dtype, std::byte* workspace) {
  kernels::HeadCrossEntropy arguments;
  arguments.tokens = rows;
  arguments.embed = config.embed;
  arguments.vocab = config.vocab;
  arguments.hidden = hidden;
  arguments.weights = matrix;
  arguments.weights_dtype = dtype;
  arguments.labels = data.labels.data();
  arguments.gradient_scale = data.gradient_scale;
  arguments.workspace = workspace;
  return arguments;
}

}  // namespace

LossSum HeadUnit::loss(const kernels::Parallel& parallel, const MicroBatch& data, const UnitBuffers& buffers) const {
  Carver carver(buffers.workspace);
  const Scratch scratch = carve(carver);
  const kernels::NormShape shape{rows_, config_.embed, config_.norm_eps};
  kernels::norm_forward(parallel, shape, buffers.input, norm_.of({buffers.weights, dtype_}), scratch.statistics,
                        scratch.hidden);
  const auto result = kernels::head_cross_entropy(
      parallel,
      loss_arguments(config_, rows_, data, scratch.hidden, matrix_owner(buffers).at(matrix_), dtype_, scratch.loss));
  return {result.loss_sum, result.counted};
}

LossSum HeadUnit::backward(const kernels::Parallel& parallel, const MicroBatch& data,
                           const UnitBuffers& buffers) const {
  Carver carver(buffers.workspace);
  const Scratch scratch = carve(carver);
  const kernels::NormShape shape{rows_, config_.embed, config_.norm_eps};
  const kernels::NormParameters parameters = norm_.of({buffers.weights, dtype_});
  kernels::norm_forward(parallel, shape, buffers.input, parameters, scratch.statistics, scratch.hidden);

  auto arguments =
      loss_arguments(config_, rows_, data, scratch.hidden, matrix_owner(buffers).at(matrix_), dtype_, scratch.loss);
  arguments.d_hidden = buffers.input_gradient;  // the norm turns it into the gradient of its input in place
  const bool first_matrix = config_.tied ? buffers.first_used : buffers.first;
  if (buffers.first) zero_padding(parallel, unit_, buffers.gradient);
  if (config_.tied) {
    // The product overwrites the matrix; the rest of the owner's flat space (positions, padding) is zeroed around it.
    const std::int64_t end = embedding_.tensors[0].elements;
    if (buffers.first_used)
      kernels::fill_zero(parallel, buffers.used_gradients[0] + end, embedding_.flat_elements - end);
    arguments.d_weights = buffers.used_gradients[0] + matrix_;
  } else {
    arguments.d_weights = buffers.gradient + matrix_;
  }
  arguments.accumulate_d_weights = !first_matrix;
  const auto result = kernels::head_cross_entropy(parallel, arguments);

  kernels::norm_backward(parallel, shape,
                         {.d_y = buffers.input_gradient,
                          .x = buffers.input,
                          .parameters = parameters,
                          .statistics = scratch.statistics,
                          .d_x = buffers.input_gradient,
                          .accumulate_d_x = false,
                          .d_weight = buffers.gradient + norm_.weight,
                          .d_bias = norm_.bias == kNone ? nullptr : buffers.gradient + norm_.bias,
                          .accumulate_d_parameters = !buffers.first});
  return {result.loss_sum, result.counted};
}

void HeadUnit::logits(const kernels::Parallel& parallel, const UnitBuffers& buffers, const float* hidden,
                      std::int64_t rows, float* out) const {
  HEADRACE_CHECK(rows >= 0 && rows <= rows_, "logits are made for at most the tokens of a micro-batch");
  Carver carver(buffers.workspace);
  const Scratch scratch = carve(carver);
  kernels::norm_forward(parallel, {rows, config_.embed, config_.norm_eps}, hidden, norm_.of({buffers.weights, dtype_}),
                        scratch.statistics, scratch.hidden);
  const LinearSlots matrix{
      .in = config_.embed, .out = config_.vocab, .stored = Stored::kOutIn, .weight = matrix_, .bias = kNone};
  linear_forward({parallel, rows}, matrix, matrix_owner(buffers), scratch.hidden, out, false);
}

}  // namespace headrace::models
