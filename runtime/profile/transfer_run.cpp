// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/transfer_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/process.h"
#include "core/random.h"

namespace headrace::profile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kSpareBytes = kMiB;        // behind the tiles: where a backend proves itself
constexpr std::size_t kWindows = 10;       // of one sample's seconds
constexpr std::size_t kSteadyWindows = 4;  // fewer: luck looks steady; more: a longer sample
constexpr double kSteadySpread = 0.10;     // between the fastest and the slowest of them

double seconds_between(io::TimePoint from, io::TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

// What has been moved since the start, at the moments when a tile came back.
struct Point {
  double at = 0;
  Bytes read = 0, written = 0;
};

// Whether the rates of the last windows before `end` agree.
bool is_steady(const std::vector<Point>& points, double begin, double end, double window) {
  if (end - begin < window * static_cast<double>(kSteadyWindows)) return false;
  std::array<Bytes, kSteadyWindows> moved{};
  Bytes before = 0;
  for (const Point& point : points) {
    const Bytes all = point.read + point.written;
    const double from_end = (end - point.at) / window;
    if (from_end < static_cast<double>(kSteadyWindows) && from_end >= 0)
      moved[kSteadyWindows - 1 - static_cast<std::size_t>(from_end)] += all - before;
    before = all;
  }
  const auto [least, most] = std::minmax_element(moved.begin(), moved.end());
  const double mean = static_cast<double>(moved[0] + moved[1] + moved[2] + moved[3]) / kSteadyWindows;
  return mean > 0 && static_cast<double>(*most - *least) <= kSteadySpread * mean;
}

}  // namespace

TransferSetting default_setting(std::size_t paths) {
  TransferSetting setting;
  setting.in_flight_bytes = io::kInFlightPerPath * static_cast<Bytes>(paths);
  return setting;
}

const char* traffic_name(Traffic traffic) noexcept {
  return traffic == Traffic::kRead ? "read" : traffic == Traffic::kWrite ? "write" : "mixed";
}

Result<HostSlab> make_io_memory(Bytes bytes, PageKind best_pages) {
  HostSlabOptions options;
  options.best_pages = best_pages;
  return HostSlab::allocate(bytes, options);
}

TransferRun::TransferRun(std::span<TestFile> files, Bytes tile_bytes)
    : files_(files), tile_bytes_(tile_bytes), alignment_(io::kMinAlignment) {
  for (const TestFile& file : files_) alignment_ = std::max(alignment_, file.alignment);
  HEADRACE_CHECK(tile_bytes % alignment_ == 0 && tile_bytes > alignment_, "a tile has a payload and a trailer block");
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    HEADRACE_CHECK(tiles_of(file) >= 4, "a test file has a few tiles");
    versions_.emplace_back(static_cast<std::size_t>(tiles_of(file)), 0);
    all_.push_back(file);
  }
}

std::int64_t TransferRun::tiles_of(std::uint32_t file) const noexcept {
  return (files_[file].bytes - kSpareBytes) / tile_bytes_;
}

TransferRun::Range TransferRun::read_range(std::uint32_t file) const noexcept {
  return {0, tiles_of(file) / 2 * tile_bytes_};
}

TransferRun::Range TransferRun::write_range(std::uint32_t file) const noexcept {
  const Range read = read_range(file), others = others_range(file);
  return {read.bytes, others.offset - read.bytes};
}

TransferRun::Range TransferRun::others_range(std::uint32_t file) const noexcept {
  const std::int64_t tiles = tiles_of(file);
  return {(tiles - tiles / 4) * tile_bytes_, tiles / 4 * tile_bytes_};
}

std::size_t TransferRun::slots_of(const TransferSetting& setting, std::span<const std::uint32_t> which) const noexcept {
  // Two more than the kernel gets, so that it always finds the next one.
  const std::int64_t slots = ceil_div(setting.in_flight_bytes, tile_bytes_) + 2;
  std::int64_t written_tiles = 0;  // no tile is written twice at a time
  for (const std::uint32_t file : which) written_tiles += write_range(file).bytes / tile_bytes_;
  return static_cast<std::size_t>(std::min(slots, written_tiles));
}

Bytes TransferRun::memory_bytes(const TransferSetting& setting) const noexcept {
  return static_cast<Bytes>(slots_of(setting, all_)) * (tile_bytes_ - alignment_);
}

Result<std::unique_ptr<io::IoBackend>> TransferRun::make_backend(const TransferSetting& setting) {
  const std::pair key{setting.backend, setting.threads};
  if (const auto known = chosen_.find(key); known != chosen_.end()) return known->second.make();
  const std::vector<io::BackendCandidate> candidates = io::backend_candidates(setting.backend, setting.threads);
  std::vector<io::BackendTrial> trials;
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    io::BackendTrial& trial = trials.emplace_back();
    trial.fd = files_[i].fd.get();
    trial.offset = tiles_of(i) * tile_bytes_;
    trial.alignment = std::min(alignment_, kSpareBytes / 8);
    trial.folder = files_[i].path;
    trial.direct = files_[i].direct;
  }
  HEADRACE_TRY(std::unique_ptr<io::IoBackend> backend, io::choose_backend(candidates, trials));
  const std::string name = backend->capabilities().name;
  for (const io::BackendCandidate& candidate : candidates) {
    if (candidate.name == name) chosen_[key] = candidate;
  }
  return backend;
}

Result<std::unique_ptr<io::Queue>> TransferRun::make_queue(const TransferSetting& setting) {
  HEADRACE_TRY(std::unique_ptr<io::IoBackend> backend, make_backend(setting));
  std::vector<io::QueueFile> queue_files;
  io::QueueOptions options;
  options.mode = io::IoMode::kDirect;  // a refusal is an error: a sample must not change its kind on the way
  for (const TestFile& file : files_) {
    queue_files.push_back({file.fd.get(), file.path, file.direct});
    if (!file.direct) options.mode = io::IoMode::kAuto;
  }
  options.block_bytes = setting.block_bytes;
  options.in_flight_bytes = setting.in_flight_bytes;
  options.alignment = alignment_;
  return std::make_unique<io::Queue>(std::move(backend), std::move(queue_files), options);
}

TileWork TransferRun::work_on(io::IoOperation operation, std::uint32_t file, std::int64_t tile) {
  TileWork work;
  work.operation = operation;
  work.file = file;
  work.offset = tile * tile_bytes_;
  std::uint64_t& version = versions_[file][static_cast<std::size_t>(tile)];
  if (operation == io::IoOperation::kWrite) {
    version = next_version_++;
    written_bytes_ += tile_bytes_;
  } else {
    verified_bytes_ += tile_bytes_;
  }
  work.trailer.run_hash = io::run_id_hash("profile");
  work.trailer.address = {file, tile, 0};
  work.trailer.stamp = {version, 0};
  work.trailer.payload_bytes = tile_bytes_ - alignment_;
  return work;
}

// Where files go through the page cache: what is read next must come from the disk.
Result<void> TransferRun::forget_pages(std::uint32_t file) const {
  if (files_[file].direct) return {};
  const int fd = files_[file].fd.get();
  const int status = ::fdatasync(fd) != 0 ? errno : ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (status == 0) return {};
  return make_error(ErrorCode::kIo, fmt::format("emptying the page cache of a file in {}: {}", files_[file].path,
                                                io::errno_text(status)));
}

Result<void> TransferRun::lay_out(const TransferSetting& setting, double seconds) {
  HEADRACE_TRY(const HostSlab memory, make_io_memory(memory_bytes(setting), PageKind::kTransparentHuge));
  // Different everywhere, so that neither a device that compresses nor a misplaced block goes unnoticed.
  const CounterRng random(0x70726F66, 1);
  const std::span<std::byte> bytes = memory.bytes();
  for (std::size_t at = 0; at + sizeof(PhiloxBlock) <= bytes.size(); at += sizeof(PhiloxBlock)) {
    const PhiloxBlock block = random.block(at / sizeof(PhiloxBlock));
    std::memcpy(bytes.data() + at, block.data(), sizeof block);
  }
  HEADRACE_TRY(const std::unique_ptr<io::Queue> queue, make_queue(setting));
  TransferLoop loop(*queue, bytes, tile_bytes_ - alignment_, slots_of(setting, all_));
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::int64_t longest = 0, tile = 0;
  for (std::uint32_t file = 0; file < files_.size(); ++file) longest = std::max(longest, tiles_of(file));
  constexpr std::int64_t kLeastTiles = 8;
  for (; tile < longest && (tile < kLeastTiles || Clock::now() < end); ++tile) {
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      if (tile >= tiles_of(file)) continue;
      if (!loop.has_free()) HEADRACE_RETURN_IF_ERROR(loop.finish());
      loop.start(work_on(io::IoOperation::kWrite, file, tile));
    }
  }
  while (!loop.is_idle()) HEADRACE_RETURN_IF_ERROR(loop.finish());
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    files_[file].bytes = std::min(files_[file].bytes, tile * tile_bytes_ + kSpareBytes);
    versions_[file].resize(static_cast<std::size_t>(tiles_of(file)));
    HEADRACE_RETURN_IF_ERROR(forget_pages(file));
  }
  return {};
}

Result<void> TransferRun::verify(const TransferSetting& setting, double seconds) {
  const io::TimePoint start = Clock::now();
  HEADRACE_TRY(const HostSlab memory, make_io_memory(memory_bytes(setting), PageKind::kTransparentHuge));
  HEADRACE_TRY(const std::unique_ptr<io::Queue> queue, make_queue(setting));
  TransferLoop loop(*queue, memory.bytes(), tile_bytes_ - alignment_, slots_of(setting, all_));
  for (std::uint32_t file = 0; file < files_.size(); ++file) {
    HEADRACE_RETURN_IF_ERROR(forget_pages(file));
    const std::int64_t end = others_range(file).offset / tile_bytes_;
    for (std::int64_t tile = 0; tile < end && seconds_between(start, Clock::now()) < seconds; ++tile) {
      if (!loop.has_free()) HEADRACE_RETURN_IF_ERROR(loop.finish());
      loop.start(work_on(io::IoOperation::kRead, file, tile));
    }
  }
  while (!loop.is_idle()) HEADRACE_RETURN_IF_ERROR(loop.finish());
  return {};
}

// One run: deals out tiles of the chosen files in turn, round and round each file's range, and keeps book.
struct TransferRun::Pass {
  TransferRun& run;
  Traffic traffic;
  std::span<const std::uint32_t> which;
  SampleLimit limit;
  bool direct = true;
  Bytes read_limit = 0;  // through the page cache nothing is read twice
  // One direction: goes round the files, and round the tiles of each file's range.
  struct Rounds {
    std::vector<std::int64_t> at;  // [which], tiles from the start of the range
    std::size_t turn = 0;
    Bytes started = 0;
  };
  Rounds reading, writing;
  std::vector<std::uint32_t> round;                                   // positions in `which`, one after the other
  std::vector<std::pair<std::uint32_t, std::int64_t>> being_written;  // file, offset: no tile twice at a time
  std::vector<Point> points;
  std::size_t warm = 0;  // the point at which the warm-up ends
  bool steady = false;

  Pass(TransferRun& owner, Traffic kind, std::span<const std::uint32_t> files, const SampleLimit& until,
       const std::vector<std::uint32_t>& shares)
      : run(owner), traffic(kind), which(files), limit(until) {
    reading.at.resize(which.size());
    writing.at.resize(which.size());
    for (const std::uint32_t file : which) {
      read_limit += run.read_range(file).bytes;
      direct = direct && run.files_[file].direct;
    }
    round = io::deal_round(shares.size() == which.size() ? shares : std::vector<std::uint32_t>(which.size(), 1));
    points.reserve(4096);
  }

  [[nodiscard]] double window() const { return limit.seconds / static_cast<double>(kWindows); }

  // The next tile, or none when no more may be moved.
  std::optional<TileWork> next() {
    const bool reads = traffic == Traffic::kRead || (traffic == Traffic::kMixed && reading.started <= writing.started);
    Rounds& rounds = reads ? reading : writing;
    if (!reads && rounds.started > 0 && rounds.started + run.tile_bytes_ > limit.write_bytes) return std::nullopt;
    if (reads && !direct && rounds.started + run.tile_bytes_ > read_limit) return std::nullopt;
    rounds.started += run.tile_bytes_;
    for (;;) {  // there are fewer slots than tiles: one is free, at the latest in the fastest file
      const std::size_t i = round[rounds.turn++ % round.size()];
      const Range range = reads ? run.read_range(which[i]) : run.write_range(which[i]);
      const std::int64_t tiles = range.bytes / run.tile_bytes_;
      for (std::int64_t tried = 0; tried < tiles; ++tried) {
        const std::int64_t offset = range.offset + rounds.at[i] * run.tile_bytes_;
        rounds.at[i] = (rounds.at[i] + 1) % tiles;
        if (reads) return run.work_on(io::IoOperation::kRead, which[i], offset / run.tile_bytes_);
        const std::pair tile{which[i], offset};
        if (std::find(being_written.begin(), being_written.end(), tile) != being_written.end()) continue;
        being_written.push_back(tile);
        return run.work_on(io::IoOperation::kWrite, which[i], offset / run.tile_bytes_);
      }
    }
  }

  void came_back(const TileWork& work) {
    if (work.operation == io::IoOperation::kWrite) std::erase(being_written, std::pair{work.file, work.offset});
  }

  // Whether the time for more has not run out.
  bool goes_on(double now) {
    if (now < limit.seconds) return true;
    if (!limit.until_steady || now >= 2 * limit.seconds) return false;
    steady = is_steady(points, points[warm].at, now, window());
    return !steady;
  }

  void conclude(Sample& sample, std::size_t slots) {
    const Bytes all = sample.read_bytes + sample.written_bytes;
    sample.whole_bytes_per_s = static_cast<double>(all) / sample.seconds;
    // Without enough after the warm-up, or where a flush belongs to the writing, the whole counts.
    const bool whole = !direct || points.size() < 2 * slots;
    if (points.empty()) points.push_back({sample.seconds, sample.read_bytes, sample.written_bytes});
    const Point from = whole ? Point{} : points[warm];
    const Point to = whole ? Point{sample.seconds, sample.read_bytes, sample.written_bytes} : points.back();
    sample.read_bytes_per_s = static_cast<double>(to.read - from.read) / (to.at - from.at);
    sample.write_bytes_per_s = static_cast<double>(to.written - from.written) / (to.at - from.at);
    sample.bytes_per_s = sample.read_bytes_per_s + sample.write_bytes_per_s;
    sample.steady = steady || is_steady(points, points[warm].at, points.back().at, window());
  }
};

Result<Sample> TransferRun::run(Traffic traffic, const TransferSetting& setting, const SampleLimit& limit,
                                std::span<std::byte> memory, std::span<const std::uint32_t> which) {
  HEADRACE_CHECK(!which.empty(), "a run has files");
  for (const std::uint32_t file : which) HEADRACE_RETURN_IF_ERROR(forget_pages(file));
  HEADRACE_TRY(const std::unique_ptr<io::Queue> queue, make_queue(setting));
  const std::size_t slots = slots_of(setting, which);
  TransferLoop loop(*queue, memory, tile_bytes_ - alignment_, slots);
  Pass pass(*this, traffic, which, limit, setting.shares);
  io::Queue::Latencies warm_latencies;
  Sample sample;
  const double cpu_before = process_cpu_seconds();
  const io::TimePoint start = Clock::now();
  double now = 0;
  for (bool more = true; more || !loop.is_idle();) {
    while (more && loop.has_free()) {
      const std::optional<TileWork> work = pass.next();
      if (work) loop.start(*work);
      more = work.has_value();
    }
    HEADRACE_TRY(const TileWork done, loop.finish());
    now = seconds_between(start, Clock::now());
    pass.came_back(done);
    (done.operation == io::IoOperation::kRead ? sample.read_bytes : sample.written_bytes) += tile_bytes_;
    if (!more) continue;
    pass.points.push_back({now, sample.read_bytes, sample.written_bytes});
    if (pass.points.size() == slots) {
      pass.warm = slots - 1;
      warm_latencies = queue->latencies();
    }
    more = pass.goes_on(now);
  }
  if (!pass.direct && traffic != Traffic::kRead) {
    for (const std::uint32_t file : which) HEADRACE_RETURN_IF_ERROR(loop.flush(file));
    now = seconds_between(start, Clock::now());
  }
  sample.seconds = now;
  sample.backend = queue->backend_name();
  sample.cpu_seconds_per_byte =
      (process_cpu_seconds() - cpu_before) / static_cast<double>(sample.read_bytes + sample.written_bytes);
  const io::Queue::Latencies latencies = queue->latencies();
  sample.read_latency = latencies.read.since(warm_latencies.read);
  sample.write_latency = latencies.write.since(warm_latencies.write);
  pass.conclude(sample, slots);
  return sample;
}

}  // namespace headrace::profile
