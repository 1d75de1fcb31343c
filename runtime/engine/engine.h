// SPDX-License-Identifier: Apache-2.0
// Executes a compiled plan step after step on real lanes: reads and writes tiles, rounds gradients, updates, commits. A
// driver (the native trainer, later PyTorch hooks) computes: it acquires a unit for a pass and a micro-batch, computes,
// and releases. Knows no model.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/host_slab.h"
#include "core/result.h"
#include "io/volume_set.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/loss_scaler.h"
#include "runtime/engine/speculation.h"
#include "runtime/engine/state_reader.h"
#include "runtime/engine/state_updater.h"
#include "runtime/plan/compile.h"
#include "runtime/plan/plan.h"
#include "runtime/store/host_store.h"
#include "runtime/store/nvme_store.h"

namespace headrace::runtime {

struct EngineOptions {
  std::vector<std::string> nvme_paths;  // empty when nothing's home is NVMe and nothing is spilled
  std::string run_id;
  io::VolumeOptions volume;
  std::int32_t slots = 2;
  int threads = 1;
  bool decay_vectors = false;                   // weight decay on tensors of one dimension too
  const kernels::Parallel* products = nullptr;  // computes Muon's matrix products; must outlive the engine
  ExecutorOptions executor;
};

enum class StartMode : std::uint8_t { kFresh, kResume };

// Fills `out` with elements [first, first + out.size()) of a fresh tensor. Any thread.
using TensorSource =
    std::function<Result<void>(const UnitInfo&, const TensorInfo&, std::int64_t first, std::span<float> out)>;

// What the driver gets for one forward or backward; valid until release.
struct ComputeLease {
  OperationId operation = -1;
  UnitId unit = -1;
  Pass pass = Pass::kForward;
  std::int32_t micro_batch = -1;
  bool recompute = false, first = false, first_used = false;
  const std::byte* weights = nullptr;
  std::vector<const std::byte*> used_weights;
  const float* input = nullptr;
  float* output = nullptr;
  const float* output_gradient = nullptr;
  float* input_gradient = nullptr;
  std::byte* saved = nullptr;
  std::byte* workspace = nullptr;
  float* gradient = nullptr;
  std::vector<float*> used_gradients;
};

struct StepOutcome {
  std::uint64_t step = 0;
  std::uint64_t optimizer_step = 0;  // after this step
  double grad_norm = 0;              // before clipping; of the finite values when skipped
  double clip_factor = 1;
  bool skipped = false;
  bool early = false;   // tiles were updated while the backward pass went on
  bool redone = false;  // … and again, or all of them only then, with the factor that the norm gave
  // Delayed updates. Times and bytes of a step are those of its own operations, the updates of the step before
  // included.
  bool fresh = false;    // there were none of a step before
  bool drained = false;  // its own did not wait for the next step: they are in its times and bytes
  std::int64_t non_finite = 0;
  std::string non_finite_tensor;  // the first one
  double seconds = 0;
  std::array<double, kNumLanes> lane_busy{};
  std::int64_t nvme_read_bytes = 0, nvme_write_bytes = 0;
  double io_cpu_seconds = 0;
};

struct StepSettings {
  std::uint64_t step = 0;              // this step's number, from 1
  cpu_adam::OptimizerHyper hyper;      // optimizer_step = number of this update; gradient_scale is set by the engine
  double beside_lr_factor = 1;         // Muon: the learning rate of what AdamW updates beside it, over hyper.lr
  std::uint64_t rounding_seed = 0;     // of state formats that round stochastically
  double clip_norm = 0;                // 0 = no clipping
  double loss_scale = 1;               // the driver's gradients are this factor too large (fp16)
  LossScaler* loss_scaler = nullptr;   // fp16: told of the outcome and saved with the step
  std::uint64_t samples_consumed = 0;  // after this step
  bool inject_nan = false;             // tests: one gradient element becomes NaN
  // The step's line of metrics.jsonl, asked for when all but the commit is done; called on a lane's thread.
  std::function<std::string(const StepOutcome&)> metrics_row;
};

// One driver thread; state_* members only between steps.
class Engine {
 public:
  // kFresh makes new volumes (initialise() then fills them); kResume opens the run's volumes at the last committed
  // step.
  static Result<std::unique_ptr<Engine>> create(Plan plan, const EngineOptions& options, StartMode mode);
  ~Engine();

  // Streams fresh state tile by tile to its homes as version 0 and commits step 0.
  [[nodiscard]] Result<void> initialise(const TensorSource& source);
  // Brings what stays in memory there; after initialise() or a resume, before the first step.
  [[nodiscard]] Result<void> load_held();

  [[nodiscard]] Result<void> begin_step(const StepSettings& settings);
  // Blocks until the unit's buffers are ready. The order must be the plan's; another one is a kFailed error.
  [[nodiscard]] Result<ComputeLease> acquire(UnitId unit, Pass pass, std::int32_t micro_batch);
  void release(const ComputeLease& lease);
  // Where the plan puts the buffers of a compute operation; for measuring before the first step.
  [[nodiscard]] ComputeLease lease_of(OperationId id, const Operation& operation) noexcept;
  // Waits for the update and the commit. With delayed updates both are left to the next step, or to drain().
  [[nodiscard]] Result<StepOutcome> finish_step();
  // Makes the updates that the last step has left, and commits it. An evaluation and visit_state() begin with it.
  [[nodiscard]] Result<void> drain();
  [[nodiscard]] bool has_pending() const noexcept { return pending_.has_value(); }
  // An evaluation pass over plan().input.eval_micro_batches micro-batches; acquire and release as in a step.
  [[nodiscard]] Result<void> begin_eval();
  [[nodiscard]] Result<void> finish_eval();

  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  [[nodiscard]] bool durable() const noexcept;  // a restart finds the last committed step
  [[nodiscard]] const StepRecord& committed() const noexcept { return record_; }
  // Counts and positions after the last step done, whether committed or not: what the next step goes on from.
  [[nodiscard]] const StepRecord& finished() const noexcept { return pending_ ? pending_->record : record_; }
  [[nodiscard]] const RunTimes& last_times() const noexcept { return times_; }            // of the last step …
  [[nodiscard]] const RunTimes& last_redo_times() const noexcept { return redo_times_; }  // … of its redo or drain …
  [[nodiscard]] const std::vector<Operation>& last_operations() const noexcept { return *operations_; }  // … and lists
  [[nodiscard]] const std::vector<Operation>& last_redo_operations() const noexcept {
    return is_delayed() ? plan_.drain_operations : plan_.redo_operations;
  }
  [[nodiscard]] NvmeStore* nvme_store() noexcept { return nvme_.get(); }
  [[nodiscard]] const StateUpdater& updater() const noexcept { return updater_; }
  [[nodiscard]] std::span<std::byte> host_memory() noexcept { return host_slab_.bytes(); }
  [[nodiscard]] std::span<std::byte> device_memory() noexcept { return device_slab_.bytes(); }
  [[nodiscard]] std::string describe_memory() const { return host_slab_.describe(); }
  [[nodiscard]] std::string describe_storage() const;

  // See state_reader.h.
  [[nodiscard]] WeightsReader weights_reader() noexcept {  // with nothing pending
    HEADRACE_CHECK(!has_pending(), "weights are read after drain()");
    return {plan_.input, store_of(StateStream::kWeights), record_.state_version};
  }
  [[nodiscard]] Result<void> visit_state(const StateVisitor& visit);

 private:
  Engine(Plan plan, const EngineOptions& options);
  [[nodiscard]] Result<void> open_stores(StartMode mode);
  void register_host_tiles();
  [[nodiscard]] TierStore& store_of(StateStream stream) noexcept;
  [[nodiscard]] std::uint64_t version_of(const TileId& id) const;

  [[nodiscard]] Result<void> run(const Operation& operation);
  [[nodiscard]] Result<std::vector<io::Ticket>> start(const Operation& operation, io::CompletionSink sink);
  [[nodiscard]] Result<std::vector<io::Ticket>> start_read(const Operation& operation, io::CompletionSink sink);
  [[nodiscard]] Result<std::vector<io::Ticket>> start_write(const Operation& operation, io::CompletionSink sink);
  [[nodiscard]] std::uint64_t spill_version(const Operation& operation, bool write) const;
  // A step that is done but for its updates and its record.
  struct Pending {
    StepSettings settings;
    StepOutcome outcome;
    float gradient_scale = 1;
    StepRecord record;  // without its row
  };
  void gradient_out(const Operation& operation);
  void decide_update();
  // Activations, in engine_activations.cpp.
  void copy_activation(const Operation& operation);
  [[nodiscard]] Result<std::vector<io::Ticket>> start_activation(const Operation& operation, io::CompletionSink sink);
  // Early updates, in engine_early.cpp.
  [[nodiscard]] bool is_early() const noexcept { return plan_.input.update == UpdatePolicy::kInBackward; }
  [[nodiscard]] bool is_wanted(const Operation& operation);
  [[nodiscard]] bool is_wanted_in_redo(const Operation& operation);
  [[nodiscard]] bool is_wanted_in_redo(const Operation& operation, const BufferUse& use);
  [[nodiscard]] Result<void> copy_state(const Operation& operation);
  void judge_gradient(UnitId unit);
  [[nodiscard]] bool must_redo() const noexcept;
  [[nodiscard]] Result<void> redo();
  [[nodiscard]] Result<void> update(const Operation& operation);
  [[nodiscard]] Result<void> commit();
  // Delayed updates, in engine_delayed.cpp.
  [[nodiscard]] bool is_delayed() const noexcept { return plan_.input.update == UpdatePolicy::kIntoForward; }
  [[nodiscard]] bool is_delayed(UnitId unit) const { return plan_.update_delayed[static_cast<std::size_t>(unit)]; }
  // The update of the unit that is under way, or comes next, is left over from the step before.
  [[nodiscard]] bool is_pending(UnitId unit) const { return pending_.has_value() && is_delayed(unit); }
  [[nodiscard]] const StepSettings& update_settings(UnitId unit) const {
    return is_pending(unit) ? pending_->settings : settings_;
  }
  [[nodiscard]] Result<io::Ticket> load_state(const std::vector<TileMove>& moves, io::CompletionSink sink);
  [[nodiscard]] Result<void> commit_pending();
  [[nodiscard]] StepRecord next_record();
  [[nodiscard]] Result<void> write_record(StepRecord record, bool updated);
  [[nodiscard]] std::byte* address(const BufferUse& use) noexcept;
  [[nodiscard]] std::byte* address_of(const Operation& operation, Role role) noexcept;
  [[nodiscard]] bool decays(const TensorInfo& tensor) const noexcept;
  [[nodiscard]] io::VolumeCounters counters() const noexcept;  // of all stores
  void collect_times(StepOutcome& outcome, const RunTimes& times);

  Plan plan_;
  EngineOptions options_;
  HostSlab host_slab_, device_slab_;
  std::unique_ptr<NvmeStore> nvme_;   // state whose home is NVMe
  std::unique_ptr<NvmeStore> spill_;  // gradients and activations that do not fit in memory
  std::unique_ptr<HostStore> host_;   // state whose home is host memory
  StateUpdater updater_;
  Schedule step_schedule_, redo_schedule_, eval_schedule_;
  Schedule start_schedule_, drain_schedule_;
  const std::vector<Operation>* operations_ = nullptr;  // of the last step
  StepRecord record_;                                   // the last committed step
  StepSettings settings_;                               // of the running step
  StepOutcome outcome_;                                 // of the running step; the update's fields are written by kNorm
  float gradient_scale_ = 1;
  std::vector<std::vector<double>> chunk_sums_;  // per unit, tensor after tensor
  std::vector<std::vector<std::int64_t>> chunk_non_finite_;
  io::VolumeCounters counters_before_;
  RunTimes times_, redo_times_;
  bool in_eval_ = false;
  Speculation speculation_;
  ClipHistory clip_history_;
  bool in_redo_ = false, redo_follows_ = false;
  std::optional<Pending> pending_;  // changes between steps alone
  bool in_drain_ = false;
  std::uint64_t updates_before_ = 0;    // the running step; the record may come to say so only within it
  std::unique_ptr<Executor> executor_;  // last: its threads use everything above
};

}  // namespace headrace::runtime
