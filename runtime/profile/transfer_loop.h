// SPDX-License-Identifier: Apache-2.0
// The loop under TransferRun: some buffers, each with one tile under way in a Queue, handed out again as they come
// back. One owner thread; the queue has its own. Internal to runtime/profile.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "io/queue.h"
#include "io/ticket.h"

namespace headrace::profile {

struct TileWork {
  io::IoOperation operation = io::IoOperation::kRead;
  std::uint32_t file = 0;
  std::int64_t offset = 0;
  io::Trailer trailer;
};

class TransferLoop {
 public:
  // One slot per `extent_bytes` of `memory`; `queue` outlives this.
  TransferLoop(io::Queue& queue, std::span<std::byte> memory, Bytes extent_bytes, std::size_t slots);
  ~TransferLoop();  // waits for what is under way
  TransferLoop(const TransferLoop&) = delete;
  TransferLoop& operator=(const TransferLoop&) = delete;

  [[nodiscard]] bool has_free() const noexcept { return !free_.empty(); }
  [[nodiscard]] bool is_idle() const noexcept { return free_.size() == slots_.size(); }
  void start(const TileWork& work);  // into a free slot
  // Waits for the next tile that comes back and gives its work; its slot is free again.
  [[nodiscard]] Result<TileWork> finish();
  [[nodiscard]] Result<void> flush(std::uint32_t file);

 private:
  struct Slot {
    std::byte* data = nullptr;
    TileWork work;
    io::Ticket ticket;
  };
  static void post(void* context, std::uint64_t slot) noexcept;

  io::Queue& queue_;
  Bytes extent_bytes_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;

  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<std::size_t> done_;  // guarded by mutex_; has room for all slots, so that posting never allocates
};

}  // namespace headrace::profile
