// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/parallel.h"

#include <gtest/gtest.h>

#include <oneapi/tbb/global_control.h>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace headrace::kernels {
namespace {

TEST(Parallel, RunsEachTaskOnce) {
  const tbb::global_control real_threads(tbb::global_control::max_allowed_parallelism, 5);
  for (const int threads : {1, 2, 3, 5}) {
    const Parallel parallel(threads);
    EXPECT_EQ(parallel.threads(), threads);
    EXPECT_EQ(parallel.scratch_bytes(), threads * Parallel::kScratchBytes);
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      parallel.for_each(tasks, [&](std::int64_t task) { ++runs[static_cast<std::size_t>(task)]; });
      for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

// Fills the scratch with a mark, lets others run, and looks whether the mark is still there.
bool scratch_is_mine(const Parallel& parallel, std::int64_t mark) {
  const auto scratch = parallel.scratch();
  if (scratch.size() != static_cast<std::size_t>(Parallel::kScratchBytes)) return false;
  if (reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 != 0) return false;
  auto* words = reinterpret_cast<std::int64_t*>(scratch.data());
  const std::size_t last = scratch.size() / sizeof(std::int64_t) - 1;
  words[0] = mark;
  words[last] = mark;
  std::this_thread::yield();
  return words[0] == mark && words[last] == mark;
}

TEST(Parallel, ScratchBelongsToTheRunningTaskWithSeveralLanes) {
  const tbb::global_control real_threads(tbb::global_control::max_allowed_parallelism, 4);
  for (const int threads : {1, 2, 3}) {
    const Parallel parallel(threads);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < 4; ++lane) {
      lanes.emplace_back([&, lane] {
        for (int repeat = 0; repeat < 20; ++repeat) {
          parallel.for_each(16, [&](std::int64_t task) {
            if (!scratch_is_mine(parallel, lane * 1000 + task)) ++wrong;
          });
        }
      });
    }
    for (auto& lane : lanes) lane.join();
    EXPECT_EQ(wrong.load(), 0) << threads << " threads";
  }
}

TEST(Parallel, NestedLoopsRunInTheCallersArena) {
  const tbb::global_control real_threads(tbb::global_control::max_allowed_parallelism, 4);
  const Parallel parallel(3);
  std::atomic<std::int64_t> runs = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 3; ++lane) {
    lanes.emplace_back([&] {
      parallel.for_each(8, [&](std::int64_t outer) {
        parallel.for_each(8, [&](std::int64_t inner) {
          ++runs;
          if (!scratch_is_mine(parallel, outer * 8 + inner)) ++wrong;
        });
        if (!scratch_is_mine(parallel, outer)) ++wrong;
      });
    });
  }
  for (auto& lane : lanes) lane.join();
  EXPECT_EQ(runs.load(), 3 * 8 * 8);
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ParallelDeathTest, ScratchOutsideATaskIsADefect) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const Parallel parallel(1);
        static_cast<void>(parallel.scratch());
      },
      "outside a task");
}

}  // namespace
}  // namespace headrace::kernels
