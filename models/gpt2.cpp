// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cpu/elementwise.h"

namespace headrace::models {
namespace {

LinearSlots slots_of(const runtime::UnitInfo& unit, const std::string& name, std::int64_t in, std::int64_t out) {
  return {.in = in,
          .out = out,
          .stored = Stored::kInOut,
          .weight = offset_of(unit, name + ".weight"),
          .bias = offset_of(unit, name + ".bias")};
}

}  // namespace

Gpt2Block::Gpt2Block(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time)
    : config_(config), dtype_(dtype), batch_(batch), time_(time), rows_(batch * time) {
  const runtime::UnitInfo unit = unit_info(0);
  norm1_ = {offset_of(unit, "ln_1.weight"), offset_of(unit, "ln_1.bias")};
  norm2_ = {offset_of(unit, "ln_2.weight"), offset_of(unit, "ln_2.bias")};
  qkv_ = slots_of(unit, "attn.c_attn", config.embed, 3 * config.embed);
  project_ = slots_of(unit, "attn.c_proj", config.embed, config.embed);
  expand_ = slots_of(unit, "mlp.c_fc", config.embed, config.inner);
  contract_ = slots_of(unit, "mlp.c_proj", config.inner, config.embed);
}

runtime::UnitInfo Gpt2Block::unit_info(std::int64_t layer) const {
  using Kind = runtime::InitRule::Kind;
  const std::string prefix = "transformer.h." + std::to_string(layer) + ".";
  const double deviation = 0.02;
  const double residual =
      deviation / std::sqrt(2.0 * static_cast<double>(config_.layers));  // the sum over depth keeps its size
  UnitBuilder builder("block." + std::to_string(layer));
  const auto norm = [&](const char* name) {
    builder.vector(prefix + name + ".weight", config_.embed, Kind::kOne);
    builder.vector(prefix + name + ".bias", config_.embed, Kind::kZero);
  };
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t out, double spread) {
    builder.matrix(prefix + name + ".weight", in, out, spread);
    builder.vector(prefix + name + ".bias", out, Kind::kZero);
  };
  norm("ln_1");
  linear("attn.c_attn", config_.embed, 3 * config_.embed, deviation);
  linear("attn.c_proj", config_.embed, config_.embed, residual);
  norm("ln_2");
  linear("mlp.c_fc", config_.embed, config_.inner, deviation);
  linear("mlp.c_proj", config_.inner, config_.embed, residual);
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

double Gpt2Block::forward_flops() const {
  const auto rows = static_cast<double>(rows_);
  const auto embed = static_cast<double>(config_.embed);
  const double weights = embed * (4.0 * embed + 2.0 * static_cast<double>(config_.inner));
  return 2.0 * rows * weights +
         2.0 * rows * embed * static_cast<double>(time_ + 1);  // causal: half of time² pairs, two products
}

kernels::AttentionShape Gpt2Block::attention_shape() const {
  kernels::AttentionShape shape;
  shape.batch = batch_;
  shape.time = time_;
  shape.heads = shape.kv_heads = config_.heads;
  shape.head_dim = config_.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  shape.q_stride = shape.k_stride = shape.v_stride = 3 * config_.embed;
  shape.out_stride = config_.embed;
  return shape;
}

kernels::NormStatistics Gpt2Block::carve_statistics(Carver& carver) const {
  kernels::NormStatistics statistics;
  statistics.mean = carver.floats(rows_);
  statistics.inverse = carver.floats(rows_);
  return statistics;
}

void Gpt2Block::carve_attention(Carver& carver, Activations& activations) const {
  activations.qkv = carver.floats(rows_ * 3 * config_.embed);
  activations.attended = carver.floats(rows_ * config_.embed);
  activations.log_sum_exp = carver.floats(rows_ * config_.heads);
}

Gpt2Block::Activations Gpt2Block::carve_saved(Carver& carver) const {
  Activations saved;
  saved.norm1 = carve_statistics(carver);
  saved.norm2 = carve_statistics(carver);
  carve_attention(carver, saved);
  saved.middle = carver.floats(rows_ * config_.embed);
  saved.expanded = carver.floats(rows_ * config_.inner);
  return saved;
}

Gpt2Block::ForwardScratch Gpt2Block::carve_forward(Carver& carver) const {
  ForwardScratch scratch;
  scratch.normed = carver.floats(rows_ * config_.embed);
  scratch.activated = carver.floats(rows_ * config_.inner);
  return scratch;
}

Gpt2Block::ForwardScratch Gpt2Block::carve_unsaved(Carver& carver, float* output, Activations& activations) const {
  ForwardScratch scratch;
  activations.norm1 = activations.norm2 = carve_statistics(carver);
  scratch.normed = carver.floats(rows_ * config_.embed);
  activations.middle = output;
  carver.overlay([&](Carver& first) { carve_attention(first, activations); },
                 [&](Carver& second) { activations.expanded = second.floats(rows_ * config_.inner); });
  scratch.activated = activations.expanded;
  return scratch;
}

Gpt2Block::BackwardScratch Gpt2Block::carve_backward(Carver& carver) const {
  BackwardScratch scratch;
  scratch.normed = carver.floats(rows_ * config_.embed);
  scratch.d_normed = carver.floats(rows_ * config_.embed);
  carver.overlay(
      [&](Carver& first) {
        scratch.activated = first.floats(rows_ * config_.inner);
        scratch.d_expanded = first.floats(rows_ * config_.inner);
      },
      [&](Carver& second) {
        scratch.d_attended = second.floats(rows_ * config_.embed);
        scratch.d_qkv = second.floats(rows_ * 3 * config_.embed);
        scratch.delta = second.floats(rows_ * config_.heads);
      });
  return scratch;
}

void Gpt2Block::attend(const Rows& rows, const FlatWeights& weights, const float* input, const Activations& activations,
                       float* normed) const {
  kernels::norm_forward(rows.parallel, norm_shape(), input, norm1_.of(weights), activations.norm1, normed);
  linear_forward(rows, qkv_, weights, normed, activations.qkv, false);
  const float* q = activations.qkv;
  kernels::attention_forward(rows.parallel, attention_shape(), q, q + config_.embed, q + 2 * config_.embed,
                             activations.attended, activations.log_sum_exp);
  kernels::copy(rows.parallel, input, activations.middle, rows_ * config_.embed);
  linear_forward(rows, project_, weights, activations.attended, activations.middle, true);
}

void Gpt2Block::expand(const Rows& rows, const FlatWeights& weights, const Activations& activations,
                       float* normed) const {
  kernels::norm_forward(rows.parallel, norm_shape(), activations.middle, norm2_.of(weights), activations.norm2, normed);
  linear_forward(rows, expand_, weights, normed, activations.expanded, false);
}

void Gpt2Block::forward(const kernels::Parallel& parallel, const UnitBuffers& buffers) const {
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
  kernels::gelu_forward(parallel, gelu(), activations.expanded, scratch.activated, rows_ * config_.inner);
  if (activations.middle != buffers.output)
    kernels::copy(parallel, activations.middle, buffers.output, rows_ * config_.embed);
  linear_forward(rows, contract_, weights, scratch.activated, buffers.output, true);
}

void Gpt2Block::backward(const kernels::Parallel& parallel, const UnitBuffers& buffers, bool recompute) const {
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
void Gpt2Block::feed_forward_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                                      const BackwardScratch& scratch) const {
  const kernels::Parallel& parallel = rows.parallel;
  const FlatWeights weights{buffers.weights, dtype_};
  const FlatGradient gradient{buffers.gradient, !buffers.first};
  const std::int64_t elements = rows_ * config_.inner;
  kernels::gelu_forward(parallel, gelu(), saved.expanded, scratch.activated, elements);
  linear_weight_gradient(rows, contract_, gradient, buffers.output_gradient, scratch.activated);
  linear_input_gradient(rows, contract_, weights, buffers.output_gradient, scratch.d_expanded, false);
  kernels::gelu_backward(parallel, gelu(), saved.expanded, scratch.d_expanded, scratch.d_expanded, elements);
  kernels::norm_apply(parallel, norm_shape(), saved.middle, norm2_.of(weights), saved.norm2, scratch.normed);
  linear_weight_gradient(rows, expand_, gradient, scratch.d_expanded, scratch.normed);
  linear_input_gradient(rows, expand_, weights, scratch.d_expanded, scratch.d_normed, false);
  kernels::copy(parallel, buffers.output_gradient, buffers.input_gradient, rows_ * config_.embed);
  kernels::norm_backward(parallel, norm_shape(),
                         {.d_y = scratch.d_normed,
                          .x = saved.middle,
                          .parameters = norm2_.of(weights),
                          .statistics = saved.norm2,
                          .d_x = buffers.input_gradient,
                          .accumulate_d_x = true,
                          .d_weight = gradient.base + norm2_.weight,
                          .d_bias = gradient.base + norm2_.bias,
                          .accumulate_d_parameters = gradient.accumulate});
}

void Gpt2Block::attention_backward(const Rows& rows, const UnitBuffers& buffers, const Activations& saved,
                                   const BackwardScratch& scratch) const {
  const kernels::Parallel& parallel = rows.parallel;
  const FlatWeights weights{buffers.weights, dtype_};
  const FlatGradient gradient{buffers.gradient, !buffers.first};
  const std::int64_t embed = config_.embed;
  linear_weight_gradient(rows, project_, gradient, buffers.input_gradient, saved.attended);
  linear_input_gradient(rows, project_, weights, buffers.input_gradient, scratch.d_attended, false);
  kernels::attention_backward(parallel, attention_shape(), saved.qkv, saved.qkv + embed, saved.qkv + 2 * embed,
                              saved.attended, saved.log_sum_exp, scratch.d_attended, scratch.d_qkv,
                              scratch.d_qkv + embed, scratch.d_qkv + 2 * embed, scratch.delta);
  kernels::norm_apply(parallel, norm_shape(), buffers.input, norm1_.of(weights), saved.norm1, scratch.normed);
  linear_weight_gradient(rows, qkv_, gradient, scratch.d_qkv, scratch.normed);
  linear_input_gradient(rows, qkv_, weights, scratch.d_qkv, scratch.d_normed, false);
  kernels::norm_backward(parallel, norm_shape(),
                         {.d_y = scratch.d_normed,
                          .x = buffers.input,
                          .parameters = norm1_.of(weights),
                          .statistics = saved.norm1,
                          .d_x = buffers.input_gradient,
                          .accumulate_d_x = true,
                          .d_weight = gradient.base + norm1_.weight,
                          .d_bias = gradient.base + norm1_.bias,
                          .accumulate_d_parameters = gradient.accumulate});
}

}  // namespace headrace::models
