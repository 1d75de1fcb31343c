// SPDX-License-Identifier: Apache-2.0
// A reference model trained through the real plan, engine and volume, with everything on NVMe and the smallest memory
// that works: what the trainer does, on data that a test gives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "models/model.h"
#include "runtime/engine/engine.h"

namespace headrace::models {

#if defined(__SANITIZE_THREAD__)
// TBB is not instrumented, so that what its workers hand over looks like races; alone, the engine's lanes are checked.
inline constexpr int kEngineRunThreads = 1;
#else
inline constexpr int kEngineRunThreads = 2;
#endif

struct EngineRunOptions {
  std::string model;   // folder under tests/reference/models
  std::string prefix;  // of the tensors in train_inputs.safetensors: "" or "accum_"
  std::int32_t micro_batches = 1;
  std::int32_t group_size = 1;
  DType weights_dtype = DType::kFp32, gradient_dtype = DType::kFp32;
  cpu_adam::StateFormat state_format = cpu_adam::StateFormat::kFp32;
  cpu_adam::OptimizerKind optimizer = cpu_adam::OptimizerKind::kAdamW;
  runtime::Home weights_home = runtime::Home::kNvme, optimizer_home = runtime::Home::kNvme;
  runtime::UpdatePolicy update = runtime::UpdatePolicy::kAfterBackward;
  runtime::ActivationPolicy activations = runtime::ActivationPolicy::kAuto;
  double delayed_fraction = -1;
  bool can_clip = true;
  bool force_copies = false;
  bool separate_device = false;  // with forced copies: planned as if the device had memory of its own
  std::int32_t slots = 2;
  Bytes more_host_bytes = 0;  // beyond the smallest budget
  int threads = kEngineRunThreads;
  runtime::ExecutorOptions executor;
  io::VolumeOptions volume;
};

// Four micro-batches in groups of two, bf16, split state.
inline EngineRunOptions accumulating() {
  EngineRunOptions options;
  options.model = "gpt2_tiny";
  options.prefix = "accum_";
  options.micro_batches = 4;
  options.group_size = 2;
  options.weights_dtype = options.gradient_dtype = DType::kBf16;
  options.state_format = cpu_adam::StateFormat::kSplit;
  return options;
}

struct StepResult {
  runtime::StepOutcome outcome;
  double loss = 0;  // mean over the step's counted tokens, before the update
  std::int64_t tokens = 0;
};

// One thread owns it.
class EngineRun {
 public:
  // Fails the test and returns null when something does not start. kFresh fills the state from the model's file.
  static std::unique_ptr<EngineRun> start(const EngineRunOptions& options, const std::string& folder,
                                          runtime::StartMode mode = runtime::StartMode::kFresh);

  // Step `step` (from 1) of the reference data, AdamW as in train10.json; others with these numbers and their defaults.
  [[nodiscard]] Result<StepResult> step(std::uint64_t step, double clip_norm,
                                        const std::function<void(runtime::StepSettings&)>& change = {});
  [[nodiscard]] runtime::StepSettings settings(std::uint64_t step, double clip_norm) const;
  // Mean loss of micro-batch `index` of the data with the current weights, through the evaluation pass.
  [[nodiscard]] Result<double> evaluate(std::size_t index);
  [[nodiscard]] Result<std::uint64_t> digest();

  [[nodiscard]] runtime::Engine& engine() { return *engine_; }
  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] std::vector<float> weights(runtime::UnitId unit, const runtime::TensorInfo& tensor);

 private:
  [[nodiscard]] MicroBatch micro_batch(std::size_t index, float scale) const;
  [[nodiscard]] Result<double> compute(std::uint64_t step, float scale);

  EngineRunOptions options_;
  std::vector<std::int32_t> inputs_, labels_;
  std::size_t tokens_ = 0;  // of a micro-batch
  std::unique_ptr<kernels::Parallel> parallel_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<runtime::Engine> engine_;
};

}  // namespace headrace::models
