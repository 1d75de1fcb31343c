// SPDX-License-Identifier: Apache-2.0
// Finds the I/O setting with which a job's bytes cross the disk soonest, with the least memory and CPU time, and never
// proposes one that was not better than the present one in the same run.
#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "runtime/profile/progress.h"
#include "runtime/profile/transfer_run.h"

namespace headrace::profile {

struct TuneJob {
  std::vector<std::string> paths;
  double read_bytes = 0, write_bytes = 0;  // of one step; only their ratio decides
  TransferSetting present;                 // the config's, or the defaults
  bool equal_stripes = false;              // the config's; else tiles are dealt by measured bandwidth
  Bytes max_write = 8 * kGiB;
  bool quick = false;  // samples of a quarter of the time
};

struct TuneCandidate {
  TransferSetting setting;
  std::string backend;               // in use
  std::vector<double> step_seconds;  // of the job's bytes on the disk, turn by turn
  double read_bytes_per_s = 0, write_bytes_per_s = 0, mixed_bytes_per_s = 0;  // medians
  double cpu_seconds_per_byte = 0;
  Bytes memory_bytes = 0;  // of buffers that a run at this setting keeps busy

  [[nodiscard]] double median_seconds() const;
};

struct TuneReport {
  std::vector<TuneCandidate> candidates;  // those of the last round; the present setting is the first
  std::size_t chosen = 0;                 // 0 = the present setting is as good as any
  std::vector<std::string> refused;       // backends that do not work here, with the reason
  std::int64_t tried = 0;                 // settings in the first round
  Bytes written_bytes = 0, verified_bytes = 0;
  double seconds = 0;
};

[[nodiscard]] double planned_tune_seconds(const TuneJob& job);
[[nodiscard]] Result<TuneReport> tune_io(const TuneJob& job, Progress& progress);

// The candidate to use: the present one unless another was faster by more than 3 % in the median and in four of five
// turns; among such the one within 3 % of the fastest with the least memory, then CPU time.
[[nodiscard]] std::size_t choose_candidate(const std::vector<TuneCandidate>& candidates);

}  // namespace headrace::profile
