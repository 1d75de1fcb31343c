// SPDX-License-Identifier: Apache-2.0
// IoBackend on the kernel's native asynchronous I/O, which people know by the name of its library, libaio. The five
// system calls are made directly: nothing has to be installed, neither to build nor to run. Asynchronous with direct
// I/O only; through the page cache each submit blocks until the bytes are copied.
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include "core/log.h"
#include "io/backends.h"
#include "io/posix.h"

namespace headrace::io {
namespace {

// With fewer requests than this a disk idles between them: better the next backend.
constexpr std::size_t kMinDepth = 16;
constexpr std::size_t kEvents = 64;  // taken per call

int io_setup(unsigned events, aio_context_t* context) noexcept {
  return ::syscall(SYS_io_setup, events, context) == 0 ? 0 : errno;
}

timespec until(TimePoint deadline) noexcept {
  const auto left = std::max(deadline - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero());
  const auto ns = std::min<std::int64_t>(std::chrono::nanoseconds(left).count(), 86'400'000'000'000);
  return {ns / 1'000'000'000, ns % 1'000'000'000};
}

void drain_eventfd(int fd) noexcept {
  std::uint64_t counter = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &counter, sizeof counter);
}

class AioBackend final : public IoBackend {
 public:
  // Sets the context up with as much depth as fs.aio-max-nr leaves; errno or 0.
  int start(std::size_t queue_depth) {
    const std::size_t smallest = std::min(queue_depth, kMinDepth);
    int status = EAGAIN;
    for (depth_ = queue_depth; status == EAGAIN && depth_ >= smallest; depth_ /= 2) {
      status = io_setup(static_cast<unsigned>(depth_), &context_);
      if (status == 0) break;
    }
    if (status != 0) return status;
    if (depth_ < queue_depth) {
      log_info(
          fmt::format("libaio holds {} requests at a time instead of {}: {}", depth_, queue_depth, aio_limit_text()));
    }
    completed_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    woken_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return completed_.valid() && woken_.valid() ? 0 : errno;
  }

  ~AioBackend() override {
    if (context_ != 0) ::syscall(SYS_io_destroy, context_);
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    // A full counter means that the owner is woken already.
    [[maybe_unused]] const ssize_t written = ::write(woken_.get(), &one, sizeof one);
  }

  [[nodiscard]] IoCapabilities capabilities() const noexcept override { return {"libaio", depth_}; }

 protected:
  Result<std::size_t> do_submit(std::span<const IoRequest> requests) override {
    const std::size_t room = depth_ - std::min(depth_, in_flight());
    const std::size_t count = std::min(requests.size(), room);
    blocks_.resize(count);
    pointers_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      blocks_[i] = block_of(requests[i]);
      pointers_[i] = &blocks_[i];
    }
    std::size_t accepted = 0;
    while (accepted < count) {
      const long taken = ::syscall(SYS_io_submit, context_, count - accepted, pointers_.data() + accepted);
      if (taken > 0) {
        accepted += static_cast<std::size_t>(taken);
        continue;
      }
      const int error_number = taken == 0 ? EAGAIN : errno;
      if (error_number == EAGAIN || error_number == EINTR) break;  // busy: what is in flight comes first
      if (error_number == ENOSYS && accepted == 0) {
        return make_error(ErrorCode::kIo, "io_submit: " + errno_text(error_number),
                          "set headrace.io.backend to \"threads\"");
      }
      // The call answers for the first block that it was given: this request fails, the others go on.
      refused_.push_back({requests[accepted].tag, 0, error_number});
      ++accepted;
    }
    return accepted;
  }

  Result<std::size_t> do_reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) override {
    std::size_t count = 0;
    while (count < out.size() && !refused_.empty()) {
      out[count++] = refused_.front();
      refused_.pop_front();
    }
    for (;;) {
      HEADRACE_TRY(const std::size_t taken, take(out.subspan(count)));
      count += taken;
      if (count >= min_count) return count;
      // Both counters are emptied before the events are looked at, so that what comes between is not slept over.
      pollfd sources[2] = {{completed_.get(), POLLIN, 0}, {woken_.get(), POLLIN, 0}};
      const timespec timeout = until(deadline);
      const int ready = ::ppoll(sources, 2, &timeout, nullptr);
      if (ready < 0 && errno != EINTR) return make_error(ErrorCode::kIo, "ppoll: " + errno_text(errno));
      if (ready > 0 && sources[0].revents != 0) drain_eventfd(completed_.get());
      const bool woken = ready > 0 && sources[1].revents != 0;
      if (woken) drain_eventfd(woken_.get());
      if (woken || std::chrono::steady_clock::now() >= deadline) {
        HEADRACE_TRY(const std::size_t last, take(out.subspan(count)));
        return count + last;
      }
    }
  }

 private:
  [[nodiscard]] iocb block_of(const IoRequest& request) const noexcept {
    iocb block{};
    block.aio_data = request.tag;
    block.aio_fildes = static_cast<std::uint32_t>(request.fd);
    block.aio_flags = IOCB_FLAG_RESFD;
    block.aio_resfd = static_cast<std::uint32_t>(completed_.get());
    if (request.operation == IoOperation::kFlush) {
      block.aio_lio_opcode = IOCB_CMD_FDSYNC;
      return block;
    }
    block.aio_lio_opcode = request.operation == IoOperation::kRead ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV;
    block.aio_buf = reinterpret_cast<std::uintptr_t>(request.segments);
    block.aio_nbytes = request.num_segments;
    block.aio_offset = request.offset;
    return block;
  }

  // Takes what has completed, without waiting.
  Result<std::size_t> take(std::span<IoCompletion> out) noexcept {
    std::size_t count = 0;
    while (count < out.size()) {
      io_event events[kEvents];
      timespec no_wait{};
      const std::size_t room = std::min(out.size() - count, kEvents);
      const long taken = ::syscall(SYS_io_getevents, context_, 0L, static_cast<long>(room), events, &no_wait);
      if (taken < 0 && errno == EINTR) continue;
      if (taken < 0) return make_error(ErrorCode::kIo, "io_getevents: " + errno_text(errno));
      for (long i = 0; i < taken; ++i) {
        const std::int64_t result = events[i].res;
        out[count++] = {events[i].data, std::max<std::int64_t>(result, 0), result < 0 ? static_cast<int>(-result) : 0};
      }
      if (static_cast<std::size_t>(taken) < room) break;
    }
    return count;
  }

  aio_context_t context_ = 0;
  std::size_t depth_ = 0;
  UniqueFd completed_;  // counts completions
  UniqueFd woken_;      // counts wake()
  std::vector<iocb> blocks_;
  std::vector<iocb*> pointers_;
  std::deque<IoCompletion> refused_;  // answered by io_submit itself
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_aio_backend(std::size_t queue_depth) {
  auto backend = std::make_unique<AioBackend>();
  if (const int error_number = backend->start(queue_depth); error_number != 0) return aio_refusal(error_number);
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace headrace::io
