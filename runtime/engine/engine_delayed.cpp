// SPDX-License-Identifier: Apache-2.0
// Updates that are left to the next step: when they are made without one, and the record that follows them.
#include <utility>

#include "runtime/engine/engine.h"
#include "runtime/engine/tile_room.h"

namespace headrace::runtime {

// In the next step as its operation says, or at the end of a drain, whose cost is then the step's own.
Result<void> Engine::commit_pending() {
  StepOutcome& outcome = pending_->outcome;
  if (in_drain_) {
    redo_times_ = executor_->times_so_far();
    outcome.drained = true;
    StepOutcome since;
    collect_times(since, {});
    outcome.seconds += since.seconds;
    for (std::size_t lane = 0; lane < since.lane_busy.size(); ++lane) outcome.lane_busy[lane] += since.lane_busy[lane];
    outcome.nvme_read_bytes += since.nvme_read_bytes;
    outcome.nvme_write_bytes += since.nvme_write_bytes;
    outcome.io_cpu_seconds += since.io_cpu_seconds;
  }
  StepRecord record = pending_->record;
  if (pending_->settings.metrics_row) record.metrics_row = pending_->settings.metrics_row(outcome);
  // No step counts the bytes of its record, whose row is older; none but this is written meanwhile.
  const std::int64_t before = counters().written_bytes;
  HEADRACE_RETURN_IF_ERROR(write_record(std::move(record), !outcome.skipped));
  counters_before_.written_bytes += counters().written_bytes - before;
  return {};
}

// A unit that was updated after the norm has its new state on disk before the record that will name it.
Result<io::Ticket> Engine::load_state(const std::vector<TileMove>& moves, io::CompletionSink sink) {
  const TileId& id = moves.front().id;
  const bool is_frozen_unit = is_frozen(plan_.input.model.units[static_cast<std::size_t>(id.unit)]);
  if (!pending_ || is_delayed(id.unit) || is_frozen_unit) return nvme_->load(moves, version_of(id), sink);
  return nvme_->load_stored(moves, pending_->settings.step, sink);
}

Result<void> Engine::drain() {
  if (!pending_) return {};
  if (pending_->outcome.skipped) {  // nothing to update
    HEADRACE_RETURN_IF_ERROR(commit_pending());
    pending_.reset();
    return {};
  }
  counters_before_ = counters();
  in_drain_ = true;
  executor_->begin(drain_schedule_);
  Result<RunTimes> times = executor_->finish();
  in_drain_ = false;
  HEADRACE_TRY(redo_times_, std::move(times));
  pending_.reset();
  return {};
}

}  // namespace headrace::runtime
