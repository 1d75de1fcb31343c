// SPDX-License-Identifier: Apache-2.0
// The folder of a run: which run it is (run.json), what it was told (config.json) and its metrics (metrics.jsonl).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "core/result.h"

namespace headrace::models {

struct RunIdentity {
  std::string run_id;
  std::vector<std::string> nvme_paths;  // absolute; empty when nothing is on NVMe
  std::int64_t tile_elements = 0;       // the volume keeps its tile geometry
  bool durable = false;                 // all state is on NVMe: a restart goes on
  std::string data;                     // what identifies the training data: size and checksum
  std::string fingerprint;              // the keys that change results, as the config reader writes them
  std::string config_text;              // the resolved config
};

// One owner thread.
class RunFolder {
 public:
  // Makes the folder when it is missing. kPreflight when it cannot be made or written.
  static Result<RunFolder> open(const std::string& path);

  // One process at a time: held until this object goes. Waits up to `deadline` with a line of text; kPreflight then.
  [[nodiscard]] Result<void> lock(std::chrono::milliseconds deadline);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool has_identity() const noexcept;  // an earlier start got as far as run.json
  // Of an earlier start in this folder; kConfig when run.json is damaged.
  [[nodiscard]] Result<std::optional<RunIdentity>> identity() const;
  [[nodiscard]] Result<void> write_identity(const RunIdentity& identity) const;

  // Makes metrics.jsonl agree with the last committed step: rows of later steps are cut, its own row is added when
  // missing.
  [[nodiscard]] Result<void> repair_metrics(std::uint64_t committed_step, std::string_view row) const;
  [[nodiscard]] Result<void> append_metrics(std::string_view row);
  [[nodiscard]] Result<void> clear_metrics() const;

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::optional<File> lock_;
};

// "r-20260301-101502-3f7a": the time and four random digits, so that runs started in one second differ.
[[nodiscard]] std::string new_run_id();

}  // namespace headrace::models
