// SPDX-License-Identifier: Apache-2.0
#include "models/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/host_slab.h"
#include "core/topology.h"
#include "models/files/hf_folder.h"

namespace headrace::models {

namespace {

// Longest window that is looked at: attention over more would make each token slower than people wait for.
constexpr std::int64_t kLongestWindow = 1024;
constexpr Bytes kUnitAlignment = 4096;

}  // namespace

struct Generator::Impl {
  Impl(const ModelConfig& model_config, DType dtype)
      : config(model_config), weights_dtype(dtype), parallel(detect_topology().usable_cores) {}

  // Window lengths are doubled, so that a growing text makes few models.
  void prepare(std::int64_t length) {
    std::int64_t wanted = 32;
    while (wanted < length) wanted *= 2;
    wanted = std::min(wanted, window());
    if (model != nullptr && time == wanted) return;
    time = wanted;
    model = std::make_unique<Model>(config, weights_dtype, 1, time);
    const auto activations = static_cast<std::size_t>(time * config.embed);
    hidden.assign(activations, 0);
    next.assign(activations, 0);
    std::size_t workspace_bytes = 0;
    for (const runtime::UnitInfo& unit : model->info().units)
      workspace_bytes = std::max(workspace_bytes, static_cast<std::size_t>(unit.forward_workspace_bytes));
    workspace.assign(workspace_bytes / sizeof(double) + 8, 0);
    logits.assign(static_cast<std::size_t>(config.vocab), 0);
  }
  [[nodiscard]] std::int64_t window() const {
    return config.max_positions > 0 ? std::min(config.max_positions, kLongestWindow) : kLongestWindow;
  }
  [[nodiscard]] UnitBuffers buffers_of(std::size_t unit) {
    UnitBuffers buffers;
    buffers.weights = slab.bytes().data() + offsets[unit];
    used.clear();
    for (const runtime::UnitId other : model->info().units[unit].uses)
      used.push_back(slab.bytes().data() + offsets[static_cast<std::size_t>(other)]);
    buffers.used_weights = used;
    buffers.workspace = reinterpret_cast<std::byte*>(workspace.data());
    return buffers;
  }

  ModelConfig config;
  DType weights_dtype;
  kernels::Parallel parallel;
  HostSlab slab;
  std::vector<Bytes> offsets;  // of the units in the slab
  std::int64_t time = 0;
  std::unique_ptr<Model> model;
  std::vector<float> hidden, next, logits;
  std::vector<double> workspace;  // aligned for any element
  std::vector<const std::byte*> used;
};

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::~Generator() = default;
const ModelConfig& Generator::config() const noexcept { return impl_->config; }

Result<std::unique_ptr<Generator>> Generator::from_weights(const ModelConfig& config, DType weights_dtype,
                                                           const UnitSource& source) {
  auto impl = std::make_unique<Impl>(config, weights_dtype);
  impl->prepare(1);
  Bytes bytes = 0;
  for (const runtime::UnitInfo& unit : impl->model->info().units) {
    impl->offsets.push_back(bytes);
    bytes += round_up(unit.flat_elements * dtype_bytes(weights_dtype), kUnitAlignment);
  }
  HEADRACE_TRY(impl->slab, HostSlab::allocate(bytes));
  for (std::size_t unit = 0; unit < impl->offsets.size(); ++unit)
    HEADRACE_RETURN_IF_ERROR(
        source(static_cast<runtime::UnitId>(unit), impl->slab.bytes().data() + impl->offsets[unit]));
  return std::unique_ptr<Generator>(new Generator(std::move(impl)));
}

Result<std::unique_ptr<Generator>> Generator::from_folder(const std::string& folder) {
  HEADRACE_TRY(const ModelConfig config, read_model_config(folder));
  HEADRACE_TRY(const HfWeights weights, HfWeights::open(folder));
  const DType dtype = DType::kFp32;  // whatever the files have, exactly
  const Model shape(config, dtype, 1, 1);
  std::vector<runtime::TensorInfo> tensors;
  for (const runtime::UnitInfo& unit : shape.info().units)
    tensors.insert(tensors.end(), unit.tensors.begin(), unit.tensors.end());
  HEADRACE_RETURN_IF_ERROR(weights.check(tensors));
  return from_weights(config, dtype, [&](runtime::UnitId unit, std::byte* out) -> Result<void> {
    for (const runtime::TensorInfo& tensor : shape.info().units[static_cast<std::size_t>(unit)].tensors)
      HEADRACE_RETURN_IF_ERROR(
          weights.read(tensor.name, 0, tensor.elements, dtype, out + tensor.offset * dtype_bytes(dtype)));
    return {};
  });
}

Result<std::span<const float>> Generator::next_logits(std::span<const std::int32_t> ids) {
  Impl& self = *impl_;
  const auto length = std::min(static_cast<std::int64_t>(ids.size()), self.window());
  ids = ids.last(static_cast<std::size_t>(length));
  for (const std::int32_t id : ids)
    if (id < 0 || id >= self.config.vocab)
      return make_error(ErrorCode::kConfig,
                        fmt::format("token {} is beyond the model's vocabulary of {}", id, self.config.vocab),
                        "the model was made for another tokenizer");
  self.prepare(length);
  // What stands behind the text changes nothing before it: attention is causal.
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(self.time), 0);
  std::copy(ids.begin(), ids.end(), inputs.begin());
  const std::vector<std::int32_t> labels(inputs.size(), -100);
  MicroBatch data;
  data.inputs = inputs;
  data.labels = labels;
  const auto head = static_cast<runtime::UnitId>(self.offsets.size()) - 1;
  for (runtime::UnitId unit = 0; unit < head; ++unit) {
    UnitBuffers buffers = self.buffers_of(static_cast<std::size_t>(unit));
    buffers.input = unit == 0 ? nullptr : self.hidden.data();
    buffers.output = self.next.data();
    self.model->forward(self.parallel, unit, data, buffers);
    std::swap(self.hidden, self.next);
  }
  const UnitBuffers buffers = self.buffers_of(static_cast<std::size_t>(head));
  self.model->logits(self.parallel, buffers, self.hidden.data() + (length - 1) * self.config.embed, 1,
                     self.logits.data());
  return std::span<const float>(self.logits);
}

}  // namespace headrace::models
