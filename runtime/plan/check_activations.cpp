// SPDX-License-Identifier: Apache-2.0
// Activations that leave the device between the passes: to host memory, to their one place on NVMe, and back.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/plan/check_step.h"

namespace headrace::runtime::checking {

namespace {
std::size_t idx(std::int64_t index) { return static_cast<std::size_t>(index); }
}  // namespace

// Which policies let them go where.
Result<void> StepCheck::check_tiers() const {
  const PlanInput& input = plan_.input;
  if (plan_.boundary_tier.size() != units_.size() || plan_.saved_tier.size() != units_.size())
    return fault("a list per unit has another length");
  const bool stay = input.activations == ActivationPolicy::kKeep || input.activations == ActivationPolicy::kRecompute ||
                    input.activations == ActivationPolicy::kMemory;
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    const Tier boundary = plan_.boundary_tier[idx(u)], saved = plan_.saved_tier[idx(u)];
    if (stay && (boundary != Tier::kDevice || saved != Tier::kDevice))
      return fault(fmt::format("activations of unit {} leave memory without leave", u));
    for (const Tier tier : {boundary, saved}) {
      if (tier == Tier::kHost && !input.force_copies)
        return fault(fmt::format("activations of unit {} go to host memory, where they are already", u));
      if (tier == Tier::kNvme && !input.can_spill)
        return fault(fmt::format("activations of unit {} go to NVMe, which has no room for them", u));
    }
    if (boundary != Tier::kDevice && info(u).output_bytes == 0)
      return fault(fmt::format("unit {} has no output that could leave", u));
    if (saved != Tier::kDevice && (info(u).saved_bytes == 0 || !plan_.keep_activations[idx(u)]))
      return fault(fmt::format("unit {} saves nothing that could leave", u));
  }
  return {};
}

Result<StepCheck::Activation> StepCheck::activation_of(const Operation& op) {
  if (op.micro_batch < 0 || op.micro_batch >= micro_batches_) return fault("the micro-batch does not exist");
  if (op.group != op.micro_batch / plan_.input.group_size) return fault("the micro-batch is of another group");
  const auto is_one = [](const BufferUse& use) { return use.role == Role::kOutput || use.role == Role::kSaved; };
  const auto use = std::find_if(op.uses.begin(), op.uses.end(), is_one);
  if (use == op.uses.end()) return fault("moves no activation");
  Activation activation;
  activation.use = &*use;
  activation.is_saved = use->role == Role::kSaved;
  activation.bytes = activation.is_saved ? info(op.unit).saved_bytes : info(op.unit).output_bytes;
  activation.extent = round_up(activation.bytes, plan_.input.alignment);
  activation.tier = (activation.is_saved ? plan_.saved_tier : plan_.boundary_tier)[idx(op.unit)];
  activation.content = {activation.is_saved ? Content::Kind::kSaved : Content::Kind::kBoundary, op.unit, op.micro_batch,
                        0};
  activation.trips = &(activation.is_saved ? state(op.unit).saved_trips : state(op.unit).boundary_trips);
  activation.trips->resize(idx(micro_batches_));
  return activation;
}

// Whole buffers move; only the payload counts.
Result<void> StepCheck::expect_payload(BufferUse use, const Activation& activation) {
  use.bytes = activation.bytes;
  return expect(use, activation.content);
}
void StepCheck::write_payload(BufferUse use, const Activation& activation) {
  write(use, {});
  use.bytes = activation.bytes;
  write(use, activation.content);
}

Result<void> StepCheck::check_activation_copy(const Operation& op) {
  HEADRACE_TRY(const Activation activation, activation_of(op));
  if (activation.tier == Tier::kDevice || !plan_.input.force_copies) return fault("the activation stays on the device");
  const bool out = op.kind == OperationKind::kActivationOut;
  HEADRACE_TRY(const BufferUse* device,
               need(op, activation.use->role, activation.extent, out ? Access::kRead : Access::kOverwrite));
  HEADRACE_TRY(const BufferUse* host, need(op, out ? Role::kDestination : Role::kSource, activation.extent,
                                           out ? Access::kOverwrite : Access::kRead));
  if (plan_.buffers[idx(device->buffer)].tier != Tier::kDevice || plan_.buffers[idx(host->buffer)].tier != Tier::kHost)
    return fault("does not copy between device and host");
  Trip& trip = (*activation.trips)[idx(op.micro_batch)];
  if ((out ? trip.outs : trip.ins)++ > 0) return fault("is done twice");
  HEADRACE_RETURN_IF_ERROR(expect_payload(out ? *device : *host, activation));
  write_payload(out ? *host : *device, activation);
  return {};
}

// The place on disk is one for each position in a group: writes and reads of it take turns.
Result<void> StepCheck::check_activation_transfer(OperationId id) {
  const Operation& op = (*operations_)[idx(id)];
  HEADRACE_TRY(const Activation activation, activation_of(op));
  if (activation.tier != Tier::kNvme) return fault("the activation does not go to NVMe");
  if (op.bytes != on_disk(activation.extent))
    return fault(fmt::format("moves {} bytes instead of {}", op.bytes, on_disk(activation.extent)));
  const bool is_read = op.kind == OperationKind::kReadActivation;
  HEADRACE_TRY(const BufferUse* use,
               need(op, activation.use->role, activation.extent, is_read ? Access::kOverwrite : Access::kRead));
  const Tier memory = plan_.input.force_copies ? Tier::kHost : Tier::kDevice;
  if (plan_.buffers[idx(use->buffer)].tier != memory) return fault("moves bytes of the wrong tier");
  Trip& trip = (*activation.trips)[idx(op.micro_batch)];
  if (is_read) {
    if (trip.write < 0) return fault("reads what was not written");
    if (!order_->holds(trip.write, id)) return fault("may start before the write of it is complete");
    if (trip.read >= 0) return fault("is done twice");
    trip.read = id;
    read_bytes_ += op.bytes;
    activation_bytes_.first += op.bytes;
    write_payload(*use, activation);
    return {};
  }
  if (trip.write >= 0) return fault("is done twice");
  if (op.micro_batch >= plan_.input.group_size) {  // the group before had the place
    const Trip& before = (*activation.trips)[idx(op.micro_batch - plan_.input.group_size)];
    if (before.read < 0 || !order_->holds(before.read, id))
      return fault("overwrites an activation that may still be read");
  }
  HEADRACE_RETURN_IF_ERROR(expect_payload(*use, activation));
  trip.write = id;
  written_bytes_ += op.bytes;
  activation_bytes_.second += op.bytes;
  return {};
}

// Everything that leaves has come back.
Result<void> StepCheck::check_trips() const {
  for (UnitId u = 0; u < static_cast<UnitId>(units_.size()); ++u) {
    const UnitState& unit = units_[idx(u)];
    for (const auto& [tier, trips] : {std::pair{plan_.boundary_tier[idx(u)], &unit.boundary_trips},
                                      std::pair{plan_.saved_tier[idx(u)], &unit.saved_trips}}) {
      if (tier == Tier::kDevice) continue;
      const auto complete = [&, tier = tier](const Trip& trip) {
        const int copies = plan_.input.force_copies ? 1 : 0;
        return trip.outs == copies && trip.ins == copies && (trip.read >= 0) == (tier == Tier::kNvme);
      };
      if (trips->size() != idx(micro_batches_) || !std::all_of(trips->begin(), trips->end(), complete))
        return fault(fmt::format("an activation of unit {} does not leave and come back once", u));
    }
  }
  if (activation_bytes_ != std::pair{plan_.activation_read_bytes, plan_.activation_write_bytes})
    return fault(fmt::format("{} and {} bytes of activations are read and written, the plan says {} and {}",
                             activation_bytes_.first, activation_bytes_.second, plan_.activation_read_bytes,
                             plan_.activation_write_bytes));
  return {};
}

}  // namespace headrace::runtime::checking
