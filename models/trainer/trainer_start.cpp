// SPDX-License-Identifier: Apache-2.0
// How a run starts: data, model, plan, stores, rates, state. Faults of input and environment show here, in that order,
// before any state is touched.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/check.h"
#include "core/hash.h"
#include "core/json.h"
#include "models/checkpoint_init.h"
#include "models/files/hf_folder.h"
#include "models/trainer/export_weights.h"
#include "models/trainer/hardware_file.h"
#include "models/trainer/measure.h"
#include "models/trainer/trainer.h"
#include "runtime/config/read_config.h"

namespace headrace::models {

namespace {

constexpr std::chrono::seconds kLockDeadline{30};  // a killed process may take a while to give its memory back
constexpr std::int64_t kInitPiece = 16 * 1024;     // elements that one task fills: enough to be worth a task

// What the run was told, as one JSON object of full paths: setup_of_run() gives the same setup from it.
std::string config_text(const config::LoadedConfig& loaded) {
  JsonObject object;
  for (const config::ResolvedKey& key : loaded.keys)
    if (key.source_kind == config::SourceKind::kFile || key.source_kind == config::SourceKind::kOverride)
      object.add_raw(key.path, key.value.empty() ? "null" : key.value);
  return object.text();
}

// Older than a start needs between making its file and taking its lock.
bool is_old(const std::string& file) {
  std::error_code status;
  const auto written = std::filesystem::last_write_time(file, status);
  return !status && std::filesystem::file_time_type::clock::now() - written > std::chrono::minutes(10);
}

std::string absolute_path(const std::string& path) {
  std::error_code status;
  const std::filesystem::path absolute = std::filesystem::weakly_canonical(path, status);
  return status ? path : absolute.string();
}

std::vector<std::string> absolute_paths(std::vector<std::string> paths) {
  for (std::string& path : paths) path = absolute_path(path);
  return paths;
}

// Fresh tensors, filled by all threads.
runtime::TensorSource fresh_source(std::uint64_t seed, const kernels::Parallel& parallel) {
  return [seed, &parallel](const runtime::UnitInfo&, const runtime::TensorInfo& tensor, std::int64_t first,
                           std::span<float> out) -> Result<void> {
    const std::int64_t pieces = ceil_div(static_cast<std::int64_t>(out.size()), kInitPiece);
    parallel.for_each(pieces, [&](std::int64_t i) {
      const auto begin = static_cast<std::size_t>(i * kInitPiece);
      const std::size_t count = std::min(out.size() - begin, static_cast<std::size_t>(kInitPiece));
      fill_init(tensor.init, seed, tensor.name, first + static_cast<std::int64_t>(begin), out.subspan(begin, count));
    });
    return {};
  };
}

runtime::TensorSource folder_source(const HfWeights& weights) {
  return [&weights](const runtime::UnitInfo&, const runtime::TensorInfo& tensor, std::int64_t first,
                    std::span<float> out) -> Result<void> {
    return weights.read(tensor.name, first, static_cast<std::int64_t>(out.size()), DType::kFp32,
                        std::as_writable_bytes(out).data());
  };
}

std::vector<runtime::TensorInfo> all_tensors(const runtime::ModelInfo& model) {
  std::vector<runtime::TensorInfo> tensors;
  for (const runtime::UnitInfo& unit : model.units)
    tensors.insert(tensors.end(), unit.tensors.begin(), unit.tensors.end());
  return tensors;
}

// How many of a run's volumes lie in these paths.
std::size_t volumes_in(const std::vector<std::string>& paths, const std::string& run_id) {
  std::size_t count = 0;
  for (const std::string& path : paths)
    if (const auto volumes = io::list_volumes(path); volumes.ok())
      count += static_cast<std::size_t>(std::count_if(
          volumes->begin(), volumes->end(), [&](const io::VolumeInfo& volume) { return volume.run_id == run_id; }));
  return count;
}

// Its volumes are there and none has a record.
bool never_committed(const RunIdentity& identity) {
  bool found = false;
  for (const std::string& path : identity.nvme_paths) {
    const auto volumes = io::list_volumes(path);
    if (!volumes.ok()) return false;  // opening reports it better
    for (const io::VolumeInfo& volume : *volumes) {
      if (volume.run_id != identity.run_id) continue;
      if (volume.has_record) return false;
      found = true;
    }
  }
  return found;
}

// Size and checksum of the training file: of all of it up to kWholeFile, else of pieces spread over it.
Result<std::string> identify_data(const std::string& path) {
  constexpr Bytes kPiece = kMiB, kWholeFile = 256 * kMiB;
  HEADRACE_TRY(const File file, File::open_read(path));
  HEADRACE_TRY(const Bytes size, file.size());
  const Bytes stride = size <= kWholeFile ? kPiece : ceil_div(size, kWholeFile / kPiece);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, size)));
  Xxh3Stream digest;
  for (Bytes at = 0; at < size; at += stride) {
    const std::span<std::byte> part = std::span(piece).first(static_cast<std::size_t>(std::min(kPiece, size - at)));
    HEADRACE_RETURN_IF_ERROR(file.read_exact(at, part));
    digest.update(part);
  }
  return fmt::format("{} bytes, xxh3 {:016x}", size, digest.digest());
}

Result<void> check_resumable(const RunIdentity& earlier, const TrainingSetup& setup, const std::string& run_dir) {
  HEADRACE_TRY(const std::string data, identify_data(setup.train_data.path));
  if (data != earlier.data)
    return make_error(ErrorCode::kConfig,
                      fmt::format("{} has changed: {} now, {} when run {} began", setup.train_data.path, data,
                                  earlier.data, earlier.run_id),
                      "put the text back, or start anew: --resume never with another --run-dir");
  HEADRACE_RETURN_IF_ERROR(config::check_resumable(earlier.fingerprint, setup.config));
  if (!earlier.durable)
    return make_error(ErrorCode::kPreflight,
                      fmt::format("run {} in {} kept state in host memory, which is gone", earlier.run_id, run_dir),
                      "start it again with --resume never, or keep all state on nvme");
  return {};
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(TrainerOptions options) {
  // Input first: a run folder is made only for a job that can start.
  auto trainer = std::unique_ptr<Trainer>(new Trainer(std::move(options)));
  HEADRACE_RETURN_IF_ERROR(trainer->check_places());
  HEADRACE_RETURN_IF_ERROR(trainer->open_data());
  HEADRACE_RETURN_IF_ERROR(trainer->prepare());
  return trainer;
}

// What takes no time to find out, before data and model are looked at: whether the run is running, and whether a new
// one could have its volumes where it wants them. (One that is there may be elsewhere, or on a disk that has filled
// up.)
Result<void> Trainer::check_places() {
  bool is_new = options_.resume == ResumePolicy::kNever;
  if (is_folder(options_.run_dir)) {
    HEADRACE_TRY(RunFolder folder, RunFolder::open(options_.run_dir));
    folder_ = std::make_unique<RunFolder>(std::move(folder));
    HEADRACE_RETURN_IF_ERROR(folder_->lock(kLockDeadline));
    is_new = is_new || !folder_->has_identity();
  } else if (options_.resume == ResumePolicy::kMust) {
    return make_error(ErrorCode::kPreflight, fmt::format("--resume must: there is no run in {}", options_.run_dir),
                      "--run-dir names another folder; --resume auto starts a new run");
  } else {
    is_new = true;
  }
  const runtime::EngineOptions engine_options = make_engine_options(options_.setup, "");
  if (!is_new || engine_options.nvme_paths.empty()) return {};
  return io::check_paths(engine_options.nvme_paths, engine_options.volume);
}

Result<void> Trainer::open_data() {
  TrainingSetup& setup = options_.setup;
  HEADRACE_TRY(injection_, parse_injection(setup.config.run.debug.inject));
  HEADRACE_TRY(TokenData train, TokenData::open(setup.train_data));
  train_ = std::make_unique<TokenData>(std::move(train));
  if (setup.validation_data.has_value()) {
    HEADRACE_TRY(TokenData validation, TokenData::open(*setup.validation_data));
    validation_ = std::make_unique<TokenData>(std::move(validation));
  }
  return {};
}

Result<std::optional<RunIdentity>> Trainer::find_run() {
  if (options_.resume == ResumePolicy::kNever) return std::optional<RunIdentity>();
  HEADRACE_TRY(std::optional<RunIdentity> earlier, folder_->identity());
  if (!earlier.has_value()) {
    if (options_.resume == ResumePolicy::kMust)
      return make_error(ErrorCode::kPreflight, fmt::format("--resume must: there is no run in {}", folder_->path()),
                        "--run-dir names another folder; --resume auto starts a new run");
    return earlier;
  }
  HEADRACE_RETURN_IF_ERROR(check_resumable(*earlier, options_.setup, folder_->path()));
  return earlier;
}

Result<void> Trainer::prepare() {
  TrainingSetup& setup = options_.setup;
  const config::RunConfig& run = setup.config.run;
  const config::BatchConfig& batch = run.batch;
  parallel_ = std::make_unique<kernels::Parallel>(resolve_threads(run));
  model_ =
      std::make_unique<Model>(setup.model, run.weights_dtype, batch.micro_batch_size, setup.train_data.sequence_length);
  if (!setup.model_folder.empty()) {
    HEADRACE_TRY(const HfWeights weights, HfWeights::open(setup.model_folder));
    HEADRACE_RETURN_IF_ERROR(weights.check(all_tensors(model_->info())));
  }
  const auto step_tokens =
      static_cast<std::size_t>(batch.micro_batch_size * batch.accumulation_steps * setup.train_data.sequence_length);
  inputs_.assign(step_tokens, 0);
  labels_.assign(step_tokens, 0);

  std::optional<RunIdentity> earlier;
  if (folder_ != nullptr) {
    HEADRACE_TRY(earlier, find_run());
  }
  HEADRACE_TRY(const runtime::PlanInput input,
               make_plan_input(setup, model_->info(), earlier.has_value() ? earlier->tile_elements : 0,
                               0));  // the scratch is held already
  HEADRACE_TRY(runtime::Plan plan, plan_with(run.hardware, input));
  HEADRACE_RETURN_IF_ERROR(runtime::check_plan(plan));
  HEADRACE_RETURN_IF_ERROR(check_nvme_budget(plan, run));
  if (folder_ == nullptr) {
    HEADRACE_TRY(RunFolder folder, RunFolder::open(options_.run_dir));
    folder_ = std::make_unique<RunFolder>(std::move(folder));
    HEADRACE_RETURN_IF_ERROR(folder_->lock(kLockDeadline));
  }
  return start_run(std::move(plan), earlier);
}

Result<void> Trainer::start_run(runtime::Plan plan, const std::optional<RunIdentity>& earlier) {
  TrainingSetup& setup = options_.setup;
  // A start that died before its first commit has a run id and nothing else: the run begins anew under it.
  resumed_ = earlier.has_value() && !never_committed(*earlier);
  run_id_ = earlier.has_value() ? earlier->run_id : new_run_id();
  runtime::EngineOptions& engine_options = engine_options_;
  engine_options = make_engine_options(setup, run_id_);
  engine_options.products = parallel_.get();
  engine_options.nvme_paths = absolute_paths(engine_options.nvme_paths);
  if (earlier.has_value() && !earlier->nvme_paths.empty() &&
      volumes_in(engine_options.nvme_paths, earlier->run_id) != earlier->nvme_paths.size()) {
    if (engine_options.nvme_paths != earlier->nvme_paths)
      notes_.push_back("the run's volumes are not all in nvme_path; they are looked for where the run began: " +
                       fmt::format("{}", fmt::join(earlier->nvme_paths, ", ")));
    engine_options.nvme_paths = earlier->nvme_paths;
  }
  const std::int64_t tile_elements = plan.input.tile_elements;
  note_other_runs(engine_options.nvme_paths);
  HEADRACE_TRY(engine_, runtime::Engine::create(std::move(plan), engine_options,
                                                resumed_ ? runtime::StartMode::kResume : runtime::StartMode::kFresh));
  if (setup.config.run.weights_dtype == DType::kFp16) {
    const config::LossScaleConfig& scale = setup.config.run.loss_scale;
    loss_scaler_.emplace(runtime::LossScalerOptions{scale.loss_scale, scale.initial_scale_power,
                                                    scale.loss_scale_window, scale.hysteresis,
                                                    scale.consecutive_hysteresis, scale.min_loss_scale});
  }
  HEADRACE_RETURN_IF_ERROR(load_batch(0));
  gradient_scale_ = 1.0F;
  HEADRACE_RETURN_IF_ERROR(find_rates(engine_options.nvme_paths));
  find_bounds();
  adapts_ = setup.config.run.schedule.update.is_auto() && engine_->durable() && engine_->plan().input.can_clip &&
            engine_->plan().input.update == runtime::UpdatePolicy::kInBackward;
  if (resumed_) {
    if (engine_options.nvme_paths != earlier->nvme_paths) {  // moved, and found where the config says
      RunIdentity moved = *earlier;
      moved.nvme_paths = engine_options.nvme_paths;
      HEADRACE_RETURN_IF_ERROR(folder_->write_identity(moved));
    }
    HEADRACE_RETURN_IF_ERROR(folder_->repair_metrics(engine_->committed().step, engine_->committed().metrics_row));
    rows_written_ = engine_->committed().step;
    if (loss_scaler_.has_value() && engine_->committed().step > 0) loss_scaler_->restore(engine_->committed());
  } else {
    HEADRACE_TRY(const std::string data, identify_data(setup.train_data.path));
    // Before the first commit, so that a committed run always has a folder that knows it.
    HEADRACE_RETURN_IF_ERROR(
        folder_->write_identity({run_id_, engine_options.nvme_paths, tile_elements, engine_->durable(), data,
                                 config::fingerprint(setup.config), config_text(setup.config)}));
    HEADRACE_RETURN_IF_ERROR(folder_->clear_metrics());
    HEADRACE_RETURN_IF_ERROR(initialise_state());
  }
  return engine_->load_held();
}

// From the hardware file that the configuration names, else measured now and kept in the run folder.
Result<void> Trainer::find_rates(const std::vector<std::string>& nvme_paths) {
  if (const auto& file = options_.setup.config.run.hardware; file.has_value()) {
    HEADRACE_TRY(rates_, read_hardware(*file, engine_->plan().input));
    return {};
  }
  HEADRACE_TRY(rates_, measure_rates(*engine_, *model_, *parallel_, micro_batch(0)));
  return write_file_atomically(join_path(folder_->path(), "hardware.json"),
                               format_hardware(rates_, engine_->plan().input, nvme_paths) + "\n");
}

// With another plan for the same volume: a resume within the process.
Result<void> Trainer::restart_with(runtime::Plan plan) {
  HEADRACE_RETURN_IF_ERROR(runtime::check_plan(plan));
  HEADRACE_RETURN_IF_ERROR(drain());
  engine_.reset();  // its memory and its lock first
  HEADRACE_TRY(engine_, runtime::Engine::create(std::move(plan), engine_options_, runtime::StartMode::kResume));
  find_bounds();
  return engine_->load_held();
}

void Trainer::find_bounds() {
  const runtime::Plan& plan = engine_->plan();
  bound_ = runtime::bound_of(plan, rates_);
  start_bound_ = runtime::bound_of(plan, plan.start_operations, plan.start_read_bytes, plan.start_write_bytes, rates_);
  drain_bound_ = runtime::bound_of(plan, plan.drain_operations, plan.drain_read_bytes, plan.drain_write_bytes, rates_);
}

Result<void> Trainer::initialise_state() {
  if (options_.setup.model_folder.empty())
    return engine_->initialise(fresh_source(options_.setup.config.run.seed, *parallel_));
  HEADRACE_TRY(const HfWeights weights, HfWeights::open(options_.setup.model_folder));
  return engine_->initialise(folder_source(weights));
}

// Volumes of starts that died before their first commit hold nothing and are removed; what other runs committed is
// theirs, and said.
void Trainer::note_other_runs(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const auto volumes = io::list_volumes(path);
    if (!volumes.ok()) continue;  // creating or opening our own volume there reports it better
    Bytes held = 0, removed = 0;
    int count = 0;
    for (const io::VolumeInfo& volume : *volumes) {
      if (volume.run_id == run_id_) continue;
      if (!volume.has_record && !volume.locked && is_old(volume.file)) {
        if (io::remove_volumes({path}, volume.run_id).ok()) removed += volume.bytes;
        continue;
      }
      held += volume.bytes;
      ++count;
    }
    if (removed > 0)
      notes_.push_back(fmt::format("removed {} in {} that a start left behind which never committed a step",
                                   format_bytes(removed), path));
    if (count > 0)
      notes_.push_back(fmt::format("other runs hold {} in {} file{} in {} (headrace checkpoint ls {})",
                                   format_bytes(held), count, count == 1 ? "" : "s", path, path));
  }
}

Result<void> Trainer::export_weights(const std::string& folder) {
  HEADRACE_RETURN_IF_ERROR(drain());
  runtime::WeightsReader reader = engine_->weights_reader();
  return export_weights_to(folder, options_.setup.model, model_->info(), engine_->plan().input.weights_dtype, reader);
}

}  // namespace headrace::models
