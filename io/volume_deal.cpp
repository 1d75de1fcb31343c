// SPDX-License-Identifier: Apache-2.0
#include "io/volume_deal.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "core/log.h"
#include "io/backends.h"
#include "io/block_device.h"
#include "io/queue.h"

namespace headrace::io {
namespace {

// Enough for a few blocks in flight in both directions; more would delay the start on slow disks.
constexpr Bytes kMeasuredBytes = 16 * kMiB;
constexpr int kWrites = 2;  // of them to each path
constexpr double kFinestShare = 16;
// Rates closer than this are noise: an even deal keeps all paths busy to the end.
constexpr double kAboutEqual = 0.85;

struct Path {
  UniqueFd file;
  std::int64_t offset = 0;
  std::unique_ptr<Queue> queue;
  Ticket ticket;
  TimePoint end;
};

bool on_one_disk(const std::vector<FolderProbe>& probes) {
  return std::all_of(probes.begin(), probes.end(),
                     [&](const FolderProbe& probe) { return probe.device == probes.front().device; });
}

void note_time(void* context, std::uint64_t /*tag*/) noexcept {
  static_cast<Path*>(context)->end = std::chrono::steady_clock::now();
}

Result<void> open_path(Path& path, const std::string& name, const FolderProbe& probe, const VolumeOptions& options) {
  if (probe.is_device) {
    HEADRACE_TRY(path.file, open_device(name, std::chrono::milliseconds(200)));
    path.offset = kRecordsOffset;
  } else {
    HEADRACE_TRY(path.file, make_nameless_file(name));
    const int status = ::posix_fallocate(path.file.get(), 0, kMeasuredBytes);
    if (status != 0)
      return make_error(ErrorCode::kPreflight,
                        fmt::format("reserving {} in {}: {}", format_bytes(kMeasuredBytes), name, errno_text(status)),
                        "free space there, or set headrace.io.striping to \"equal\"");
  }
  const bool direct = options.mode != IoMode::kBuffered && probe.direct && set_direct(path.file.get(), true) == 0;
  QueueOptions queue_options;
  queue_options.alignment = probe.alignment;
  queue_options.deadline = options.deadline;
  HEADRACE_TRY(std::unique_ptr<IoBackend> backend, make_threads_backend(kQueueDepth));
  path.queue = std::make_unique<Queue>(std::move(backend), std::vector<QueueFile>{{path.file.get(), name, direct}},
                                       queue_options);
  return {};
}

// Moves the same bytes on all paths at once; the seconds that each took.
Result<std::vector<double>> move_all(std::vector<Path>& paths, IoOperation operation, std::byte* memory) {
  const TimePoint start = std::chrono::steady_clock::now();
  for (Path& path : paths) {
    Move move;
    move.operation = operation;
    move.offset = path.offset;
    move.data = memory;  // all paths share it: what is read does not matter
    move.bytes = kMeasuredBytes;
    std::vector<Move> moves;
    moves.push_back(std::move(move));
    path.ticket = path.queue->submit(std::move(moves), {&note_time, &path, 0});
  }
  std::vector<double> seconds;
  std::optional<Error> error;
  for (Path& path : paths) {
    if (auto done = path.ticket.wait(TimePoint::max()); !done.ok() && !error) error = std::move(done).error();
    seconds.push_back(std::max(std::chrono::duration<double>(path.end - start).count(), 1e-6));
  }
  if (error) return *error;
  return seconds;
}

}  // namespace

std::vector<std::uint32_t> shares_of(const std::vector<double>& bytes_per_s) {
  std::vector<std::uint32_t> shares(bytes_per_s.size(), 1);
  const auto [slowest, fastest] = std::minmax_element(bytes_per_s.begin(), bytes_per_s.end());
  if (bytes_per_s.empty() || *slowest >= kAboutEqual * *fastest) return shares;
  for (std::size_t i = 0; i < shares.size(); ++i)
    shares[i] = static_cast<std::uint32_t>(std::max(1.0, std::round(kFinestShare * bytes_per_s[i] / *fastest)));
  return shares;
}

Result<std::vector<double>> measure_paths(const std::vector<std::string>& paths, const std::vector<FolderProbe>& probes,
                                          const VolumeOptions& options) {
  std::vector<Path> open(paths.size());
  Bytes alignment = kMinAlignment;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    HEADRACE_RETURN_IF_ERROR(open_path(open[i], paths[i], probes[i], options));
    alignment = std::max(alignment, probes[i].alignment);
  }
  const AlignedMemory memory = allocate_aligned(kMeasuredBytes, alignment);
  if (memory == nullptr) return make_error(ErrorCode::kFailed, "no memory to measure the paths with");
  // First the blocks are made: what was never written is written and read without the disk.
  HEADRACE_TRY(const std::vector<double> first, move_all(open, IoOperation::kWrite, memory.get()));
  HEADRACE_TRY(const std::vector<double> write, move_all(open, IoOperation::kWrite, memory.get()));
  HEADRACE_TRY(const std::vector<double> read, move_all(open, IoOperation::kRead, memory.get()));
  std::vector<double> rates;
  for (std::size_t i = 0; i < paths.size(); ++i)
    rates.push_back(2 * static_cast<double>(kMeasuredBytes) / (write[i] + read[i]));
  return rates;
}

Result<std::vector<std::uint32_t>> deal_for(const std::vector<std::string>& paths,
                                            const std::vector<FolderProbe>& probes, const VolumeOptions& options) {
  const auto even = [&] { return std::vector<std::uint32_t>(paths.size(), 1); };
  if (!options.shares.empty()) return options.shares;
  const bool tiny = std::any_of(probes.begin(), probes.end(), [](const FolderProbe& probe) {
    return probe.is_device && probe.device_bytes < kRecordsOffset + kMeasuredBytes;
  });
  if (on_one_disk(probes) || tiny || options.striping == Striping::kEqual) return even();
  HEADRACE_TRY(const std::vector<double> rates, measure_paths(paths, probes, options));
  std::vector<std::uint32_t> shares = shares_of(rates);
  if (shares != even()) {
    std::string text;
    for (std::size_t i = 0; i < paths.size(); ++i)
      text += fmt::format("{}{} to {} ({:.2f} GB/s)", i == 0 ? "" : ", ", shares[i], paths[i], rates[i] / 1e9);
    log_info("tiles are dealt by measured bandwidth: " + text);
  }
  return shares;
}

Result<MeasuredDeal> measured_deal(const std::vector<std::string>& folders) {
  HEADRACE_TRY(std::vector<FolderProbe> probes, identify_folders(folders));
  for (std::size_t i = 0; i < folders.size(); ++i) HEADRACE_RETURN_IF_ERROR(probe_writing(folders[i], probes[i]));
  MeasuredDeal deal;
  HEADRACE_TRY(deal.shares, deal_for(folders, probes, VolumeOptions{}));
  if (!on_one_disk(probes)) deal.written_bytes = kWrites * kMeasuredBytes * static_cast<Bytes>(folders.size());
  return deal;
}

}  // namespace headrace::io
