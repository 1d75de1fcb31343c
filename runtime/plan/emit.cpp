// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/emit.h"

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "runtime/plan/emit_activations.h"
#include "runtime/plan/emit_tiles.h"

namespace headrace::runtime::planning {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// The last operation of a list: after every write of state or gradients, and after `others`.
void add_commit(std::vector<Operation>& operations, std::vector<OperationId> others) {
  std::erase(others, -1);
  for (std::size_t id = 0; id < operations.size(); ++id)
    if (operations[id].lane == Lane::kNvmeWrite && operations[id].kind != OperationKind::kWriteActivation)
      others.push_back(static_cast<OperationId>(id));
  add_operation(operations, OperationKind::kCommit, Lane::kNvmeWrite, -1).dependencies = std::move(others);
}

// The stages that compute: forward and backward with the moves that serve them. `pending`: a delayed update of the step
// before is made on the way.
class Emitter {
 public:
  Emitter(const EmitInput& input, bool pending)
      : in_(input),
        pending_(pending),
        facts_(*input.facts),
        timeline_(*input.timeline),
        choices_(*input.choices),
        host_(*input.host),
        device_(*input.device) {
    const auto stages = at(timeline_.num_compute);
    reads_.resize(stages);
    copies_.resize(stages);
    leaving_.resize(stages);
    for (std::size_t i = 0; i < host_.runs.size(); ++i) reads_[at(host_.runs[i].start)].push_back(i);
    for (std::size_t i = 0; i < device_.runs.size(); ++i) copies_[at(device_.runs[i].start)].push_back(i);
    for (auto& list : reads_) sort_by_use(list, host_.runs);
    for (auto& list : copies_) sort_by_use(list, device_.runs);
    for (UnitId u = 0; u < facts_.num_units(); ++u)
      for (const Accumulation& accumulation : timeline_.accumulations[at(u)])
        leaving_[at(accumulation.last_stage)].push_back(u);
    host_cursor_ = cursors(host_.runs, facts_.units.size());
    device_cursor_ = cursors(device_.runs, facts_.units.size());
    last_spill_.assign(facts_.units.size(), -1);
    activations_.emplace(in_, operations_);
    if (pending_) delayed_.emplace(in_, UpdatePass::kDelayed, operations_, complete_);
    if (!timeline_.is_eval)
      tiles_.emplace(in_, timeline_.early ? UpdatePass::kEarly : UpdatePass::kAfterNorm, operations_, last_spill_);
  }

  std::vector<Operation> emit() {
    for (std::int32_t s = 0; s < timeline_.num_compute; ++s) {
      start_stage(s);
      compute_stage(s);
      if (timeline_.is_eval) continue;
      // Where gradients leave the device late, so does the update that follows them: memory is given back in this order
      // (early_update_end).
      if (timeline_.early && choices_.overlap_out) update_units_before(s);
      for (const UnitId unit : leaving_[at(s)]) gradient_out(unit, s);
      if (timeline_.early && !choices_.overlap_out && s + 1 < timeline_.num_compute) update_units_before(s + 1);
    }
    if (!timeline_.is_eval) end_step();
    return std::move(operations_);
  }

 private:
  static void sort_by_use(std::vector<std::size_t>& list, const std::vector<Run>& runs) {
    std::stable_sort(list.begin(), list.end(),
                     [&](std::size_t a, std::size_t b) { return runs[a].first < runs[b].first; });
  }

  [[nodiscard]] BufferId host_id(BufferId id) const { return id == kNoBuffer ? kNoBuffer : in_.host_ids[at(id)]; }
  [[nodiscard]] BufferId device_id(BufferId id) const { return id == kNoBuffer ? kNoBuffer : in_.device_ids[at(id)]; }

  Operation& add(OperationKind kind, Lane lane, UnitId unit) { return add_operation(operations_, kind, lane, unit); }
  [[nodiscard]] OperationId last_id() const { return static_cast<OperationId>(operations_.size()) - 1; }
  static void use(Operation& operation, Role role, BufferId buffer, Bytes offset, Bytes bytes, Access access) {
    add_use(operation, role, buffer, offset, bytes, access);
  }

  // Walks a unit's runs visit by visit.
  struct Cursor {
    std::size_t run = 0;
    std::int32_t visit = 0;
  };
  static std::vector<Cursor> cursors(const std::vector<Run>& runs, std::size_t units) {
    std::vector<Cursor> result(units);
    for (std::size_t i = runs.size(); i-- > 0;) result[at(runs[i].unit)].run = i;
    return result;
  }
  static std::size_t next_run(Cursor& cursor, const std::vector<Run>& runs, UnitId unit) {
    while (runs[cursor.run].last_visit < cursor.visit) ++cursor.run;
    HEADRACE_CHECK(runs[cursor.run].unit == unit, "a visit has no weights");
    ++cursor.visit;
    return cursor.run;
  }

  // The host buffer with the weights of the unit for its next visit.
  BufferId host_weights(UnitId unit) {
    if (host_.held_weights[at(unit)] != kNoBuffer) return host_id(host_.held_weights[at(unit)]);
    return host_id(host_.run_buffers[next_run(host_cursor_[at(unit)], host_.runs, unit)]);
  }

  BufferId compute_weights(UnitId unit) {
    if (facts_.unit(unit).weights_bytes == 0) return kNoBuffer;
    if (!facts_.input->force_copies) return host_weights(unit);
    return device_id(device_.run_buffers[next_run(device_cursor_[at(unit)], device_.runs, unit)]);
  }

  void start_stage(std::int32_t s) {
    if (!timeline_.is_eval) {
      for (const UnitId unit : leaving_[at(s)])
        if (choices_.spilled[at(unit)] && timeline_.stage(s).group > 0) read_gradient(unit, timeline_.stage(s).group);
    }
    if (pending_) update_delayed(s);
    for (const std::size_t i : reads_[at(s)]) {
      if (pending_ && host_.runs[i].from_update) continue;
      const UnitId unit = host_.runs[i].unit;
      Operation& read = add(OperationKind::kReadWeights, Lane::kNvmeRead, unit);
      read.group = timeline_.stage(s).group;
      read.bytes = facts_.unit(unit).weights_disk_bytes;
      use(read, Role::kWeights, host_id(host_.run_buffers[i]), 0, facts_.unit(unit).weights_bytes, Access::kOverwrite);
      if (pending_ && timeline_.is_delayed(unit)) read.dependencies.push_back(commit_);  // what it makes current
    }
    for (const std::size_t i : copies_[at(s)]) {
      const UnitId unit = device_.runs[i].unit;
      const BufferId source = host_weights(unit);
      Operation& copy = add(OperationKind::kCopyToDevice, Lane::kHostToDevice, unit);
      copy.group = timeline_.stage(s).group;
      use(copy, Role::kSource, source, 0, facts_.unit(unit).weights_bytes, Access::kRead);
      use(copy, Role::kDestination, device_id(device_.run_buffers[i]), 0, facts_.unit(unit).weights_bytes,
          Access::kOverwrite);
    }
    if (!timeline_.is_eval && host_.ring_ahead && s == first_update_stage()) tiles_->issue_first(timeline_.early);
  }

  // What is due of the delayed updates when stage `s` starts, and the record after the last one.
  void update_delayed(std::int32_t s) {
    const std::vector<DelayedUpdate>& updates = host_.delayed;
    std::size_t due = num_updated_;
    while (due < updates.size() && updates[due].start <= s) ++due;
    if (due == num_updated_) return;
    delayed_->open_units(due);
    for (; num_updated_ < due; ++num_updated_) delayed_->update_next_unit(-1);
    if (due < updates.size()) return;
    add_commit(operations_, {delayed_->last_update()});
    commit_ = last_id();
    tiles_->follow(commit_);
  }

  void compute_stage(std::int32_t s) {
    const Stage& stage = timeline_.stage(s);
    const BufferId weights = compute_weights(stage.unit);
    std::vector<BufferId> used;
    for (const UnitId unit : facts_.info(stage.unit).uses) used.push_back(compute_weights(unit));
    for (std::size_t i = 0; i < stage.micro_batches.size(); ++i) {
      const std::int32_t m = stage.micro_batches[i];
      const bool backward = stage.kind == Stage::Kind::kBackward;
      const std::int64_t time = stage.first_compute() + static_cast<std::int64_t>(i);
      activations_->bring(time);
      Operation& op = add(backward ? OperationKind::kBackward : OperationKind::kForward, Lane::kCompute, stage.unit);
      op.pass = backward ? Pass::kBackward : Pass::kForward;
      op.micro_batch = m;
      op.group = stage.group;
      use(op, Role::kWeights, weights, 0, facts_.unit(stage.unit).weights_bytes, Access::kRead);
      for (std::size_t j = 0; j < used.size(); ++j)
        add_used(op, Role::kUsedWeights, used[j], facts_.unit(facts_.info(stage.unit).uses[j]).weights_bytes,
                 Access::kRead);
      if (stage.unit > 0)
        use(op, Role::kInput,
            device_id((backward ? device_.boundaries_back : device_.boundaries)[at(stage.unit) - 1][at(m)]), 0,
            facts_.info(stage.unit - 1).output_bytes, Access::kRead);
      if (backward) {
        backward_uses(op, s, m == stage.micro_batches.front());
      } else {
        forward_uses(op, s);
      }
      activations_->take(time);
    }
  }

  // Keeps its place in the list even where there is nothing, since used units are told apart by position.
  static void add_used(Operation& op, Role role, BufferId buffer, Bytes bytes, Access access) {
    op.uses.push_back({role, buffer, 0, buffer == kNoBuffer ? 0 : bytes, buffer != kNoBuffer && access != Access::kRead,
                       buffer != kNoBuffer && access != Access::kOverwrite});
  }

  void forward_uses(Operation& op, std::int32_t s) {
    const UnitInfo& info = facts_.info(op.unit);
    use(op, Role::kOutput, device_id(device_.boundaries[at(op.unit)][at(op.micro_batch)]), 0, info.output_bytes,
        Access::kOverwrite);
    use(op, Role::kSaved, device_id(device_.saved[at(op.unit)][at(op.micro_batch)]), 0, info.saved_bytes,
        Access::kOverwrite);
    use(op, Role::kWorkspace, device_id(device_.workspace[at(s)]), 0, info.forward_workspace_bytes, Access::kOverwrite);
  }

  void backward_uses(Operation& op, std::int32_t s, bool first_of_stage) {
    const UnitInfo& info = facts_.info(op.unit);
    use(op, Role::kOutputGradient, device_id(device_.boundary_gradients[at(op.unit)][at(op.micro_batch)]), 0,
        info.output_bytes, Access::kRead);
    if (op.unit > 0)
      use(op, Role::kInputGradient, device_id(device_.boundary_gradients[at(op.unit) - 1][at(op.micro_batch)]), 0,
          facts_.info(op.unit - 1).output_bytes, Access::kOverwrite);
    const BufferId kept = device_.saved_back[at(op.unit)][at(op.micro_batch)];
    const BufferId scratch = device_.scratch_saved[at(s)];
    op.recompute = scratch != kNoBuffer && !info.fused_loss;
    use(op, Role::kSaved, device_id(kept), 0, info.saved_bytes, Access::kRead);
    use(op, Role::kSaved, device_id(scratch), 0, info.saved_bytes, Access::kOverwrite);
    use(op, Role::kWorkspace, device_id(device_.workspace[at(s)]), 0, info.backward_workspace_bytes,
        Access::kOverwrite);
    const auto first = [&](UnitId unit) {
      return first_of_stage && timeline_.accumulations[at(unit)][at(op.group)].first_stage == s;
    };
    if (facts_.unit(op.unit).trained) {
      op.first = first(op.unit);
      use(op, Role::kAccumulator, device_id(device_.accumulators[at(op.unit)][at(op.group)]), 0, info.flat_elements * 4,
          op.first ? Access::kOverwrite : Access::kUpdate);
    }
    for (const UnitId unit : info.uses) {
      const bool trained = facts_.unit(unit).trained;
      if (trained) op.first_used = first(unit);
      add_used(op, Role::kUsedAccumulator,
               trained ? device_id(device_.accumulators[at(unit)][at(op.group)]) : kNoBuffer,
               facts_.info(unit).flat_elements * 4, trained && op.first_used ? Access::kOverwrite : Access::kUpdate);
    }
  }

  void read_gradient(UnitId unit, std::int32_t group) {
    Operation& read = add(OperationKind::kReadGradient, Lane::kNvmeRead, unit);
    read.group = group;
    read.bytes = facts_.unit(unit).gradient_disk_bytes;
    use(read, Role::kGradient, host_id(host_.gradients[at(unit)][at(group)]), 0, facts_.unit(unit).gradient_bytes,
        Access::kOverwrite);
    read.dependencies.push_back(last_spill_[at(unit)]);
  }

  void gradient_out(UnitId unit, std::int32_t s) {
    const std::int32_t group = timeline_.stage(s).group;
    const BufferId gradient = host_id(host_.gradients[at(unit)][at(group)]);
    Operation& out = add(OperationKind::kGradientOut, Lane::kDeviceToHost, unit);
    out.group = group;
    out.first = group == 0;
    out.last = group + 1 == timeline_.num_groups;
    use(out, Role::kAccumulator, device_id(device_.accumulators[at(unit)][at(group)]), 0,
        facts_.info(unit).flat_elements * 4, Access::kRead);
    use(out, Role::kGradient, gradient, 0, facts_.unit(unit).gradient_bytes,
        out.first ? Access::kOverwrite : Access::kUpdate);
    if (out.last) last_out_.push_back(last_id());
    if (!choices_.spilled[at(unit)]) return;
    // An early update takes the whole gradient from memory; where nothing is ever clipped that is the only one.
    if (out.last && timeline_.early && !facts_.input->can_clip) return;
    Operation& write = add(OperationKind::kWriteGradient, Lane::kNvmeWrite, unit);
    write.group = group;
    write.bytes = facts_.unit(unit).gradient_disk_bytes;
    use(write, Role::kGradient, gradient, 0, facts_.unit(unit).gradient_bytes, Access::kRead);
    if (pending_ && timeline_.is_delayed(unit))
      write.dependencies.push_back(commit_);  // its place has the gradient of the step before until then
    last_spill_[at(unit)] = last_id();
  }

  // The stage at whose start the first tiles are read.
  [[nodiscard]] std::int32_t first_update_stage() const {
    return timeline_.early ? timeline_.last_stage(tiles_->units().front()) : timeline_.num_compute - 1;
  }

  // Early updates of the units whose gradient was complete before stage `s`.
  void update_units_before(std::int32_t s) {
    const std::vector<UnitId>& units = tiles_->units();
    for (; num_updated_ < units.size() && timeline_.last_stage(units[num_updated_]) < s; ++num_updated_) {
      tiles_->issue_first(true);
      tiles_->update_next_unit(-1);
    }
  }

  void end_step() {
    tiles_->issue_first(true);
    add(OperationKind::kNorm, Lane::kCpuOptimizer, -1).dependencies = last_out_;
    const OperationId norm = last_id();
    tiles_->update_all(timeline_.early ? -1 : norm);
    if (timeline_.any_delayed()) return;
    add_commit(operations_, {norm, tiles_->last_update()});
  }

  const EmitInput& in_;
  bool pending_;
  const Facts& facts_;
  const Timeline& timeline_;
  const Choices& choices_;
  const HostLayout& host_;
  const DeviceLayout& device_;
  std::vector<Operation> operations_;
  std::vector<std::vector<std::size_t>> reads_, copies_;  // per stage: runs that start with it
  std::vector<std::vector<UnitId>> leaving_;              // per stage: units whose accumulator is complete after it
  std::vector<Cursor> host_cursor_, device_cursor_;       // per unit
  std::vector<OperationId> last_spill_, last_out_;
  std::optional<TileEmitter> tiles_;    // what this step updates itself
  std::optional<TileEmitter> delayed_;  // … and what the one before has left to it
  std::optional<ActivationEmitter> activations_;
  std::size_t num_updated_ = 0;              // units, early or delayed
  OperationId commit_ = -1;                  // of the step before
  const std::vector<OperationId> complete_;  // all that was spilled is, when this step begins
};

}  // namespace

std::vector<Operation> emit_operations(const EmitInput& input) {
  return Emitter(input, input.timeline->any_delayed()).emit();
}

std::vector<Operation> emit_start(const EmitInput& input) { return Emitter(input, false).emit(); }

namespace {

// All updates and the commit, after a step.
std::vector<Operation> emit_updates(const EmitInput& input, UpdatePass pass) {
  std::vector<Operation> operations;
  const std::vector<OperationId> no_spill;  // all of it was complete before
  TileEmitter tiles(input, pass, operations, no_spill);
  tiles.issue_first(true);
  tiles.update_all(-1);
  std::vector<OperationId> before_commit{tiles.last_update()};
  for (std::size_t id = 0; id < operations.size(); ++id)  // some only bring back what is held
    if (operations[id].lane == Lane::kNvmeRead) before_commit.push_back(static_cast<OperationId>(id));
  add_commit(operations, std::move(before_commit));
  return operations;
}

}  // namespace

std::vector<Operation> emit_redo(const EmitInput& input) { return emit_updates(input, UpdatePass::kRedo); }
std::vector<Operation> emit_drain(const EmitInput& input) { return emit_updates(input, UpdatePass::kDrain); }

}  // namespace headrace::runtime::planning
