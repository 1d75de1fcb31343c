// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/parallel.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include "core/check.h"

namespace headrace::kernels {
namespace {

constexpr Bytes kHugePageBytes = 2 * kMiB;

// Which scratch the task that runs on this thread owns; set only while a body runs.
struct CurrentTask {
  const void* owner = nullptr;
  int slot = -1;
};
thread_local CurrentTask current_task;

// A thread that started a loop of its own is a lane or the program's and keeps its name.
thread_local bool is_callers_thread = false;
thread_local bool is_named_worker = false;

void name_worker() noexcept {
  if (is_callers_thread || is_named_worker) return;
  is_named_worker = true;
  ::pthread_setname_np(::pthread_self(), "headrace-cpu");
}

}  // namespace

struct Parallel::Impl {
  explicit Impl(int threads) : arena(threads), num_threads(threads) {
    mapped_bytes = threads * kScratchBytes + kHugePageBytes;  // room to align for huge pages; the rest is never touched
    mapped = ::mmap(nullptr, static_cast<std::size_t>(mapped_bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HEADRACE_CHECK(mapped != MAP_FAILED, "no address space for the scratch memory of the kernels");
    const auto address = reinterpret_cast<std::uintptr_t>(mapped);
    const auto aligned = static_cast<std::uintptr_t>(round_up(static_cast<std::int64_t>(address), kHugePageBytes));
    scratch = static_cast<std::byte*>(mapped) + (aligned - address);
    const auto scratch_length = static_cast<std::size_t>(threads * kScratchBytes);
    // Only advice: without huge pages the same memory is merely slower.
    static_cast<void>(::madvise(scratch, scratch_length, MADV_HUGEPAGE));
    std::fill_n(scratch, scratch_length, std::byte{0});  // resident from now on, so that the memory plan is exact
  }
  ~Impl() { ::munmap(mapped, static_cast<std::size_t>(mapped_bytes)); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void run_tasks(int slot, std::int64_t begin, std::int64_t end, const std::function<void(std::int64_t)>& body) const {
    const CurrentTask outer = current_task;
    current_task = {this, slot};
    for (std::int64_t i = begin; i < end; ++i) body(i);
    current_task = outer;
  }

  tbb::task_arena arena;
  int num_threads;
  std::mutex one_thread;  // held while a loop runs, when there is one thread only
  void* mapped = nullptr;
  Bytes mapped_bytes = 0;
  std::byte* scratch = nullptr;
};

Parallel::Parallel(int threads) {
  HEADRACE_CHECK(threads > 0, "a thread count is positive");
  impl_ = std::make_unique<Impl>(threads);
}
Parallel::~Parallel() = default;

int Parallel::threads() const noexcept { return impl_->num_threads; }

void Parallel::for_each(std::int64_t tasks, const std::function<void(std::int64_t)>& body) const {
  if (tasks <= 0) return;
  if (impl_->num_threads == 1) {
    // Not through the arena: for a second lane TBB would add a worker to an arena of one.
    if (current_task.owner == impl_.get()) return impl_->run_tasks(0, 0, tasks, body);
    const std::lock_guard lock(impl_->one_thread);
    return impl_->run_tasks(0, 0, tasks, body);
  }
  const auto run = [&](const tbb::blocked_range<std::int64_t>& range) {
    name_worker();
    impl_->run_tasks(tbb::this_task_arena::current_thread_index(), range.begin(), range.end(), body);
  };
  if (current_task.owner == nullptr) is_callers_thread = true;
  impl_->arena.execute([&] {
    // Isolated: a task that waits for a nested loop must not pick up a stranger's task, which would write its scratch.
    tbb::this_task_arena::isolate(
        [&] { tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, tasks, 1), run, tbb::simple_partitioner()); });
  });
}

std::span<std::byte> Parallel::scratch() const {
  HEADRACE_CHECK(current_task.owner == impl_.get(), "scratch() outside a task of this Parallel");
  HEADRACE_CHECK(current_task.slot >= 0 && current_task.slot < impl_->num_threads,
                 "a task runs in a slot of its arena");
  return {impl_->scratch + current_task.slot * kScratchBytes, static_cast<std::size_t>(kScratchBytes)};
}

Bytes Parallel::scratch_bytes() const noexcept { return impl_->num_threads * kScratchBytes; }

}  // namespace headrace::kernels
