// SPDX-License-Identifier: Apache-2.0
// What follows a step whose early updates do not stand, or whose updates are delayed.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/plan/check_step.h"

namespace headrace::runtime::checking {

namespace {
std::size_t idx(std::int64_t index) { return static_cast<std::size_t>(index); }
}  // namespace

Result<void> StepCheck::run_redo(const std::vector<Operation>& operations, const Order& order, Phase phase) {
  begin_list(operations, order, phase);
  HEADRACE_RETURN_IF_ERROR(check_all());
  return check_redo_end();
}

Result<void> StepCheck::check_in_redo(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  if (op.kind != OperationKind::kCommit && (op.unit < 0 || idx(op.unit) >= units_.size()))
    return fault("the unit does not exist");
  if (commit_ >= 0) return fault("comes after the commit");
  switch (op.kind) {
    case OperationKind::kReadState: return check_read_state(id);
    case OperationKind::kCopyState: return check_copy_state(op);
    case OperationKind::kUpdate: return phase_ != Phase::kDropped ? check_update(id) : Result<void>();
    case OperationKind::kWriteState:
      written_bytes_ += phase_ == Phase::kDropped ? op.bytes : 0;  // counted, not done
      return phase_ != Phase::kDropped ? check_write_state(id) : Result<void>();
    case OperationKind::kCommit: return check_commit(id);
    default: return fault(phase_ == Phase::kDrain ? "a drain does not do that" : "a redo does not do that");
  }
}

void StepCheck::begin_list(const std::vector<Operation>& operations, const Order& order, Phase phase) {
  if (has_pending()) ++version_;  // what the list before found pending is part of the state
  operations_ = &operations;
  order_ = &order;
  phase_ = phase;
  commit_ = -1;
  read_bytes_ = written_bytes_ = 0;
  for (UnitState& unit : units_) {
    unit.any_update = false;
    for (auto* const counts : {&unit.state_reads, &unit.updates, &unit.state_writes})
      std::fill(counts->begin(), counts->end(), 0);
  }
}

Result<void> StepCheck::run_start() {
  phase_ = Phase::kStart;
  return run();
}

Result<void> StepCheck::run_next(const std::vector<Operation>& operations, const Order& order) {
  ++step_;
  begin_list(operations, order, Phase::kStep);
  norm_ = -1;
  activation_bytes_ = {};
  last_outs_.clear();
  for (UnitState& unit : units_) {
    unit.contributed.clear();
    unit.group_contributions = unit.groups_out = 0;
    if (!unit.delayed) unit.groups_spilled = 0;  // its update has had it
    unit.spill_write = -1;
    unit.spill_reads.clear();
    unit.boundary_trips.clear();
    unit.saved_trips.clear();
    std::fill(unit.forward_done.begin(), unit.forward_done.end(), false);
    std::fill(unit.backward_done.begin(), unit.backward_done.end(), false);
  }
  HEADRACE_RETURN_IF_ERROR(check_all());
  return check_end();
}

// Of a step whose delayed updates are pending the others are made.
std::int64_t StepCheck::version_before(UnitId unit) const {
  return version_ + (has_pending() && !state(unit).delayed ? 1 : 0);
}

std::int64_t StepCheck::updated_version(UnitId unit) const {
  if (is_delayed()) return version_before(unit) + 1;
  return phase_ == Phase::kStep ? 1 : 2;
}

Content StepCheck::weights_of(UnitId unit) const {
  const bool updated = has_pending() && units_[idx(unit)].trained;
  return {Content::Kind::kWeights, unit, 0, units_[idx(unit)].trained ? version_ + (updated ? 1 : 0) : 0};
}

Content StepCheck::whole_gradient(UnitId unit) const {
  return {Content::Kind::kGradient, unit, 0, num_groups(), has_pending(unit) ? step_ - 1 : step_};
}

// State has versions; all else is of the step that is under way, unless it says otherwise.
Content StepCheck::stamped(Content content) const noexcept {
  const bool is_state = content.kind == Content::Kind::kWeights || content.kind == Content::Kind::kOptimizer;
  if (!is_state && content.kind != Content::Kind::kNothing && content.step == 0) content.step = step_;
  return content;
}

// The commit is the last operation; that of delayed updates is the last one on their state, before the turn to the
// backward pass, and what the step updates itself comes after it.
Result<void> StepCheck::check_place_of_commit(const Operation& op) const {
  if (phase_ == Phase::kStart)
    return op.kind == OperationKind::kCommit ? Result<void>(fault("there is nothing to commit")) : Result<void>();
  if (!has_pending()) return commit_ >= 0 ? Result<void>(fault("comes after the commit")) : Result<void>();
  const bool on_state = op.kind == OperationKind::kReadState || op.kind == OperationKind::kUpdate ||
                        op.kind == OperationKind::kWriteState || op.kind == OperationKind::kCommit;
  const bool of_delayed = op.unit >= 0 && state(op.unit).delayed;
  if (commit_ >= 0 && on_state && (of_delayed || op.kind == OperationKind::kCommit))
    return fault("comes after the commit");
  if (commit_ < 0 && on_state && !of_delayed && op.kind != OperationKind::kCommit)
    return fault("comes before the commit of the step before");
  if (commit_ < 0 && op.kind == OperationKind::kBackward) return fault("comes before the commit of the step before");
  return {};
}

// One stream of a tile at home in memory, aside before the early update and back after it.
Result<void> StepCheck::check_copy_state(const Operation& op) {
  const UnitState& unit = state(op.unit);
  if (!is_early() || !unit.trained || op.tile < 0 || op.tile >= num_tiles(plan_.input, op.unit))
    return fault("there is nothing to keep aside");
  if (op.uses.size() != 2) return fault("is not between two places");
  const bool weights = op.uses.front().role == Role::kWeights;
  if ((weights ? plan_.input.weights_home : plan_.input.optimizer_home) == Home::kNvme)
    return fault("keeps aside what the other slot has");
  const Bytes bytes = extent(weights ? StateStream::kWeights : StateStream::kOptimizer, op.unit, op.tile);
  Content content{weights ? Content::Kind::kWeights : Content::Kind::kOptimizer, op.unit, weights ? 0 : op.tile, 0};
  const Bytes from = weights ? op.tile * plan_.input.tile_elements * dtype_bytes(plan_.input.weights_dtype) : 0;
  const bool back = phase_ != Phase::kStep;
  HEADRACE_TRY(const BufferUse* here,
               need(op, weights ? Role::kWeights : Role::kOptimizer, bytes, back ? Access::kOverwrite : Access::kRead));
  HEADRACE_TRY(const BufferUse* aside, need(op, Role::kOldState, bytes, back ? Access::kRead : Access::kOverwrite));
  HEADRACE_RETURN_IF_ERROR(expect(back ? *aside : *here, content, from));
  write(back ? *here : *aside, content, from);
  return {};
}

Result<void> StepCheck::check_redo_end() {
  for (UnitId u = 0; phase_ != Phase::kDropped && u < static_cast<UnitId>(units_.size()); ++u)
    if (units_[idx(u)].trained && (phase_ != Phase::kDrain || units_[idx(u)].delayed))
      HEADRACE_RETURN_IF_ERROR(check_updated(u));
  HEADRACE_RETURN_IF_ERROR(check_held_at_end());
  const char* const name = phase_ == Phase::kDrain ? "drain" : "redo";
  if (commit_ < 0) return fault(fmt::format("the {} has no commit", name));
  const Bytes read = phase_ == Phase::kDrain ? plan_.drain_read_bytes : plan_.redo_read_bytes;
  const Bytes written = phase_ == Phase::kDrain ? plan_.drain_write_bytes : plan_.redo_write_bytes;
  if (read_bytes_ != read || written_bytes_ != written)
    return fault(fmt::format("the {}'s operations read {} and write {} bytes, the plan says {} and {}", name,
                             read_bytes_, written_bytes_, read, written));
  return {};
}

}  // namespace headrace::runtime::checking
