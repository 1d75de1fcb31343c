// SPDX-License-Identifier: Apache-2.0
// What follows from measured figures: the setting that is chosen, what a disk feeds, the documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/profile/report.h"
#include "runtime/profile/tune.h"

namespace headrace::profile {
namespace {

using ::testing::HasSubstr;

std::vector<SweepPoint> sweep_of(std::initializer_list<std::tuple<Bytes, Bytes, double>> points) {
  std::vector<SweepPoint> sweep;
  for (const auto& [block, flight, rate] : points) {
    for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite}) {
      SweepPoint point;
      point.setting = {block, flight, io::IoBackendChoice::kAuto};
      point.traffic = traffic;
      point.bytes_per_s = rate;
      sweep.push_back(point);
    }
  }
  return sweep;
}

TEST(ChooseSetting, KeepsTheDefaultWhereItIsAsGood) {
  const TransferSetting standard{4 * kMiB, 32 * kMiB, io::IoBackendChoice::kAuto};
  const auto sweep = sweep_of({{kMiB, 8 * kMiB, 1.02e9}, {4 * kMiB, 32 * kMiB, 1.0e9}, {kMiB, 64 * kMiB, 1.01e9}});
  EXPECT_EQ(choose_setting(sweep, standard), standard);
}

TEST(ChooseSetting, TakesTheFewestBytesInFlightAmongTheFastest) {
  const TransferSetting standard{4 * kMiB, 32 * kMiB, io::IoBackendChoice::kAuto};
  const auto sweep = sweep_of({{kMiB, 64 * kMiB, 2.0e9},
                               {kMiB, 16 * kMiB, 1.98e9},
                               {2 * kMiB, 16 * kMiB, 1.97e9},
                               {kMiB, 8 * kMiB, 1.5e9},
                               {4 * kMiB, 32 * kMiB, 1.0e9}});
  EXPECT_EQ(choose_setting(sweep, standard), (TransferSetting{2 * kMiB, 16 * kMiB, io::IoBackendChoice::kAuto}));
  EXPECT_EQ(choose_setting({}, standard), standard);
}

TuneCandidate candidate_of(std::vector<double> seconds, Bytes memory, double cpu = 1e-10) {
  TuneCandidate candidate;
  candidate.step_seconds = std::move(seconds);
  candidate.memory_bytes = memory;
  candidate.cpu_seconds_per_byte = cpu;
  return candidate;
}

TEST(ChooseCandidate, KeepsThePresentOneUnlessAnotherWinsTurnByTurn) {
  const TuneCandidate present = candidate_of({1.0, 1.0, 1.0, 1.0, 1.0}, 40 * kMiB);
  // 2 % is noise; so is a median that one lucky pair of turns made.
  EXPECT_EQ(choose_candidate({present, candidate_of({0.98, 0.98, 0.98, 0.98, 0.98}, 8 * kMiB)}), 0U);
  EXPECT_EQ(choose_candidate({present, candidate_of({0.5, 0.5, 0.5, 1.2, 1.2}, 8 * kMiB)}), 0U);
  EXPECT_EQ(choose_candidate({present, candidate_of({2, 2, 2, 2, 2}, kMiB)}), 0U);
  EXPECT_EQ(choose_candidate({present}), 0U);
  EXPECT_EQ(choose_candidate({present, candidate_of({0.9, 0.9, 0.9, 0.9, 1.1}, 80 * kMiB)}), 1U);
}

TEST(ChooseCandidate, PrefersLessMemoryThenLessCpuAmongEqualOnes) {
  const TuneCandidate present = candidate_of({1, 1, 1, 1, 1}, 40 * kMiB);
  const TuneCandidate fastest = candidate_of({.8, .8, .8, .8, .8}, 80 * kMiB);
  const TuneCandidate small = candidate_of({.81, .81, .81, .81, .81}, 16 * kMiB, 3e-10);
  const TuneCandidate frugal = candidate_of({.81, .81, .81, .81, .81}, 16 * kMiB, 1e-10);
  const TuneCandidate slower = candidate_of({.9, .9, .9, .9, .9}, 4 * kMiB);
  EXPECT_EQ(choose_candidate({present, fastest, small, frugal, slower}), 3U);
}

Repeats repeats_of(double rate) {
  Repeats repeats;
  repeats.bytes_per_s = {rate, 1.02 * rate, 0.98 * rate};
  repeats.read_share = 0.5;
  repeats.cpu_seconds_per_byte = 1e-10;
  repeats.read_latency.add(1'000'000);
  return repeats;
}

Report report_of(double read, double write, double mixed) {
  Report report;
  report.cpu_model = "a \"processor\" <1>";
  report.cores = 2;
  StorageResult& result = report.storage.emplace().results.emplace_back();
  result.paths = {"./a", "./b"};
  result.direct = true;
  result.backend = "io_uring";
  result.read = repeats_of(read);
  result.write = repeats_of(write);
  result.mixed = repeats_of(mixed);
  result.read_latency_seconds = result.write_latency_seconds = 1e-4;
  result.why_no_fio = "fio is not installed";
  GemmRate& rate = report.compute.emplace().rates.emplace_back();
  rate.dtype = "bf16";
  rate.flops_per_s = rate.forward_flops_per_s = rate.backward_flops_per_s = 300e9;
  return report;
}

TEST(Feed, IsBoundByTheSlowestOfReadingWritingAndBoth) {
  EXPECT_DOUBLE_EQ(feed_of(report_of(1.4e9, 9e9, 9e9).storage->results[0]).parameters_per_s, 1e8);
  EXPECT_DOUBLE_EQ(feed_of(report_of(9e9, 1.2e9, 9e9).storage->results[0]).parameters_per_s, 1e8);
  EXPECT_DOUBLE_EQ(feed_of(report_of(9e9, 9e9, 2.6e9).storage->results[0]).parameters_per_s, 1e8);
  EXPECT_EQ(feed_of(StorageResult{}).parameters_per_s, 0);
}

TEST(Verdict, SaysWhatTheDiskFeedsAndFromWhereOnTheCoresAreTheLimit) {
  const std::vector<std::string> words = verdict(report_of(1.4e9, 9e9, 9e9));
  ASSERT_GE(words.size(), 3U);
  EXPECT_THAT(words[0], HasSubstr("these paths feed 100 million parameters/s"));
  EXPECT_THAT(words[0], HasSubstr("a 7B model with all its state there steps in 70 s"));
  EXPECT_THAT(words[1], HasSubstr("500 tokens or more"));  // 300e9 / (6 · 1e8)
  EXPECT_TRUE(verdict(Report{}).empty());
}

TEST(HardwareFile, HasWhatPlanReadsAndNeverMoreMixedThanBothAlone) {
  const auto file = nlohmann::json::parse(hardware_json(report_of(1e9, 1e9, 3e9)));
  EXPECT_EQ(file["cores"], 2);
  EXPECT_EQ(file["storage"].size(), 1U);
  EXPECT_EQ(file["storage"][0]["path"], "./a, ./b");
  EXPECT_EQ(file["storage"][0]["mixed"]["bw_bytes"], 2e9);
  EXPECT_EQ(file["storage"][0]["read"]["latency_seconds"], 1e-4);
  EXPECT_FALSE(file.contains("host"));  // it would make the plan one for a machine elsewhere
  EXPECT_FALSE(file.contains("optimizer"));
}

TEST(ReportJson, HasTheContractsKeys) {
  const auto document = nlohmann::json::parse(report_json(report_of(2e9, 1e9, 1.5e9)));
  const auto& storage = document["storage"][0];
  EXPECT_EQ(storage["read"]["bw_bytes"], 2e9);
  EXPECT_TRUE(storage["read"]["lat_ns"]["percentile"].contains("99.900000"));
  EXPECT_EQ(storage["mixed"]["read"]["of_alone"], 0.375);
  EXPECT_TRUE(storage["fio"].is_null());
  EXPECT_EQ(document["compute"][0]["flops_per_s"], 300e9);
}

TEST(ReportPage, IsSelfContainedAndEscapesWhatIsNotOurs) {
  const std::string page = report_html(report_of(2e9, 1e9, 1.5e9));
  EXPECT_THAT(page, HasSubstr("a &quot;processor&quot; &lt;1&gt;"));
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_EQ(page.find("http"), std::string::npos);
}

TEST(Statistics, MedianAndSpread) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(spread_of({2}), 0);
  EXPECT_EQ(spread_of({1, 2, 3}), 1);
}

TEST(Progress, CountsTheShareAndScalesWhatIsLeft) {
  std::vector<ProgressEvent> events;
  Progress progress([&](const ProgressEvent& event) { events.push_back(event); }, 10);
  progress.step("one", 4);
  progress.found("something");
  progress.step("two", 6);
  progress.step("more than was planned", 1);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].share, 0);
  EXPECT_EQ(events[0].seconds_left, 10);
  EXPECT_EQ(events[1].share, 0.4);
  EXPECT_EQ(events[1].found, "something");
  EXPECT_EQ(events[2].share, 1);
  EXPECT_EQ(events[2].seconds_left, 0);
}

}  // namespace
}  // namespace headrace::profile
