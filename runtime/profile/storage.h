// SPDX-License-Identifier: Apache-2.0
// What the disk below some paths can do for training: a sweep of block and bytes in flight, the best setting measured
// again and again beside fio, huge pages against ordinary ones, each path alone and all together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/host_slab.h"
#include "core/result.h"
#include "runtime/profile/fio.h"
#include "runtime/profile/progress.h"
#include "runtime/profile/transfer_run.h"

namespace headrace::profile {

struct StorageOptions {
  bool quick = false;
  Bytes max_write = 8 * kGiB;  // by us and fio together, over all paths
  bool with_fio = true;
};
// For each path. Below this its file would be too small to keep any disk busy.
inline constexpr Bytes kLeastWrite = 64 * kMiB;

// Repeats of one traffic at one setting.
struct Repeats {
  std::vector<double> bytes_per_s;  // in the order they were taken
  double read_share = 0;            // mixed: of the bytes
  double cpu_seconds_per_byte = 0;
  int steady = 0;  // how many ended steady
  io::LatencyHistogram read_latency, write_latency;

  [[nodiscard]] double median() const;
  [[nodiscard]] double spread() const;  // (largest - smallest) / median
};

struct SweepPoint {
  TransferSetting setting;
  Traffic traffic = Traffic::kRead;
  double bytes_per_s = 0;
  double cpu_seconds_per_byte = 0;
  std::int64_t p50_ns = 0, p99_ns = 0;
};

// The same traffic from buffers on huge pages and on ordinary ones, interleaved.
struct PagesEffect {
  PageKind huge_kind = PageKind::kOrdinary;  // kOrdinary: the system gave no huge pages, nothing was compared
  double huge_read = 0, ordinary_read = 0, huge_write = 0, ordinary_write = 0;  // bytes per second, medians
};

struct FioComparison {
  std::string version;
  std::string read_setting, write_setting;  // the best of the sweep
  std::vector<double> read, write, mixed;   // bytes per second, interleaved with ours
  double cpu_seconds_per_byte = 0;          // over reading and writing
};

struct StorageResult {
  std::vector<std::string> paths;  // measured together
  bool direct = false;
  std::string why_buffered;
  std::string backend;
  TransferSetting setting;  // of what follows
  bool is_default = true;   // whether it is the default of training
  Repeats read, write, mixed;
  double read_latency_seconds = 0, write_latency_seconds = 0;  // of one small request alone
  std::vector<SweepPoint> sweep;
  PagesEffect pages;
  std::optional<FioComparison> fio;
  std::string why_no_fio;

  // What mixed traffic reaches where each direction costs what it costs alone: 2 / (1/read + 1/write).
  [[nodiscard]] double additive_bound() const;
};

struct StorageReport {
  std::vector<StorageResult> results;  // all paths together, then, where there are several, each alone
  Bytes file_bytes = 0;                // of each test file
  Bytes written_bytes = 0;
  Bytes verified_bytes = 0;  // read through their checksums
  double seconds = 0;
};

[[nodiscard]] double planned_storage_seconds(const StorageOptions& options, std::size_t paths, bool has_fio);
[[nodiscard]] Result<StorageReport> measure_storage(const std::vector<std::string>& paths,
                                                    const StorageOptions& options, Progress& progress);

[[nodiscard]] double median_of(std::vector<double> values);
// (largest − smallest) / median; 0 for fewer than two.
[[nodiscard]] double spread_of(const std::vector<double>& values);

// The setting that moves equal bytes both ways soonest; among those within 3 % of it the default, else the one with the
// fewest bytes in flight.
[[nodiscard]] TransferSetting choose_setting(const std::vector<SweepPoint>& sweep, const TransferSetting& standard);

}  // namespace headrace::profile
