// SPDX-License-Identifier: Apache-2.0
// An IoBackend that passes requests to a real one and spoils some of them as a plan says. For tests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "io/backends.h"
#include "io/io_backend.h"

namespace headrace::io {

struct Fault {
  enum class Kind {
    kNone,
    kError,   // the request never reaches the file; completes with error_number
    kShort,   // at most `bytes` are moved
    kFlip,    // one bit of the first segment differs: after a read, or while a write is in flight
    kHold,    // does not start before FaultPlan::release()
    kBusy,    // this and the later requests of the call are not accepted
    kBroken,  // submit itself fails
  };
  Kind kind = Kind::kNone;
  int error_number = 0;
  std::size_t bytes = 0;
};

// Shared by the test and the backend; thread-safe.
class FaultPlan {
 public:
  using Decide = std::function<Fault(const IoRequest&, std::uint64_t number)>;

  // From now on each request asks `decide`, with its number counted from 1.
  void arm(Decide decide) {
    const std::lock_guard lock(mutex_);
    decide_ = std::move(decide);
    count_ = 0;
  }
  Fault next(const IoRequest& request) {
    const std::lock_guard lock(mutex_);
    return decide_ ? decide_(request, ++count_) : Fault{};
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool released() {
    const std::lock_guard lock(mutex_);
    return released_;
  }
  // Waits for a wake-up (then true) and, when something is held, for the release.
  bool wait(TimePoint deadline, std::size_t num_held) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return (num_held > 0 && released_) || woken_; });
    return std::exchange(woken_, false);
  }
  [[nodiscard]] std::uint64_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Decide decide_;
  std::uint64_t count_ = 0;
  bool released_ = false;
  bool woken_ = false;
};

class FaultBackend final : public IoBackend {
 public:
  FaultBackend(std::unique_ptr<IoBackend> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  void wake() noexcept override {
    plan_->wake();
    inner_->wake();
  }
  [[nodiscard]] IoCapabilities capabilities() const noexcept override { return inner_->capabilities(); }

 protected:
  Result<std::size_t> do_submit(std::span<const IoRequest> requests) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Fault fault = plan_->next(requests[i]);
      if (fault.kind == Fault::Kind::kBusy) return i;
      if (fault.kind == Fault::Kind::kBroken) {
        if (i > 0) return i;
        return make_error(ErrorCode::kIo, "the backend is broken on purpose");
      }
      if (!take(requests[i], fault)) return i;
    }
    return requests.size();
  }

  Result<std::size_t> do_reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) override {
    std::size_t count = 0;
    bool woken = false;
    for (;;) {
      while (count < out.size() && !ready_.empty()) {
        out[count++] = ready_.front();
        ready_.pop_front();
      }
      if (!held_.empty() && plan_->released()) start_held();
      if (count == out.size() || (count >= min_count && inner_->in_flight() == 0) || woken) return count;
      const std::size_t wanted = count >= min_count ? 0 : 1;
      if (inner_->in_flight() > 0) {
        std::vector<IoCompletion> completions(out.size() - count);
        auto reaped = inner_->reap(completions, wanted, deadline);
        if (!reaped.ok()) return reaped;
        for (std::size_t i = 0; i < *reaped; ++i) finish(completions[i]);
        woken = *reaped == 0;
      } else {
        woken = plan_->wait(deadline, held_.size());
        if (std::chrono::steady_clock::now() >= deadline) woken = true;
      }
    }
  }

 private:
  struct Pending {
    IoRequest request;
    Fault fault;
    std::vector<iovec> segments;
    std::list<Pending>::iterator self;
  };

  static void flip(const IoRequest& request) {
    static_cast<std::byte*>(request.segments[0].iov_base)[17] ^= std::byte{4};
  }

  bool take(const IoRequest& request, const Fault& fault) {
    if (fault.kind == Fault::Kind::kError) {
      ready_.push_back({request.tag, 0, fault.error_number});
      return true;
    }
    if (fault.kind == Fault::Kind::kShort && fault.bytes == 0) {
      ready_.push_back({request.tag, 0, 0});
      return true;
    }
    pending_.push_back({request, fault, {request.segments, request.segments + request.num_segments}, {}});
    Pending& pending = pending_.back();
    pending.self = std::prev(pending_.end());
    if (fault.kind == Fault::Kind::kHold && !plan_->released()) {
      held_.push_back(&pending);
      return true;
    }
    if (fault.kind == Fault::Kind::kShort) shorten(pending);
    if (fault.kind == Fault::Kind::kFlip && request.operation == IoOperation::kWrite) flip(request);
    if (forward(pending)) return true;
    pending_.pop_back();
    return false;
  }

  static void shorten(Pending& pending) {
    std::size_t left = pending.fault.bytes;
    std::size_t count = 0;
    for (iovec& segment : pending.segments) {
      if (left == 0) break;
      segment.iov_len = std::min(segment.iov_len, left);
      left -= segment.iov_len;
      ++count;
    }
    pending.segments.resize(count);
  }

  bool forward(Pending& pending) {
    IoRequest request = pending.request;
    request.segments = pending.segments.empty() ? nullptr : pending.segments.data();
    request.num_segments = static_cast<std::uint32_t>(pending.segments.size());
    request.tag = reinterpret_cast<std::uintptr_t>(&pending);
    const auto accepted = inner_->submit({&request, 1});
    return accepted.ok() && *accepted == 1;
  }

  void start_held() {
    while (!held_.empty() && forward(*held_.front())) held_.pop_front();
  }

  void finish(const IoCompletion& completion) {
    Pending& pending = *reinterpret_cast<Pending*>(completion.tag);
    if (pending.fault.kind == Fault::Kind::kFlip) flip(pending.request);
    ready_.push_back({pending.request.tag, completion.bytes, completion.error_number});
    pending_.erase(pending.self);
  }

  std::unique_ptr<IoBackend> inner_;
  std::shared_ptr<FaultPlan> plan_;
  std::list<Pending> pending_;
  std::deque<Pending*> held_;
  std::deque<IoCompletion> ready_;
};

// The candidate spoiled by the plan.
inline BackendCandidate spoiled_by(const BackendCandidate& candidate, std::shared_ptr<FaultPlan> plan) {
  return {candidate.name, [make = candidate.make, plan]() -> Result<std::unique_ptr<IoBackend>> {
            HEADRACE_TRY(std::unique_ptr<IoBackend> inner, make());
            return std::unique_ptr<IoBackend>(std::make_unique<FaultBackend>(std::move(inner), plan));
          }};
}

// A seam whose backend is the one of `choice`, spoiled by the plan.
inline BackendSeam fault_seam(IoBackendChoice choice, std::shared_ptr<FaultPlan> plan) {
  BackendSeam seam;
  for (const BackendCandidate& candidate : backend_candidates(choice))
    seam.candidates.push_back(spoiled_by(candidate, plan));
  return seam;
}

}  // namespace headrace::io
