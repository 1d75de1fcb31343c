// SPDX-License-Identifier: Apache-2.0
// config.json ↔ ModelConfig.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"
#include "models/files/hf_folder.h"
#include "models/files/json_text.h"

namespace headrace::models {
namespace {

using nlohmann::json;

// Reads typed values of one object and keeps the first fault, so that a reader can name all its keys and check once.
class Fields {
 public:
  Fields(const json& object, const std::string& path, std::string prefix = {})
      : object_(object), path_(path), prefix_(std::move(prefix)) {}

  // Null when the key is missing or null, which mean the same in these files.
  [[nodiscard]] const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t size(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const json* value = find(key);
    if (value == nullptr) {
      if (!otherwise) fail(fmt::format("{}: '{}{}' is missing", path_, prefix_, key));
      return otherwise.value_or(1);
    }
    if (!value->is_number_integer() || value->get<std::int64_t>() < 1 || value->get<std::int64_t>() > kLargestSize) {
      wrong(key, *value, fmt::format("an integer from 1 to {}", kLargestSize));
      return 1;
    }
    return value->get<std::int64_t>();
  }
  double positive(const char* key, std::optional<double> otherwise = std::nullopt) {
    const json* value = find(key);
    if (value == nullptr) {
      if (!otherwise) fail(fmt::format("{}: '{}{}' is missing", path_, prefix_, key));
      return otherwise.value_or(1);
    }
    if (!value->is_number() || !(value->get<double>() > 0)) {
      wrong(key, *value, "a positive number");
      return 1;
    }
    return value->get<double>();
  }
  bool flag(const char* key, bool otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      wrong(key, *value, "true or false");
      return otherwise;
    }
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) {
      wrong(key, *value, "a string");
      return otherwise;
    }
    return value->get<std::string>();
  }
  // Null when missing; a fault when it is something else than an object.
  const json* object(const char* key) {
    const json* value = find(key);
    if (value != nullptr && !value->is_object()) {
      wrong(key, *value, "an object");
      return nullptr;
    }
    return value;
  }
  void unsupported(const char* key, const std::string& value, const std::string& supported) {
    fail(fmt::format("{}: '{}{}' is {}, which is not supported", path_, prefix_, key, value),
         "Supported: " + supported);
  }
  void wrong(const char* key, const json& value, const std::string& expected) {
    fail(fmt::format("{}: '{}{}' is {} instead of {}", path_, prefix_, key, value.dump(), expected));
  }
  void fail(std::string message, std::string hint = {}) {
    if (!fault) fault = make_error(ErrorCode::kConfig, std::move(message), std::move(hint));
  }
  [[nodiscard]] const std::string& path() const { return path_; }

  std::optional<Error> fault;

 private:
  static constexpr std::int64_t kLargestSize =
      1 << 30;  // keeps products of three sizes from overflowing before validate()
  const json& object_;
  const std::string& path_;
  std::string prefix_;
};

// Keys that change the arithmetic unless they have the value given here (or are missing or null).
struct NeutralKey {
  const char* key;
  const char* neutral;  // JSON
};
constexpr std::array<NeutralKey, 15> kNeutralKeys = {{{"sliding_window", "null"},
                                                      {"use_sliding_window", "false"},
                                                      {"quantization_config", "null"},
                                                      {"num_local_experts", "null"},
                                                      {"num_experts", "null"},
                                                      {"partial_rotary_factor", "1.0"},
                                                      {"attn_logit_softcapping", "null"},
                                                      {"final_logit_softcapping", "null"},
                                                      {"logit_scale", "1.0"},
                                                      {"qk_layernorm", "false"},
                                                      {"is_encoder_decoder", "false"},
                                                      {"is_causal", "true"},
                                                      {"add_cross_attention", "false"},
                                                      {"scale_attn_weights", "true"},
                                                      {"scale_attn_by_inverse_layer_idx", "false"}}};

void check_neutral_keys(Fields& fields) {
  for (const NeutralKey& entry : kNeutralKeys) {
    const json* value = fields.find(entry.key);
    if (value != nullptr && *value != json::parse(entry.neutral))
      fields.unsupported(entry.key, value->dump(), fmt::format("{} or no such key", entry.neutral));
  }
  const json* layers = fields.find("layer_types");
  if (layers == nullptr || !layers->is_array()) return;
  for (const json& type : *layers) {
    if (type != "full_attention") fields.unsupported("layer_types", type.dump(), "\"full_attention\"");
  }
}

Activation llama_activation(Fields& fields) {
  const std::string name = fields.text("hidden_act", "silu");
  if (name != "silu" && name != "swish") fields.unsupported("hidden_act", '"' + name + '"', "silu");
  return Activation::kSilu;
}

Activation gpt2_activation(Fields& fields) {
  const std::string name = fields.text("activation_function", "gelu_new");
  if (name == "gelu") return Activation::kGeluErf;
  if (name != "gelu_new" && name != "gelu_pytorch_tanh") {
    fields.unsupported("activation_function", '"' + name + '"', "gelu_new, gelu_pytorch_tanh, gelu");
  }
  return Activation::kGeluTanh;
}

// transformers 5 keeps theta and scaling in rope_parameters, 4 has rope_theta and rope_scaling at the top.
void read_rope(Fields& fields, ModelConfig& config) {
  const json* parameters = fields.object("rope_parameters");
  const char* section = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const json* object = parameters != nullptr ? parameters : fields.object("rope_scaling");
  const double theta = fields.positive("rope_theta", 10000.0);
  config.rope_theta = theta;
  if (object == nullptr) return;
  Fields rope(*object, fields.path(), std::string(section) + ".");
  config.rope_theta = rope.positive("rope_theta", theta);
  if (fields.find("rope_theta") != nullptr && config.rope_theta != theta) {
    fields.fail(fmt::format("{}: 'rope_theta' is {} but '{}.rope_theta' is {}", fields.path(), theta, section,
                            config.rope_theta));
  }
  const json* partial = rope.find("partial_rotary_factor");
  if (partial != nullptr && *partial != 1.0)
    rope.unsupported("partial_rotary_factor", partial->dump(), "1.0 or no such key");
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "llama3") {
    config.rope_scaling = {.enabled = true,
                           .factor = rope.positive("factor"),
                           .low_freq_factor = rope.positive("low_freq_factor"),
                           .high_freq_factor = rope.positive("high_freq_factor"),
                           .original_max_position = static_cast<double>(rope.size("original_max_position_embeddings"))};
    if (!rope.fault && config.rope_scaling.high_freq_factor <= config.rope_scaling.low_freq_factor) {
      rope.fail(
          fmt::format("{}: '{}.high_freq_factor' must be greater than 'low_freq_factor'", fields.path(), section));
    }
  } else if (type != "default") {
    rope.unsupported("rope_type", '"' + type + '"', "default, llama3");
  }
  if (rope.fault && !fields.fault) fields.fault = std::move(rope.fault);
}

ModelConfig read_llama(Fields& fields) {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.vocab = fields.size("vocab_size");
  config.embed = fields.size("hidden_size");
  config.layers = fields.size("num_hidden_layers");
  config.heads = fields.size("num_attention_heads");
  config.kv_heads = fields.size("num_key_value_heads", config.heads);
  if (fields.find("head_dim") == nullptr && config.embed % config.heads != 0) {
    fields.fail(
        fmt::format("{}: 'hidden_size' {} is no multiple of 'num_attention_heads' {} and there is no 'head_dim'",
                    fields.path(), config.embed, config.heads));
  }
  config.head_dim = fields.size("head_dim", std::max<std::int64_t>(1, config.embed / config.heads));
  config.inner = fields.size("intermediate_size");
  config.max_positions = fields.size("max_position_embeddings", 2048);
  config.norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.activation = llama_activation(fields);
  config.attention_bias = fields.flag("attention_bias", false);
  config.mlp_bias = fields.flag("mlp_bias", false);
  config.tied = fields.flag("tie_word_embeddings", false);
  read_rope(fields, config);
  return config;
}

ModelConfig read_gpt2(Fields& fields) {
  ModelConfig config;
  config.architecture = Architecture::kGpt2;
  config.vocab = fields.size("vocab_size");
  config.embed = fields.size("n_embd");
  config.layers = fields.size("n_layer");
  config.heads = config.kv_heads = fields.size("n_head");
  if (config.embed % config.heads != 0) {
    fields.fail(
        fmt::format("{}: 'n_embd' {} is no multiple of 'n_head' {}", fields.path(), config.embed, config.heads));
  }
  config.head_dim = config.embed / config.heads;
  config.inner = fields.size("n_inner", 4 * config.embed);
  config.max_positions = fields.size("n_positions");
  config.norm_eps = fields.positive("layer_norm_epsilon", 1e-5);
  config.activation = gpt2_activation(fields);
  config.attention_bias = config.mlp_bias = true;
  config.tied = fields.flag("tie_word_embeddings", true);
  return config;
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::kSilu: return "silu";
    case Activation::kGeluTanh: return "gelu_new";
    case Activation::kGeluErf: return "gelu";
  }
  return "?";
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::kFp32: return "float32";
    case DType::kBf16: return "bfloat16";
    case DType::kFp16: return "float16";
  }
  return "?";
}

json llama_json(const ModelConfig& config) {
  json out = {{"model_type", "llama"},
              {"architectures", {"LlamaForCausalLM"}},
              {"vocab_size", config.vocab},
              {"hidden_size", config.embed},
              {"num_hidden_layers", config.layers},
              {"num_attention_heads", config.heads},
              {"num_key_value_heads", config.kv_heads},
              {"head_dim", config.head_dim},
              {"intermediate_size", config.inner},
              {"max_position_embeddings", config.max_positions},
              {"rms_norm_eps", config.norm_eps},
              {"hidden_act", activation_name(config.activation)},
              {"attention_bias", config.attention_bias},
              {"mlp_bias", config.mlp_bias},
              {"rope_theta", config.rope_theta}};
  json scaling;  // null
  if (config.rope_scaling.enabled) {
    scaling = {
        {"rope_type", "llama3"},
        {"factor", config.rope_scaling.factor},
        {"low_freq_factor", config.rope_scaling.low_freq_factor},
        {"high_freq_factor", config.rope_scaling.high_freq_factor},
        {"original_max_position_embeddings", static_cast<std::int64_t>(config.rope_scaling.original_max_position)}};
  }
  out["rope_scaling"] = scaling;
  if (scaling.is_null()) scaling = {{"rope_type", "default"}};
  scaling["rope_theta"] = config.rope_theta;
  out["rope_parameters"] = scaling;
  return out;
}

json gpt2_json(const ModelConfig& config) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", config.vocab},
          {"n_embd", config.embed},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"n_inner", config.inner},
          {"n_positions", config.max_positions},
          {"layer_norm_epsilon", config.norm_eps},
          {"activation_function", activation_name(config.activation)},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

Result<ModelConfig> config_from(const json& document, const std::string& path) {
  Fields fields(document, path);
  const std::string type = fields.text("model_type", "");
  ModelConfig config;
  if (type == "llama") {
    config = read_llama(fields);
  } else if (type == "gpt2") {
    config = read_gpt2(fields);
  } else if (fields.find("model_type") == nullptr) {
    fields.fail(fmt::format("{}: 'model_type' is missing", path), "Supported: llama, gpt2");
  } else {
    fields.unsupported("model_type", '"' + type + '"', "llama, gpt2");
  }
  check_neutral_keys(fields);
  if (fields.fault) return std::move(*fields.fault);
  if (auto valid = validate(config); !valid.ok()) {
    Error error = std::move(valid).error();
    error.message = fmt::format("{}: {}", path, error.message);
    return error;
  }
  return config;
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, const std::string& path) {
  HEADRACE_TRY(const json document, parse_json_object(text, path));
  return config_from(document, path);
}

std::string format_model_config(const ModelConfig& config, DType weights_dtype) {
  json out = config.architecture == Architecture::kLlama ? llama_json(config) : gpt2_json(config);
  out["tie_word_embeddings"] = config.tied;
  out["dtype"] = torch_name(weights_dtype);        // transformers 5
  out["torch_dtype"] = torch_name(weights_dtype);  // transformers 4
  out["bos_token_id"] = nullptr;                   // else the readers' defaults, which may lie outside the vocabulary
  out["eos_token_id"] = nullptr;
  return out.dump(2) + "\n";
}

Result<ModelConfig> read_model_config(const std::string& folder) {
  const std::string path = join_path(folder, "config.json");
  HEADRACE_TRY(const json document, read_json_object(path));
  return config_from(document, path);
}

}  // namespace headrace::models
