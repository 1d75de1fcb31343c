// SPDX-License-Identifier: Apache-2.0
// All that one `headrace profile` found out, and its forms: the JSON document, the hardware file that `headrace plan`
// reads, a page with plots, and what it means for training in words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/profile/compute.h"
#include "runtime/profile/storage.h"

namespace headrace::profile {

struct Report {
  std::string cpu_model;
  int cores = 0;  // that the process may use
  Bytes memory_bytes = 0;
  std::string program_version;
  std::string date;  // ISO 8601, UTC
  bool quick = false;
  double seconds = 0;
  std::optional<StorageReport> storage;
  std::optional<MemoryReport> memory;
  std::optional<ComputeReport> compute;
  std::optional<OptimizerReport> optimizer;
};

[[nodiscard]] std::string report_json(const Report& report);
// Only what docs/hardware-files.md lists. Parts that were not measured are left out.
[[nodiscard]] std::string hardware_json(const Report& report);
// A page that needs nothing else: tables, and plots in SVG.
[[nodiscard]] std::string report_html(const Report& report);

// What a disk that reads, writes and mixes at these rates does for a model with the default state format.
struct Feed {
  static constexpr double kReadBytes = 14, kWriteBytes = 12;  // per parameter and step: state format `split`
  double parameters_per_s = 0;
};
[[nodiscard]] Feed feed_of(const StorageResult& result);
// Sentences: what the paths feed, when a 7B model is bound by them, what to set. Of what was measured.
[[nodiscard]] std::vector<std::string> verdict(const Report& report);
[[nodiscard]] std::string joined(const std::vector<std::string>& paths);

}  // namespace headrace::profile
