// SPDX-License-Identifier: Apache-2.0
// The memory bandwidth of a set of streams, measured: one pass that reads, updates or overwrites every array as a
// benchmark's own loop does, and nothing else. For benchmarks that are bounded by memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "core/bytes.h"

namespace headrace::perf {

using Clock = std::chrono::steady_clock;

inline double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline double deviation(const std::vector<double>& values) {
  const double center = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::fabs(value - center));
  return median(distances);
}

// Zeroed memory in huge pages where the system gives them: both sides of the comparison use the same arrays.
class Memory {
 public:
  explicit Memory(Bytes bytes) : bytes_(static_cast<std::size_t>(round_up(bytes, 2 * kMiB))) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      std::perror("perf: mmap");
      std::exit(1);
    }
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~Memory() { ::munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

enum class Access { kRead, kUpdate, kWrite };
struct Stream {
  std::uint64_t* words;
  Bytes element_bytes;
  Access access;
};

// What one pass over memory costs: reads, updates or overwrites every word of every stream, `block` elements of each in
// turn. The key is 0 at run time, so the contents survive; wide vectors are the compiler's choice.
// Static, because an inline function cannot have clones.
#ifdef __x86_64__
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static std::uint64_t
touch(std::uint64_t* words, std::int64_t count, Access access, std::uint64_t key) {
  std::uint64_t sum = 0;
  if (access == Access::kRead) {
    for (std::int64_t i = 0; i < count; ++i) sum ^= words[i];
  } else if (access == Access::kUpdate) {
    for (std::int64_t i = 0; i < count; ++i) words[i] ^= key;
  } else {
    for (std::int64_t i = 0; i < count; ++i) words[i] = key;
  }
  return sum;
}

inline volatile std::uint64_t g_key = 0;
inline volatile std::uint64_t g_sink = 0;

struct Pass {
  std::int64_t elements;
  std::int64_t block;
  bool prefetch;
  int threads;
};

// Asks for the lines that lie 512 elements behind this block.
inline void prefetch(const Stream& s, std::int64_t at, std::int64_t count) {
  const auto begin =
      reinterpret_cast<std::uintptr_t>(s.words) + static_cast<std::uintptr_t>((at + 512) * s.element_bytes);
  for (std::uintptr_t line = 0; line < static_cast<std::uintptr_t>(count * s.element_bytes); line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + line));
  }
}

inline void sweep(const std::vector<Stream>& streams, const Pass& pass) {
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    const std::uint64_t key = g_key;
    std::uint64_t sum = 0;
    for (std::int64_t at = begin; at < end; at += pass.block) {
      const std::int64_t count = std::min(pass.block, end - at);
      for (const Stream& s : streams) {
        if (pass.prefetch) prefetch(s, at, count);
        sum ^= touch(s.words + at * s.element_bytes / 8, count * s.element_bytes / 8, s.access, key);
      }
    }
    g_sink = sum;
  };
  std::vector<std::thread> others;
  const std::int64_t share = round_up(ceil_div(pass.elements, pass.threads), pass.block);
  for (int t = 1; t < pass.threads; ++t) {
    others.emplace_back(work, std::min(pass.elements, share * t), std::min(pass.elements, share * (t + 1)));
  }
  work(0, std::min(pass.elements, share));
  for (std::thread& other : others) other.join();
}

// The best of several ways to sweep is the ceiling of one turn.
inline double sweep_seconds(const std::vector<Stream>& streams, std::int64_t elements, int threads) {
  double best = INFINITY;
  for (const std::int64_t block : {64, 512, 4096}) {
    for (const bool prefetch : {false, true}) {
      if (prefetch && block > 512) continue;  // the lines asked for would be gone again
      best = std::min(best, seconds_of([&] { sweep(streams, {elements, block, prefetch, threads}); }));
    }
  }
  return best;
}

}  // namespace headrace::perf
