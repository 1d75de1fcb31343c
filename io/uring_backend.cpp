// SPDX-License-Identifier: Apache-2.0
// IoBackend on io_uring. Files are not registered with the ring: a registered file stays open until the kernel has torn
// the ring down, which would hold the lock of a volume past its close.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "io/backends.h"
#include "io/posix.h"

namespace headrace::io {
namespace {

constexpr std::uint64_t kWakeUserData = ~std::uint64_t{0};
// From here on a request is started by one of the ring's kernel threads and not by the owner: large ones are put
// together on several cores then (measured: docs/storage.md), small ones would only wait for the thread.
constexpr Bytes kWorkerBytes = 256 * kKiB;

Bytes length_of(const IoRequest& request) noexcept {
  Bytes bytes = 0;
  for (std::uint32_t i = 0; i < request.num_segments; ++i) bytes += static_cast<Bytes>(request.segments[i].iov_len);
  return bytes;
}

__kernel_timespec until(TimePoint deadline) noexcept {
  const auto left = std::max(deadline - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero());
  // A day at most: far deadlines must not overflow the kernel's clock arithmetic.
  const auto ns = std::min<std::int64_t>(std::chrono::nanoseconds(left).count(), 86'400'000'000'000);
  return {ns / 1'000'000'000, ns % 1'000'000'000};
}

class UringBackend final : public IoBackend {
 public:
  // Sets the ring up; errno or 0.
  int start(std::size_t queue_depth) {
    queue_depth_ = queue_depth;
    io_uring_params parameters{};
    parameters.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CLAMP;
    int status = initialise(&parameters);
    if (status == -EINVAL) {  // kernels before 5.19 do not know COOP_TASKRUN
      parameters = {};
      parameters.flags = IORING_SETUP_CLAMP;
      status = initialise(&parameters);
    }
    if (status < 0) return -status;
    has_ring_ = true;
    queue_depth_ = std::min<std::size_t>(queue_depth, parameters.sq_entries);
    requests_.resize(queue_depth_);
    for (std::size_t i = queue_depth_; i > 0; --i) free_.push_back(i - 1);
    if ((parameters.features & IORING_FEAT_EXT_ARG) == 0) return ENOSYS;  // waiting with a deadline needs Linux 5.11
    wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return wake_fd_.valid() ? 0 : errno;
  }

  ~UringBackend() override {
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    // A full counter means that the owner is woken already.
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
  }

  [[nodiscard]] IoCapabilities capabilities() const noexcept override { return {"io_uring", queue_depth_}; }

 protected:
  Result<std::size_t> do_submit(std::span<const IoRequest> requests) override {
    if (broken_errno_ != 0) return broken("io_uring_enter", broken_errno_);
    const std::size_t room = queue_depth_ - std::min(queue_depth_, in_flight());
    std::size_t accepted = 0;
    while (accepted < requests.size() && accepted < room) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) break;
      const std::size_t slot = free_.back();
      free_.pop_back();
      requests_[slot] = requests[accepted];
      prepare(sqe, slot);
      ++accepted;
    }
    broken_errno_ =
        enter();  // reported by the next call: some of these may be in the kernel, so they count as accepted
    return accepted;
  }

  Result<std::size_t> do_reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) override {
    bool woken = false;
    std::size_t count = take(out, woken);
    while (count < min_count && !woken) {
      if (!wake_armed_) arm_wake();
      if (broken_errno_ == 0) broken_errno_ = enter();
      if (broken_errno_ != 0) return broken("io_uring_enter", broken_errno_);
      __kernel_timespec timeout = until(deadline);
      io_uring_cqe* cqe = nullptr;
      const int status = io_uring_wait_cqes(&ring_, &cqe, 1, &timeout, nullptr);
      if (status < 0 && status != -ETIME && status != -EINTR && status != -EAGAIN) {
        return broken("io_uring_wait_cqes", -status);
      }
      count += take(out.subspan(count), woken);
      if (std::chrono::steady_clock::now() >= deadline) break;
    }
    return count;
  }

 private:
  int initialise(io_uring_params* parameters) {
    // The kernel returns the locked memory of closed rings late: a few tries before ENOMEM is believed.
    constexpr int kTries = 5;
    int status = 0;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      status = io_uring_queue_init_params(static_cast<unsigned>(queue_depth_ + 1), &ring_, parameters);
      if (status != -ENOMEM) break;
      ::usleep(10'000);
    }
    return status;
  }

  void prepare(io_uring_sqe* sqe, std::size_t slot) noexcept {
    const IoRequest& request = requests_[slot];
    const auto offset = static_cast<std::uint64_t>(request.offset);
    switch (request.operation) {
      case IoOperation::kRead:
        io_uring_prep_readv(sqe, request.fd, request.segments, request.num_segments, offset);
        break;
      case IoOperation::kWrite:
        io_uring_prep_writev(sqe, request.fd, request.segments, request.num_segments, offset);
        break;
      case IoOperation::kFlush: io_uring_prep_fsync(sqe, request.fd, IORING_FSYNC_DATASYNC); break;
    }
    if (has_workers_ && length_of(request) >= kWorkerBytes) io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
    io_uring_sqe_set_data64(sqe, slot);
  }

  void arm_wake() noexcept {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;  // the ring is full of requests; their completions come first
    io_uring_prep_poll_add(sqe, wake_fd_.get(), POLLIN);
    io_uring_sqe_set_data64(sqe, kWakeUserData);
    wake_armed_ = true;
  }

  // Hands prepared entries to the kernel; what it cannot take now stays in the ring and goes with the next call.
  int enter() noexcept {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int status = io_uring_submit(&ring_);
      if (status == -EINTR) continue;
      if (status == -EAGAIN || status == -EBUSY || status == 0) return 0;
      if (status < 0) return -status;
    }
    return 0;
  }

  std::size_t take(std::span<IoCompletion> out, bool& woken) noexcept {
    std::size_t count = 0;
    io_uring_cqe* cqe = nullptr;
    while (count < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      if (cqe->user_data == kWakeUserData) {
        wake_armed_ = false;
        woken = true;
        std::uint64_t counter = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_fd_.get(), &counter, sizeof counter);
      } else {
        const std::size_t slot = cqe->user_data;
        out[count++] = outcome(requests_[slot], cqe->res);
        free_.push_back(slot);
      }
      io_uring_cqe_seen(&ring_, cqe);
    }
    return count;
  }

  IoCompletion outcome(const IoRequest& request, int result) noexcept {
    if (result == -ECANCELED) {  // nobody cancels: the kernel could not make a thread (a limit on processes)
      has_workers_ = false;
      return execute_request(request);
    }
    return {request.tag, std::max(result, 0), result < 0 ? -result : 0};
  }

  static Error broken(const char* call, int error_number) {
    return make_error(ErrorCode::kIo, std::string(call) + ": " + errno_text(error_number),
                      "set headrace.io.backend to \"threads\" to run without io_uring");
  }

  io_uring ring_{};
  bool has_ring_ = false;
  bool wake_armed_ = false;
  bool has_workers_ = true;
  int broken_errno_ = 0;
  std::size_t queue_depth_ = 0;
  std::vector<IoRequest> requests_;  // in flight, by the number that goes with them
  std::vector<std::size_t> free_;    // numbers
  UniqueFd wake_fd_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend(std::size_t queue_depth) {
  auto backend = std::make_unique<UringBackend>();
  if (const int error_number = backend->start(queue_depth); error_number != 0) return uring_refusal(error_number);
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace headrace::io
