// SPDX-License-Identifier: Apache-2.0
// Early updates: which operations of a step and of its redo have something to do.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "runtime/engine/engine.h"

namespace headrace::runtime {

// Operations on tiles are conditional: a skipped step updates nothing, an early update is made while its assumption
// stands, and what one operation of a tile has left out the following ones leave out too.
bool Engine::is_wanted(const Operation& operation) {
  if (is_delayed() && operation.unit >= 0 && is_delayed(operation.unit)) return true;  // with everything known before
  if (in_redo_) return is_wanted_in_redo(operation);
  switch (operation.kind) {
    case OperationKind::kReadState: return !is_early() || speculation_.stands();
    case OperationKind::kCopyState: return speculation_.stands();
    case OperationKind::kUpdate: return is_early() ? speculation_.update(operation) : !outcome_.skipped;
    case OperationKind::kWriteState: return is_early() ? speculation_.updated(operation) : !outcome_.skipped;
    default: return true;
  }
}

bool Engine::is_wanted_in_redo(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kCopyState: return speculation_.updated(operation);
    case OperationKind::kUpdate:
    case OperationKind::kWriteState: return !outcome_.skipped;
    default: return true;
  }
}

// Of a read: what stays in memory comes back where it was changed; what passes through it is needed for a new update.
bool Engine::is_wanted_in_redo(const Operation& operation, const BufferUse& use) {
  const bool held = plan_.buffers[static_cast<std::size_t>(use.buffer)].held;
  return held ? speculation_.updated(operation) : !outcome_.skipped;
}

Result<void> Engine::copy_state(const Operation& operation) {
  const BufferUse* state = nullptr;
  const BufferUse* aside = nullptr;
  for (const BufferUse& use : operation.uses) (use.role == Role::kOldState ? aside : state) = &use;
  HEADRACE_CHECK(state != nullptr && aside != nullptr && state->bytes == aside->bytes, "a copy has two ends");
  const auto bytes = static_cast<std::size_t>(state->bytes);
  if (!in_redo_) {
    std::memcpy(address(*aside), address(*state), bytes);
    return {};
  }
  std::memcpy(address(*state), address(*aside), bytes);
  const StateStream stream = state->role == Role::kWeights ? StateStream::kWeights : StateStream::kOptimizer;
  const TileMove move{{operation.unit, stream, operation.tile}, address(*state)};
  HEADRACE_TRY(const io::Ticket ticket, host_->store({&move, 1}, record_.state_version, {}));
  HEADRACE_CHECK(ticket.ready(), "host memory stores at once");
  return {};
}

// Before the norm is known: a part of it that is too large already, or not finite, saves the rest of the early work.
void Engine::judge_gradient(UnitId unit) {
  if (!is_early()) return;
  const auto u = static_cast<std::size_t>(unit);
  const bool finite = std::all_of(chunk_non_finite_[u].begin(), chunk_non_finite_[u].end(),
                                  [](std::int64_t count) { return count == 0; });
  constexpr double kMargin = 1 + 1e-6;  // the whole sum is added in another order
  const double limit = settings_.clip_norm * settings_.loss_scale * kMargin;
  speculation_.add_gradient(std::accumulate(chunk_sums_[u].begin(), chunk_sums_[u].end(), 0.0), finite, limit * limit);
}

bool Engine::must_redo() const noexcept {
  if (!is_early()) return false;
  return outcome_.skipped ? speculation_.any_updated() : !speculation_.stands();
}

Result<void> Engine::redo() {
  if (outcome_.skipped && options_.slots == 1 && nvme_ != nullptr)
    return make_error(ErrorCode::kNumeric,
                      "a gradient is not finite (" + outcome_.non_finite_tensor +
                          ") and with slots: 1 the state before this step has been overwritten in part",
                      "start anew with slots: 2, or with schedule.update=after_backward");
  in_redo_ = true;
  executor_->begin(redo_schedule_);
  Result<RunTimes> times = executor_->finish();
  in_redo_ = false;  // an evaluation may come next: its operations are all wanted
  HEADRACE_TRY(redo_times_, std::move(times));
  return {};
}

}  // namespace headrace::runtime
