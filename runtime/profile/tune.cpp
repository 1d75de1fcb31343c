// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "io/volume_deal.h"
#include "runtime/profile/storage.h"

namespace headrace::profile {
namespace {

constexpr Bytes kBlocks[] = {512 * kKiB, kMiB, 2 * kMiB, 4 * kMiB};
constexpr Bytes kInFlight[] = {8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB};
// Of one sample in the first and the last round.
double first_seconds(const TuneJob& job) { return job.quick ? 0.04 : 0.15; }
double last_seconds(const TuneJob& job) { return job.quick ? 0.1 : 0.4; }
constexpr int kTurns = 5;
constexpr std::size_t kFinalists = 4;
constexpr int kThreads[] = {io::kIoThreads, 2, 8};
constexpr std::size_t kMostSettings = kFinalists + 8;  // of the last round
constexpr double kBetter = 0.03;                       // less is noise
constexpr Bytes kTileBytes = 4 * kMiB;
constexpr Bytes kLeastTuneWrite = 2 * kGiB;  // so that every sample writes a tile
constexpr Bytes kLeastFile = 64 * kMiB;

struct Rates {
  double read = 0, write = 0, mixed = 0, cpu = 0;
  const char* backend = "";
};

class Tuning {
 public:
  Tuning(std::vector<TestFile>& files, const TuneJob& job, Progress& progress)
      : job_(job), progress_(progress), run_(files, kTileBytes), which_(files.size()) {
    std::iota(which_.begin(), which_.end(), 0U);
  }

  Result<TuneReport> tune();

 private:
  // The least time in which the disk can move a step's bytes.
  [[nodiscard]] double step_seconds(const Rates& rates) const {
    return std::max({job_.read_bytes / rates.read, job_.write_bytes / rates.write,
                     (job_.read_bytes + job_.write_bytes) / rates.mixed});
  }
  Result<Rates> measure(const TransferSetting& setting, double seconds);
  Result<std::vector<TransferSetting>> first_round(TuneReport& report);
  Result<void> last_round(TuneReport& report, const std::vector<TransferSetting>& settings);

  TuneJob job_;
  Progress& progress_;
  TransferRun run_;
  std::vector<std::uint32_t> which_;
  HostSlab memory_;
  Bytes write_allowance_ = 0;          // of one sample of a second
  std::vector<std::uint32_t> shares_;  // by bandwidth; empty where the paths are about equal
};

Result<Rates> Tuning::measure(const TransferSetting& setting, double seconds) {
  const auto needed = static_cast<std::size_t>(run_.memory_bytes(setting));
  if (memory_.bytes().size() < needed) {
    memory_ = HostSlab();
    HEADRACE_TRY(memory_, make_io_memory(static_cast<Bytes>(needed), PageKind::kExplicitHuge));
  }
  SampleLimit limit;
  limit.seconds = seconds;
  limit.until_steady = false;
  limit.write_bytes = static_cast<Bytes>(static_cast<double>(write_allowance_) * seconds);
  Rates rates;
  for (const auto& [traffic, into] :
       {std::pair{Traffic::kRead, &rates.read}, {Traffic::kWrite, &rates.write}, {Traffic::kMixed, &rates.mixed}}) {
    HEADRACE_TRY(const Sample sample, run_.run(traffic, setting, limit, memory_.bytes().first(needed), which_));
    *into = sample.bytes_per_s;
    rates.cpu += sample.cpu_seconds_per_byte / 3;
    rates.backend = sample.backend;
  }
  return rates;
}

// One sample of each; the best few, and other backends at the best one's sizes.
Result<std::vector<TransferSetting>> Tuning::first_round(TuneReport& report) {
  struct Tried {
    TransferSetting setting;
    double seconds = 0;
  };
  std::vector<Tried> tried;
  std::string in_use;
  for (const Bytes block : kBlocks) {
    for (const Bytes flight : kInFlight) {
      TransferSetting setting = job_.present;
      setting.block_bytes = block;
      setting.in_flight_bytes = flight;
      progress_.step(fmt::format("block {}, {} in flight", format_bytes(block), format_bytes(flight)),
                     3 * first_seconds(job_));
      HEADRACE_TRY(const Rates rates, measure(setting, first_seconds(job_)));
      tried.push_back({setting, step_seconds(rates)});
      in_use = rates.backend;
      progress_.found(
          fmt::format("{} read, {} written at once", format_rate(rates.mixed / 2), format_rate(rates.mixed / 2)));
    }
  }
  report.tried = static_cast<std::int64_t>(tried.size());
  std::sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) { return a.seconds < b.seconds; });
  std::vector<TransferSetting> finalists{job_.present};
  const auto add = [&](const TransferSetting& setting) {
    if (std::find(finalists.begin(), finalists.end(), setting) == finalists.end()) finalists.push_back(setting);
  };
  for (const Tried& candidate : tried) {
    if (finalists.size() > kFinalists) break;
    add(candidate.setting);
  }
  // The one with the fewest bytes in flight among those that one sample cannot tell from the best.
  const Tried* small = &tried.front();
  for (const Tried& candidate : tried) {
    if (candidate.seconds <= tried.front().seconds * (1 + 2 * kBetter) &&
        candidate.setting.in_flight_bytes < small->setting.in_flight_bytes)
      small = &candidate;
  }
  add(small->setting);
  if (job_.present.backend == io::IoBackendChoice::kAuto) {
    for (const auto choice : {io::IoBackendChoice::kUring, io::IoBackendChoice::kLibaio}) {
      if (io::backend_candidates(choice).front().name == in_use) continue;  // what "auto" takes already
      TransferSetting setting = tried.front().setting;
      setting.backend = choice;
      add(setting);
    }
  }
  if (job_.present.backend == io::IoBackendChoice::kAuto || job_.present.backend == io::IoBackendChoice::kThreads) {
    for (const int threads : kThreads) {
      TransferSetting setting = tried.front().setting;
      setting.backend = io::IoBackendChoice::kThreads;
      setting.threads = threads;
      add(setting);
    }
  }
  if (!shares_.empty()) {
    TransferSetting setting = tried.front().setting;
    setting.shares.clear();
    if (job_.equal_stripes) setting.shares = shares_;
    add(setting);
  }
  return finalists;
}

Result<void> Tuning::last_round(TuneReport& report, const std::vector<TransferSetting>& settings) {
  std::vector<std::vector<Rates>> rates(settings.size());
  std::vector<bool> works(settings.size(), true);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      if (!works[i]) continue;
      progress_.step(fmt::format("turn {} of {}: block {}, {} in flight", turn + 1, kTurns,
                                 format_bytes(settings[i].block_bytes), format_bytes(settings[i].in_flight_bytes)),
                     3 * last_seconds(job_));
      auto measured = measure(settings[i], last_seconds(job_));
      if (!measured.ok() && i > 0 && turn == 0 && measured.error().code == ErrorCode::kPreflight) {
        works[i] = false;  // a backend that this machine refuses
        report.refused.push_back(measured.error().message);
        continue;
      }
      if (!measured.ok()) return std::move(measured).error();
      rates[i].push_back(*measured);
    }
  }
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (!works[i]) continue;
    TuneCandidate& candidate = report.candidates.emplace_back();
    candidate.setting = settings[i];
    candidate.memory_bytes = run_.memory_bytes(settings[i]);
    std::vector<double> read, write, mixed, cpu;
    for (const Rates& one : rates[i]) {
      candidate.step_seconds.push_back(step_seconds(one));
      candidate.backend = one.backend;
      read.push_back(one.read);
      write.push_back(one.write);
      mixed.push_back(one.mixed);
      cpu.push_back(one.cpu);
    }
    candidate.read_bytes_per_s = median_of(read);
    candidate.write_bytes_per_s = median_of(write);
    candidate.mixed_bytes_per_s = median_of(mixed);
    candidate.cpu_seconds_per_byte = median_of(cpu);
  }
  return {};
}

Result<TuneReport> Tuning::tune() {
  const auto start = std::chrono::steady_clock::now();
  TuneReport report;
  progress_.step("laying out the test file", 1);
  HEADRACE_RETURN_IF_ERROR(run_.lay_out(TransferSetting{}, 5));
  HEADRACE_TRY(const io::MeasuredDeal deal, io::measured_deal(job_.paths));
  shares_ = deal.shares;
  const auto written = [&] { return run_.written_bytes() + deal.written_bytes; };
  if (std::all_of(shares_.begin(), shares_.end(), [](std::uint32_t share) { return share == 1; })) shares_.clear();
  if (!job_.equal_stripes) job_.present.shares = shares_;
  // Two samples of each setting write.
  const double writing = 2 * (first_seconds(job_) * static_cast<double>(std::size(kBlocks) * std::size(kInFlight)) +
                              last_seconds(job_) * kTurns * static_cast<double>(kMostSettings));
  write_allowance_ = static_cast<Bytes>(static_cast<double>(std::max<Bytes>(job_.max_write - written(), 0)) / writing);
  HEADRACE_TRY(const std::vector<TransferSetting> finalists, first_round(report));
  HEADRACE_RETURN_IF_ERROR(last_round(report, finalists));
  progress_.step("reading everything back", 0.5);
  HEADRACE_RETURN_IF_ERROR(run_.verify(TransferSetting{}));
  report.chosen = choose_candidate(report.candidates);
  report.written_bytes = written();
  report.verified_bytes = run_.verified_bytes();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace

double TuneCandidate::median_seconds() const { return median_of(step_seconds); }

std::size_t choose_candidate(const std::vector<TuneCandidate>& candidates) {
  const TuneCandidate& present = candidates.front();
  std::vector<std::size_t> better;
  double best = present.median_seconds();
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    const TuneCandidate& candidate = candidates[i];
    const std::size_t turns = std::min(candidate.step_seconds.size(), present.step_seconds.size());
    std::size_t won = 0;
    for (std::size_t turn = 0; turn < turns; ++turn)
      won += candidate.step_seconds[turn] < present.step_seconds[turn] ? 1 : 0;
    if (candidate.median_seconds() * (1 + kBetter) > present.median_seconds() || won * 5 < turns * 4) continue;
    better.push_back(i);
    best = std::min(best, candidate.median_seconds());
  }
  std::size_t chosen = 0;
  for (const std::size_t i : better) {
    if (candidates[i].median_seconds() > best * (1 + kBetter)) continue;
    const TuneCandidate &one = candidates[i], &other = candidates[chosen];
    if (chosen == 0 || one.memory_bytes < other.memory_bytes ||
        (one.memory_bytes == other.memory_bytes && one.cpu_seconds_per_byte < other.cpu_seconds_per_byte))
      chosen = i;
  }
  return chosen;
}

double planned_tune_seconds(const TuneJob& job) {
  return 1.5 + 3 * first_seconds(job) * static_cast<double>(std::size(kBlocks) * std::size(kInFlight)) +
         3 * last_seconds(job) * kTurns * static_cast<double>(kMostSettings);
}

Result<TuneReport> tune_io(const TuneJob& job, Progress& progress) {
  const auto count = static_cast<Bytes>(job.paths.size());
  const Bytes least = std::max(kLeastTuneWrite, 4 * count * kLeastFile);
  if (job.max_write < least)
    return make_error(ErrorCode::kUsage,
                      fmt::format("--max-write {} is too little to compare settings with", format_bytes(job.max_write)),
                      fmt::format("at least {} are needed", format_bytes(least)));
  const Bytes each = std::min(job.max_write / 4, kGiB) / count / kMiB * kMiB;
  HEADRACE_TRY(std::vector<TestFile> files, make_test_files(job.paths, std::max(each, kLeastFile)));
  Tuning tuning(files, job, progress);
  return tuning.tune();
}

}  // namespace headrace::profile
