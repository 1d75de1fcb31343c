// SPDX-License-Identifier: Apache-2.0
// A model with everything in ordinary memory, for tests: places the buffers of all units as a plan would, poisons what
// a unit may not read and guards what lies behind each buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "models/model.h"

namespace headrace::models {

// Bytes at a 64-byte boundary with a guard behind them.
class GuardedBuffer {
 public:
  GuardedBuffer() = default;
  explicit GuardedBuffer(Bytes bytes);
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(memory_.get()); }
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  void poison() { std::memset(memory_.get(), 0xFF, static_cast<std::size_t>(bytes_)); }  // NaN in every dtype
  [[nodiscard]] bool guard_is_intact() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  Bytes bytes_ = 0;
};

class MemoryModel {
 public:
  MemoryModel(const ModelConfig& config, DType dtype, std::int64_t batch, std::int64_t time, int threads);

  // Weights and config of a Hugging Face folder under tests/reference/models, weights converted to `dtype`.
  static MemoryModel load(const std::string& name, DType dtype, std::int64_t batch, std::int64_t time, int threads);

  enum class Activations { kKeep, kRecompute };
  // One micro-batch forward and backward; the first one of a step overwrites the gradients.
  LossSum train(const MicroBatch& data, Activations activations, bool first);
  LossSum evaluate(const MicroBatch& data);                         // forward alone, nothing saved
  [[nodiscard]] std::vector<float> logits(const MicroBatch& data);  // [batch · time, vocab]

  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] const runtime::ModelInfo& info() const { return model_->info(); }
  [[nodiscard]] std::byte* weights(std::size_t unit) { return weights_[unit].data(); }
  [[nodiscard]] float* gradient(std::size_t unit) { return gradients_[unit].floats(); }
  [[nodiscard]] std::vector<float> tensor_gradient(const std::string& name) const;
  [[nodiscard]] std::vector<std::byte> all_gradient_bytes() const;
  void fill_weights(std::uint64_t seed, float deviation);  // normal numbers; norm weights around 1
  void check_guards() const;

 private:
  UnitBuffers buffers_of(std::size_t unit);
  void forward_to_head(const MicroBatch& data, bool keep);

  DType dtype_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<kernels::Parallel> parallel_;
  std::vector<GuardedBuffer> weights_, gradients_, outputs_, saved_;
  GuardedBuffer forward_workspace_, backward_workspace_, gradient_in_, gradient_out_;
  std::vector<const std::byte*> used_weights_;
  std::vector<float*> used_gradients_;
};

[[nodiscard]] std::string reference_path(const std::string& relative);  // under tests/reference
[[nodiscard]] std::vector<float> read_floats(const std::string& file, const std::string& tensor);
[[nodiscard]] std::vector<std::int32_t> read_ints(const std::string& file, const std::string& tensor);
[[nodiscard]] std::vector<std::int64_t> read_shape(const std::string& file, const std::string& tensor);

}  // namespace headrace::models
