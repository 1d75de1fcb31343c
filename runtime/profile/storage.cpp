// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "runtime/profile/storage_pace.h"

namespace headrace::profile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kTileBytes = 4 * kMiB;
constexpr double kAsGood = 0.03;  // settings closer than this are equal: repeats differ by more

class StorageMeasurement {
 public:
  StorageMeasurement(std::vector<TestFile>& files, const StorageOptions& options, Progress& progress)
      : options_(options),
        pace_(pace_of(options.quick, files.size())),
        fio_(options.with_fio ? find_fio() : std::nullopt),
        writing_(writing_of(pace_, files.size(), fio_.has_value())),
        progress_(progress),
        run_(files, tile_bytes(files)),
        all_(files.size()) {
    std::iota(all_.begin(), all_.end(), 0U);
  }

  Result<StorageReport> measure();

 private:
  [[nodiscard]] Bytes tile_bytes(const std::vector<TestFile>& files) const {
    Bytes alignment = io::kMinAlignment;
    for (const TestFile& file : files) alignment = std::max(alignment, file.alignment);
    // Small files still have eight tiles for each purpose, and every sample may write one.
    const Bytes most = std::min(files.front().bytes / 32, options_.max_write / 4 / writing_.samples);
    Bytes tile = kTileBytes;
    while (tile > 64 * kKiB && tile > 2 * alignment && tile > most) tile /= 2;
    return tile;
  }
  SampleLimit limit(double seconds) const {
    SampleLimit result;
    result.seconds = seconds;
    result.write_bytes = static_cast<Bytes>(static_cast<double>(write_allowance_) * seconds / writing_.seconds);
    return result;
  }
  // Whether what may be left out can begin: each such part names the share of the time by which it has to.
  bool has_time(double share) const {
    return std::chrono::duration<double>(Clock::now() - start_).count() < share * pace_.most_seconds;
  }
  Result<std::span<std::byte>> memory(const TransferSetting& setting, PageKind pages);
  Result<Sample> sample(Traffic traffic, const TransferSetting& setting, const SampleLimit& limit,
                        std::span<const std::uint32_t> which);
  Result<void> sweep(StorageResult& result);
  Result<TransferSetting> confirm(const TransferSetting& winner, const TransferSetting& standard);
  Result<void> repeat(StorageResult& result, std::span<const std::uint32_t> which, int repeats);
  static void leave_fio_out(StorageResult& result);
  void fio_turn(StorageResult& result);
  void fio_sweep(StorageResult& result);
  Result<void> pages(StorageResult& result);
  Result<void> latency(StorageResult& result, std::span<const std::uint32_t> which);
  Result<StorageResult> together();
  Result<StorageResult> alone(std::uint32_t file, const StorageResult& all);
  void say_found(const StorageResult& result);

  StorageOptions options_;
  Pace pace_;
  std::optional<FioProgram> fio_;
  Writing writing_;
  Progress& progress_;
  TransferRun run_;
  std::vector<std::uint32_t> all_;
  FioSetting best_fio_read_, best_fio_write_;
  std::map<PageKind, HostSlab> memory_;
  Bytes write_allowance_ = 0;
  Bytes fio_written_ = 0;
  Clock::time_point start_ = Clock::now();
};

Result<std::span<std::byte>> StorageMeasurement::memory(const TransferSetting& setting, PageKind pages) {
  HostSlab& slab = memory_[pages];
  const Bytes needed = run_.memory_bytes(setting);
  if (static_cast<Bytes>(slab.bytes().size()) < needed) {
    slab = HostSlab();
    HEADRACE_TRY(slab, make_io_memory(needed, pages));
  }
  return slab.bytes().first(static_cast<std::size_t>(needed));
}

Result<Sample> StorageMeasurement::sample(Traffic traffic, const TransferSetting& setting, const SampleLimit& limit,
                                          std::span<const std::uint32_t> which) {
  HEADRACE_TRY(const std::span<std::byte> memory, this->memory(setting, PageKind::kExplicitHuge));
  return run_.run(traffic, setting, limit, memory, which);
}

Result<void> StorageMeasurement::sweep(StorageResult& result) {
  SampleLimit limit = this->limit(pace_.sweep_seconds);
  limit.until_steady = false;
  for (const Bytes block : pace_.blocks) {
    if (block > run_.tile_bytes()) continue;
    for (const Bytes flight : pace_.in_flight) {
      const TransferSetting setting{block, flight, io::IoBackendChoice::kAuto};
      progress_.step(fmt::format("storage: block {}, {} in flight", format_bytes(block), format_bytes(flight)),
                     3 * pace_.sweep_seconds);
      for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite, Traffic::kMixed}) {
        HEADRACE_TRY(const Sample sample, this->sample(traffic, setting, limit, all_));
        io::LatencyHistogram latency = sample.read_latency;
        latency.merge(sample.write_latency);
        result.sweep.push_back({setting, traffic, sample.bytes_per_s, sample.cpu_seconds_per_byte,
                                latency.percentile_ns(0.5), latency.percentile_ns(0.99)});
        result.backend = sample.backend;
      }
    }
  }
  return {};
}

// One sample of the sweep may have been lucky: another setting than the default has to win turn by turn.
Result<TransferSetting> StorageMeasurement::confirm(const TransferSetting& winner, const TransferSetting& standard) {
  if (winner == standard) return winner;
  SampleLimit limit = this->limit(2 * pace_.sweep_seconds);
  limit.until_steady = false;
  std::vector<double> gain;
  for (int turn = 0; turn < kConfirmTurns; ++turn) {
    if (!has_time(kConfirmBy)) return standard;
    progress_.step("storage: the fastest setting against the default", 8 * pace_.sweep_seconds);
    double seconds[2] = {};  // for a byte each way
    for (int i = 0; i < 2; ++i) {
      for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite}) {
        HEADRACE_TRY(const Sample sample, this->sample(traffic, i == 0 ? standard : winner, limit, all_));
        seconds[i] += 1 / sample.bytes_per_s;
      }
    }
    gain.push_back(seconds[0] / seconds[1] - 1);
  }
  return *std::min_element(gain.begin(), gain.end()) > 0 && median_of(gain) > kAsGood ? winner : standard;
}

Result<void> StorageMeasurement::repeat(StorageResult& result, std::span<const std::uint32_t> which, int repeats) {
  SampleLimit limit = this->limit(pace_.repeat_seconds);
  limit.until_steady = !options_.quick;
  int turns = 0;
  for (int turn = 0; turn < repeats && (turn < 2 || has_time(kRepeatBy)); ++turn, ++turns) {
    progress_.step(fmt::format("storage: reading, writing and both, turn {} of {}", turn + 1, repeats),
                   3 * pace_.repeat_seconds);
    for (const auto& [traffic, into] : {std::pair{Traffic::kRead, &result.read},
                                        {Traffic::kWrite, &result.write},
                                        {Traffic::kMixed, &result.mixed}}) {
      HEADRACE_TRY(const Sample sample, this->sample(traffic, result.setting, limit, which));
      into->bytes_per_s.push_back(sample.bytes_per_s);
      into->read_latency.merge(sample.read_latency);
      into->write_latency.merge(sample.write_latency);
      into->steady += sample.steady ? 1 : 0;
      into->cpu_seconds_per_byte += sample.cpu_seconds_per_byte;
      into->read_share += sample.read_bytes_per_s / sample.bytes_per_s;
      result.backend = sample.backend;
    }
    say_found(result);
    if (turn >= pace_.fio_repeats || !result.fio) continue;
    if (has_time(kFioTurnBy)) {
      fio_turn(result);
    } else if (result.fio->read.empty()) {
      leave_fio_out(result);
    }
  }
  for (Repeats* const part : {&result.read, &result.write, &result.mixed}) {
    part->cpu_seconds_per_byte /= turns;
    part->read_share /= turns;
  }
  if (result.fio) result.fio->cpu_seconds_per_byte /= 2 * static_cast<double>(result.fio->read.size());
  return {};
}

void StorageMeasurement::say_found(const StorageResult& result) {
  progress_.found(fmt::format("read {}, write {}, both {}", format_rate(result.read.median()),
                              format_rate(result.write.median()), format_rate(result.mixed.median())));
}

void StorageMeasurement::leave_fio_out(StorageResult& result) {
  result.fio.reset();
  result.why_no_fio = "no time was left for it: the machine is busy, or the disk is slow";
}

void StorageMeasurement::fio_turn(StorageResult& result) {
  FioComparison& fio = *result.fio;
  const SampleLimit limit = this->limit(pace_.fio_seconds);
  for (const auto& [traffic, into] :
       {std::pair{Traffic::kRead, &fio.read}, {Traffic::kWrite, &fio.write}, {Traffic::kMixed, &fio.mixed}}) {
    progress_.step(fmt::format("storage: {} beside us, {}", fio.version, traffic_name(traffic)),
                   pace_.fio_seconds + kFioStart);
    const FioSetting& setting = traffic == Traffic::kRead ? best_fio_read_ : best_fio_write_;
    const auto sample = run_fio(*fio_, setting, run_, all_, traffic, limit);
    if (!sample.ok()) {  // nothing of ours depends on it
      result.fio.reset();
      result.why_no_fio = sample.error().message;
      return;
    }
    into->push_back(sample->bytes_per_s);
    fio_written_ += sample->written_bytes;
    if (traffic != Traffic::kMixed) fio.cpu_seconds_per_byte += sample->cpu_seconds_per_byte;
  }
}

// Fills result.fio when fio works here; why_no_fio otherwise.
void StorageMeasurement::fio_sweep(StorageResult& result) {
  if (!fio_) {
    result.why_no_fio = options_.with_fio ? "fio is not installed" : "not asked for";
    return;
  }
  const SampleLimit limit = this->limit(pace_.fio_seconds);
  double best_read = 0, best_write = 0;
  for (const FioSetting& setting : pace_.fio) {
    if (!has_time(kFioSweepBy)) break;
    const auto jobs = static_cast<Bytes>(all_.size());
    if (setting.block_bytes > std::min(limit.write_bytes / jobs, run_.others_range(0).bytes)) continue;
    for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite}) {
      progress_.step(fmt::format("storage: {}, {}", fio_->version, fio_setting_text(setting)),
                     pace_.fio_seconds + kFioStart);
      const auto sample = run_fio(*fio_, setting, run_, all_, traffic, limit);
      if (!sample.ok()) {
        result.why_no_fio = sample.error().message;
        continue;
      }
      fio_written_ += sample->written_bytes;
      double& best = traffic == Traffic::kRead ? best_read : best_write;
      if (sample->bytes_per_s <= best) continue;
      best = sample->bytes_per_s;
      (traffic == Traffic::kRead ? best_fio_read_ : best_fio_write_) = setting;
    }
  }
  if (best_read <= 0 && !has_time(kFioSweepBy)) return leave_fio_out(result);
  if (best_read <= 0 || best_write <= 0) {
    if (result.why_no_fio.empty()) result.why_no_fio = "the test file is too small for it: raise --max-write";
    return;
  }
  result.why_no_fio.clear();
  result.fio.emplace();
  result.fio->version = fio_->version;
  result.fio->read_setting = fio_setting_text(best_fio_read_);
  result.fio->write_setting = fio_setting_text(best_fio_write_);
}

Result<void> StorageMeasurement::pages(StorageResult& result) {
  HEADRACE_TRY(const std::span<std::byte> huge, memory(result.setting, PageKind::kExplicitHuge));
  PagesEffect& effect = result.pages;
  effect.huge_kind = memory_[PageKind::kExplicitHuge].page_kind();
  if (effect.huge_kind == PageKind::kOrdinary) return {};
  HEADRACE_TRY(const std::span<std::byte> ordinary, memory(result.setting, PageKind::kOrdinary));
  SampleLimit limit = this->limit(pace_.pages_seconds);
  limit.until_steady = false;
  std::vector<double> rates[4];
  for (int turn = 0; turn < pace_.pages_repeats && (turn < 1 || has_time(1)); ++turn) {
    progress_.step("storage: huge pages against ordinary ones", 4 * pace_.pages_seconds);
    for (int i = 0; i < 4; ++i) {
      const Traffic traffic = i / 2 == 0 ? Traffic::kRead : Traffic::kWrite;
      HEADRACE_TRY(const Sample sample, run_.run(traffic, result.setting, limit, i % 2 == 0 ? huge : ordinary, all_));
      rates[i].push_back(sample.bytes_per_s);
    }
  }
  effect.huge_read = median_of(rates[0]);
  effect.ordinary_read = median_of(rates[1]);
  effect.huge_write = median_of(rates[2]);
  effect.ordinary_write = median_of(rates[3]);
  return {};
}

// One request of one block at a time: what a commit record, or the first tile of a step, waits for.
Result<void> StorageMeasurement::latency(StorageResult& result, std::span<const std::uint32_t> which) {
  const TransferSetting setting{io::kMinAlignment, io::kMinAlignment, result.setting.backend};
  SampleLimit limit = this->limit(kLatencySeconds / 2);
  limit.write_bytes = std::min(limit.write_bytes, 2 * run_.tile_bytes());
  limit.until_steady = false;
  progress_.step("storage: one small request at a time", kLatencySeconds);
  HEADRACE_TRY(const Sample read, sample(Traffic::kRead, setting, limit, which));
  HEADRACE_TRY(const Sample write, sample(Traffic::kWrite, setting, limit, which));
  result.read_latency_seconds = 1e-9 * static_cast<double>(read.read_latency.percentile_ns(0.5));
  result.write_latency_seconds = 1e-9 * static_cast<double>(write.write_latency.percentile_ns(0.5));
  return {};
}

Result<StorageResult> StorageMeasurement::together() {
  StorageResult result;
  HEADRACE_RETURN_IF_ERROR(sweep(result));
  const TransferSetting standard = default_setting(all_.size());
  HEADRACE_TRY(result.setting, confirm(choose_setting(result.sweep, standard), standard));
  result.is_default = result.setting == standard;
  HEADRACE_RETURN_IF_ERROR(latency(result, all_));
  fio_sweep(result);
  HEADRACE_RETURN_IF_ERROR(repeat(result, all_, pace_.repeats));
  HEADRACE_RETURN_IF_ERROR(pages(result));
  return result;
}

Result<StorageResult> StorageMeasurement::alone(std::uint32_t file, const StorageResult& all) {
  StorageResult result;
  result.setting = all.setting;
  result.is_default = all.is_default;
  result.why_no_fio = "compared for all paths together";
  const std::uint32_t which[] = {file};
  HEADRACE_RETURN_IF_ERROR(latency(result, which));
  HEADRACE_RETURN_IF_ERROR(repeat(result, which, kAloneRepeats));
  return result;
}

Result<StorageReport> StorageMeasurement::measure() {
  const auto start = Clock::now();
  StorageReport report;
  progress_.step("storage: laying out the test file", pace_.layout_seconds / 2);
  const TransferSetting standard = default_setting(all_.size());
  HEADRACE_RETURN_IF_ERROR(run_.lay_out(standard, pace_.layout_seconds));
  write_allowance_ =
      std::max<Bytes>(options_.max_write - run_.written_bytes() - writing_.samples * run_.tile_bytes(), 0);
  HEADRACE_TRY(StorageResult result, together());
  report.results.push_back(std::move(result));
  for (const std::uint32_t file : all_) {
    if (all_.size() == 1) break;
    HEADRACE_TRY(result, alone(file, report.results.front()));
    report.results.push_back(std::move(result));
  }
  progress_.step("storage: reading everything back", pace_.layout_seconds / 4);
  HEADRACE_RETURN_IF_ERROR(run_.verify(standard, pace_.verify_seconds));
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    StorageResult& part = report.results[i];
    part.direct = true;
    for (const std::uint32_t file : all_) {
      if (i > 0 && file + 1 != i) continue;
      part.paths.push_back(run_.files()[file].path);
      part.direct = part.direct && run_.files()[file].direct;
      if (!run_.files()[file].direct) part.why_buffered = run_.files()[file].why_buffered;
    }
  }
  report.file_bytes = run_.files().front().bytes;
  report.written_bytes = run_.written_bytes() + fio_written_;
  report.verified_bytes = run_.verified_bytes();
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double spread_of(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double median = median_of(values);
  return median > 0 ? (*most - *least) / median : 0;
}

double Repeats::median() const { return median_of(bytes_per_s); }
double Repeats::spread() const { return spread_of(bytes_per_s); }

double StorageResult::additive_bound() const {
  const double r = read.median(), w = write.median();
  return r > 0 && w > 0 ? 2 / (1 / r + 1 / w) : 0;
}

TransferSetting choose_setting(const std::vector<SweepPoint>& sweep, const TransferSetting& standard) {
  struct Candidate {
    TransferSetting setting;
    double seconds_per_byte = 0;
  };
  std::vector<Candidate> candidates;
  for (const SweepPoint& point : sweep) {
    if (point.traffic == Traffic::kMixed) continue;
    auto at = std::find_if(candidates.begin(), candidates.end(),
                           [&](const Candidate& candidate) { return candidate.setting == point.setting; });
    if (at == candidates.end()) at = candidates.insert(candidates.end(), {point.setting, 0});
    at->seconds_per_byte += 1 / std::max(point.bytes_per_s, 1.0);
  }
  if (candidates.empty()) return standard;
  double best = INFINITY;
  for (const Candidate& candidate : candidates) best = std::min(best, candidate.seconds_per_byte);
  const TransferSetting* chosen = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.seconds_per_byte > best * (1 + kAsGood)) continue;
    if (candidate.setting == standard) return standard;
    const TransferSetting& setting = candidate.setting;
    // Fewest bytes in flight, then the largest block: least memory, then least CPU time.
    if (chosen == nullptr || setting.in_flight_bytes < chosen->in_flight_bytes ||
        (setting.in_flight_bytes == chosen->in_flight_bytes && setting.block_bytes > chosen->block_bytes))
      chosen = &setting;
  }
  return *chosen;
}

Result<StorageReport> measure_storage(const std::vector<std::string>& paths, const StorageOptions& options,
                                      Progress& progress) {
  const auto count = static_cast<Bytes>(paths.size());
  if (options.max_write < count * kLeastWrite)
    return make_error(ErrorCode::kUsage,
                      fmt::format("--max-write {} is too little to measure with", format_bytes(options.max_write)),
                      fmt::format("at least {} are needed for each path", format_bytes(kLeastWrite)));
  // A quarter of what may be written lays the files out; larger ones only take longer.
  const Bytes largest = options.quick ? 512 * kMiB : 2 * kGiB;
  const Bytes each = std::max(std::min(options.max_write / 4, largest) / count, kLeastWrite / 4) / kMiB * kMiB;
  HEADRACE_TRY(std::vector<TestFile> files, make_test_files(paths, each));
  StorageMeasurement measurement(files, options, progress);
  return measurement.measure();
}

}  // namespace headrace::profile
