// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "models/model.h"

namespace headrace::models {
namespace {

Error wrong(std::string message, std::string hint = {}) {
  return make_error(ErrorCode::kConfig, std::move(message), std::move(hint));
}

// Positive, and small enough that products of two of them with a few factors stay within 64 bits.
Result<void> check_extent(const char* name, std::int64_t value) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  if (value <= 0) return wrong(fmt::format("model: {} is {}, but must be at least 1", name, value));
  if (value > kLargest) return wrong(fmt::format("model: {} is {}, but must be at most {}", name, value, kLargest));
  return {};
}

Result<void> check_positive(const char* name, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return wrong(fmt::format("model: {} is {}, but must be positive and finite", name, value));
}

Result<void> validate_heads(const ModelConfig& config) {
  if (config.heads % config.kv_heads != 0) {
    return wrong(
        fmt::format("model: {} query heads cannot share {} key/value heads evenly", config.heads, config.kv_heads),
        "choose a number of key/value heads that divides the number of heads");
  }
  if (config.architecture == Architecture::kLlama) {
    if (config.head_dim % 2 != 0) {
      return wrong(fmt::format("model: head_dim is {}, but rotary embeddings turn pairs and need an even number",
                               config.head_dim));
    }
    return {};
  }
  if (config.kv_heads != config.heads) {
    return wrong(
        fmt::format("model: GPT-2 has as many key/value heads as heads, not {} and {}", config.kv_heads, config.heads));
  }
  if (config.embed % config.heads != 0 || config.head_dim != config.embed / config.heads) {
    return wrong(fmt::format("model: GPT-2 splits embed {} over {} heads, which does not give head_dim {}",
                             config.embed, config.heads, config.head_dim));
  }
  return {};
}

Result<void> validate_rope(const ModelConfig& config) {
  HEADRACE_RETURN_IF_ERROR(check_positive("rope_theta", config.rope_theta));
  const RopeScaling& scaling = config.rope_scaling;
  if (!scaling.enabled) return {};
  HEADRACE_RETURN_IF_ERROR(check_positive("rope_scaling.factor", scaling.factor));
  HEADRACE_RETURN_IF_ERROR(check_positive("rope_scaling.low_freq_factor", scaling.low_freq_factor));
  HEADRACE_RETURN_IF_ERROR(check_positive("rope_scaling.high_freq_factor", scaling.high_freq_factor));
  HEADRACE_RETURN_IF_ERROR(
      check_positive("rope_scaling.original_max_position_embeddings", scaling.original_max_position));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return wrong(fmt::format("model: rope_scaling.high_freq_factor {} must be above low_freq_factor {}",
                             scaling.high_freq_factor, scaling.low_freq_factor));
  }
  return {};
}

// Elements of one block's matrices, biases left out; with 32-bit factors this cannot overflow __int128.
__int128 block_elements(const ModelConfig& config) {
  const auto embed = static_cast<__int128>(config.embed);
  const auto inner = static_cast<__int128>(config.inner);
  const auto queries = static_cast<__int128>(config.heads) * config.head_dim;
  const auto keys = static_cast<__int128>(config.kv_heads) * config.head_dim;
  return config.architecture == Architecture::kLlama ? embed * (2 * queries + 2 * keys + 3 * inner)
                                                     : embed * (4 * embed + 2 * inner);
}

// A size of which the total (state of 16 bytes an element, several copies) must still be countable in Bytes.
constexpr __int128 kLargestElements = std::numeric_limits<std::int64_t>::max() / 256;

}  // namespace

Result<void> validate(const ModelConfig& config) {
  HEADRACE_RETURN_IF_ERROR(check_extent("vocab", config.vocab));
  HEADRACE_RETURN_IF_ERROR(check_extent("embed", config.embed));
  HEADRACE_RETURN_IF_ERROR(check_extent("layers", config.layers));
  HEADRACE_RETURN_IF_ERROR(check_extent("heads", config.heads));
  HEADRACE_RETURN_IF_ERROR(check_extent("kv_heads", config.kv_heads));
  HEADRACE_RETURN_IF_ERROR(check_extent("head_dim", config.head_dim));
  HEADRACE_RETURN_IF_ERROR(check_extent("inner", config.inner));
  HEADRACE_RETURN_IF_ERROR(check_extent("max_positions", config.max_positions));
  HEADRACE_RETURN_IF_ERROR(check_positive("norm_eps", config.norm_eps));
  HEADRACE_RETURN_IF_ERROR(validate_heads(config));
  if (config.architecture == Architecture::kLlama) {
    HEADRACE_RETURN_IF_ERROR(validate_rope(config));
    if (config.activation != Activation::kSilu) return wrong("model: a Llama-type model has the activation \"silu\"");
  } else if (config.activation == Activation::kSilu) {
    return wrong("model: a GPT-2-type model has the activation \"gelu_new\" or \"gelu\"");
  }
  const __int128 ends = static_cast<__int128>(config.vocab) * config.embed * 2 +
                        static_cast<__int128>(config.max_positions) * config.embed;
  if (block_elements(config) > kLargestElements / config.layers - ends / config.layers - 1) {
    return wrong(
        fmt::format("model: {} layers of embed {}, inner {}, {} heads of {} are more parameters than can be counted",
                    config.layers, config.embed, config.inner, config.heads, config.head_dim));
  }
  return {};
}

Result<void> validate(const ModelConfig& config, std::int64_t batch, std::int64_t time) {
  HEADRACE_RETURN_IF_ERROR(validate(config));
  HEADRACE_RETURN_IF_ERROR(check_extent("micro-batch size", batch));
  HEADRACE_RETURN_IF_ERROR(check_extent("sequence length", time));
  if (time > config.max_positions) {
    return wrong(fmt::format("model: sequences of {} tokens do not fit its {} positions", time, config.max_positions),
                 "shorten data.sequence_length or raise max_positions");
  }
  const __int128 widest =
      static_cast<__int128>(config.heads) * config.head_dim * 4 + config.embed * 4 + config.inner * 4;
  if (static_cast<__int128>(batch) * time * widest > kLargestElements) {
    return wrong(
        fmt::format("model: activations of {} sequences of {} tokens are more than can be counted", batch, time));
  }
  return {};
}

std::int64_t parameter_count(const ModelConfig& config) {
  const std::int64_t queries = config.heads * config.head_dim;
  const std::int64_t keys = config.kv_heads * config.head_dim;
  auto block = static_cast<std::int64_t>(block_elements(config));
  std::int64_t ends = config.vocab * config.embed * (config.tied ? 1 : 2);
  if (config.architecture == Architecture::kLlama) {
    block += 2 * config.embed;
    if (config.attention_bias) block += queries + 2 * keys + config.embed;
    if (config.mlp_bias) block += 2 * config.inner + config.embed;
    ends += config.embed;
  } else {
    block += 4 * config.embed + 3 * config.embed + config.embed + config.inner + config.embed;
    ends += config.max_positions * config.embed + 2 * config.embed;
  }
  return config.layers * block + ends;
}

}  // namespace headrace::models
