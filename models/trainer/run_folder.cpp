// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include "core/json.h"
#include "core/log.h"
#include "core/process.h"
#include "runtime/config/json_reader.h"

namespace headrace::models {

namespace {

using config::JsonMember;
using config::JsonValue;

constexpr const char* kIdentityFile = "run.json";
constexpr const char* kMetricsFile = "metrics.jsonl";

Error damaged(const std::string& file, const std::string& what) {
  return make_error(ErrorCode::kConfig, fmt::format("{}: {}", file, what),
                    "it is written by headrace and was changed or cut; --run-dir with another folder starts anew");
}

std::string text_of(const JsonValue& root, std::string_view key) {
  const JsonMember* const member = root.find(key);
  return member != nullptr ? member->value.text : std::string();
}

// The step of a row of metrics.jsonl, or nothing where the line is torn. Evaluation rows carry a step too.
std::optional<std::uint64_t> step_of(const std::string& line) {
  const auto parsed = config::parse_json(line, kMetricsFile);
  if (!parsed.ok() || parsed->kind != JsonValue::Kind::kObject) return std::nullopt;
  const JsonMember* const step = parsed->find("step");
  if (step == nullptr || step->value.kind != JsonValue::Kind::kNumber) return std::nullopt;
  return std::strtoull(step->value.text.c_str(), nullptr, 10);
}

bool is_step_row(const std::string& line) { return line.find("\"val_loss\"") == std::string::npos; }

}  // namespace

std::string new_run_id() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::random_device device;
  return fmt::format("r-{:%Y%m%d-%H%M%S}-{:04x}", fmt::gmtime(now), device() & 0xFFFFU);
}

Result<RunFolder> RunFolder::open(const std::string& path) {
  if (auto made = create_folders(path); !made.ok()) {
    Error error = std::move(made).error();
    error.code = ErrorCode::kPreflight;
    return error;
  }
  std::error_code status;
  std::string absolute = std::filesystem::absolute(path, status).string();
  return RunFolder(status ? path : absolute);
}

Result<void> RunFolder::lock(std::chrono::milliseconds deadline) {
  HEADRACE_TRY(File file, File::open_append(join_path(path_, "run.lock")));
  const auto end = std::chrono::steady_clock::now() + deadline;
  bool said = false;
  while (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    const std::string holder = lock_holder(file.fd());
    if (std::chrono::steady_clock::now() >= end)
      return make_error(ErrorCode::kPreflight, fmt::format("the run in {} is in use by {}", path_, holder),
                        "wait for it to end, or stop it; --run-dir with another folder starts a run of its own");
    if (!said)
      log_info(
          fmt::format("the run in {} is in use by {}; waiting for it for up to {} s (--run-dir with another "
                      "folder starts a run of its own)",
                      path_, holder, std::chrono::duration_cast<std::chrono::seconds>(deadline).count()));
    said = true;
    // flock has no deadline of its own, so it is asked again.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  lock_ = std::move(file);
  return {};
}

bool RunFolder::has_identity() const noexcept { return path_exists(join_path(path_, kIdentityFile)); }

Result<std::optional<RunIdentity>> RunFolder::identity() const {
  const std::string file = join_path(path_, kIdentityFile);
  if (!has_identity()) return std::optional<RunIdentity>();
  HEADRACE_TRY(const std::string text, read_text_file(file));
  HEADRACE_TRY(const JsonValue root, config::parse_json(text, file));
  RunIdentity identity;
  identity.run_id = text_of(root, "run_id");
  if (identity.run_id.empty()) return damaged(file, "no \"run_id\"");
  if (const JsonMember* paths = root.find("nvme_paths"); paths != nullptr)
    for (const JsonValue& element : paths->value.elements) identity.nvme_paths.push_back(element.text);
  identity.tile_elements = std::strtoll(text_of(root, "tile_elements").c_str(), nullptr, 10);
  if (identity.tile_elements <= 0) return damaged(file, "no \"tile_elements\"");
  const JsonMember* const durable = root.find("durable");
  identity.durable = durable != nullptr && durable->value.boolean;
  identity.data = text_of(root, "data");
  identity.fingerprint = text_of(root, "fingerprint");
  identity.config_text = text_of(root, "config");
  return std::optional<RunIdentity>(std::move(identity));
}

Result<void> RunFolder::write_identity(const RunIdentity& identity) const {
  JsonArray paths;
  for (const std::string& path : identity.nvme_paths) paths.add(path);
  JsonObject object;
  object.add("run_id", identity.run_id);
  object.add_raw("nvme_paths", paths.text());
  object.add("tile_elements", identity.tile_elements);
  object.add("durable", identity.durable);
  object.add("data", identity.data);
  object.add("fingerprint", identity.fingerprint);
  object.add("config", identity.config_text);
  return write_file_atomically(join_path(path_, kIdentityFile), object.text() + "\n");
}

Result<void> RunFolder::repair_metrics(std::uint64_t committed_step, std::string_view row) const {
  const std::string file = join_path(path_, kMetricsFile);
  std::string text;
  if (path_exists(file)) {
    HEADRACE_TRY(text, read_text_file(file));
  }
  std::string kept;
  bool has_row = committed_step == 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // a torn last line
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::optional<std::uint64_t> step = step_of(line);
    if (!step.has_value() || *step > committed_step) continue;
    if (*step == committed_step && is_step_row(line)) has_row = true;
    kept += line + "\n";
  }
  if (!has_row && !row.empty()) kept += std::string(row) + "\n";
  if (kept == text) return {};
  return write_file_atomically(file, kept);
}

Result<void> RunFolder::append_metrics(std::string_view row) {
  HEADRACE_TRY(File file, File::open_append(join_path(path_, kMetricsFile)));
  return file.append(std::string(row) + "\n");
}

Result<void> RunFolder::clear_metrics() const { return write_file_atomically(join_path(path_, kMetricsFile), ""); }

}  // namespace headrace::models
