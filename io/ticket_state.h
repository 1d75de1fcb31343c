// SPDX-License-Identifier: Apache-2.0
// The shared half of a Ticket: written once by the thread that completes the work, read by the holder. Internal to io.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "core/result.h"
#include "io/ticket.h"

namespace headrace::io {

// Thread-safe.
class TicketState {
 public:
  explicit TicketState(CompletionSink sink) noexcept : sink_(sink) {}

  // Notifies the sink, then makes the ticket ready. Called exactly once.
  void finish(std::optional<Error> error);

  [[nodiscard]] bool ready() const noexcept { return done_.load(std::memory_order_acquire); }  // sees finish()'s store
  [[nodiscard]] Result<void> wait(TimePoint deadline);

 private:
  CompletionSink sink_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::optional<Error> error_;  // written before done_ is set, never after
  std::atomic<bool> done_{false};
};

// A ticket that is finished already.
[[nodiscard]] Ticket finished_ticket(std::optional<Error> error, CompletionSink sink);

}  // namespace headrace::io
