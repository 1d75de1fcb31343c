// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/transfer_loop.h"

#include <utility>

#include "core/check.h"

namespace headrace::profile {

TransferLoop::TransferLoop(io::Queue& queue, std::span<std::byte> memory, Bytes extent_bytes, std::size_t slots)
    : queue_(queue), extent_bytes_(extent_bytes), slots_(slots) {
  HEADRACE_CHECK(slots > 0 && slots * static_cast<std::size_t>(extent_bytes) <= memory.size(),
                 "there is memory for every slot");
  for (std::size_t i = 0; i < slots; ++i) {
    slots_[i].data = memory.data() + i * static_cast<std::size_t>(extent_bytes);
    free_.push_back(slots - 1 - i);
  }
  done_.reserve(slots);
}

TransferLoop::~TransferLoop() {
  // The queue's own deadline bounds each wait; a failure was reported by finish() or belongs to nobody any more.
  for (Slot& slot : slots_) (void)slot.ticket.wait(io::TimePoint::max());
  const std::lock_guard lock(mutex_);  // post() of the last one has left
}

void TransferLoop::post(void* context, std::uint64_t slot) noexcept {
  auto& loop = *static_cast<TransferLoop*>(context);
  const std::lock_guard lock(loop.mutex_);
  loop.done_.push_back(static_cast<std::size_t>(slot));
  loop.posted_.notify_one();
}

void TransferLoop::start(const TileWork& work) {
  HEADRACE_CHECK(!free_.empty(), "start() needs a free slot");
  const std::size_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.work = work;
  std::vector<io::Move> moves(1);
  io::Move& move = moves.front();
  move.operation = work.operation;
  move.file = work.file;
  move.offset = work.offset;
  move.data = slot.data;
  move.bytes = extent_bytes_;
  move.check = io::MoveCheck::kTrailer;
  move.trailer = work.trailer;
  slot.ticket = queue_.submit(std::move(moves), {&TransferLoop::post, this, index});
}

Result<TileWork> TransferLoop::finish() {
  HEADRACE_CHECK(!is_idle(), "finish() needs a tile under way");
  std::size_t index = 0;
  {
    std::unique_lock lock(mutex_);
    posted_.wait(lock, [this] { return !done_.empty(); });  // the queue's deadline bounds it
    index = done_.front();
    done_.erase(done_.begin());
  }
  Slot& slot = slots_[index];
  auto outcome = slot.ticket.wait(io::TimePoint::max());
  free_.push_back(index);
  if (!outcome.ok()) return std::move(outcome).error();
  return slot.work;
}

Result<void> TransferLoop::flush(std::uint32_t file) {
  std::vector<io::Move> moves(1);
  moves.front().operation = io::IoOperation::kFlush;
  moves.front().file = file;
  return queue_.submit(std::move(moves), {}).wait(io::TimePoint::max());
}

}  // namespace headrace::profile
