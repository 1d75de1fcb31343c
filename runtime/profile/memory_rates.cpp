// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "core/host_slab.h"
#include "core/topology.h"
#include "kernels/cpu/parallel.h"
#include "runtime/profile/compute.h"
#include "runtime/profile/storage.h"
#include "runtime/profile/streams.h"

namespace headrace::profile {
namespace {

constexpr Bytes kPiece = 2 * kMiB;  // one task: small enough to spread, large enough that handing it out is nothing

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr double kBrief = 2;  // seconds: with fewer, making the arrays would take longer than measuring

// Twice the last cache, once where time is short (both arrays together are twice then), within an eighth of the memory.
Bytes array_bytes(const Topology& topology, bool brief) {
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const Bytes wanted = std::max<Bytes>(brief ? 128 * kMiB : 256 * kMiB, (brief ? 1 : 2) * std::max<Bytes>(cache, 0));
  const Bytes most = topology.effective_memory_limit > 0 ? topology.effective_memory_limit / 16 : 256 * kMiB;
  return std::max<Bytes>(std::min({wanted, most, kGiB}), 16 * kMiB) / kPiece * kPiece;
}

}  // namespace

Result<MemoryReport> measure_memory(double seconds, Progress& progress) {
  const Topology topology = detect_topology();
  MemoryReport report;
  report.threads = topology.usable_cores;
  report.array_bytes = array_bytes(topology, seconds < kBrief);
  progress.step("memory", seconds);
  HEADRACE_TRY(const HostSlab slab, HostSlab::allocate(2 * report.array_bytes));
  report.pages = page_kind_name(slab.page_kind());
  report.can_lock = slab.locked();
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
    report.lock_limit = limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<Bytes>(limit.rlim_cur);
  const kernels::Parallel parallel(report.threads);
  const StreamLoops loops = stream_loops();
  std::byte* const first = slab.bytes().data();
  std::byte* const second = first + report.array_bytes;
  const std::int64_t pieces = report.array_bytes / kPiece;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pieces));
  using Work = std::function<void(std::int64_t)>;
  struct Case {
    double* rate;
    Work work;
  };
  std::vector<Case> cases;
  cases.push_back({&report.read, [&](std::int64_t i) {
                     sums[static_cast<std::size_t>(i)] = loops.read(first + i * kPiece, kPiece);
                   }});
  cases.push_back({&report.write, [&](std::int64_t i) { loops.write(first + i * kPiece, kPiece, 1); }});
  cases.push_back({&report.copy, [&](std::int64_t i) { loops.copy(second + i * kPiece, first + i * kPiece, kPiece); }});
  if (loops.write_streaming != nullptr) {
    cases.push_back(
        {&report.write_streaming, [&](std::int64_t i) { loops.write_streaming(first + i * kPiece, kPiece, 2); }});
    cases.push_back({&report.copy_streaming,
                     [&](std::int64_t i) { loops.copy_streaming(second + i * kPiece, first + i * kPiece, kPiece); }});
  }
  // Turn by turn, the median of each: a slow moment of the machine falls on all alike.
  std::vector<std::vector<double>> rates(cases.size() + 1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  // Three turns at least; on a busy machine one, where more would take half as long again.
  const auto latest = end + std::chrono::duration<double>(seconds / 2);
  const auto goes_on = [&](int turn) {
    const auto now = std::chrono::steady_clock::now();
    return turn < 1 || (turn < 3 && now < latest) || now < end;
  };
  for (int turn = 0; goes_on(turn); ++turn) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double took = seconds_of([&] { parallel.for_each(pieces, cases[i].work); });
      rates[i].push_back(static_cast<double>(report.array_bytes) / took);
    }
    const double took = seconds_of([&] { std::memcpy(second, first, static_cast<std::size_t>(report.array_bytes)); });
    rates.back().push_back(static_cast<double>(report.array_bytes) / took);
  }
  for (std::size_t i = 0; i < cases.size(); ++i) *cases[i].rate = median_of(rates[i]);
  report.copy_one_thread = median_of(rates.back());
  return report;
}

}  // namespace headrace::profile
