// SPDX-License-Identifier: Apache-2.0
#include "io/ticket.h"

#include "core/check.h"
#include "io/ticket_state.h"

namespace headrace::io {

void TicketState::finish(std::optional<Error> error) {
  HEADRACE_CHECK(!ready(), "a ticket is finished once");
  if (sink_.notify != nullptr) sink_.notify(sink_.context, sink_.tag);
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);  // seen by ready()
  }
  finished_.notify_all();
}

Result<void> TicketState::wait(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  if (!finished_.wait_until(lock, deadline, [this] { return ready(); })) {
    return make_error(ErrorCode::kIo, "the transfer is still in flight at the end of the time to wait for it");
  }
  if (error_) return *error_;
  return {};
}

Ticket finished_ticket(std::optional<Error> error, CompletionSink sink) {
  if (!error && sink.notify == nullptr) return {};
  auto state = std::make_shared<TicketState>(sink);
  state->finish(std::move(error));
  return Ticket(std::move(state));
}

Ticket::Ticket() noexcept = default;
Ticket::Ticket(std::shared_ptr<TicketState> state) noexcept : state_(std::move(state)) {}
Ticket::Ticket(Ticket&& other) noexcept = default;

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    HEADRACE_CHECK(ready(), "a ticket is overwritten while its transfer is in flight");
    state_ = std::move(other.state_);
  }
  return *this;
}

Ticket::~Ticket() { HEADRACE_CHECK(ready(), "a ticket is destroyed while its transfer is in flight"); }

bool Ticket::ready() const noexcept { return state_ == nullptr || state_->ready(); }

Result<void> Ticket::wait(TimePoint deadline) {
  if (state_ == nullptr) return {};
  return state_->wait(deadline);
}

}  // namespace headrace::io
