// SPDX-License-Identifier: Apache-2.0
// The native trainer: the driver that runs a model over token data on the engine, step after step, with metrics,
// evaluation and resume. One thread owns it; request_stop() may come from a signal handler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "kernels/cpu/parallel.h"
#include "models/trainer/injection.h"
#include "models/trainer/run_folder.h"
#include "models/trainer/setup.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loss_scaler.h"
#include "runtime/plan/compile.h"

namespace headrace::models {

enum class ResumePolicy : std::uint8_t { kAuto, kNever, kMust };

struct TrainerOptions {
  TrainingSetup setup;
  std::string run_dir;
  ResumePolicy resume = ResumePolicy::kAuto;
  bool trace = false;  // keep trace events of every step
};

struct StepReport {
  runtime::StepOutcome outcome;
  double loss = 0;  // mean over counted tokens; NaN when there were none
  double lr = 0;
  std::int64_t tokens = 0;  // counted
  double tokens_per_second = 0;
  double bound_ratio = 0;
  std::string bound_lane;
  Bytes peak_rss_bytes = 0;
  std::uint64_t skipped_in_a_row = 0;
};

class Trainer {
 public:
  // Everything that can be found out before state is touched is an error here: data, model files, memory, paths,
  // resume.
  static Result<std::unique_ptr<Trainer>> create(TrainerOptions options);
  ~Trainer();

  [[nodiscard]] const runtime::Plan& plan() const noexcept { return engine_->plan(); }
  [[nodiscard]] runtime::Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] const std::string& run_id() const noexcept { return run_id_; }
  [[nodiscard]] const RunFolder& folder() const noexcept { return *folder_; }
  [[nodiscard]] bool resumed() const noexcept { return resumed_; }
  [[nodiscard]] std::uint64_t step_done() const noexcept { return engine_->finished().step; }
  [[nodiscard]] std::uint64_t last_step() const noexcept {
    return static_cast<std::uint64_t>(options_.setup.config.run.steps);
  }
  [[nodiscard]] bool is_done() const noexcept { return step_done() >= last_step(); }
  [[nodiscard]] const runtime::Bound& bound() const noexcept { return bound_; }
  [[nodiscard]] const runtime::Rates& rates() const noexcept { return rates_; }
  [[nodiscard]] const Model& model() const noexcept { return *model_; }
  [[nodiscard]] std::vector<std::string> take_notes() {
    return std::exchange(notes_, {});
  }  // lines since the last call

  // The next step, its row in metrics.jsonl included; where its updates are left to the next step, so is its row.
  // kNumeric after max_skipped_in_a_row skipped steps.
  [[nodiscard]] Result<StepReport> step();
  // Makes updates that the last step has left, and commits it: before the run ends, whyever it does. What reads the
  // state (an evaluation, an export, a digest) does it by itself.
  [[nodiscard]] Result<void> drain();
  [[nodiscard]] bool has_validation() const noexcept { return validation_ != nullptr; }
  // Mean loss per token over the validation part (or eval.samples of it); adds a row to metrics.jsonl.
  [[nodiscard]] Result<double> evaluate();
  // Whether the configuration asks for an evaluation after the step just done.
  [[nodiscard]] bool evaluation_due() const noexcept;

  // Weights as a HF folder; dtype is the compute dtype.
  [[nodiscard]] Result<void> export_weights(const std::string& folder);
  [[nodiscard]] Result<std::uint64_t> digest();
  [[nodiscard]] const std::vector<std::string>& trace() const noexcept { return trace_; }

 private:
  explicit Trainer(TrainerOptions options) : options_(std::move(options)) {}
  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<void> check_places();
  [[nodiscard]] Result<void> open_data();
  [[nodiscard]] Result<std::optional<RunIdentity>> find_run();
  [[nodiscard]] Result<void> start_run(runtime::Plan plan, const std::optional<RunIdentity>& earlier);
  [[nodiscard]] Result<void> find_rates(const std::vector<std::string>& nvme_paths);
  void find_bounds();
  [[nodiscard]] Result<void> initialise_state();
  void note_other_runs(const std::vector<std::string>& paths);
  [[nodiscard]] Result<void> load_batch(std::uint64_t first_sample);
  [[nodiscard]] Result<runtime::StepSettings> next_settings(const std::shared_ptr<StepReport>& shared);
  [[nodiscard]] Result<void> compute_step(StepReport& report);
  [[nodiscard]] MicroBatch micro_batch(std::int32_t index) const;
  [[nodiscard]] std::string metrics_row(const StepReport& report) const;
  [[nodiscard]] Result<void> append_committed();
  [[nodiscard]] Result<void> adapt();
  [[nodiscard]] Result<void> restart_with(runtime::Plan plan);
  void keep_trace();
  void finish_report(StepReport& report) const;

  TrainerOptions options_;
  std::unique_ptr<RunFolder> folder_;
  std::string run_id_;
  bool resumed_ = false;
  std::unique_ptr<TokenData> train_, validation_;
  std::unique_ptr<kernels::Parallel> parallel_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<runtime::Engine> engine_;
  runtime::EngineOptions engine_options_;
  bool adapts_ = false;  // the update policy may change between steps
  runtime::ClipHistory clips_;
  std::optional<runtime::LossScaler> loss_scaler_;
  Injection injection_;
  runtime::Rates rates_;
  runtime::Bound bound_, start_bound_, drain_bound_;  // of a step; of one with nothing pending; of a drain
  std::vector<std::int32_t> inputs_, labels_;  // of the step's micro-batches, [micro_batches, micro_batch_size · T]
  float gradient_scale_ = 1;
  std::vector<std::string> notes_;
  std::shared_ptr<StepReport> report_;  // of the last step: its row may be made in the next one
  std::uint64_t rows_written_ = 0;      // the step of the last one
  std::vector<std::string> trace_;
  double trace_clock_us_ = 0;
};

}  // namespace headrace::models
