// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <optional>
#include <utility>

#include "core/check.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "models/model_ends.h"

namespace headrace::models {

struct Model::Impl {
  Impl(const ModelConfig& model_config, DType dtype, std::int64_t batch, std::int64_t time)
      : config(model_config),
        embedding(config, dtype, batch, time),
        head(config, dtype, batch, time, embedding.unit_info()) {
    if (config.architecture == Architecture::kLlama) {
      llama.emplace(config, dtype, batch, time);
    } else {
      gpt2.emplace(config, dtype, batch, time);
    }
    info.name = config.architecture == Architecture::kLlama ? "llama" : "gpt2";
    info.tokens_per_micro_batch = batch * time;
    info.units.push_back(embedding.unit_info());
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      info.units.push_back(llama ? llama->unit_info(layer) : gpt2->unit_info(layer));
    }
    info.units.push_back(head.unit_info());
  }

  [[nodiscard]] runtime::UnitId head_id() const { return static_cast<runtime::UnitId>(info.units.size()) - 1; }
  void check(runtime::UnitId unit, const MicroBatch& data) const {
    HEADRACE_CHECK(unit >= 0 && unit <= head_id(), "the unit is one of the model's");
    const auto tokens = static_cast<std::size_t>(info.tokens_per_micro_batch);
    HEADRACE_CHECK(unit != 0 || data.inputs.size() == tokens, "there are as many inputs as the model was made for");
    HEADRACE_CHECK(unit != head_id() || data.labels.size() == tokens,
                   "there are as many labels as the model was made for");
  }

  ModelConfig config;
  EmbeddingUnit embedding;
  std::optional<LlamaBlock> llama;
  std::optional<Gpt2Block> gpt2;
  HeadUnit head;
  runtime::ModelInfo info;
};

Model::Model(const ModelConfig& config, DType weights_dtype, std::int64_t batch, std::int64_t time) {
  HEADRACE_CHECK(validate(config, batch, time).ok(), "the model's configuration was validated");
  impl_ = std::make_unique<Impl>(config, weights_dtype, batch, time);
}

Model::~Model() = default;

const ModelConfig& Model::config() const noexcept { return impl_->config; }
const runtime::ModelInfo& Model::info() const noexcept { return impl_->info; }

LossSum Model::forward(const kernels::Parallel& parallel, runtime::UnitId unit, const MicroBatch& data,
                       const UnitBuffers& buffers) const {
  impl_->check(unit, data);
  if (unit == 0) {
    impl_->embedding.forward(parallel, data, buffers);
  } else if (unit == impl_->head_id()) {
    return impl_->head.loss(parallel, data, buffers);
  } else if (impl_->llama) {
    impl_->llama->forward(parallel, buffers);
  } else {
    impl_->gpt2->forward(parallel, buffers);
  }
  return {};
}

LossSum Model::backward(const kernels::Parallel& parallel, runtime::UnitId unit, const MicroBatch& data,
                        const UnitBuffers& buffers, bool recompute) const {
  impl_->check(unit, data);
  if (unit == impl_->head_id()) return impl_->head.backward(parallel, data, buffers);
  if (unit == 0) {
    impl_->embedding.backward(parallel, data, buffers);
    return {};
  }
  if (buffers.first) zero_padding(parallel, impl_->info.units[static_cast<std::size_t>(unit)], buffers.gradient);
  if (impl_->llama) {
    impl_->llama->backward(parallel, buffers, recompute);
  } else {
    impl_->gpt2->backward(parallel, buffers, recompute);
  }
  return {};
}

void Model::logits(const kernels::Parallel& parallel, const UnitBuffers& head, const float* hidden, std::int64_t rows,
                   float* out) const {
  impl_->head.logits(parallel, head, hidden, rows, out);
}

}  // namespace headrace::models
