// SPDX-License-Identifier: Apache-2.0
// Computation: forward, backward, gradients.
#include "runtime/plan/check_step.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::runtime::checking {

namespace {
std::size_t idx(std::int64_t index) { return static_cast<std::size_t>(index); }
}  // namespace

StepCheck::StepCheck(const Plan& plan, const std::vector<Operation>& operations, const Order& order, bool is_eval)
    : plan_(plan),
      operations_(&operations),
      order_(&order),
      is_eval_(is_eval),
      micro_batches_(is_eval ? plan.input.eval_micro_batches : plan.input.micro_batches) {
  const PlanInput& input = plan.input;
  const bool has_master = input.state_format == cpu_adam::StateFormat::kFp32 && input.weights_dtype != DType::kFp32;
  units_.resize(input.model.units.size());
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    UnitState& unit = units_[idx(u)];
    const std::int64_t tiles = num_tiles(input, u);
    const auto frozen =
        std::count_if(info(u).tensors.begin(), info(u).tensors.end(), [](const TensorInfo& t) { return t.frozen; });
    unit.trained = tiles > 0 && idx(frozen) < info(u).tensors.size();
    unit.weights_needed_by_update = !has_master || frozen > 0;
    unit.delayed = is_delayed() && idx(u) < plan.update_delayed.size() && plan.update_delayed[idx(u)];
    for (std::int64_t t = 0; t < tiles; ++t) {
      unit.weights_bytes += extent(StateStream::kWeights, u, t);
      unit.weights_disk_bytes += on_disk(extent(StateStream::kWeights, u, t));
      unit.gradient_bytes += extent(StateStream::kGradient, u, t);
      unit.gradient_disk_bytes += on_disk(extent(StateStream::kGradient, u, t));
    }
    unit.contributors.push_back(u);
    unit.forward_done.assign(idx(micro_batches_), false);
    unit.backward_done = unit.forward_done;
    unit.state_reads.assign(idx(tiles), 0);
    unit.updates = unit.state_writes = unit.state_reads;
  }
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u)
    for (const UnitId used : info(u).uses) units_[idx(used)].contributors.push_back(u);
}

Result<void> StepCheck::run() {
  HEADRACE_RETURN_IF_ERROR(check_tiers());
  HEADRACE_RETURN_IF_ERROR(load_held());
  HEADRACE_RETURN_IF_ERROR(check_all());
  return check_end();
}

Result<void> StepCheck::check_all() {
  const char* const list = is_eval_                  ? "evaluation, "
                           : phase_ == Phase::kStep  ? ""
                           : phase_ == Phase::kStart ? "first step, "
                           : phase_ == Phase::kDrain ? "drain, "
                                                     : "redo, ";
  const bool is_step = phase_ == Phase::kStep || phase_ == Phase::kStart;
  for (OperationId id = 0; id < static_cast<OperationId>(operations_->size()); ++id)
    if (auto result = is_step ? check(id) : check_in_redo(id); !result.ok()) {
      Error error = std::move(result).error();
      const std::string prefix = "the plan is wrong: ";
      const std::string what =
          error.message.rfind(prefix, 0) == 0 ? error.message.substr(prefix.size()) : error.message;
      return fault(fmt::format("{}{}: {}", list, checking::describe(*operations_, id), what));
    }
  return {};
}

Result<void> StepCheck::check(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  const bool needs_unit = op.kind != OperationKind::kNorm && op.kind != OperationKind::kCommit;
  if (needs_unit && (op.unit < 0 || idx(op.unit) >= units_.size())) return fault("the unit does not exist");
  const bool only_in_step = op.kind != OperationKind::kForward && op.kind != OperationKind::kReadWeights &&
                            op.kind != OperationKind::kCopyToDevice;
  if (is_eval_ && only_in_step) return fault("an evaluation does not do that");
  HEADRACE_RETURN_IF_ERROR(check_place_of_commit(op));
  switch (op.kind) {
    case OperationKind::kReadWeights: return check_read_weights(id);
    case OperationKind::kReadState: return check_read_state(id);
    case OperationKind::kReadGradient:
    case OperationKind::kWriteGradient: return check_spill(id);
    case OperationKind::kWriteState: return check_write_state(id);
    case OperationKind::kCopyToDevice: return check_copy(op);
    case OperationKind::kActivationOut:
    case OperationKind::kActivationIn: return check_activation_copy(op);
    case OperationKind::kReadActivation:
    case OperationKind::kWriteActivation: return check_activation_transfer(id);
    case OperationKind::kForward:
    case OperationKind::kBackward: return check_compute(op);
    case OperationKind::kGradientOut:
      if (op.last) last_outs_.push_back(id);
      return check_gradient_out(op);
    case OperationKind::kNorm: return check_norm(id);
    case OperationKind::kUpdate: return check_update(id);
    case OperationKind::kCopyState: return check_copy_state(op);
    case OperationKind::kCommit: return check_commit(id);
  }
  return {};
}

Result<const BufferUse*> StepCheck::need(const Operation& op, Role role, Bytes bytes, Access access) const {
  const BufferUse* found = nullptr;
  for (const BufferUse& use : op.uses) {
    if (use.role != role) continue;
    if (found != nullptr) return fault(fmt::format("role {} is there twice", static_cast<int>(role)));
    found = &use;
  }
  if (found == nullptr || found->buffer == kNoBuffer)
    return fault(fmt::format("role {} is missing", static_cast<int>(role)));
  if (found->bytes != bytes)
    return fault(fmt::format("role {} has {} bytes instead of {}", static_cast<int>(role), found->bytes, bytes));
  if (found->read != (access != Access::kOverwrite) || found->write != (access != Access::kRead))
    return fault(fmt::format("role {} is read or written as it should not be", static_cast<int>(role)));
  return found;
}

Result<void> StepCheck::none(const Operation& op, Role role) const {
  for (const BufferUse& use : op.uses)
    if (use.role == role) return fault(fmt::format("role {} should not be there", static_cast<int>(role)));
  return {};
}

Memory& StepCheck::memory_of(const BufferUse& use) {
  return slabs_[plan_.buffers[idx(use.buffer)].tier == Tier::kHost ? 1 : 0];
}
Bytes StepCheck::begin_of(const BufferUse& use) const { return plan_.buffers[idx(use.buffer)].offset + use.offset; }
Result<void> StepCheck::expect(const BufferUse& use, const Content& content, Bytes from) {
  return memory_of(use).expect(begin_of(use), use.bytes, stamped(content), from);
}
void StepCheck::write(const BufferUse& use, const Content& content, Bytes from) {
  memory_of(use).write(begin_of(use), use.bytes, stamped(content), from);
}
const UnitInfo& StepCheck::info(UnitId unit) const { return plan_.input.model.units[idx(unit)]; }
StepCheck::UnitState& StepCheck::state(UnitId unit) { return units_[idx(unit)]; }
const StepCheck::UnitState& StepCheck::state(UnitId unit) const { return units_[idx(unit)]; }
std::int32_t StepCheck::num_groups() const noexcept {
  return static_cast<std::int32_t>(ceil_div(plan_.input.micro_batches, plan_.input.group_size));
}

Result<void> StepCheck::check_compute(const Operation& op) {
  if (op.micro_batch < 0 || op.micro_batch >= micro_batches_) return fault("the micro-batch does not exist");
  if (!is_eval_ && op.group != op.micro_batch / plan_.input.group_size)
    return fault("the micro-batch is of another group");
  const Tier tier = plan_.input.force_copies ? Tier::kDevice : Tier::kHost;
  std::vector<std::pair<UnitId, const BufferUse*>> weights;
  if (state(op.unit).weights_bytes > 0) {
    HEADRACE_TRY(const BufferUse* own, need(op, Role::kWeights, state(op.unit).weights_bytes, Access::kRead));
    weights.emplace_back(op.unit, own);
  }
  std::size_t position = 0;
  for (const BufferUse& use : op.uses) {
    if (use.role != Role::kUsedWeights) continue;
    if (position == info(op.unit).uses.size()) return fault("more used weights than the unit uses");
    const UnitId used = info(op.unit).uses[position++];
    if (use.bytes != state(used).weights_bytes || use.write)
      return fault(fmt::format("used weights of unit {} differ in size", used));
    if (use.bytes > 0) weights.emplace_back(used, &use);
  }
  if (position != info(op.unit).uses.size()) return fault("used weights are missing");
  for (const auto& [unit, use] : weights) {
    if (plan_.buffers[idx(use->buffer)].tier != tier) return fault("weights are read from the wrong tier");
    HEADRACE_RETURN_IF_ERROR(expect(*use, weights_of(unit)));
  }
  const Bytes input_bytes = op.unit > 0 ? info(op.unit - 1).output_bytes : 0;
  if (input_bytes > 0) {
    HEADRACE_TRY(const BufferUse* input, need(op, Role::kInput, input_bytes, Access::kRead));
    if (plan_.buffers[idx(input->buffer)].tier != Tier::kDevice) return fault("its input is not on the device");
    HEADRACE_RETURN_IF_ERROR(expect(*input, {Content::Kind::kBoundary, op.unit - 1, op.micro_batch, 0}));
  } else {
    HEADRACE_RETURN_IF_ERROR(none(op, Role::kInput));
  }
  const bool backward = op.kind == OperationKind::kBackward;
  if (op.pass != (backward ? Pass::kBackward : Pass::kForward)) return fault("the pass is not that of the kind");
  const Bytes workspace = backward ? info(op.unit).backward_workspace_bytes : info(op.unit).forward_workspace_bytes;
  if (workspace > 0) {
    HEADRACE_TRY(const BufferUse* use, need(op, Role::kWorkspace, workspace, Access::kOverwrite));
    write(*use, {});
  }
  return backward ? check_backward(op) : check_forward(op);
}

Result<void> StepCheck::check_forward(const Operation& op) {
  if (!is_eval_ && info(op.unit).fused_loss) return fault("training needs no forward pass of the unit with the loss");
  auto done = state(op.unit).forward_done.begin() + op.micro_batch;
  if (*done) return fault("is done twice");
  *done = true;
  const Bytes output_bytes = info(op.unit).output_bytes;
  if (output_bytes > 0) {
    HEADRACE_TRY(const BufferUse* output, need(op, Role::kOutput, output_bytes, Access::kOverwrite));
    write(*output, {Content::Kind::kBoundary, op.unit, op.micro_batch, 0});
  } else {
    HEADRACE_RETURN_IF_ERROR(none(op, Role::kOutput));
  }
  if (is_eval_ || info(op.unit).saved_bytes == 0 || !plan_.keep_activations[idx(op.unit)])
    return none(op, Role::kSaved);
  HEADRACE_TRY(const BufferUse* saved, need(op, Role::kSaved, info(op.unit).saved_bytes, Access::kOverwrite));
  write(*saved, {Content::Kind::kSaved, op.unit, op.micro_batch, 0});
  return {};
}

Result<void> StepCheck::check_backward(const Operation& op) {
  UnitState& unit = state(op.unit);
  if (!info(op.unit).fused_loss && !unit.forward_done[idx(op.micro_batch)]) return fault("comes before its forward");
  if (unit.backward_done[idx(op.micro_batch)]) return fault("is done twice");
  unit.backward_done[idx(op.micro_batch)] = true;
  if (info(op.unit).output_bytes > 0) {
    HEADRACE_TRY(const BufferUse* gradient, need(op, Role::kOutputGradient, info(op.unit).output_bytes, Access::kRead));
    HEADRACE_RETURN_IF_ERROR(expect(*gradient, {Content::Kind::kBoundaryGradient, op.unit, op.micro_batch, 0}));
  }
  const Bytes input_bytes = op.unit > 0 ? info(op.unit - 1).output_bytes : 0;
  if (input_bytes > 0) {
    HEADRACE_TRY(const BufferUse* gradient, need(op, Role::kInputGradient, input_bytes, Access::kOverwrite));
    write(*gradient, {Content::Kind::kBoundaryGradient, op.unit - 1, op.micro_batch, 0});
  }
  HEADRACE_RETURN_IF_ERROR(check_saved(op));
  return check_accumulation(op);
}

Result<void> StepCheck::check_saved(const Operation& op) {
  const Bytes bytes = info(op.unit).saved_bytes;
  if (bytes == 0) return op.recompute ? Result<void>(fault("makes nothing again")) : Result<void>();
  const bool scratch = op.recompute || info(op.unit).fused_loss;
  if (op.recompute && plan_.keep_activations[idx(op.unit)]) return fault("activations are kept and made again");
  HEADRACE_TRY(const BufferUse* saved, need(op, Role::kSaved, bytes, scratch ? Access::kOverwrite : Access::kRead));
  if (plan_.buffers[idx(saved->buffer)].tier != Tier::kDevice) return fault("what was saved is not on the device");
  if (!scratch) return expect(*saved, {Content::Kind::kSaved, op.unit, op.micro_batch, 0});
  write(*saved, {});
  return {};
}

Result<void> StepCheck::check_accumulation(const Operation& op) {
  if (state(op.unit).trained) {
    const Bytes bytes = info(op.unit).flat_elements * 4;
    HEADRACE_TRY(const BufferUse* own,
                 need(op, Role::kAccumulator, bytes, op.first ? Access::kOverwrite : Access::kUpdate));
    HEADRACE_RETURN_IF_ERROR(contribute(op, op.unit, own, op.first));
  } else {
    HEADRACE_RETURN_IF_ERROR(none(op, Role::kAccumulator));
  }
  std::size_t position = 0;
  for (const BufferUse& use : op.uses) {
    if (use.role != Role::kUsedAccumulator) continue;
    if (position == info(op.unit).uses.size()) return fault("more used accumulators than the unit uses");
    const UnitId owner = info(op.unit).uses[position++];
    if (!state(owner).trained) {
      if (use.bytes > 0) return fault(fmt::format("adds to the gradient of the frozen unit {}", owner));
      continue;
    }
    if (use.bytes != info(owner).flat_elements * 4 || !use.write || use.read == op.first_used)
      return fault(fmt::format("adds to the gradient of unit {} in the wrong way", owner));
    HEADRACE_RETURN_IF_ERROR(contribute(op, owner, &use, op.first_used));
  }
  return position == info(op.unit).uses.size() ? Result<void>() : Result<void>(fault("a used accumulator is missing"));
}

Result<void> StepCheck::contribute(const Operation& op, UnitId owner, const BufferUse* use, bool first) {
  UnitState& unit = state(owner);
  if (unit.groups_out != op.group)
    return fault(fmt::format("the gradient of unit {} has left group {}", owner, op.group));
  Content content{Content::Kind::kAccumulator, owner, op.group, unit.group_contributions};
  if (first != (unit.group_contributions == 0))
    return fault(fmt::format("is {} first to add to the gradient of unit {}", first ? "not" : "the", owner));
  if (!first) HEADRACE_RETURN_IF_ERROR(expect(*use, content));
  if (!unit.contributed.emplace(op.unit, op.micro_batch).second)
    return fault(fmt::format("adds twice to the gradient of unit {}", owner));
  content.version = ++unit.group_contributions;
  write(*use, content);
  return {};
}

Result<void> StepCheck::check_gradient_out(const Operation& op) {
  UnitState& unit = state(op.unit);
  if (!unit.trained) return fault("the unit is frozen");
  if (op.group != unit.groups_out || op.group >= num_groups()) return fault("is out of turn");
  if (op.first != (op.group == 0) || op.last != (op.group + 1 == num_groups())) return fault("first or last is wrong");
  const std::int32_t begin = op.group * plan_.input.group_size;
  const std::int32_t end = std::min(begin + plan_.input.group_size, micro_batches_);
  for (const UnitId contributor : unit.contributors)
    for (std::int32_t m = begin; m < end; ++m)
      if (unit.contributed.count({contributor, m}) == 0)
        return fault(fmt::format("lacks what unit {} adds in micro-batch {}", contributor, m));
  HEADRACE_TRY(const BufferUse* accumulator,
               need(op, Role::kAccumulator, info(op.unit).flat_elements * 4, Access::kRead));
  HEADRACE_RETURN_IF_ERROR(
      expect(*accumulator, {Content::Kind::kAccumulator, op.unit, op.group, unit.group_contributions}));
  HEADRACE_TRY(const BufferUse* gradient,
               need(op, Role::kGradient, unit.gradient_bytes, op.first ? Access::kOverwrite : Access::kUpdate));
  if (!op.first) HEADRACE_RETURN_IF_ERROR(expect(*gradient, {Content::Kind::kGradient, op.unit, 0, op.group}));
  write(*gradient, {Content::Kind::kGradient, op.unit, 0, op.group + 1});
  unit.groups_out = op.group + 1;
  unit.group_contributions = 0;
  return {};
}

Result<void> StepCheck::check_copy(const Operation& op) {
  const Bytes bytes = state(op.unit).weights_bytes;
  HEADRACE_TRY(const BufferUse* source, need(op, Role::kSource, bytes, Access::kRead));
  HEADRACE_TRY(const BufferUse* destination, need(op, Role::kDestination, bytes, Access::kOverwrite));
  if (plan_.buffers[idx(source->buffer)].tier != Tier::kHost ||
      plan_.buffers[idx(destination->buffer)].tier != Tier::kDevice)
    return fault("does not copy from host to device");
  HEADRACE_RETURN_IF_ERROR(expect(*source, weights_of(op.unit)));
  write(*destination, weights_of(op.unit));
  return {};
}

}  // namespace headrace::runtime::checking
