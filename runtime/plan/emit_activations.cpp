// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/emit_activations.h"

#include <algorithm>

#include "runtime/plan/emit_tiles.h"

namespace headrace::runtime::planning {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Role role_of(const ActivationMove& move) { return move.stream == StateStream::kSaved ? Role::kSaved : Role::kOutput; }

}  // namespace

ActivationEmitter::ActivationEmitter(const EmitInput& input, std::vector<Operation>& operations)
    : in_(input), operations_(operations) {
  const std::vector<ActivationMove>& moves = input.device->moves;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    made_[moves[i].made].push_back(i);
    if (moves[i].tier == Tier::kNvme) read_[moves[i].read].push_back(i);
    if (input.facts->input->force_copies) copied_[moves[i].copied].push_back(i);
  }
  for (Moves* const list : {&read_, &copied_})
    for (auto& [time, indices] : *list)
      std::sort(indices.begin(), indices.end(),
                [&](std::size_t a, std::size_t b) { return moves[a].used < moves[b].used; });
}

void ActivationEmitter::take(std::int64_t time) {
  if (const auto found = made_.find(time); found != made_.end())
    for (const std::size_t i : found->second) out(i);
}

void ActivationEmitter::bring(std::int64_t time) {
  if (const auto found = read_.find(time); found != read_.end())
    for (const std::size_t i : found->second) read(i);
  if (const auto found = copied_.find(time); found != copied_.end())
    for (const std::size_t i : found->second) in(i);
}

BufferId ActivationEmitter::device_buffer(const ActivationMove& move, bool back) const {
  const DeviceLayout& device = *in_.device;
  const auto& buffers = move.stream == StateStream::kSaved ? (back ? device.saved_back : device.saved)
                                                           : (back ? device.boundaries_back : device.boundaries);
  return in_.device_ids[at(buffers[at(move.unit)][at(move.micro_batch)])];
}

Operation& ActivationEmitter::add(OperationKind kind, Lane lane, const ActivationMove& move) {
  Operation& op = add_operation(operations_, kind, lane, move.unit);
  op.micro_batch = move.micro_batch;
  op.group = move.group;
  return op;
}

ActivationEmitter::Place& ActivationEmitter::place_of(const ActivationMove& move) {
  return places_[{move.unit, {move.stream, move.micro_batch % in_.timeline->group_size}}];
}

void ActivationEmitter::out(std::size_t index) {
  const ActivationMove& move = in_.device->moves[index];
  BufferId source = device_buffer(move, false);
  if (in_.facts->input->force_copies) {
    const BufferId host = in_.host_ids[at(in_.host->activations_out[index])];
    Operation& copy = add(OperationKind::kActivationOut, Lane::kDeviceToHost, move);
    add_use(copy, role_of(move), source, 0, move.bytes, Access::kRead);
    add_use(copy, Role::kDestination, host, 0, move.bytes, Access::kOverwrite);
    source = host;
  }
  if (move.tier != Tier::kNvme) return;
  Place& place = place_of(move);
  Operation& write = add(OperationKind::kWriteActivation, Lane::kNvmeWrite, move);
  write.bytes = move.disk_bytes;
  add_use(write, role_of(move), source, 0, move.bytes, Access::kRead);
  if (place.read >= 0) write.dependencies.push_back(place.read);  // of the group before
  place = {static_cast<OperationId>(operations_.size()) - 1, -1};
}

void ActivationEmitter::read(std::size_t index) {
  const ActivationMove& move = in_.device->moves[index];
  const BufferId destination =
      in_.facts->input->force_copies ? in_.host_ids[at(in_.host->activations_in[index])] : device_buffer(move, true);
  Place& place = place_of(move);
  Operation& read = add(OperationKind::kReadActivation, Lane::kNvmeRead, move);
  read.bytes = move.disk_bytes;
  add_use(read, role_of(move), destination, 0, move.bytes, Access::kOverwrite);
  read.dependencies.push_back(place.write);
  place.read = static_cast<OperationId>(operations_.size()) - 1;
}

void ActivationEmitter::in(std::size_t index) {
  const ActivationMove& move = in_.device->moves[index];
  Operation& copy = add(OperationKind::kActivationIn, Lane::kHostToDevice, move);
  add_use(copy, Role::kSource, in_.host_ids[at(in_.host->activations_in[index])], 0, move.bytes, Access::kRead);
  add_use(copy, role_of(move), device_buffer(move, true), 0, move.bytes, Access::kOverwrite);
}

}  // namespace headrace::runtime::planning
