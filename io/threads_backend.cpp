// SPDX-License-Identifier: Apache-2.0
// IoBackend on a few threads that call preadv2, pwritev2 and fdatasync: works wherever files work.
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "io/backends.h"
#include "io/posix.h"

namespace headrace::io {
namespace {

// Fewer threads leave one disk idle between calls; more only switch contexts, since each call moves up to a block.
// One owner thread for submit and reap; the workers below are its own.
class ThreadsBackend final : public IoBackend {
 public:
  ThreadsBackend(std::size_t queue_depth, int threads) : queue_depth_(queue_depth) {
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~ThreadsBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_available_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void wake() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    completed_.notify_one();
  }

  [[nodiscard]] IoCapabilities capabilities() const noexcept override { return {"threads", queue_depth_}; }

 protected:
  Result<std::size_t> do_submit(std::span<const IoRequest> requests) override {
    std::size_t accepted = 0;
    {
      const std::lock_guard lock(mutex_);
      accepted = std::min(requests.size(), queue_depth_ - std::min(queue_depth_, in_flight()));
      waiting_.insert(waiting_.end(), requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(accepted));
    }
    work_available_.notify_all();
    return accepted;
  }

  Result<std::size_t> do_reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) override {
    std::unique_lock lock(mutex_);
    completed_.wait_until(lock, deadline, [&] { return done_.size() >= min_count || woken_; });
    woken_ = false;
    const std::size_t count = std::min(out.size(), done_.size());
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = done_.front();
      done_.pop_front();
    }
    return count;
  }

 private:
  void work() {
    pthread_setname_np(pthread_self(), "headrace-io-rw");
    const BlockFileSizeSignal blocked;
    std::unique_lock lock(mutex_);
    for (;;) {
      work_available_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const IoRequest request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const IoCompletion completion = execute_request(request);
      lock.lock();
      done_.push_back(completion);
      completed_.notify_one();
    }
  }

  const std::size_t queue_depth_;
  std::mutex mutex_;
  std::condition_variable work_available_;
  std::condition_variable completed_;
  std::deque<IoRequest> waiting_;
  std::deque<IoCompletion> done_;
  bool woken_ = false;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

IoCompletion execute_request(const IoRequest& request) noexcept {
  ssize_t moved = 0;
  switch (request.operation) {
    case IoOperation::kRead:
      moved = ::preadv2(request.fd, request.segments, static_cast<int>(request.num_segments), request.offset, 0);
      break;
    case IoOperation::kWrite:
      moved = ::pwritev2(request.fd, request.segments, static_cast<int>(request.num_segments), request.offset, 0);
      break;
    case IoOperation::kFlush: moved = ::fdatasync(request.fd); break;
  }
  if (moved < 0) return {request.tag, 0, errno};
  return {request.tag, moved, 0};
}

Result<std::unique_ptr<IoBackend>> make_threads_backend(std::size_t queue_depth, int threads) {
  return std::unique_ptr<IoBackend>(std::make_unique<ThreadsBackend>(queue_depth, threads));
}

}  // namespace headrace::io
