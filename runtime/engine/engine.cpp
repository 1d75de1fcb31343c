// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/engine.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "core/check.h"
#include "runtime/engine/tile_room.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {

namespace {

std::size_t num_chunks(const UnitInfo& unit) {
  std::int64_t chunks = 0;
  for (const TensorInfo& tensor : unit.tensors)
    chunks += ceil_div(tensor.elements, cpu_adam::ParallelUpdater::kNormChunk);
  return static_cast<std::size_t>(chunks);
}

io::VolumeCounters operator+(io::VolumeCounters a, const io::VolumeCounters& b) {
  a.read_bytes += b.read_bytes;
  a.written_bytes += b.written_bytes;
  a.cpu_seconds += b.cpu_seconds;
  return a;
}

}  // namespace

Engine::Engine(Plan plan, const EngineOptions& options)
    : plan_(std::move(plan)),
      options_(options),
      updater_(options.threads, update_workspace_bytes(plan_.input), options.products),
      step_schedule_(plan_.operations, &plan_),
      redo_schedule_(plan_.redo_operations, &plan_),
      eval_schedule_(plan_.eval_operations, &plan_),
      start_schedule_(plan_.start_operations, &plan_),
      drain_schedule_(plan_.drain_operations, &plan_),
      operations_(&plan_.operations),
      speculation_(plan_.input) {}

Engine::~Engine() {
  executor_.reset();
  if (spill_ != nullptr) {  // nothing in it outlives a step: the run releases it
    const std::vector<std::string> files = spill_->volumes().files();
    spill_.reset();
    for (const std::string& file : files) {
      std::error_code ignored;  // a left-over is found and named by the next start
      std::filesystem::remove(file, ignored);
    }
  }
}

Result<std::unique_ptr<Engine>> Engine::create(Plan plan, const EngineOptions& options, StartMode mode) {
  std::unique_ptr<Engine> engine(new Engine(std::move(plan), options));
  HEADRACE_RETURN_IF_ERROR(engine->open_stores(mode));  // before memory: environment faults show at once
  if (engine->plan_.host_slab_bytes > 0) {
    HEADRACE_TRY(engine->host_slab_, HostSlab::allocate(engine->plan_.host_slab_bytes));
  }
  if (engine->plan_.device_slab_bytes > 0) {
    HEADRACE_TRY(engine->device_slab_, HostSlab::allocate(engine->plan_.device_slab_bytes));
  }
  engine->register_host_tiles();
  for (const UnitInfo& unit : engine->plan_.input.model.units) {
    engine->chunk_sums_.emplace_back(num_chunks(unit), 0.0);
    engine->chunk_non_finite_.emplace_back(num_chunks(unit), 0);
  }
  Engine* const self = engine.get();
  engine->executor_ = std::make_unique<Executor>(
      [self](const Operation& operation) { return self->run(operation); },
      [self](const Operation& operation, io::CompletionSink sink) { return self->start(operation, sink); },
      options.executor);
  return engine;
}

Result<void> Engine::open_stores(StartMode mode) {
  const PlanInput& input = plan_.input;
  ShardGeometry spill = ShardGeometry::of_spill(plan_);
  std::vector<std::string> spill_folders;
  if (!spill.streams().empty()) {  // before a path is written to
    HEADRACE_TRY(spill_folders, io::folders_among(options_.nvme_paths));
  }
  ShardGeometry state = ShardGeometry::of_state(input, options_.slots);
  if (!state.streams().empty()) {
    if (mode == StartMode::kFresh) {
      HEADRACE_TRY(nvme_, NvmeStore::create(options_.nvme_paths, options_.run_id, std::move(state), options_.volume));
    } else {
      HEADRACE_TRY(nvme_, NvmeStore::open(options_.nvme_paths, options_.run_id, std::move(state), options_.volume));
      record_ = nvme_->committed();
    }
  }
  if (!spill.streams().empty()) {
    const std::string spill_id = options_.run_id + "-spill";
    // Left over by a killed start of this very run, whose state volume we hold the lock of: nothing in it is committed.
    HEADRACE_RETURN_IF_ERROR(io::remove_volumes(spill_folders, spill_id));
    HEADRACE_TRY(spill_, NvmeStore::create(spill_folders, spill_id, std::move(spill), options_.volume));
  }
  host_ = std::make_unique<HostStore>(input.model.units.size());
  return {};
}

void Engine::register_host_tiles() {
  const PlanInput& input = plan_.input;
  const auto base = [&](BufferId id) {
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
    return (buffer.tier == Tier::kHost ? host_slab_.bytes() : device_slab_.bytes()).data() + buffer.offset;
  };
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile) {
      const std::int64_t length = tile_length(input, unit, tile);
      if (input.weights_home != Home::kNvme) {
        HEADRACE_CHECK(plan_.held_weights[u] != kNoBuffer, "weights at home in memory have no buffer");
        host_->add({unit, StateStream::kWeights, tile},
                   base(plan_.held_weights[u]) + tile * input.tile_elements * dtype_bytes(input.weights_dtype),
                   length * dtype_bytes(input.weights_dtype));
      }
      if (input.optimizer_home != Home::kNvme && !plan_.held_optimizer[u].empty()) {
        const BufferId held = plan_.held_optimizer[u][static_cast<std::size_t>(tile)];
        HEADRACE_CHECK(held != kNoBuffer, "optimizer state at home in memory has no buffer");
        host_->add({unit, StateStream::kOptimizer, tile}, base(held), optimizer_layout(input, unit, tile).bytes);
      }
    }
  }
}

bool Engine::durable() const noexcept {
  return plan_.input.weights_home == Home::kNvme && plan_.input.optimizer_home == Home::kNvme;
}

TierStore& Engine::store_of(StateStream stream) noexcept {
  const Home home = stream == StateStream::kWeights ? plan_.input.weights_home : plan_.input.optimizer_home;
  return home == Home::kNvme ? static_cast<TierStore&>(*nvme_) : static_cast<TierStore&>(*host_);
}

std::uint64_t Engine::version_of(const TileId& id) const {
  return is_frozen(plan_.input.model.units[static_cast<std::size_t>(id.unit)]) ? 0 : record_.state_version;
}

std::string Engine::describe_storage() const {
  return nvme_ != nullptr ? nvme_->volumes().describe() : std::string("no volume: all state in host memory");
}

bool Engine::decays(const TensorInfo& tensor) const noexcept {
  return options_.decay_vectors || tensor.shape.size() >= 2;
}

Result<void> Engine::begin_step(const StepSettings& settings) {
  HEADRACE_RETURN_IF_ERROR(cpu_adam::validate(plan_.input.optimizer, settings.hyper));
  if (plan_.input.optimizer == cpu_adam::OptimizerKind::kMuon)
    HEADRACE_RETURN_IF_ERROR(cpu_adam::validate(cpu_adam::OptimizerKind::kAdamW, settings.hyper));
  if (pending_ && pending_->outcome.skipped) HEADRACE_RETURN_IF_ERROR(drain());  // it has nothing but a record
  settings_ = settings;
  updates_before_ = finished().optimizer_step;
  outcome_ = {};
  outcome_.step = settings.step;
  counters_before_ = counters();
  in_eval_ = false;
  redo_follows_ = false;
  redo_times_ = {};
  HEADRACE_CHECK(!is_early() || plan_.input.can_clip || settings.clip_norm <= 0, "the plan can redo what it clips");
  gradient_scale_ = static_cast<float>(1 / settings.loss_scale);  // until the norm says otherwise
  speculation_.begin(is_early() && clip_history_.worthwhile());
  outcome_.fresh = is_delayed() && !pending_;
  operations_ = outcome_.fresh ? &plan_.start_operations : &plan_.operations;
  executor_->begin(outcome_.fresh ? start_schedule_ : step_schedule_);
  return {};
}

Result<StepOutcome> Engine::finish_step() {
  HEADRACE_TRY(times_, executor_->finish());
  if (redo_follows_) HEADRACE_RETURN_IF_ERROR(redo());
  clip_history_.add(!outcome_.skipped && outcome_.clip_factor < 1);
  collect_times(outcome_, times_);
  if (is_delayed()) {
    pending_.reset();  // the step has committed it
    pending_ = Pending{settings_, outcome_, gradient_scale_, next_record()};
  }
  return outcome_;
}

io::VolumeCounters Engine::counters() const noexcept {
  io::VolumeCounters sum;
  for (const NvmeStore* const store : {nvme_.get(), spill_.get()})
    if (store != nullptr) sum = sum + store->volumes().counters();
  return sum;
}

void Engine::collect_times(StepOutcome& outcome, const RunTimes& times) {
  const io::VolumeCounters now = counters();
  outcome.seconds = times.seconds + redo_times_.seconds;
  for (std::size_t lane = 0; lane < times.busy.size(); ++lane)
    outcome.lane_busy[lane] = times.busy[lane] + redo_times_.busy[lane];
  outcome.nvme_read_bytes = now.read_bytes - counters_before_.read_bytes;
  outcome.nvme_write_bytes = now.written_bytes - counters_before_.written_bytes;
  outcome.io_cpu_seconds = now.cpu_seconds - counters_before_.cpu_seconds;
}

Result<void> Engine::begin_eval() {
  HEADRACE_RETURN_IF_ERROR(drain());
  in_eval_ = true;
  executor_->begin(eval_schedule_);
  return {};
}

Result<void> Engine::finish_eval() {
  HEADRACE_TRY(const RunTimes times, executor_->finish());
  (void)times;
  return {};
}

Result<ComputeLease> Engine::acquire(UnitId unit, Pass pass, std::int32_t micro_batch) {
  HEADRACE_TRY(const OperationId id, executor_->acquire_next());
  const Operation& operation = (in_eval_ ? plan_.eval_operations : *operations_)[static_cast<std::size_t>(id)];
  if (operation.unit != unit || operation.pass != pass || operation.micro_batch != micro_batch) {
    const Error error =
        make_error(ErrorCode::kFailed, fmt::format("the driver asks for unit {} micro-batch {}, the plan has {} next",
                                                   unit, micro_batch, describe(operation)));
    executor_->abort(error, id);
    return error;
  }
  return lease_of(id, operation);
}

ComputeLease Engine::lease_of(OperationId id, const Operation& operation) noexcept {
  ComputeLease lease;
  lease.operation = id;
  lease.unit = operation.unit;
  lease.pass = operation.pass;
  lease.micro_batch = operation.micro_batch;
  lease.recompute = operation.recompute;
  lease.first = operation.first;
  lease.first_used = operation.first_used;
  for (const BufferUse& use : operation.uses) {
    std::byte* const data = address(use);
    const auto as_float = [data] { return reinterpret_cast<float*>(data); };
    switch (use.role) {
      case Role::kWeights: lease.weights = data; break;
      case Role::kUsedWeights: lease.used_weights.push_back(data); break;
      case Role::kInput: lease.input = as_float(); break;
      case Role::kOutput: lease.output = as_float(); break;
      case Role::kOutputGradient: lease.output_gradient = as_float(); break;
      case Role::kInputGradient: lease.input_gradient = as_float(); break;
      case Role::kSaved: lease.saved = data; break;
      case Role::kWorkspace: lease.workspace = data; break;
      case Role::kAccumulator: lease.gradient = as_float(); break;
      case Role::kUsedAccumulator: lease.used_gradients.push_back(as_float()); break;
      case Role::kOptimizer:
      case Role::kOldState:
      case Role::kGradient:
      case Role::kSource:
      case Role::kDestination: HEADRACE_CHECK(false, "a compute operation has no such buffer");
    }
  }
  return lease;
}

void Engine::release(const ComputeLease& lease) { executor_->complete(lease.operation); }

}  // namespace headrace::runtime
