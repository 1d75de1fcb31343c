// SPDX-License-Identifier: Apache-2.0
#include "models/presets.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace headrace::models {
namespace {

struct Shape {
  std::int64_t layers, embed, heads, kv_heads, inner, vocab, max_positions;
};

constexpr ModelConfig llama(const Shape& shape, double rope_theta = 10000) {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.vocab = shape.vocab;
  config.embed = shape.embed;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.embed / shape.heads;
  config.inner = shape.inner;
  config.max_positions = shape.max_positions;
  config.rope_theta = rope_theta;
  return config;
}

constexpr ModelConfig gpt2(const Shape& shape, Activation activation = Activation::kGeluTanh) {
  ModelConfig config = llama(shape);
  config.architecture = Architecture::kGpt2;
  config.activation = activation;
  config.tied = true;
  return config;
}

// Shape: layers, embed, heads, key/value heads, inner, vocabulary, positions.
constexpr std::array kPresets = {
    Preset{"llama-1m", "tests and first steps: 1.0 million parameters with bytes as tokens",
           llama({4, 128, 4, 4, 448, 256, 1024})},
    Preset{"llama-20m", "the demo: 19.7 million parameters with bytes as tokens",
           llama({11, 384, 6, 6, 1024, 256, 2048})},
    Preset{"llama-150m", "150 million parameters with bytes as tokens", llama({12, 1024, 16, 16, 2688, 256, 2048})},
    Preset{"llama-1b", "TinyLlama with two more layers: 1.06 billion parameters with bytes as tokens",
           llama({24, 2048, 32, 4, 5632, 256, 4096})},
    Preset{"llama-8b", "Llama 3 8B", llama({32, 4096, 32, 8, 14336, 128256, 8192}, 500000)},
    Preset{"llama-70b", "Llama 3 70B", llama({80, 8192, 64, 8, 28672, 128256, 8192}, 500000)},
    Preset{"gpt2-124m", "GPT-2 small", gpt2({12, 768, 12, 12, 3072, 50257, 1024})},
    Preset{"gpt2-1.5b", "GPT-2 XL", gpt2({48, 1600, 25, 25, 6400, 50257, 1024})},
    Preset{"bert-large", "the shape of BERT large, as a causal model",
           gpt2({24, 1024, 16, 16, 4096, 30522, 512}, Activation::kGeluErf)},
    Preset{"turing-nlg-17b", "Turing-NLG 17B", gpt2({78, 4256, 28, 28, 17024, 50257, 1024})},
    Preset{"gpt3-175b", "GPT-3 175B, attention dense in every layer", gpt2({96, 12288, 96, 96, 49152, 50257, 2048})},
    Preset{"500b", "ZeRO-Infinity's 0.5 trillion parameters", gpt2({124, 18432, 144, 144, 73728, 50257, 1024})},
    Preset{"1t", "ZeRO-Infinity's 1 trillion parameters", gpt2({128, 25600, 200, 200, 102400, 50257, 1024})},
    Preset{"peer-222m", "the decoder that the comparisons with other trainers use",
           llama({4, 2048, 16, 16, 5632, 4096, 2048})},
};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

Result<ModelConfig> preset(std::string_view name) {
  std::string known;
  for (const Preset& candidate : kPresets) {
    if (candidate.name == name) return candidate.config;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  return make_error(ErrorCode::kConfig, fmt::format("there is no model preset \"{}\"", name), "presets are " + known);
}

}  // namespace headrace::models
