// SPDX-License-Identifier: Apache-2.0
// Activations that leave the device between the forward and the backward pass. What is on NVMe belongs to no step that
// was committed: after a death it is lost, and the step begins anew.
#include <cstring>
#include <utility>

#include "core/check.h"
#include "runtime/engine/engine.h"

namespace headrace::runtime {

void Engine::copy_activation(const Operation& operation) {
  const bool out = operation.kind == OperationKind::kActivationOut;
  const BufferUse *device = nullptr, *host = nullptr;
  for (const BufferUse& use : operation.uses)
    (use.role == Role::kSource || use.role == Role::kDestination ? host : device) = &use;
  HEADRACE_CHECK(device != nullptr && host != nullptr && device->bytes == host->bytes, "a copy has two ends");
  std::memcpy(address(out ? *host : *device), address(out ? *device : *host), static_cast<std::size_t>(host->bytes));
}

// The version tells the groups of a step apart, which share the places on disk.
Result<std::vector<io::Ticket>> Engine::start_activation(const Operation& operation, io::CompletionSink sink) {
  const PlanInput& input = plan_.input;
  const auto groups = static_cast<std::uint64_t>(ceil_div(input.micro_batches, input.group_size));
  const std::uint64_t version = settings_.step * groups + static_cast<std::uint64_t>(operation.group);
  const BufferUse& use = operation.uses.front();
  const TileMove move{{operation.unit, use.role == Role::kSaved ? StateStream::kSaved : StateStream::kBoundary,
                       operation.micro_batch % input.group_size},
                      address(use)};
  std::vector<io::Ticket> tickets;
  HEADRACE_TRY(io::Ticket ticket, operation.kind == OperationKind::kReadActivation
                                      ? spill_->load({&move, 1}, version, sink)
                                      : spill_->store({&move, 1}, version, sink));
  tickets.push_back(std::move(ticket));
  return tickets;
}

}  // namespace headrace::runtime
