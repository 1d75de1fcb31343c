// SPDX-License-Identifier: Apache-2.0
// What follows a step whose early updates do not stand.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/plan/check_step.h"

namespace headrace::runtime::checking {

namespace {
std::size_t idx(std::int64_t index) { return static_cast<std::size_t>(index); }
}  // namespace

Result<void> StepCheck::run_redo(const std::vector<Operation>& operations, const Order& order, Phase phase) {
  operations_ = &operations;
  order_ = &order;
  phase_ = phase;
  commit_ = -1;
  read_bytes_ = written_bytes_ = 0;
  for (UnitState& unit : units_)
    for (auto* const counts : {&unit.state_reads, &unit.updates, &unit.state_writes})
      std::fill(counts->begin(), counts->end(), 0);
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
    case OperationKind::kUpdate: return phase_ == Phase::kAgain ? check_update(id) : Result<void>();
    case OperationKind::kWriteState:
      written_bytes_ += phase_ == Phase::kDropped ? op.bytes : 0;  // counted, not done
      return phase_ == Phase::kAgain ? check_write_state(op) : Result<void>();
    case OperationKind::kCommit: return check_commit(id);
    default: return fault("a redo does not do that");
  }
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
  for (UnitId u = 0; phase_ == Phase::kAgain && u < static_cast<UnitId>(units_.size()); ++u)
    if (units_[idx(u)].trained) HEADRACE_RETURN_IF_ERROR(check_updated(u));
  HEADRACE_RETURN_IF_ERROR(check_held_at_end());
  if (commit_ < 0) return fault("the redo has no commit");
  if (read_bytes_ != plan_.redo_read_bytes || written_bytes_ != plan_.redo_write_bytes)
    return fault(fmt::format("the redo's operations read {} and write {} bytes, the plan says {} and {}", read_bytes_,
                             written_bytes_, plan_.redo_read_bytes, plan_.redo_write_bytes));
  return {};
}

}  // namespace headrace::runtime::checking
