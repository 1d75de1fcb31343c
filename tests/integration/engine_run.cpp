// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/engine_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/files/hf_folder.h"
#include "models/trainer/measure.h"
#include "runtime/plan/tensor_state.h"
#include "tests/models/memory_model.h"

namespace headrace::models {

namespace {

using runtime::Operation;

runtime::PlanInput plan_input_of(const EngineRunOptions& options, const runtime::ModelInfo& model) {
  runtime::PlanInput input;
  input.model = model;
  input.weights_dtype = options.weights_dtype;
  input.gradient_dtype = options.gradient_dtype;
  input.state_format = options.state_format;
  input.optimizer = options.optimizer;
  input.moments = cpu_adam::num_moments(options.optimizer, cpu_adam::default_hyper(options.optimizer));
  input.weights_home = options.weights_home;
  input.optimizer_home = options.optimizer_home;
  input.micro_batches = options.micro_batches;
  input.group_size = options.group_size;
  input.update = options.update;
  input.activations = options.activations;
  input.delayed_fraction = options.delayed_fraction;
  input.can_clip = options.can_clip;
  input.force_copies = options.force_copies;
  input.separate_device = options.separate_device;
  input.tile_elements = cpu_adam::is_elementwise(options.optimizer)
                            ? 8192  // several tiles a unit, the last one shorter
                            : runtime::whole_unit_tile(model);
  input.eval_micro_batches = 1;
  return input;
}

Result<runtime::Plan> plan_of(const EngineRunOptions& options, const runtime::ModelInfo& model) {
  runtime::PlanInput input = plan_input_of(options, model);
  const auto nothing_fits = runtime::compile_plan(input);
  if (nothing_fits.ok()) return make_error(ErrorCode::kFailed, "a plan fits into no memory");
  input.host_budget = nothing_fits.error().smallest_host_bytes + options.more_host_bytes;
  HEADRACE_TRY(runtime::Plan plan, runtime::compile_plan(input));
  HEADRACE_RETURN_IF_ERROR(runtime::check_plan(plan));
  return plan;
}

Result<void> initialise_from_file(runtime::Engine& engine, const std::string& folder) {
  HEADRACE_TRY(const HfWeights weights, HfWeights::open(folder));
  return engine.initialise(
      [&](const runtime::UnitInfo&, const runtime::TensorInfo& tensor, std::int64_t first, std::span<float> out) {
        return weights.read(tensor.name, first, static_cast<std::int64_t>(out.size()), DType::kFp32,
                            std::as_writable_bytes(out).data());
      });
}

}  // namespace

std::unique_ptr<EngineRun> EngineRun::start(const EngineRunOptions& options, const std::string& folder,
                                            runtime::StartMode mode) {
  auto run = std::make_unique<EngineRun>();
  run->options_ = options;
  const std::string reference = reference_path("models/" + options.model);
  const std::string data = reference + "/train_inputs.safetensors";
  run->inputs_ = read_ints(data, options.prefix + "input_ids");
  run->labels_ = read_ints(data, options.prefix + "labels");
  const std::vector<std::int64_t> shape = read_shape(data, options.prefix + "input_ids");
  const std::int64_t batch = shape[shape.size() - 2], time = shape.back();
  run->tokens_ = static_cast<std::size_t>(batch * time);
  const auto config = read_model_config(reference);
  EXPECT_TRUE(config.ok()) << config.error().to_string();
  if (!config.ok()) return nullptr;
  run->parallel_ = std::make_unique<kernels::Parallel>(options.threads);
  run->model_ = std::make_unique<Model>(*config, options.weights_dtype, batch, time);

  const auto start = [&]() -> Result<void> {
    HEADRACE_TRY(runtime::Plan plan, plan_of(options, run->model_->info()));
    runtime::EngineOptions engine_options;
    engine_options.nvme_paths = {folder};
    engine_options.run_id = "test";
    engine_options.threads = options.threads;
    engine_options.slots = options.slots;
    engine_options.products = run->parallel_.get();
    engine_options.executor = options.executor;
    engine_options.volume = options.volume;
    HEADRACE_TRY(run->engine_, runtime::Engine::create(std::move(plan), engine_options, mode));
    if (mode == runtime::StartMode::kFresh) HEADRACE_RETURN_IF_ERROR(initialise_from_file(*run->engine_, reference));
    return run->engine_->load_held();
  };
  const Result<void> started = start();
  EXPECT_TRUE(started.ok()) << started.error().to_string();
  return started.ok() ? std::move(run) : nullptr;
}

MicroBatch EngineRun::micro_batch(std::size_t index, float scale) const {
  return {std::span(inputs_).subspan(index * tokens_, tokens_), std::span(labels_).subspan(index * tokens_, tokens_),
          scale};
}

runtime::StepSettings EngineRun::settings(std::uint64_t step, double clip_norm) const {
  runtime::StepSettings settings;
  settings.step = step;
  settings.hyper = cpu_adam::default_hyper(options_.optimizer);
  settings.hyper.lr = 1e-3;
  settings.hyper.beta1 = 0.9;
  settings.hyper.beta2 = 0.95;
  settings.hyper.eps = 1e-8;
  settings.hyper.weight_decay = 0.1;
  settings.hyper.optimizer_step = static_cast<std::int64_t>(engine_->finished().optimizer_step) + 1;
  settings.clip_norm = clip_norm;
  settings.samples_consumed = step;
  return settings;
}

Result<double> EngineRun::compute(std::uint64_t step, float scale) {
  double loss = 0;
  const auto first = static_cast<std::size_t>(step - 1) * static_cast<std::size_t>(options_.micro_batches);
  for (const Operation& operation : engine_->plan().operations) {
    if (operation.lane != runtime::Lane::kCompute) continue;
    HEADRACE_TRY(const runtime::ComputeLease lease,
                 engine_->acquire(operation.unit, operation.pass, operation.micro_batch));
    const MicroBatch data = micro_batch(first + static_cast<std::size_t>(operation.micro_batch), scale);
    const UnitBuffers buffers = unit_buffers(lease);
    loss += operation.pass == runtime::Pass::kForward
                ? model_->forward(*parallel_, operation.unit, data, buffers).sum
                : model_->backward(*parallel_, operation.unit, data, buffers, lease.recompute).sum;
    engine_->release(lease);
  }
  return loss;
}

Result<StepResult> EngineRun::step(std::uint64_t step, double clip_norm,
                                   const std::function<void(runtime::StepSettings&)>& change) {
  StepResult result;
  const auto per_step = static_cast<std::size_t>(options_.micro_batches) * tokens_;
  const auto labels = std::span(labels_).subspan(static_cast<std::size_t>(step - 1) * per_step, per_step);
  result.tokens = std::count_if(labels.begin(), labels.end(), [](std::int32_t label) { return label != -100; });
  runtime::StepSettings step_settings = settings(step, clip_norm);
  if (change) change(step_settings);
  HEADRACE_RETURN_IF_ERROR(engine_->begin_step(step_settings));
  Result<double> computed =
      compute(step, static_cast<float>(step_settings.loss_scale / static_cast<double>(result.tokens)));
  HEADRACE_TRY(result.outcome, engine_->finish_step());
  HEADRACE_TRY(const double loss, std::move(computed));
  result.loss = loss / static_cast<double>(result.tokens);
  return result;
}

Result<double> EngineRun::evaluate(std::size_t index) {
  LossSum total;
  HEADRACE_RETURN_IF_ERROR(engine_->begin_eval());
  for (const Operation& operation : engine_->plan().eval_operations) {
    if (operation.lane != runtime::Lane::kCompute) continue;
    HEADRACE_TRY(const runtime::ComputeLease lease,
                 engine_->acquire(operation.unit, operation.pass, operation.micro_batch));
    const LossSum loss = model_->forward(*parallel_, operation.unit, micro_batch(index, 1.0F), unit_buffers(lease));
    total.sum += loss.sum;
    total.counted += loss.counted;
    engine_->release(lease);
  }
  HEADRACE_RETURN_IF_ERROR(engine_->finish_eval());
  return total.sum / static_cast<double>(total.counted);
}

Result<std::uint64_t> EngineRun::digest() {
  return runtime::state_digest([&](const runtime::StateVisitor& visit) { return engine_->visit_state(visit); });
}

std::vector<float> EngineRun::weights(runtime::UnitId unit, const runtime::TensorInfo& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  runtime::WeightsReader reader = engine_->weights_reader();
  const Result<void> read = reader.read(unit, tensor, 0, values);
  EXPECT_TRUE(read.ok()) << tensor.name << ": " << read.error().to_string();
  return values;
}

}  // namespace headrace::models
