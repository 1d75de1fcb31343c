// SPDX-License-Identifier: Apache-2.0
// From a JSON config and key=value overrides to the RunConfig, with the source of each value. Layers above pass the
// tables of their own keys (runtime/config/field.h). All errors are kConfig (exit 3) with file, line and column, or
// name the argument; a key=value argument without '=' is kUsage.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "runtime/config/field.h"
#include "runtime/config/run_config.h"
#include "runtime/config/settings.h"

namespace headrace::config {

struct ReadOptions {
  Purpose purpose = Purpose::kTrain;  // kPlan: steps, batch size and data may be missing
  std::int32_t world_size = 1;
  std::string world_size_source = "one process";  // "--ranks 4", "WORLD_SIZE=4": named where batch arithmetic fails
};

// One key as it came to be. `value` is JSON; "auto" is left to the plan, which replaces it by resolve_auto().
struct ResolvedKey {
  std::string path;
  std::string value;
  std::string source;  // "run.json:14", "override steps=3", "default", or what it was derived from
  SourceKind source_kind = SourceKind::kDefault;
  Position position;  // kFile
  FieldUse use = FieldUse::kUsed;
  std::string reason;  // why it has no effect
  OnResume on_resume = OnResume::kMustMatch;
};

struct LoadedConfig {
  std::string file;
  RunConfig run;
  std::vector<ResolvedKey> keys;   // every used key, and the others where they were given; by path
  std::vector<std::string> notes;  // to be printed once at the start
};

[[nodiscard]] Result<LoadedConfig> read_config(std::string_view text, const std::string& file,
                                               std::span<const std::string> overrides,
                                               std::span<const FieldTable* const> tables,
                                               const ReadOptions& options = {});
// The same from a file (at most 16 MiB).
[[nodiscard]] Result<LoadedConfig> load_config(const std::string& path, std::span<const std::string> overrides,
                                               std::span<const FieldTable* const> tables,
                                               const ReadOptions& options = {});

// Notes what the plan made of an "auto" key. `value` is JSON.
void resolve_auto(LoadedConfig& config, std::string_view path, std::string value, std::string source);

// One line "path=value" for each key that must not change on resume.
[[nodiscard]] std::string fingerprint(const LoadedConfig& config);
// kConfig naming the first key that differs and both values, pointing at where the current one comes from. A key that
// the stored one lacks is newer than the run, which had its default.
[[nodiscard]] Result<void> check_resumable(std::string_view stored_fingerprint, const LoadedConfig& config);

// The runtime's own keys without values, for printing settings, schema and explanations.
[[nodiscard]] std::span<const FieldTable* const> documented_tables();

}  // namespace headrace::config
