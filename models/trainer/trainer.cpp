// SPDX-License-Identifier: Apache-2.0
// The step and the evaluation. How a run starts is in trainer_start.cpp.
#include "models/trainer/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/json.h"
#include "core/process.h"
#include "models/files/hf_folder.h"
#include "models/trainer/measure.h"
#include "runtime/config/schedule.h"
#include "runtime/engine/step_report.h"
#include "runtime/plan/choose.h"
#include "runtime/plan/simulate.h"

namespace headrace::models {

using runtime::Operation;
using runtime::OperationKind;
using runtime::Pass;

Trainer::~Trainer() = default;

MicroBatch Trainer::micro_batch(std::int32_t index) const {
  const auto tokens = static_cast<std::size_t>(model_->info().tokens_per_micro_batch);
  const auto begin = static_cast<std::size_t>(index) * tokens;
  MicroBatch data;
  data.inputs = std::span(inputs_).subspan(begin, tokens);
  data.labels = std::span(labels_).subspan(begin, tokens);
  data.gradient_scale = gradient_scale_;
  return data;
}

Result<void> Trainer::load_batch(std::uint64_t first_sample) {
  const config::BatchConfig& batch = options_.setup.config.run.batch;
  return train_->batch(static_cast<std::int64_t>(first_sample), batch.micro_batch_size * batch.accumulation_steps,
                       inputs_, labels_);
}

Result<runtime::StepSettings> Trainer::next_settings(const std::shared_ptr<StepReport>& shared) {
  StepReport& report = *shared;
  const config::RunConfig& run = options_.setup.config.run;
  const runtime::StepRecord& done = engine_->finished();
  HEADRACE_RETURN_IF_ERROR(load_batch(done.samples_consumed));
  report.tokens = std::count_if(labels_.begin(), labels_.end(), [](std::int32_t label) { return label != -100; });
  const double scale = loss_scaler_.has_value() ? loss_scaler_->scale() : 1.0;
  gradient_scale_ = report.tokens > 0 ? static_cast<float>(scale / static_cast<double>(report.tokens)) : 0.0F;

  runtime::StepSettings settings;
  settings.step = done.step + 1;
  settings.hyper = run.optimizer.hyper;
  settings.hyper.optimizer_step = static_cast<std::int64_t>(done.optimizer_step) + 1;
  report.lr = config::lr_at(run, static_cast<std::int64_t>(done.optimizer_step));
  settings.hyper.lr = report.lr;
  settings.beside_lr_factor = run.optimizer.beside_lr_factor;
  settings.rounding_seed = run.seed;
  settings.clip_norm = run.gradient_clipping;
  settings.loss_scale = scale;
  settings.loss_scaler = loss_scaler_.has_value() ? &*loss_scaler_ : nullptr;
  settings.samples_consumed =
      done.samples_consumed + static_cast<std::uint64_t>(run.batch.micro_batch_size * run.batch.accumulation_steps);
  settings.inject_nan = injection_.nan_at(settings.step);
  settings.metrics_row = [this, shared](const runtime::StepOutcome& outcome) {
    shared->outcome = outcome;
    finish_report(*shared);
    return metrics_row(*shared);
  };
  return settings;
}

Result<void> Trainer::compute_step(StepReport& report) {
  double loss_sum = 0;
  for (const Operation& operation : engine_->plan().operations) {
    if (operation.lane != runtime::Lane::kCompute) continue;
    HEADRACE_TRY(const runtime::ComputeLease lease,
                 engine_->acquire(operation.unit, operation.pass, operation.micro_batch));
    const MicroBatch data = micro_batch(operation.micro_batch);
    const UnitBuffers buffers = unit_buffers(lease);
    const LossSum loss = operation.kind == OperationKind::kForward
                             ? model_->forward(*parallel_, operation.unit, data, buffers)
                             : model_->backward(*parallel_, operation.unit, data, buffers, lease.recompute);
    loss_sum += loss.sum;
    // Before the last release: the commit, which needs the loss, may follow at once.
    report.loss =
        report.tokens > 0 ? loss_sum / static_cast<double>(report.tokens) : std::numeric_limits<double>::quiet_NaN();
    engine_->release(lease);
  }
  return {};
}

// Where steps are clipped often, early updates mostly do not stand and all of the update follows the backward pass.
// Then it is left to the next step, if that is predicted to be faster; and back again when clipping has become rare.
Result<void> Trainer::adapt() {
  const runtime::Plan& present = engine_->plan();
  const bool early = present.input.update == runtime::UpdatePolicy::kInBackward;
  if (!adapts_ || early == clips_.worthwhile()) return {};
  const auto input_with = [&](runtime::UpdatePolicy update) {
    runtime::PlanInput input = present.input;
    input.update = update;
    input.delayed_fraction = options_.setup.config.run.schedule.delayed_fraction.value_or(-1);
    return input;
  };
  const auto plan_with = [&](runtime::UpdatePolicy update) { return runtime::compile_plan(input_with(update)); };
  // The fraction that is predicted to be fastest, in all the memory that there is.
  const auto delayed_plan = [&]() -> Result<runtime::Plan> {
    const runtime::PlanInput input = input_with(runtime::UpdatePolicy::kIntoForward);
    runtime::Machine machine;
    machine.rates = rates_;
    runtime::ChooseOptions options;
    options.plans_per_kind = 1;
    HEADRACE_TRY(runtime::Choice choice, runtime::choose_plan(input, machine, options));
    return std::move(choice.plan);
  };
  const auto predicted = [&](const Result<runtime::Plan>& plan) {
    const auto simulation = plan.ok() ? runtime::simulate(*plan, rates_) : Result<runtime::Simulation>(plan.error());
    return simulation.ok() ? simulation->step_seconds : std::numeric_limits<double>::infinity();
  };
  Result<runtime::Plan> other = early ? delayed_plan() : plan_with(runtime::UpdatePolicy::kInBackward);
  // A run that goes on as it is must not end for want of more disk.
  adapts_ = other.ok() && other->nvme_state_bytes <= present.nvme_state_bytes;
  if (!adapts_) return {};
  if (!early) {
    notes_.push_back("clipping has become rare: units are updated during the backward pass again");
    return restart_with(std::move(*other));
  }
  const double now = predicted(plan_with(runtime::UpdatePolicy::kAfterBackward));
  const double then = predicted(other);
  adapts_ = then < now;
  if (!adapts_) return {};
  notes_.push_back(fmt::format(
      "most steps are clipped: updates are left to the next step's forward pass (predicted {:.2f} s per step, {:.2f} s "
      "with updates after the backward pass)",
      then, now));
  return restart_with(std::move(*other));
}

Result<StepReport> Trainer::step() {
  HEADRACE_RETURN_IF_ERROR(adapt());
  const auto report = std::make_shared<StepReport>();
  HEADRACE_TRY(const runtime::StepSettings settings, next_settings(report));
  HEADRACE_RETURN_IF_ERROR(engine_->begin_step(settings));
  const Result<void> computed = compute_step(*report);
  HEADRACE_TRY(report->outcome, engine_->finish_step());
  HEADRACE_CHECK(computed.ok(), "a step that failed in the driver failed in the engine");
  clips_.add(!report->outcome.skipped && report->outcome.clip_factor < 1);
  finish_report(*report);
  HEADRACE_RETURN_IF_ERROR(append_committed());  // of the step before, where updates are left to the next one
  report_ = report;
  if (report->outcome.skipped || is_done() || evaluation_due()) HEADRACE_RETURN_IF_ERROR(engine_->drain());
  HEADRACE_RETURN_IF_ERROR(append_committed());
  if (options_.trace) keep_trace();
  const config::RunConfig& run = options_.setup.config.run;
  const bool hopeless = !loss_scaler_.has_value() || loss_scaler_->exhausted();
  if (report->outcome.skipped && hopeless &&
      report->skipped_in_a_row >= static_cast<std::uint64_t>(run.max_skipped_in_a_row))
    return make_error(
        ErrorCode::kNumeric,
        fmt::format("{} steps in a row had gradients that are not finite; in step {} {} elements, the first in {}",
                    report->skipped_in_a_row, report->outcome.step, report->outcome.non_finite,
                    report->outcome.non_finite_tensor),
        "the weights are those of the last good step; lower the learning rate, or look at the data of these steps");
  return *report;
}

Result<void> Trainer::drain() {
  HEADRACE_RETURN_IF_ERROR(engine_->drain());
  return append_committed();
}

void Trainer::keep_trace() {
  const auto keep = [&](const std::vector<Operation>& operations, const runtime::RunTimes& times) {
    if (times.spans.empty()) return;
    trace_.push_back(runtime::trace_events(operations, times, trace_clock_us_));
    trace_clock_us_ += times.seconds * 1e6;
  };
  keep(engine_->last_operations(), engine_->last_times());
  keep(engine_->last_redo_operations(), engine_->last_redo_times());
}

// The row that the commit record carries, so that the file and the record never differ. Before anything else is
// committed: a start after a kill can add one row, that of the last record.
Result<void> Trainer::append_committed() {
  const runtime::StepRecord& record = engine_->committed();
  if (record.step == rows_written_) return {};
  rows_written_ = record.step;
  return folder_->append_metrics(record.metrics_row);
}

void Trainer::finish_report(StepReport& report) const {
  report.tokens_per_second =
      report.outcome.seconds > 0 ? static_cast<double>(report.tokens) / report.outcome.seconds : 0;
  const double bound =
      (report.outcome.fresh ? start_bound_ : bound_).seconds() + (report.outcome.drained ? drain_bound_.seconds() : 0);
  report.bound_ratio = bound > 0 ? report.outcome.seconds / bound : 0;
  report.bound_lane = bound_.resource();
  const auto memory = process_memory();
  if (memory.ok()) report.peak_rss_bytes = memory->peak_resident + memory->huge_pages;
  report.skipped_in_a_row = engine_->finished().skipped_in_a_row;
}

std::string Trainer::metrics_row(const StepReport& report) const {
  const runtime::StepOutcome& outcome = report.outcome;
  JsonObject busy;
  for (int lane = 0; lane < runtime::kNumLanes; ++lane)
    busy.add(runtime::lane_name(static_cast<runtime::Lane>(lane)), outcome.lane_busy[static_cast<std::size_t>(lane)]);
  JsonObject row;
  row.add("step", outcome.step);
  row.add("optimizer_step", outcome.optimizer_step);
  row.add("loss", report.loss);
  row.add("grad_norm", outcome.grad_norm);
  row.add("clip_factor", outcome.clip_factor);
  row.add("lr", report.lr);
  row.add("tokens", report.tokens);
  row.add("step_seconds", outcome.seconds);
  row.add("tokens_per_second", report.tokens_per_second);
  row.add("bound_ratio", report.bound_ratio);
  row.add("bound_lane", report.bound_lane);
  row.add_raw("lane_busy_seconds", busy.text());
  row.add("nvme_read_bytes", outcome.nvme_read_bytes);
  row.add("nvme_write_bytes", outcome.nvme_write_bytes);
  row.add("peak_rss_bytes", report.peak_rss_bytes);
  row.add("host_peak_bytes", engine_->plan().host_slab_bytes);
  row.add("device_peak_bytes", engine_->plan().device_slab_bytes);
  row.add("skipped", outcome.skipped);
  row.add("update", runtime::update_policy_name(engine_->plan().input.update));
  row.add("early", outcome.early);
  row.add("redone", outcome.redone);
  row.add("drained", outcome.drained);
  if (loss_scaler_.has_value()) row.add("loss_scale", loss_scaler_->scale());
  return row.text();
}

bool Trainer::evaluation_due() const noexcept {
  const config::EvalConfig& eval = options_.setup.config.run.eval;
  return validation_ != nullptr && eval.every > 0 && step_done() % static_cast<std::uint64_t>(eval.every) == 0;
}

Result<double> Trainer::evaluate() {
  HEADRACE_CHECK(validation_ != nullptr, "there is validation data");
  HEADRACE_RETURN_IF_ERROR(drain());
  const config::RunConfig& run = options_.setup.config.run;
  const auto per_pass =
      static_cast<std::int64_t>(engine_->plan().input.eval_micro_batches) * run.batch.micro_batch_size;
  const std::int64_t length = options_.setup.validation_data->sequence_length;
  const std::int64_t samples = run.eval.samples.is_auto()
                                   ? validation_->num_samples()
                                   : std::min(run.eval.samples.value(), validation_->num_samples());
  double sum = 0;
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < samples; first += per_pass) {
    // What does not fill a pass is padded with ignored labels.
    const std::int64_t count = std::min(per_pass, samples - first);
    const auto filled = static_cast<std::size_t>(count * length);
    inputs_.assign(static_cast<std::size_t>(per_pass * length), 0);
    labels_.assign(inputs_.size(), -100);
    HEADRACE_RETURN_IF_ERROR(
        validation_->batch(first, count, std::span(inputs_).first(filled), std::span(labels_).first(filled)));
    HEADRACE_RETURN_IF_ERROR(engine_->begin_eval());
    for (const Operation& operation : engine_->plan().eval_operations) {
      if (operation.lane != runtime::Lane::kCompute) continue;
      auto lease = engine_->acquire(operation.unit, operation.pass, operation.micro_batch);
      if (!lease.ok()) break;  // finish_eval has the reason
      const LossSum loss =
          model_->forward(*parallel_, operation.unit, micro_batch(operation.micro_batch), unit_buffers(*lease));
      sum += loss.sum;
      counted += loss.counted;
      engine_->release(*lease);
    }
    HEADRACE_RETURN_IF_ERROR(engine_->finish_eval());
  }
  const config::BatchConfig& batch = run.batch;
  const auto step_tokens = static_cast<std::size_t>(batch.micro_batch_size * batch.accumulation_steps *
                                                    options_.setup.train_data.sequence_length);
  inputs_.resize(step_tokens);
  labels_.resize(step_tokens);
  const double loss = counted > 0 ? sum / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
  JsonObject row;
  row.add("step", step_done());
  row.add("val_loss", loss);
  HEADRACE_RETURN_IF_ERROR(folder_->append_metrics(row.text()));
  return loss;
}

Result<std::uint64_t> Trainer::digest() {
  HEADRACE_RETURN_IF_ERROR(drain());
  return runtime::state_digest([&](const runtime::StateVisitor& visit) { return engine_->visit_state(visit); });
}

}  // namespace headrace::models
