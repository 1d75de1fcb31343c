// SPDX-License-Identifier: Apache-2.0
#include "models/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/files/hf_folder.h"
#include "models/presets.h"
#include "runtime/config/settings.h"

namespace headrace::models {
namespace {

using config::FieldTable;
using config::FieldType;
using config::Settings;

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kDefaultSequenceLength = 1024;
constexpr std::array kShapeKeys = {"architecture", "activation", "vocab",          "embed",    "layers",
                                   "heads",        "kv_heads",   "head_dim",       "inner",    "max_positions",
                                   "norm_eps",     "rope_theta", "attention_bias", "mlp_bias", "tied"};

std::string model_key(std::string_view name) { return fmt::format("headrace.model.{}", name); }

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& entry : presets()) names.emplace_back(entry.name);
  return names;
}

void add_extent(FieldTable& table, const char* name, const char* doc, std::optional<std::int64_t>& target) {
  table.add(model_key(name), FieldType::kInteger, "", doc).range(1, kInt32Max).to(target);
}

// One source of the shape, and all of it.
Result<void> check_model(const Settings& settings) {
  const bool has_preset = settings.given(model_key("preset"));
  const bool has_path = settings.given(model_key("path"));
  if (has_preset && has_path) {
    return settings.fail(model_key("path"), "headrace.model has a preset and a path", "keep one of them");
  }
  if (has_path) {
    for (const char* name : kShapeKeys) {
      if (!settings.given(model_key(name))) continue;
      return settings.fail(
          model_key(name),
          fmt::format("\"{}\" cannot change the shape of the model in \"headrace.model.path\"", model_key(name)),
          "remove it, or describe the model without path");
    }
    return {};
  }
  if (has_preset && settings.given(model_key("architecture"))) {
    return settings.fail(model_key("architecture"), "headrace.model has a preset and an architecture",
                         "a preset has its own; keep one of them");
  }
  if (has_preset) return {};
  const bool any = std::any_of(kShapeKeys.begin(), kShapeKeys.end(),
                               [&](const char* name) { return settings.given(model_key(name)); });
  if (!any && settings.purpose() == config::Purpose::kPlan) return {};
  for (const char* name : {"architecture", "embed", "layers", "heads"}) {
    if (settings.given(model_key(name))) continue;
    if (!any) {
      return settings.fail(model_key("preset"),
                           "no model is given: \"headrace.model\" has neither preset, path nor architecture",
                           "example: \"headrace\": {\"model\": {\"preset\": \"llama-20m\"}}");
    }
    return settings.fail(model_key(name), fmt::format("\"{}\" is missing", model_key(name)),
                         "a model without preset and path needs architecture, embed, layers and heads");
  }
  return {};
}

Result<void> check_data(const Settings& settings) {
  const bool has_file = settings.given("headrace.data.validation");
  const double fraction = std::get<double>(settings.at("headrace.data.validation_fraction").value);
  if (settings.purpose() == config::Purpose::kTrain && !settings.given("headrace.data.train")) {
    return settings.fail("headrace.data.train", "\"headrace.data.train\" is missing: there is nothing to train on",
                         "example: \"headrace\": {\"data\": {\"train\": \"corpus.txt\"}}");
  }
  if (has_file && fraction > 0) {
    return settings.fail("headrace.data.validation_fraction",
                         "headrace.data has a validation file and a validation_fraction", "keep one of them");
  }
  const std::int64_t every = std::get<std::int64_t>(settings.at("headrace.eval.every").value);
  if (every > 0 && !has_file && fraction == 0 && settings.purpose() == config::Purpose::kTrain) {
    return settings.fail(
        "headrace.eval.every", fmt::format("headrace.eval.every is {}, but there is no validation data", every),
        "set headrace.data.validation_fraction (0.1 takes the last tenth) or headrace.data.validation");
  }
  return {};
}

template <class T>
void replace(T& value, const std::optional<T>& setting) {
  if (setting) value = *setting;
}

Activation parse_activation(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  return name == "gelu_erf" ? Activation::kGeluErf : Activation::kGeluTanh;
}

// Sizes that follow from others unless they are given.
void fill_shape(ModelConfig& model, const ModelSettings& settings, bool fresh) {
  const bool llama = model.architecture == Architecture::kLlama;
  replace(model.embed, settings.embed);
  replace(model.layers, settings.layers);
  replace(model.heads, settings.heads);
  const bool resized = fresh || settings.embed || settings.heads;
  if (resized) model.head_dim = model.heads > 0 ? model.embed / model.heads : 0;
  if (fresh || settings.heads) model.kv_heads = model.heads;
  if (fresh || settings.embed) {  // Llama: 8/3 of embed up to a multiple of 64
    model.inner = llama ? round_up(ceil_div(8 * model.embed, 3), 64) : 4 * model.embed;
  }
  if (fresh) model.max_positions = kDefaultSequenceLength;
  if (fresh) model.activation = llama ? Activation::kSilu : Activation::kGeluTanh;
  if (fresh) model.tied = !llama;
  replace(model.kv_heads, settings.kv_heads);
  replace(model.head_dim, settings.head_dim);
  replace(model.inner, settings.inner);
  replace(model.max_positions, settings.max_positions);
  replace(model.norm_eps, settings.norm_eps);
  replace(model.rope_theta, settings.rope_theta);
  replace(model.attention_bias, settings.attention_bias);
  replace(model.mlp_bias, settings.mlp_bias);
  replace(model.tied, settings.tied);
  if (settings.activation) model.activation = parse_activation(*settings.activation);
}

}  // namespace

config::FieldTable model_fields(ModelSettings& settings) {
  FieldTable table;
  table.add(model_key("preset"), FieldType::kChoice, "", "A model by name; shape keys beside it change it.")
      .one_of(preset_names())
      .to(settings.preset);
  table
      .add(model_key("path"), FieldType::kText, "",
           "A Hugging Face folder: shape from config.json, weights from its safetensors files.")
      .to(settings.path);
  table.add(model_key("architecture"), FieldType::kChoice, "", "Kind of transformer.")
      .one_of({"llama", "gpt2"})
      .to(settings.architecture);
  table
      .add(model_key("activation"), FieldType::kChoice, "",
           "Of the inner layer; unset is silu for llama, gelu_tanh for gpt2.")
      .one_of({"silu", "gelu_tanh", "gelu_erf"})
      .to(settings.activation);
  add_extent(table, "vocab", "Tokens; unset follows the tokenizer.", settings.vocab);
  add_extent(table, "embed", "Width of the model.", settings.embed);
  add_extent(table, "layers", "Blocks.", settings.layers);
  add_extent(table, "heads", "Attention heads.", settings.heads);
  add_extent(table, "kv_heads", "Key/value heads; unset is heads.", settings.kv_heads);
  add_extent(table, "head_dim", "Width of a head; unset is embed / heads.", settings.head_dim);
  add_extent(table, "inner", "Width of the inner layer; unset is 8/3 of embed for llama, 4 times embed for gpt2.",
             settings.inner);
  add_extent(table, "max_positions", "Longest sequence; unset is 1024.", settings.max_positions);
  table.add(model_key("norm_eps"), FieldType::kNumber, "", "Added to the variance in norms; unset is 1e-5.")
      .number_range(0, 1)
      .above(0)
      .to(settings.norm_eps);
  table.add(model_key("rope_theta"), FieldType::kNumber, "", "Base of the rotary angles of llama; unset is 10000.")
      .number_range(0, 1e12)
      .above(0)
      .to(settings.rope_theta);
  table
      .add(model_key("attention_bias"), FieldType::kBool, "", "Biases in the attention of llama; gpt2 always has them.")
      .to(settings.attention_bias);
  table.add(model_key("mlp_bias"), FieldType::kBool, "", "Biases in the inner layer of llama; gpt2 always has them.")
      .to(settings.mlp_bias);
  table
      .add(model_key("tied"), FieldType::kBool, "",
           "The head uses the embedding; unset is false for llama, true for gpt2.")
      .to(settings.tied);
  table.check([](Settings& values) { return check_model(values); });
  return table;
}

config::FieldTable data_fields(DataSettings& settings) {
  FieldTable table;
  table.add("headrace.data.train", FieldType::kText, "", "File to train on.").to(settings.train);
  table.add("headrace.data.validation", FieldType::kText, "", "File for evaluations.")
      .may_change()
      .to(settings.validation);
  table
      .add("headrace.data.validation_fraction", FieldType::kNumber, "0",
           "Share of the training file, its last part, that is kept for evaluations.")
      .number_range(0, 1)
      .below(1)
      .to(settings.validation_fraction);
  table
      .add("headrace.data.tokenizer", FieldType::kText, "\"bytes\"",
           "How text becomes tokens; bytes maps each byte to its value.")
      .to(settings.tokenizer);
  table
      .add("headrace.data.sequence_length", FieldType::kInteger, "\"auto\"",
           "Tokens of a sample; auto is 1024, or the model's max_positions where that is less.")
      .range(1, kInt32Max)
      .or_auto()
      .to(settings.sequence_length);
  table
      .add("headrace.data.order", FieldType::kChoice, "\"shuffled\"",
           "Order of the samples: a new permutation per epoch by the seed, or as they stand.")
      .to(settings.order, {{"shuffled", DataOrder::kShuffled}, {"sequential", DataOrder::kSequential}});
  table.check([](Settings& values) { return check_data(values); });
  return table;
}

Result<ModelConfig> resolve_model(const ModelSettings& settings, std::int64_t tokenizer_vocab) {
  if (settings.path) return read_model_config(*settings.path);
  ModelConfig model;
  if (settings.preset) {
    HEADRACE_TRY(model, preset(*settings.preset));
  }
  if (settings.architecture)
    model.architecture = *settings.architecture == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama;
  fill_shape(model, settings, !settings.preset.has_value());
  if (tokenizer_vocab > 0) model.vocab = tokenizer_vocab;
  replace(model.vocab, settings.vocab);
  HEADRACE_RETURN_IF_ERROR(validate(model));
  return model;
}

std::int64_t sequence_length_of(const DataSettings& settings, const ModelConfig& model) {
  return settings.sequence_length.value_or(std::min(kDefaultSequenceLength, model.max_positions));
}

}  // namespace headrace::models
