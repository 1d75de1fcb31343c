// SPDX-License-Identifier: Apache-2.0
// The sections "headrace.model" and "headrace.data" of a config: their keys as a table for the config reader, and what
// the values come to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/result.h"
#include "models/data/token_data.h"
#include "models/model.h"
#include "runtime/config/field.h"

namespace headrace::models {

// A model comes from a preset, a Hugging Face folder, or an architecture with its shape. Shape keys given with a preset
// change it; a folder's shape cannot be changed.
struct ModelSettings {
  std::optional<std::string> preset, path;
  std::optional<std::string> architecture, activation;  // "llama", "gpt2"; "silu", "gelu_tanh", "gelu_erf"
  std::optional<std::int64_t> vocab, embed, layers, heads, kv_heads, head_dim, inner, max_positions;
  std::optional<double> norm_eps, rope_theta;
  std::optional<bool> attention_bias, mlp_bias, tied;
};

struct DataSettings {
  std::string train;                      // empty only for Purpose::kPlan
  std::optional<std::string> validation;  // a file of its own
  double validation_fraction = 0;         // or the last part of `train`
  std::string tokenizer = "bytes";
  config::Auto<std::int64_t> sequence_length;  // auto: sequence_length_of()
  DataOrder order = DataOrder::kShuffled;
};

// The targets must outlive the table's use.
[[nodiscard]] config::FieldTable model_fields(ModelSettings& settings);
[[nodiscard]] config::FieldTable data_fields(DataSettings& settings);

// The shape that the settings mean, validated. The vocabulary is `vocab` where set, else a folder's own, else the
// tokenizer's, else (tokenizer_vocab 0) the preset's.
[[nodiscard]] Result<ModelConfig> resolve_model(const ModelSettings& settings, std::int64_t tokenizer_vocab);
[[nodiscard]] std::int64_t sequence_length_of(const DataSettings& settings, const ModelConfig& model);

}  // namespace headrace::models
