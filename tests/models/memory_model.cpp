// SPDX-License-Identifier: Apache-2.0
#include "memory_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "core/check.h"
#include "models/files/convert.h"
#include "models/files/hf_folder.h"
#include "models/files/safetensors.h"

namespace headrace::models {
namespace {

constexpr Bytes kGuardBytes = 256;
constexpr std::byte kGuard{0xA5};

template <class T>
T expect(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.error().to_string();
    std::abort();
  }
  return std::move(result).value();
}

}  // namespace

GuardedBuffer::GuardedBuffer(Bytes bytes)
    : memory_(static_cast<std::byte*>(
          ::operator new (static_cast<std::size_t>(bytes + kGuardBytes), std::align_val_t{64}))),
      bytes_(bytes) {
  poison();
  std::fill_n(memory_.get() + bytes_, kGuardBytes, kGuard);
}

bool GuardedBuffer::guard_is_intact() const {
  return memory_ == nullptr || std::all_of(memory_.get() + bytes_, memory_.get() + bytes_ + kGuardBytes,
                                           [](std::byte b) { return b == kGuard; });
}

MemoryModel::MemoryModel(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time, int threads)
    : dtype_(dtype),
      model_(std::make_unique<Model>(config, dtype, batch, time)),
      parallel_(std::make_unique<kernels::Parallel>(threads)) {
  Bytes forward = 0;
  Bytes backward = 0;
  const Bytes boundary = batch * time * config.embed * Bytes{sizeof(float)};
  for (const runtime::UnitInfo& unit : info().units) {
    weights_.emplace_back(unit.flat_elements * dtype_bytes(dtype));
    std::memset(weights_.back().data(), 0, static_cast<std::size_t>(weights_.back().bytes()));
    gradients_.emplace_back(unit.flat_elements * Bytes{sizeof(float)});
    outputs_.emplace_back(unit.output_bytes);
    saved_.emplace_back(unit.saved_bytes);
    forward = std::max(forward, unit.forward_workspace_bytes);
    backward = std::max(backward, unit.backward_workspace_bytes);
  }
  forward_workspace_ = GuardedBuffer(forward);
  backward_workspace_ = GuardedBuffer(backward);
  gradient_in_ = GuardedBuffer(boundary);
  gradient_out_ = GuardedBuffer(boundary);
}

MemoryModel MemoryModel::load(const std::string& name, DType dtype, std::int64_t batch, std::int64_t time,
                              int threads) {
  const std::string folder = reference_path("models/" + name);
  MemoryModel loaded(expect(read_model_config(folder)), dtype, batch, time, threads);
  const HfWeights files = expect(HfWeights::open(folder));
  for (std::size_t unit = 0; unit < loaded.info().units.size(); ++unit) {
    for (const runtime::TensorInfo& tensor : loaded.info().units[unit].tensors) {
      const auto read =
          files.read(tensor.name, 0, tensor.elements, dtype, loaded.weights(unit) + tensor.offset * dtype_bytes(dtype));
      EXPECT_TRUE(read.ok()) << tensor.name << ": " << read.error().to_string();
    }
  }
  return loaded;
}

UnitBuffers MemoryModel::buffers_of(std::size_t unit) {
  const runtime::UnitInfo& of = info().units[unit];
  UnitBuffers buffers;
  buffers.weights = weights_[unit].data();
  used_weights_.clear();
  used_gradients_.clear();
  for (const runtime::UnitId used : of.uses) {
    used_weights_.push_back(weights_[static_cast<std::size_t>(used)].data());
    used_gradients_.push_back(gradients_[static_cast<std::size_t>(used)].floats());
  }
  buffers.used_weights = used_weights_;
  buffers.used_gradients = used_gradients_;
  buffers.input = unit == 0 ? nullptr : outputs_[unit - 1].floats();
  buffers.output = of.output_bytes == 0 ? nullptr : outputs_[unit].floats();
  buffers.gradient = gradients_[unit].floats();
  return buffers;
}

// Each unit gets a workspace of exactly its own size, so that a unit that needs more than it says hits the guard or
// NaN.
void MemoryModel::forward_to_head(const MicroBatch& data, bool keep) {
  for (std::size_t unit = 0; unit + 1 < info().units.size(); ++unit) {
    const runtime::UnitInfo& of = info().units[unit];
    forward_workspace_ = GuardedBuffer(of.forward_workspace_bytes);
    outputs_[unit].poison();
    saved_[unit].poison();
    UnitBuffers buffers = buffers_of(unit);
    buffers.workspace = forward_workspace_.data();
    buffers.saved = keep && of.saved_bytes > 0 ? saved_[unit].data() : nullptr;
    (void)model_->forward(*parallel_, static_cast<runtime::UnitId>(unit), data, buffers);
    check_guards();
  }
}

LossSum MemoryModel::evaluate(const MicroBatch& data) {
  forward_to_head(data, false);
  const std::size_t head = info().units.size() - 1;
  forward_workspace_ = GuardedBuffer(info().units[head].forward_workspace_bytes);
  UnitBuffers buffers = buffers_of(head);
  buffers.workspace = forward_workspace_.data();
  const LossSum loss = model_->forward(*parallel_, static_cast<runtime::UnitId>(head), data, buffers);
  check_guards();
  return loss;
}

std::vector<float> MemoryModel::logits(const MicroBatch& data) {
  forward_to_head(data, false);
  const std::size_t head = info().units.size() - 1;
  forward_workspace_ = GuardedBuffer(info().units[head].forward_workspace_bytes);
  UnitBuffers buffers = buffers_of(head);
  buffers.workspace = forward_workspace_.data();
  const std::int64_t rows = info().tokens_per_micro_batch;
  std::vector<float> out(static_cast<std::size_t>(rows * model_->config().vocab));
  model_->logits(*parallel_, buffers, buffers.input, rows, out.data());
  check_guards();
  return out;
}

LossSum MemoryModel::train(const MicroBatch& data, Activations activations, bool first) {
  forward_to_head(data, activations == Activations::kKeep);
  LossSum loss;
  const std::size_t head = info().units.size() - 1;
  const bool tied = !info().units[head].uses.empty();
  for (std::size_t unit = head + 1; unit-- > 0;) {
    const runtime::UnitInfo& of = info().units[unit];
    backward_workspace_ = GuardedBuffer(of.backward_workspace_bytes);
    gradient_in_.poison();
    if (first && !(tied && unit == 0)) gradients_[unit].poison();  // `first` must overwrite everything
    if (first && tied && unit == head) gradients_[0].poison();
    UnitBuffers buffers = buffers_of(unit);
    buffers.workspace = backward_workspace_.data();
    buffers.saved = of.saved_bytes > 0 ? saved_[unit].data() : nullptr;
    buffers.output_gradient = unit == head ? nullptr : gradient_out_.floats();
    buffers.input_gradient = unit == 0 ? nullptr : gradient_in_.floats();
    buffers.first = first && !(tied && unit == 0);  // the tied matrix was begun by the head
    buffers.first_used = first;
    const LossSum sum = model_->backward(*parallel_, static_cast<runtime::UnitId>(unit), data, buffers,
                                         activations == Activations::kRecompute);
    if (unit == head) loss = sum;
    check_guards();
    std::swap(gradient_in_, gradient_out_);
  }
  return loss;
}

std::vector<float> MemoryModel::tensor_gradient(const std::string& name) const {
  for (std::size_t unit = 0; unit < info().units.size(); ++unit) {
    for (const runtime::TensorInfo& tensor : info().units[unit].tensors) {
      const float* from = gradients_[unit].floats() + tensor.offset;
      if (tensor.name == name) return {from, from + tensor.elements};
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

std::vector<std::byte> MemoryModel::all_gradient_bytes() const {
  std::vector<std::byte> all;
  for (const GuardedBuffer& gradient : gradients_)
    all.insert(all.end(), gradient.data(), gradient.data() + gradient.bytes());
  return all;
}

void MemoryModel::fill_weights(std::uint64_t seed, float deviation) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  for (std::size_t unit = 0; unit < info().units.size(); ++unit) {
    for (const runtime::TensorInfo& tensor : info().units[unit].tensors) {
      const float center = tensor.init.kind == runtime::InitRule::Kind::kOne ? 1.0F : 0.0F;
      std::vector<float> values(static_cast<std::size_t>(tensor.elements));
      for (float& value : values) value = center + normal(generator);
      convert_elements(DType::kFp32, reinterpret_cast<const std::byte*>(values.data()), dtype_,
                       weights(unit) + tensor.offset * dtype_bytes(dtype_), tensor.elements);
    }
  }
}

void MemoryModel::check_guards() const {
  const auto all_intact = [](const std::vector<GuardedBuffer>& buffers) {
    return std::all_of(buffers.begin(), buffers.end(), [](const GuardedBuffer& b) { return b.guard_is_intact(); });
  };
  ASSERT_TRUE(all_intact(weights_) && all_intact(gradients_) && all_intact(outputs_) && all_intact(saved_));
  ASSERT_TRUE(forward_workspace_.guard_is_intact()) << "forward wrote behind its workspace";
  ASSERT_TRUE(backward_workspace_.guard_is_intact()) << "backward wrote behind its workspace";
  ASSERT_TRUE(gradient_in_.guard_is_intact() && gradient_out_.guard_is_intact());
}

std::string reference_path(const std::string& relative) {
  const char* root = std::getenv("HEADRACE_REFERENCE");
  HEADRACE_CHECK(root != nullptr, "HEADRACE_REFERENCE names the folder tests/reference (ctest sets it)");
  return std::string(root) + "/" + relative;
}

std::vector<float> read_floats(const std::string& file, const std::string& tensor) {
  const SafetensorsFile opened = expect(SafetensorsFile::open(file));
  const StoredTensor* stored = opened.find(tensor);
  HEADRACE_CHECK(stored != nullptr, "the reference file has the tensor");
  std::int64_t elements = 1;
  for (const std::int64_t extent : stored->shape) elements *= extent;
  std::vector<float> values(static_cast<std::size_t>(elements));
  const auto read = opened.read_range(tensor, 0, values);
  EXPECT_TRUE(read.ok()) << tensor;
  return values;
}

std::vector<std::int64_t> read_shape(const std::string& file, const std::string& tensor) {
  const SafetensorsFile opened = expect(SafetensorsFile::open(file));
  const StoredTensor* stored = opened.find(tensor);
  HEADRACE_CHECK(stored != nullptr, "the reference file has the tensor");
  return stored->shape;
}

std::vector<std::int32_t> read_ints(const std::string& file, const std::string& tensor) {
  const SafetensorsFile opened = expect(SafetensorsFile::open(file));
  const StoredTensor* stored = opened.find(tensor);
  HEADRACE_CHECK(stored != nullptr, "the reference file has the tensor");
  std::int64_t elements = 1;
  for (const std::int64_t extent : stored->shape) elements *= extent;
  std::vector<std::int32_t> values(static_cast<std::size_t>(elements));
  const auto read = opened.read_bytes(*stored, 0, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(read.ok()) << tensor;
  return values;
}

}  // namespace headrace::models
