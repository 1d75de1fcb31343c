// SPDX-License-Identifier: Apache-2.0
// Every optimizer through the real plan, engine and volume: stored fp64 results are met, and neither homes, threads,
// restarts nor the form of the master change a bit. The driver here computes nothing: it hands in stored gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "runtime/plan/tensor_state.h"
#include "tests/core/temporary_folder.h"
#include "tests/cpu_adam/golden.h"
#include "tests/integration/engine_run.h"
#include "tests/integration/gradient_driver.h"

namespace headrace::models {
namespace {

using cpu_adam::OptimizerKind;
using cpu_adam::testing::GoldenFile;
using runtime::Home;
using runtime::UnitId;

constexpr const char* kVectors[] = {"n1", "n7", "n15", "n16", "n17", "n64", "n127", "n129", "n1003"};
constexpr const char* kMatrices[] = {"m32x48", "m48x32"};

runtime::TensorInfo tensor_of(const std::string& name) {
  runtime::TensorInfo tensor;
  tensor.name = name;
  if (name == "m32x48") {
    tensor.shape = {32, 48};
  } else if (name == "m48x32") {
    tensor.shape = {48, 32};
  } else {
    tensor.shape = {std::stoll(name.substr(1))};
  }
  return tensor;
}

// The stored tensors in one unit, and a unit with the loss.
runtime::ModelInfo stored_model(OptimizerKind kind) {
  runtime::ModelInfo model;
  model.name = "stored";
  model.tokens_per_micro_batch = 1;
  runtime::UnitInfo first;
  first.name = "stored";
  if (kind != OptimizerKind::kAdafactor)
    for (const char* name : kVectors) first.tensors.push_back(tensor_of(name));
  if (!cpu_adam::is_elementwise(kind))
    for (const char* name : kMatrices) first.tensors.push_back(tensor_of(name));
  runtime::lay_out(first);
  first.output_bytes = 4096;
  runtime::UnitInfo last;
  last.name = "loss";
  last.fused_loss = true;
  last.tensors.push_back(tensor_of("n64"));
  last.tensors[0].name = "unused";
  runtime::lay_out(last);
  model.units = {first, last};
  return model;
}

struct StoredCase {
  const char* name;  // in the reference
  OptimizerKind kind;
  std::function<void(cpu_adam::OptimizerHyper&)> change;
  double beside_lr = 0;
};

std::vector<StoredCase> stored_cases() {
  using H = cpu_adam::OptimizerHyper;
  return {{"adamw", OptimizerKind::kAdamW, [](H& h) { h.beta2 = 0.95; }},
          {"adam", OptimizerKind::kAdam, [](H&) {}},
          {"adagrad", OptimizerKind::kAdagrad, [](H&) {}},
          {"lion", OptimizerKind::kLion, [](H&) {}},
          {"sgd", OptimizerKind::kSgd,
           [](H& h) {
             h.lr = 0.01;
             h.momentum = 0.9;
           }},
          {"sgd_nesterov", OptimizerKind::kSgd,
           [](H& h) {
             h.lr = 0.01;
             h.momentum = 0.9;
             h.nesterov = true;
           }},
          {"adafactor", OptimizerKind::kAdafactor, [](H& h) { h.eps1 = 1e-30; }},
          {"muon", OptimizerKind::kMuon,
           [](H& h) {
             h.lr = 0.02;
             h.beta2 = 0.95;
           },
           1e-3}};
}

// One thread owns it.
class StoredRun {
 public:
  StoredRun(const StoredCase& stored, cpu_adam::StateFormat format, DType weights_dtype, int threads)
      : parallel_(threads), stored_(stored), hyper_(cpu_adam::default_hyper(stored.kind)), threads_(threads) {
    stored.change(hyper_);
    input_.model = stored_model(stored.kind);
    input_.optimizer = stored.kind;
    input_.moments = cpu_adam::num_moments(stored.kind, hyper_);
    input_.weights_dtype = weights_dtype;
    input_.gradient_dtype = DType::kFp32;
    input_.state_format = format;
    input_.tile_elements = cpu_adam::is_elementwise(stored.kind) ? 4096 : runtime::whole_unit_tile(input_.model);
  }

  [[nodiscard]] Result<void> start(const GoldenFile& golden, const std::string& folder) {
    runtime::PlanInput input = input_;
    const auto nothing_fits = runtime::compile_plan(input);
    if (nothing_fits.ok()) return make_error(ErrorCode::kFailed, "a plan fits into no memory");
    input.host_budget = nothing_fits.error().smallest_host_bytes;
    HEADRACE_TRY(runtime::Plan plan, runtime::compile_plan(input));
    HEADRACE_RETURN_IF_ERROR(runtime::check_plan(plan));
    runtime::EngineOptions options;
    options.nvme_paths = {folder};
    options.run_id = "test";
    options.threads = threads_;
    options.decay_vectors = true;
    options.products = &parallel_;
    HEADRACE_TRY(engine_, runtime::Engine::create(std::move(plan), options, runtime::StartMode::kFresh));
    HEADRACE_RETURN_IF_ERROR(engine_->initialise([&](const runtime::UnitInfo&, const runtime::TensorInfo& tensor,
                                                     std::int64_t first, std::span<float> out) -> Result<void> {
      std::fill(out.begin(), out.end(), 0.0F);
      if (tensor.name == "unused") return {};
      const std::vector<float> values = golden.read<float>(tensor.name + "/param");
      std::copy_n(values.begin() + first, out.size(), out.begin());
      return {};
    }));
    return engine_->load_held();
  }

  // Step t ≥ 1 with the stored gradients.
  [[nodiscard]] Result<void> step(const GoldenFile& golden, std::uint64_t t, double weight_decay) {
    runtime::StepSettings settings;
    settings.step = t;
    settings.hyper = hyper_;
    settings.hyper.weight_decay = weight_decay;
    settings.hyper.optimizer_step = static_cast<std::int64_t>(t);
    settings.samples_consumed = t;
    if (stored_.beside_lr > 0) settings.beside_lr_factor = stored_.beside_lr / hyper_.lr;
    HEADRACE_TRY(const runtime::StepOutcome outcome,
                 runtime::drive_step(*engine_, settings,
                                     [&](UnitId unit, float* gradient) { write_gradient(golden, t, unit, gradient); }));
    if (outcome.skipped) return make_error(ErrorCode::kNumeric, "the step was skipped");
    return {};
  }

  // The masters of the stored unit, from the disk.
  [[nodiscard]] Result<std::vector<float>> masters() {
    std::vector<float> all;
    HEADRACE_RETURN_IF_ERROR(engine_->visit_state([&](UnitId unit, std::int64_t, std::span<const float> master,
                                                      std::span<const float>, std::span<const float>) -> Result<void> {
      if (unit == 0) all.insert(all.end(), master.begin(), master.end());
      return {};
    }));
    return all;
  }
  [[nodiscard]] const cpu_adam::OptimizerHyper& hyper() const { return hyper_; }
  [[nodiscard]] const runtime::UnitInfo& unit() const { return input_.model.units[0]; }
  [[nodiscard]] OptimizerKind optimizer_of(const runtime::TensorInfo& tensor) const {
    return runtime::optimizer_of(stored_.kind, tensor);
  }

 private:
  void write_gradient(const GoldenFile& golden, std::uint64_t t, UnitId unit, float* out) {
    const runtime::UnitInfo& info = input_.model.units[static_cast<std::size_t>(unit)];
    std::fill_n(out, info.flat_elements, 0.0F);
    if (unit != 0) return;
    for (const runtime::TensorInfo& tensor : info.tensors) {
      const std::vector<float> all = golden.read<float>(tensor.name + "/grads");
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(t - 1) * tensor.elements, tensor.elements,
                  out + tensor.offset);
    }
  }

  kernels::Parallel parallel_;
  const StoredCase& stored_;
  runtime::PlanInput input_;
  cpu_adam::OptimizerHyper hyper_;
  int threads_;
  std::unique_ptr<runtime::Engine> engine_;
};

// Returns the largest error over its bound.
double compare(StoredRun& run, const StoredCase& stored, const GoldenFile& golden, const std::string& wd, int t) {
  const auto masters = run.masters();
  EXPECT_TRUE(masters.ok()) << masters.error().to_string();
  double worst = 0;
  std::string where;
  for (const runtime::TensorInfo& tensor : run.unit().tensors) {
    const bool beside = run.optimizer_of(tensor) != stored.kind;
    const std::string key = std::string(beside ? "adamw" : stored.name) + "/wd" + wd + "/" + tensor.name + "/step" +
                            std::to_string(t) + "/param";
    const auto want = golden.read<double>(key);
    const double lr = beside ? stored.beside_lr : run.hyper().lr;
    for (std::int64_t i = 0; i < tensor.elements; ++i) {
      const double p = want[static_cast<std::size_t>(i)];
      const double got = static_cast<double>((*masters)[static_cast<std::size_t>(tensor.offset + i)]);
      const double share = std::abs(got - p) / (2e-6 * (std::abs(p) + lr * t));
      if (share <= worst) continue;
      worst = share;
      where = key + " " + std::to_string(i);
    }
  }
  EXPECT_LE(worst, 1) << where;
  return worst;
}

TEST(EngineOptimizers, StoredResultsAreMetByEveryOptimizerThroughTheDisk) {
  const GoldenFile golden("optimizers.safetensors");
  ASSERT_TRUE(golden.ok()) << "HEADRACE_REFERENCE names the folder of the reference files";
  double worst = 0;
  for (const StoredCase& stored : stored_cases()) {
    SCOPED_TRACE(stored.name);
    for (const char* wd : {"0", "0.1"}) {
      const TemporaryFolder folder;
      // The stored first weights are no bf16 values: fp32 weights.
      StoredRun run(stored, cpu_adam::StateFormat::kFp32, DType::kFp32, 2);
      const Result<void> started = run.start(golden, folder.path());
      ASSERT_TRUE(started.ok()) << started.error().to_string();
      for (int t = 1; t <= 10; ++t) {
        const Result<void> stepped = run.step(golden, static_cast<std::uint64_t>(t), std::stod(wd));
        ASSERT_TRUE(stepped.ok()) << stepped.error().to_string();
        if (t == 1 || t == 2 || t == 10) worst = std::max(worst, compare(run, stored, golden, wd, t));
      }
    }
  }
  std::printf("worst error over its bound: %.3f\n", worst);
}

TEST(EngineOptimizers, MastersBesideTheWeightsAndInTwoHalvesGiveTheBitsOfFp32Weights) {
  const GoldenFile golden("optimizers.safetensors");
  ASSERT_TRUE(golden.ok());
  for (const StoredCase& stored : stored_cases()) {
    SCOPED_TRACE(stored.name);
    std::vector<std::vector<float>> all;
    for (const auto& [format, dtype, threads] : {std::tuple{cpu_adam::StateFormat::kFp32, DType::kFp32, 2},
                                                 {cpu_adam::StateFormat::kFp32, DType::kBf16, 1},
                                                 {cpu_adam::StateFormat::kFp32, DType::kFp16, 2},
                                                 {cpu_adam::StateFormat::kSplit, DType::kBf16, 2}}) {
      const TemporaryFolder folder;
      StoredRun run(stored, format, dtype, threads);
      const Result<void> started = run.start(golden, folder.path());
      ASSERT_TRUE(started.ok()) << started.error().to_string();
      for (std::uint64_t t = 1; t <= 3; ++t) {
        const Result<void> stepped = run.step(golden, t, 0.1);
        ASSERT_TRUE(stepped.ok()) << stepped.error().to_string();
      }
      const auto masters = run.masters();
      ASSERT_TRUE(masters.ok()) << masters.error().to_string();
      all.push_back(*masters);
      EXPECT_EQ(all.back(), all.front()) << cpu_adam::state_format_name(format) << " " << dtype_name(dtype);
    }
  }
}

constexpr double kClipNorm = 1.0;

EngineRunOptions accumulating(OptimizerKind kind) {
  EngineRunOptions options = models::accumulating();
  options.optimizer = kind;
  return options;
}

// The digest after `steps` steps, stopped and started again after step `stop` > 0; 0 after a failure.
std::uint64_t train(const EngineRunOptions& options, std::uint64_t steps, std::uint64_t stop = 0) {
  const TemporaryFolder folder;
  auto run = EngineRun::start(options, folder.path());
  if (run == nullptr) return 0;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const auto result = run->step(step, kClipNorm);
    EXPECT_TRUE(result.ok()) << result.error().to_string();
    if (!result.ok()) return 0;
    if (step != stop) continue;
    run.reset();
    run = EngineRun::start(options, folder.path(), runtime::StartMode::kResume);
    if (run == nullptr) return 0;
  }
  const auto digest = run->digest();
  EXPECT_TRUE(digest.ok()) << digest.error().to_string();
  return digest.ok() ? *digest : 0;
}

TEST(EngineOptimizers, HomesThreadsRestartsAndMemoryChangeNoBit) {
  for (const OptimizerKind kind :
       {OptimizerKind::kMuon, OptimizerKind::kAdafactor, OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    SCOPED_TRACE(cpu_adam::optimizer_name(kind));
    const EngineRunOptions usual = accumulating(kind);
    const std::uint64_t expected = train(usual, 3);
    ASSERT_NE(expected, 0U);
    EXPECT_EQ(train(usual, 3, 2), expected) << "stopped after step 2";
    EngineRunOptions in_memory = usual;
    in_memory.weights_home = in_memory.optimizer_home = Home::kHost;
    EXPECT_EQ(train(in_memory, 3), expected) << "in memory";
    EngineRunOptions roomy = usual;
    roomy.more_host_bytes = 64 * kMiB;
    EXPECT_EQ(train(roomy, 3), expected) << "with more memory";
    EngineRunOptions one_thread = usual;
    one_thread.threads = 1;
    EXPECT_EQ(train(one_thread, 3), expected) << "one thread";
    EngineRunOptions masters = usual;
    masters.state_format = cpu_adam::StateFormat::kFp32;
    EXPECT_EQ(train(masters, 3), expected) << "masters beside the weights";
    EngineRunOptions late = usual;
    late.executor.lane_delay_us = 300;
    late.executor.seed = 3;
    EXPECT_EQ(train(late, 3), expected) << "late lanes";
  }
}

TEST(EngineOptimizers, AGradientThatIsNotFiniteLeavesTheStateOfWholeTensors) {
  for (const OptimizerKind kind : {OptimizerKind::kMuon, OptimizerKind::kAdafactor}) {
    const TemporaryFolder folder;
    const auto run = EngineRun::start(accumulating(kind), folder.path());
    ASSERT_NE(run, nullptr);
    ASSERT_TRUE(run->step(1, kClipNorm).ok());
    const auto before = run->digest();
    const auto skipped = run->step(2, kClipNorm, [](runtime::StepSettings& settings) { settings.inject_nan = true; });
    ASSERT_TRUE(skipped.ok()) << skipped.error().to_string();
    EXPECT_TRUE(skipped->outcome.skipped);
    const auto after = run->digest();
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_EQ(*before, *after) << cpu_adam::optimizer_name(kind);
  }
}

}  // namespace
}  // namespace headrace::models
