// SPDX-License-Identifier: Apache-2.0
// State: reads, updates, writes, the commit, and what is left at the end.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/plan/check_step.h"

namespace headrace::runtime::checking {

namespace {
std::size_t idx(std::int64_t index) { return static_cast<std::size_t>(index); }
}  // namespace

Bytes StepCheck::extent(StateStream stream, UnitId unit, std::int64_t tile) const {
  const PlanInput& input = plan_.input;
  const std::int64_t length = tile_length(input, unit, tile);
  switch (stream) {
    case StateStream::kWeights: return round_up(length * dtype_bytes(input.weights_dtype), input.alignment);
    case StateStream::kOptimizer: return round_up(optimizer_layout(input, unit, tile).bytes, input.alignment);
    case StateStream::kGradient: return round_up(length * dtype_bytes(input.gradient_dtype), input.alignment);
    case StateStream::kBoundary:
    case StateStream::kSaved: break;  // no tiles of elements
  }
  return 0;
}

// Held buffers have the state of the last step.
Result<void> StepCheck::load_held() {
  const auto load = [&](BufferId id, const Content& content, Bytes bytes) -> Result<void> {
    if (id < 0 || idx(id) >= plan_.buffers.size())
      return fault(fmt::format("there is no buffer that holds {}", describe(content)));
    const Buffer& buffer = plan_.buffers[idx(id)];
    if (!buffer.held || buffer.tier != Tier::kHost || buffer.bytes < bytes)
      return fault(fmt::format("buffer {} cannot hold {}", id, describe(content)));
    slabs_[1].write(buffer.offset, bytes, content, 0);
    return {};
  };
  if (plan_.held_weights.size() != units_.size() || plan_.held_optimizer.size() != units_.size() ||
      plan_.keep_activations.size() != units_.size() || plan_.gradient_spilled.size() != units_.size())
    return fault("a list per unit has another length");
  std::set<BufferId> known;
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    const UnitState& unit = units_[idx(u)];
    const bool weights_at_home = plan_.input.weights_home != Home::kNvme && unit.weights_bytes > 0;
    if (const BufferId id = plan_.held_weights[idx(u)]; id != kNoBuffer || weights_at_home) {
      if (!weights_at_home && !plan_.input.cache)
        return fault(fmt::format("weights of unit {} are cached without leave", u));
      HEADRACE_RETURN_IF_ERROR(load(id, {Content::Kind::kWeights, u, 0, 0}, unit.weights_bytes));
      if (!known.insert(id).second) return fault(fmt::format("buffer {} holds two things", id));
    }
    const std::int64_t tiles = num_tiles(plan_.input, u);
    if (idx(tiles) != plan_.held_optimizer[idx(u)].size())
      return fault(fmt::format("unit {} has another number of tiles", u));
    for (std::int64_t t = 0; t < tiles && unit.trained; ++t) {
      const BufferId id = plan_.held_optimizer[idx(u)][idx(t)];
      const bool at_home = plan_.input.optimizer_home != Home::kNvme;
      if (id == kNoBuffer && !at_home) continue;
      if (!at_home && !plan_.input.cache)
        return fault(fmt::format("optimizer state of unit {} is cached without leave", u));
      HEADRACE_RETURN_IF_ERROR(load(id, {Content::Kind::kOptimizer, u, t, 0}, extent(StateStream::kOptimizer, u, t)));
      if (!known.insert(id).second) return fault(fmt::format("buffer {} holds two things", id));
    }
  }
  for (std::size_t i = 0; i < plan_.buffers.size(); ++i)
    if (plan_.buffers[i].held && known.count(static_cast<BufferId>(i)) == 0)
      return fault(fmt::format("buffer {} holds nothing", i));
  return {};
}

Result<void> StepCheck::check_read_weights(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  const UnitState& unit = state(op.unit);
  if (plan_.input.weights_home != Home::kNvme) return fault("the weights are not on NVMe");
  if (unit.any_update) return fault("reads weights whose update has begun");
  if (has_pending(op.unit) && unit.trained && (commit_ < 0 || !order_->holds(commit_, id)))
    return fault("reads weights that the record of the step before may not yet have made current");
  if (op.uses.size() != 1) return fault("reads more than the weights");
  HEADRACE_TRY(const BufferUse* weights, need(op, Role::kWeights, unit.weights_bytes, Access::kOverwrite));
  if (plan_.buffers[idx(weights->buffer)].held) return fault("reads what is held");
  if (op.bytes != unit.weights_disk_bytes)
    return fault(fmt::format("moves {} bytes instead of {}", op.bytes, unit.weights_disk_bytes));
  read_bytes_ += op.bytes;
  write(*weights, weights_of(op.unit));
  return {};
}

// The place on disk is one: writes and reads of it take turns.
Result<void> StepCheck::check_spill(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  UnitState& unit = state(op.unit);
  if (!plan_.gradient_spilled[idx(op.unit)]) return fault("the gradient is not spilled");
  if (op.bytes != unit.gradient_disk_bytes)
    return fault(fmt::format("moves {} bytes instead of {}", op.bytes, unit.gradient_disk_bytes));
  if (unit.spill_write >= 0 && !order_->holds(unit.spill_write, id))
    return fault("may start before the last spill is complete");
  if (op.kind == OperationKind::kReadGradient) {
    if (op.group < 1 || unit.groups_spilled != op.group) return fault("reads the gradient of other groups");
    HEADRACE_TRY(const BufferUse* gradient, need(op, Role::kGradient, unit.gradient_bytes, Access::kOverwrite));
    write(*gradient, {Content::Kind::kGradient, op.unit, 0, op.group});
    unit.spill_reads.push_back(id);
    read_bytes_ += op.bytes;
    return {};
  }
  if (op.group != unit.groups_spilled) return fault("spills out of turn");
  if (has_pending(op.unit) && (commit_ < 0 || !order_->holds(commit_, id)))
    return fault("overwrites the spilled gradient of the step before while it may be needed");
  for (const OperationId read : unit.spill_reads)
    if (!order_->holds(read, id)) return fault("overwrites a spill that may still be read");
  HEADRACE_TRY(const BufferUse* gradient, need(op, Role::kGradient, unit.gradient_bytes, Access::kRead));
  HEADRACE_RETURN_IF_ERROR(expect(*gradient, {Content::Kind::kGradient, op.unit, 0, op.group + 1}));
  unit.groups_spilled = op.group + 1;
  unit.spill_write = id;
  unit.spill_reads.clear();
  written_bytes_ += op.bytes;
  return {};
}

// Of the unit, and of those whose turn it is in this list. What a step updates itself while the record of the one
// before is to be written in it waits for that record.
Result<void> StepCheck::check_tile(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  const UnitState& unit = state(op.unit);
  if (!unit.trained || op.tile < 0 || op.tile >= num_tiles(plan_.input, op.unit))
    return fault("the tile does not exist");
  if (phase_ == Phase::kStart && unit.delayed) return fault("is left to the next step");
  if (phase_ == Phase::kDrain && !unit.delayed) return fault("was done in the step");
  if (has_pending() && !unit.delayed && op.lane != Lane::kCpuOptimizer && (commit_ < 0 || !order_->holds(commit_, id)))
    return fault("may start before the record of the step before is written");
  return {};
}

Result<void> StepCheck::check_read_state(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  UnitState& unit = state(op.unit);
  HEADRACE_RETURN_IF_ERROR(check_tile(id));
  if (op.uses.empty()) return fault("reads nothing");
  Bytes bytes = 0;
  for (const BufferUse& use : op.uses) {
    std::optional<StateStream> stream;
    Content content{Content::Kind::kNothing, op.unit, 0, 0};
    Bytes from = 0;
    if (use.role == Role::kOptimizer && plan_.input.optimizer_home == Home::kNvme) {
      stream = StateStream::kOptimizer;
      content = {Content::Kind::kOptimizer, op.unit, op.tile, version_before(op.unit)};
      if (unit.state_reads[idx(op.tile)]++ > 0) return fault("reads the optimizer state twice");
    } else if (use.role == Role::kWeights && plan_.input.weights_home == Home::kNvme) {
      stream = StateStream::kWeights;
      content = {Content::Kind::kWeights, op.unit, 0, version_before(op.unit)};
      from = op.tile * plan_.input.tile_elements * dtype_bytes(plan_.input.weights_dtype);
    } else if (use.role == Role::kGradient && plan_.gradient_spilled[idx(op.unit)]) {
      stream = StateStream::kGradient;
      content = whole_gradient(op.unit);
      from = op.tile * plan_.input.tile_elements * dtype_bytes(plan_.input.gradient_dtype);
      const bool complete = is_after_step() || has_pending(op.unit) || order_->holds(unit.spill_write, id);
      if (unit.groups_spilled != num_groups() || !complete)
        return fault("reads the spilled gradient before it is complete");
    }
    if (!stream) return fault(fmt::format("role {} is not on NVMe", static_cast<int>(use.role)));
    HEADRACE_TRY(const BufferUse* checked, need(op, use.role, extent(*stream, op.unit, op.tile), Access::kOverwrite));
    const bool held = plan_.buffers[idx(checked->buffer)].held;
    if (held && phase_ != Phase::kAgain && phase_ != Phase::kDropped) return fault("reads what is held");
    if (phase_ != Phase::kDropped || held) write(*checked, content, from);
    bytes += on_disk(use.bytes);
  }
  if (op.bytes != bytes) return fault(fmt::format("moves {} bytes instead of {}", op.bytes, bytes));
  read_bytes_ += bytes;
  return {};
}

Result<void> StepCheck::check_norm(OperationId id) {
  if (norm_ >= 0) return fault("is there twice");
  norm_ = id;
  const auto trained = std::count_if(units_.begin(), units_.end(), [](const UnitState& unit) { return unit.trained; });
  if (last_outs_.size() != idx(trained)) return fault("comes before every gradient is complete");
  for (const OperationId out : last_outs_)
    if (!order_->holds(out, id))
      return fault("may start before " + checking::describe(*operations_, out) + " is complete");
  return {};
}

Result<void> StepCheck::check_update(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  UnitState& unit = state(op.unit);
  const PlanInput& input = plan_.input;
  HEADRACE_RETURN_IF_ERROR(check_tile(id));
  if (unit.updates[idx(op.tile)]++ > 0) return fault("is done twice");
  const bool early = phase_ == Phase::kStep && (is_early() || has_pending(op.unit));
  if (!early && (norm_ < 0 || (!is_after_step() && !order_->holds(norm_, id))))
    return fault("may start before the norm is known");
  unit.any_update = !has_pending(op.unit);
  const std::int64_t version = updated_version(op.unit), before = version_before(op.unit);
  const std::int64_t first = op.tile * input.tile_elements;
  const Bytes weights_from = first * dtype_bytes(input.weights_dtype),
              gradient_from = first * dtype_bytes(input.gradient_dtype);
  HEADRACE_TRY(const BufferUse* optimizer,
               need(op, Role::kOptimizer, extent(StateStream::kOptimizer, op.unit, op.tile), Access::kUpdate));
  HEADRACE_TRY(const BufferUse* weights, need(op, Role::kWeights, extent(StateStream::kWeights, op.unit, op.tile),
                                              unit.weights_needed_by_update ? Access::kUpdate : Access::kOverwrite));
  HEADRACE_TRY(const BufferUse* gradient,
               need(op, Role::kGradient, extent(StateStream::kGradient, op.unit, op.tile), Access::kRead));
  HEADRACE_RETURN_IF_ERROR(expect(*optimizer, {Content::Kind::kOptimizer, op.unit, op.tile, before}));
  if (unit.weights_needed_by_update)
    HEADRACE_RETURN_IF_ERROR(expect(*weights, {Content::Kind::kWeights, op.unit, 0, before}, weights_from));
  HEADRACE_RETURN_IF_ERROR(expect(*gradient, whole_gradient(op.unit), gradient_from));
  write(*optimizer, {Content::Kind::kOptimizer, op.unit, op.tile, version});
  write(*weights, {Content::Kind::kWeights, op.unit, 0, version}, weights_from);
  return {};
}

Result<void> StepCheck::check_write_state(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  UnitState& unit = state(op.unit);
  const PlanInput& input = plan_.input;
  HEADRACE_RETURN_IF_ERROR(check_tile(id));
  if (unit.state_writes[idx(op.tile)]++ > 0) return fault("is done twice");
  const std::int64_t version = updated_version(op.unit);
  Bytes bytes = 0;
  std::size_t streams = 0;
  if (input.optimizer_home == Home::kNvme) {
    HEADRACE_TRY(const BufferUse* use,
                 need(op, Role::kOptimizer, extent(StateStream::kOptimizer, op.unit, op.tile), Access::kRead));
    HEADRACE_RETURN_IF_ERROR(expect(*use, {Content::Kind::kOptimizer, op.unit, op.tile, version}));
    bytes += on_disk(use->bytes);
    ++streams;
  }
  if (input.weights_home == Home::kNvme) {
    HEADRACE_TRY(const BufferUse* use,
                 need(op, Role::kWeights, extent(StateStream::kWeights, op.unit, op.tile), Access::kRead));
    HEADRACE_RETURN_IF_ERROR(expect(*use, {Content::Kind::kWeights, op.unit, 0, version},
                                    op.tile * input.tile_elements * dtype_bytes(input.weights_dtype)));
    bytes += on_disk(use->bytes);
    ++streams;
  }
  if (streams == 0 || op.uses.size() != streams) return fault("writes what is not at home on NVMe");
  if (op.bytes != bytes) return fault(fmt::format("moves {} bytes instead of {}", op.bytes, bytes));
  written_bytes_ += bytes;
  return {};
}

Result<void> StepCheck::check_commit(OperationId id) {
  commit_ = id;
  for (OperationId other = 0; other < id; ++other) {
    const Operation& op = (*operations_)[idx(other)];
    if (op.kind == OperationKind::kWriteActivation) continue;  // of no step that is committed
    const bool counts = op.lane == Lane::kNvmeWrite || op.lane == Lane::kCpuOptimizer ||
                        (op.lane == Lane::kNvmeRead && phase_ != Phase::kStep);
    if (counts && !order_->holds(other, id))
      return fault("may start before " + checking::describe(*operations_, other) + " is complete");
  }
  if (!has_pending()) return {};
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    UnitState& unit = units_[idx(u)];
    if (!unit.delayed) continue;
    HEADRACE_RETURN_IF_ERROR(check_updated(u));
    unit.groups_spilled = 0;  // this step's gradient may take the place
  }
  return {};
}

Result<void> StepCheck::check_updated(UnitId unit) const {
  const auto all_once = [](const std::vector<std::int32_t>& counts) {
    return std::all_of(counts.begin(), counts.end(), [](std::int32_t count) { return count == 1; });
  };
  const UnitState& done = units_[idx(unit)];
  const bool any_home_on_nvme = plan_.input.weights_home == Home::kNvme || plan_.input.optimizer_home == Home::kNvme;
  const auto missing = [&](const char* what) {
    if (!is_after_step()) return fault(fmt::format("unit {} has a tile that is not {}", unit, what));
    if (phase_ == Phase::kDrain) return fault(fmt::format("drain, unit {} has a tile that is not {}", unit, what));
    return fault(fmt::format("redo, unit {} has a tile that is not {} again", unit, what));
  };
  if (!all_once(done.updates)) return missing("updated");
  if (any_home_on_nvme && !all_once(done.state_writes)) return missing("written");
  return {};
}

Result<void> StepCheck::check_end() {
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    const UnitState& unit = units_[idx(u)];
    const auto all = [](const auto& list, auto value) {
      return std::all_of(list.begin(), list.end(), [&](auto v) { return v == value; });
    };
    if ((is_eval_ || !info(u).fused_loss) && !all(unit.forward_done, true))
      return fault(
          fmt::format("{}unit {} misses a micro-batch in its forward pass", is_eval_ ? "evaluation, " : "", u));
    if (is_eval_) continue;
    if (!all(unit.backward_done, true))
      return fault(fmt::format("unit {} misses a micro-batch in its backward pass", u));
    if (!unit.trained) continue;
    if (is_delayed() && unit.groups_out != num_groups())
      return fault(fmt::format("the gradient of unit {} is not complete for its update", u));
    if (phase_ == Phase::kStart && unit.delayed) continue;
    HEADRACE_RETURN_IF_ERROR(check_updated(u));
    for (std::size_t t = 0; t < unit.state_reads.size(); ++t)
      if ((unit.state_reads[t] == 1) != (plan_.held_optimizer[idx(u)][t] == kNoBuffer))
        return fault(fmt::format("tile {} of unit {} is read and held, or neither", t, u));
  }
  HEADRACE_RETURN_IF_ERROR(check_held_at_end());
  if (is_eval_) return {};
  HEADRACE_RETURN_IF_ERROR(check_trips());
  const bool is_start = phase_ == Phase::kStart;
  if (norm_ < 0 || (commit_ < 0) != is_start)
    return fault(is_start ? "the first step has no norm, or a commit" : "the step has no norm or no commit");
  const Bytes read = is_start ? plan_.start_read_bytes : plan_.read_bytes_per_step;
  const Bytes written = is_start ? plan_.start_write_bytes : plan_.write_bytes_per_step;
  if (read_bytes_ != read || written_bytes_ != written)
    return fault(fmt::format("the operations{} read {} and write {} bytes, the plan says {} and {}",
                             is_start ? " of the first step" : "", read_bytes_, written_bytes_, read, written));
  return {};
}

Result<void> StepCheck::check_held_at_end() {
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    const UnitState& unit = units_[idx(u)];
    const bool keeps = phase_ == Phase::kDropped || (phase_ == Phase::kStart && unit.delayed) || is_eval_;
    const std::int64_t version = !unit.trained ? 0 : keeps ? version_ : updated_version(u);
    if (const BufferId id = plan_.held_weights[idx(u)]; id != kNoBuffer) {
      const Bytes offset = plan_.buffers[idx(id)].offset;
      HEADRACE_RETURN_IF_ERROR(
          slabs_[1].expect(offset, unit.weights_bytes, {Content::Kind::kWeights, u, 0, version}, 0));
    }
    const auto& tiles = plan_.held_optimizer[idx(u)];
    for (std::size_t t = 0; t < tiles.size() && unit.trained; ++t) {
      if (tiles[t] == kNoBuffer) continue;
      const auto tile = static_cast<std::int64_t>(t);
      HEADRACE_RETURN_IF_ERROR(slabs_[1].expect(plan_.buffers[idx(tiles[t])].offset,
                                                extent(StateStream::kOptimizer, u, tile),
                                                {Content::Kind::kOptimizer, u, tile, version}, 0));
    }
  }
  return {};
}

}  // namespace headrace::runtime::checking
