// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/profile/report.h"

namespace headrace::profile {
namespace {

constexpr double kModel = 7e9;            // the model that everybody can place
constexpr double kFlopsPerParameter = 6;  // and token: forward, and twice that backward

std::string duration_text(double seconds) {
  if (seconds < 600) return fmt::format("{:.3g} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} minutes", seconds / 60);
  return fmt::format("{:.1f} hours", seconds / 3600);
}

std::string count_text(double count) {
  if (count >= 1e9) return fmt::format("{:.3g} billion", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.3g} million", count / 1e6);
  return fmt::format("{:.3g}", count);
}

// Two figures are enough for a limit that depends on the model.
double rounded(double value) {
  const double unit = std::pow(10.0, std::floor(std::log10(std::max(value, 1.0))) - 1);
  return std::round(value / unit) * unit;
}

const GemmRate* rate_of(const Report& report, const std::string& dtype) {
  if (!report.compute) return nullptr;
  for (const GemmRate& rate : report.compute->rates)
    if (rate.dtype == dtype) return &rate;
  return nullptr;
}

}  // namespace

Feed feed_of(const StorageResult& result) {
  const double read = result.read.median(), write = result.write.median(), mixed = result.mixed.median();
  if (read <= 0 || write <= 0 || mixed <= 0) return {};
  const double seconds =
      std::max({Feed::kReadBytes / read, Feed::kWriteBytes / write, (Feed::kReadBytes + Feed::kWriteBytes) / mixed});
  return {1 / seconds};
}

std::vector<std::string> verdict(const Report& report) {
  std::vector<std::string> words;
  if (!report.storage) return words;
  const StorageResult& result = report.storage->results.front();
  const double feed = feed_of(result).parameters_per_s;
  if (feed <= 0) return words;
  const bool several = result.paths.size() > 1;
  words.push_back(fmt::format(
      "{} {} {} parameters/s (bf16 with split state: {:.0f} bytes read and {:.0f} written per parameter and "
      "step); a 7B model with all its state there steps in {} as far as the disk goes",
      several ? "these paths" : "this path", several ? "feed" : "feeds", count_text(feed), Feed::kReadBytes,
      Feed::kWriteBytes, duration_text(kModel / feed)));
  if (const GemmRate* const rate = rate_of(report, "bf16"); rate != nullptr && rate->flops_per_s > 0) {
    // 6 · tokens · parameters / flops = parameters / feed
    const double tokens = rate->flops_per_s / (kFlopsPerParameter * feed);
    words.push_back(
        fmt::format("good enough for steps of {:.0f} tokens or more: from there on the cores, at {:.0f} GFLOP/s, take "
                    "longer than the disk ({} per 1000 tokens of a 7B model); smaller steps wait for the disk",
                    rounded(std::max(tokens, 1.0)), rate->flops_per_s / 1e9,
                    duration_text(kFlopsPerParameter * 1000 * kModel / rate->flops_per_s)));
  } else {
    words.emplace_back(
        "whether that is enough depends on the cores: measure without --only, or with "
        "--only storage,compute");
  }
  words.push_back(fmt::format("each step of a 7B model writes {}: mind the drive's endurance (TBW)",
                              format_bytes(static_cast<Bytes>(kModel * Feed::kWriteBytes))));
  if (!result.is_default)
    words.push_back(
        fmt::format("block {} with {} in flight is faster here than the default; headrace tune CONFIG says "
                    "whether it is for your job, and what to set",
                    format_bytes(result.setting.block_bytes), format_bytes(result.setting.in_flight_bytes)));
  if (!result.direct)
    words.push_back(fmt::format("the page cache was part of this ({}): rates of a disk with direct I/O are steadier",
                                result.why_buffered));
  return words;
}

}  // namespace headrace::profile
