// SPDX-License-Identifier: Apache-2.0
// Ticket is the move-only completion handle of an asynchronous move. Destroying one that is not finished is a CHECK
// failure.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "core/result.h"

namespace headrace::io {

using TimePoint = std::chrono::steady_clock::time_point;

// Called once, on the thread that completes the work, before the ticket becomes ready; must only post to a queue.
struct CompletionSink {
  void (*notify)(void* context, std::uint64_t tag) noexcept = nullptr;
  void* context = nullptr;
  std::uint64_t tag = 0;
};

class TicketState;  // shared with the completing thread

class Ticket {
 public:
  Ticket() noexcept;  // empty: finished, successful
  explicit Ticket(std::shared_ptr<TicketState> state) noexcept;
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;
  ~Ticket();

  [[nodiscard]] bool ready() const noexcept;
  // Blocks until finished or the deadline passed (kIo error "still in flight", the ticket stays valid). May be called
  // again.
  [[nodiscard]] Result<void> wait(TimePoint deadline);

 private:
  std::shared_ptr<TicketState> state_;
};

}  // namespace headrace::io
