// SPDX-License-Identifier: Apache-2.0
#include "models/llama.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/elementwise.h"

namespace headrace::models {
namespace {

kernels::RopeFrequencies frequencies_of(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  return {.theta = config.rope_theta,
          .scaled = scaling.enabled,
          .factor = scaling.factor,
          .low_freq_factor = scaling.low_freq_factor,
          .high_freq_factor = scaling.high_freq_factor,
          .original_max_position = scaling.original_max_position};
}

LinearSlots slots_of(const runtime::UnitInfo& unit, const std::string& name, std::int64_t in, std::int64_t out) {
  return {.in = in,
          .out = out,
          .stored = Stored::kOutIn,
          .weight = offset_of(unit, name + ".weight"),
          .bias = offset_of(unit, name + ".bias")};
}

}  // namespace

LlamaBlock::LlamaBlock(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time)
    : config_(config),
      dtype_(dtype),
      batch_(batch),
      time_(time),
      rows_(batch * time),
      rope_(kernels::make_rope_table(frequencies_of(config), time, config.head_dim)) {
  const runtime::UnitInfo unit = unit_info(0);
  const std::int64_t queries = q_width();
  const std::int64_t keys = k_width();
  input_norm_.weight = offset_of(unit, "input_layernorm.weight");
  post_norm_.weight = offset_of(unit, "post_attention_layernorm.weight");
  q_ = slots_of(unit, "self_attn.q_proj", config.embed, queries);
  k_ = slots_of(unit, "self_attn.k_proj", config.embed, keys);
  v_ = slots_of(unit, "self_attn.v_proj", config.embed, keys);
  o_ = slots_of(unit, "self_attn.o_proj", queries, config.embed);
  gate_ = slots_of(unit, "mlp.gate_proj", config.embed, config.inner);
  up_ = slots_of(unit, "mlp.up_proj", config.embed, config.inner);
  down_ = slots_of(unit, "mlp.down_proj", config.inner, config.embed);
}

runtime::UnitInfo LlamaBlock::unit_info(std::int64_t layer) const {
  using Kind = runtime::InitRule::Kind;
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const double deviation = 0.02;
  const double residual =
      deviation / std::sqrt(2.0 * static_cast<double>(config_.layers));  // the sum over depth keeps its size
  const std::int64_t queries = q_width();
  const std::int64_t keys = k_width();
  UnitBuilder builder("block." + std::to_string(layer));
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out, double spread, bool has_bias) {
    builder.matrix(prefix + name + ".weight", out, in, spread);
    if (has_bias) builder.vector(prefix + name + ".bias", out, Kind::kZero);
  };
  builder.vector(prefix + "input_layernorm.weight", config_.embed, Kind::kOne);
  linear("self_attn.q_proj", config_.embed, queries, deviation, config_.attention_bias);
  linear("self_attn.k_proj", config_.embed, keys, deviation, config_.attention_bias);
  linear("self_attn.v_proj", config_.embed, keys, deviation, config_.attention_bias);
  linear("self_attn.o_proj", queries, config_.embed, residual, config_.attention_bias);
  builder.vector(prefix + "post_attention_layernorm.weight", config_.embed, Kind::kOne);
  linear("mlp.gate_proj", config_.embed, config_.inner, deviation, config_.mlp_bias);
  linear("mlp.up_proj", config_.embed, config_.inner, deviation, config_.mlp_bias);
  linear("mlp.down_proj", config_.inner, config_.embed, residual, config_.mlp_bias);
  runtime::UnitInfo unit = builder.finish();

  Carver saved(nullptr);
  Carver kept(nullptr);
  Carver unkept(nullptr);
  Carver backward(nullptr);
  Activations unsaved;
  (void)carve_saved(saved);
  (void)carve_forward(kept);
  (void)carve_unsaved(unkept, nullptr, unsaved);
  (void)carve_backward(backward);
  unit.output_bytes = rows_ * config_.embed * Bytes{sizeof(float)};
  unit.saved_bytes = saved.used();
  unit.forward_workspace_bytes = std::max(kept.used(), unkept.used());
  unit.backward_workspace_bytes = backward.used();
  unit.forward_flops = forward_flops();
  return unit;
}

double LlamaBlock::forward_flops() const {
  const auto rows = static_cast<double>(rows_);
  const auto embed = static_cast<double>(config_.embed);
  const auto queries = static_cast<double>(q_width());
  const auto keys = static_cast<double>(k_width());
  const double weights = embed * (2.0 * queries + 2.0 * keys + 3.0 * static_cast<double>(config_.inner));
  return 2.0 * rows * weights +
         2.0 * rows * queries * static_cast<double>(time_ + 1);  // causal: half of time² pairs, two products
}

kernels::AttentionShape LlamaBlock::attention_shape() const {
  kernels::AttentionShape shape;
  shape.batch = batch_;
  shape.time = time_;
  shape.heads = config_.heads;
  shape.kv_heads = config_.kv_heads;
  shape.head_dim = config_.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  shape.q_stride = shape.out_stride = q_width();
  shape.k_stride = shape.v_stride = k_width();
  return shape;
}

void LlamaBlock::carve_attention(Carver& carver, Activations& activations) const {
  activations.q = carver.floats(rows_ * q_width());
  activations.k = carver.floats(rows_ * k_width());
  activations.v = carver.floats(rows_ * k_width());
  activations.attended = carver.floats(rows_ * q_width());
  activations.log_sum_exp = carver.floats(rows_ * config_.heads);
}

LlamaBlock::Activations LlamaBlock::carve_saved(Carver& carver) const {
  Activations saved;
  saved.inverse1 = carver.floats(rows_);
  saved.inverse2 = carver.floats(rows_);
  carve_attention(carver, saved);
  saved.middle = carver.floats(rows_ * config_.embed);
  saved.gate = carver.floats(rows_ * config_.inner);
  saved.up = carver.floats(rows_ * config_.inner);
  return saved;
}

LlamaBlock::ForwardScratch LlamaBlock::carve_forward(Carver& carver) const {
  ForwardScratch scratch;
  scratch.normed = carver.floats(rows_ * config_.embed);
  scratch.product = carver.floats(rows_ * config_.inner);
  return scratch;
}

LlamaBlock::ForwardScratch LlamaBlock::carve_unsaved(Carver& carver, float* output, Activations& activations) const {
  ForwardScratch scratch;
  activations.inverse1 = activations.inverse2 = carver.floats(rows_);
  scratch.normed = carver.floats(rows_ * config_.embed);
  activations.middle = output;
  carver.overlay([&](Carver& first) { carve_attention(first, activations); },
                 [&](Carver& second) {
                   activations.gate = second.floats(rows_ * config_.inner);
                   activations.up = second.floats(rows_ * config_.inner);
                 });
  scratch.product = activations.gate;
  return scratch;
}

LlamaBlock::BackwardScratch LlamaBlock::carve_backward(Carver& carver) const {
  BackwardScratch scratch;
  scratch.normed = carver.floats(rows_ * config_.embed);
  scratch.d_normed = carver.floats(rows_ * config_.embed);
  carver.overlay(
      [&](Carver& first) {
        scratch.d_gate = first.floats(rows_ * config_.inner);
        scratch.d_up = first.floats(rows_ * config_.inner);
      },
      [&](Carver& second) {
        scratch.d_attended = second.floats(rows_ * q_width());
        scratch.d_q = second.floats(rows_ * q_width());
        scratch.d_k = second.floats(rows_ * k_width());
        scratch.d_v = second.floats(rows_ * k_width());
        scratch.delta = second.floats(rows_ * config_.heads);
      });
  return scratch;
}

void LlamaBlock::attend(const Rows& rows, const FlatWeights& weights, const float* input,
                        const Activations& activations, float* normed) const {
  kernels::norm_forward(rows.parallel, norm_shape(), input, input_norm_.of(weights), {nullptr, activations.inverse1},
                        normed);
  linear_forward(rows, q_, weights, normed, activations.q, false);
  linear_forward(rows, k_, weights, normed, activations.k, false);
  linear_forward(rows, v_, weights, normed, activations.v, false);
  kernels::rope(rows.parallel, rope_, activations.q, rows_, config_.heads, kernels::Turn::kForward);
  kernels::rope(rows.parallel, rope_, activations.k, rows_, config_.kv_heads, kernels::Turn::kForward);
  kernels::attention_forward(rows.parallel, attention_shape(), activations.q, activations.k, activations.v,
                             activations.attended, activations.log_sum_exp);
  kernels::copy(rows.parallel, input, activations.middle, rows_ * config_.embed);
  linear_forward(rows, o_, weights, activations.attended, activations.middle, true);
}

void LlamaBlock::expand(const Rows& rows, const FlatWeights& weights, const Activations& activations,
                        float* normed) const {
  kernels::norm_forward(rows.parallel, norm_shape(), activations.middle, post_norm_.of(weights),
                        {nullptr, activations.inverse2}, normed);
  linear_forward(rows, gate_, weights, normed, activations.gate, false);
  linear_forward(rows, up_, weights, normed, activations.up, false);
}

void LlamaBlock::forward(const kernels::Parallel& parallel, const UnitBuffers& buffers) const {
  const Rows rows{parallel, rows_};
  const FlatWeights weights{buffers.weights, dtype_};
  Carver workspace(buffers.workspace);
  Activations activations;
  ForwardScratch scratch;
  if (buffers.saved != nullptr) {
    Carver saved(buffers.saved);
    activations = carve_saved(saved);
    scratch = carve_forward(workspace);
  } else {
    scratch = carve_unsaved(workspace, buffers.output, activations);
  }
  attend(rows, weights, buffers.input, activations, scratch.normed);
  expand(rows, weights, activations, scratch.normed);
  kernels::swiglu_forward(parallel, activations.gate, activations.up, scratch.product, rows_ * config_.inner);
  if (activations.middle != buffers.output)
    kernels::copy(parallel, activations.middle, buffers.output, rows_ * config_.embed);
  linear_forward(rows, down_, weights, scratch.product, buffers.output, true);
}

void LlamaBlock::backward(const kernels::Parallel& parallel, const UnitBuffers& buffers, bool recompute) const {
  const Rows rows{parallel, rows_};
  Carver saved_carver(buffers.saved);
  const Activations saved = carve_saved(saved_carver);
  Carver workspace(buffers.workspace);
  const BackwardScratch scratch = carve_backward(workspace);
  if (recompute) {
    const FlatWeights weights{buffers.weights, dtype_};
    attend(rows, weights, buffers.input, saved, scratch.normed);
    expand(rows, weights, saved, scratch.normed);
  }
  feed_forward_backward(rows, buffers, saved, scratch);
  attention_backward(rows, buffers, saved, scratch);
}

// Leaves the gradient of `middle` in input_gradient.
void LlamaBlock::feed_forward_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                                       const BackwardScratch& scratch) const {
  const kernels::Parallel& parallel = rows.parallel;
  const FlatWeights weights{buffers.weights, dtype_};
  const FlatGradient gradient{buffers.gradient, !buffers.first};
  const std::int64_t elements = rows_ * config_.inner;
  kernels::swiglu_forward(parallel, saved.gate, saved.up, scratch.d_gate,
                          elements);  // the product, until d_gate takes its place
  linear_weight_gradient(rows, down_, gradient, buffers.output_gradient, scratch.d_gate);
  linear_input_gradient(rows, down_, weights, buffers.output_gradient, scratch.d_up, false);
  kernels::swiglu_backward(parallel, {.gate = saved.gate,
                                      .up = saved.up,
                                      .d_y = scratch.d_up,
                                      .d_gate = scratch.d_gate,
                                      .d_up = scratch.d_up,
                                      .elements = elements});
  const kernels::NormStatistics statistics{nullptr, saved.inverse2};
  kernels::norm_apply(parallel, norm_shape(), saved.middle, post_norm_.of(weights), statistics, scratch.normed);
  linear_weight_gradient(rows, gate_, gradient, scratch.d_gate, scratch.normed);
  linear_weight_gradient(rows, up_, gradient, scratch.d_up, scratch.normed);
  linear_input_gradient(rows, gate_, weights, scratch.d_gate, scratch.d_normed, false);
  linear_input_gradient(rows, up_, weights, scratch.d_up, scratch.d_normed, true);
  kernels::copy(parallel, buffers.output_gradient, buffers.input_gradient, rows_ * config_.embed);
  kernels::norm_backward(parallel, norm_shape(),
                         {.d_y = scratch.d_normed,
                          .x = saved.middle,
                          .parameters = post_norm_.of(weights),
                          .statistics = statistics,
                          .d_x = buffers.input_gradient,
                          .accumulate_d_x = true,
                          .d_weight = gradient.base + post_norm_.weight,
                          .d_bias = nullptr,
                          .accumulate_d_parameters = gradient.accumulate});
}

void LlamaBlock::attention_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                                    const BackwardScratch& scratch) const {
  const kernels::Parallel& parallel = rows.parallel;
  const FlatWeights weights{buffers.weights, dtype_};
  const FlatGradient gradient{buffers.gradient, !buffers.first};
  linear_weight_gradient(rows, o_, gradient, buffers.input_gradient, saved.attended);
  linear_input_gradient(rows, o_, weights, buffers.input_gradient, scratch.d_attended, false);
  kernels::attention_backward(parallel, attention_shape(), saved.q, saved.k, saved.v, saved.attended, saved.log_sum_exp,
                              scratch.d_attended, scratch.d_q, scratch.d_k, scratch.d_v, scratch.delta);
  kernels::rope(parallel, rope_, scratch.d_q, rows_, config_.heads, kernels::Turn::kBackward);
  kernels::rope(parallel, rope_, scratch.d_k, rows_, config_.kv_heads, kernels::Turn::kBackward);
  const kernels::NormStatistics statistics{nullptr, saved.inverse1};
  kernels::norm_apply(parallel, norm_shape(), buffers.input, input_norm_.of(weights), statistics, scratch.normed);
  linear_weight_gradient(rows, q_, gradient, scratch.d_q, scratch.normed);
  linear_weight_gradient(rows, k_, gradient, scratch.d_k, scratch.normed);
  linear_weight_gradient(rows, v_, gradient, scratch.d_v, scratch.normed);
  linear_input_gradient(rows, q_, weights, scratch.d_q, scratch.d_normed, false);
  linear_input_gradient(rows, k_, weights, scratch.d_k, scratch.d_normed, true);
  linear_input_gradient(rows, v_, weights, scratch.d_v, scratch.d_normed, true);
  kernels::norm_backward(parallel, norm_shape(),
                         {.d_y = scratch.d_normed,
                          .x = buffers.input,
                          .parameters = input_norm_.of(weights),
                          .statistics = statistics,
                          .d_x = buffers.input_gradient,
                          .accumulate_d_x = true,
                          .d_weight = gradient.base + input_norm_.weight,
                          .d_bias = nullptr,
                          .accumulate_d_parameters = gradient.accumulate});
}

}  // namespace headrace::models
