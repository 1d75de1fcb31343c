// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/read_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "core/check.h"
#include "runtime/config/run_fields.h"

namespace headrace::config {
namespace {

constexpr std::size_t kLargestFile = 16U * 1024 * 1024;  // larger is no config: a data file given by mistake

void fill(FieldTable& table, Draft& draft) {
  add_deepspeed_fields(table, draft);
  add_native_fields(table, draft);
  add_accepted_fields(table);
}

std::vector<ResolvedKey> describe(const Settings& settings) {
  std::vector<ResolvedKey> keys;
  for (const auto& [path, setting] : settings.all()) {
    if (setting.field->use != FieldUse::kUsed && !settings.given(path)) continue;
    ResolvedKey key;
    key.path = path;
    key.value = to_json_text(setting.value);
    key.source = setting.source.text;
    key.source_kind = setting.source.kind;
    key.position = setting.source.position;
    key.use = setting.field->use;
    key.reason = setting.field->reason;
    key.on_resume = setting.field->on_resume;
    keys.push_back(std::move(key));
  }
  return keys;
}

Error file_error(const std::string& path, std::string message, std::string hint = {}) {
  Error error = make_error(ErrorCode::kConfig, std::move(message), std::move(hint));
  error.file = path;
  return error;
}

std::map<std::string, std::string, std::less<>> parse_fingerprint(std::string_view text) {
  std::map<std::string, std::string, std::less<>> values;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos) values.emplace(line.substr(0, equals), line.substr(equals + 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return values;
}

}  // namespace

Result<LoadedConfig> read_config(std::string_view text, const std::string& file, std::span<const std::string> overrides,
                                 std::span<const FieldTable* const> tables, const ReadOptions& options) {
  HEADRACE_CHECK(options.world_size >= 1, "a world has at least one rank");
  HEADRACE_TRY(JsonValue root, parse_json(text, file));
  Draft draft;
  FieldTable own;
  fill(own, draft);
  const World world{options.world_size, options.world_size_source};
  own.check([&](Settings& settings) { return finish(draft, settings, world); });
  std::vector<const FieldTable*> all = {&own};
  all.insert(all.end(), tables.begin(), tables.end());
  Settings settings(all, file, options.purpose);
  HEADRACE_RETURN_IF_ERROR(settings.bind(std::move(root), overrides));
  LoadedConfig loaded;
  loaded.file = file;
  loaded.run = std::move(draft.run);
  loaded.run.name = std::filesystem::path(file).stem().string();
  loaded.keys = describe(settings);
  loaded.notes = settings.notes();
  return loaded;
}

Result<LoadedConfig> load_config(const std::string& path, std::span<const std::string> overrides,
                                 std::span<const FieldTable* const> tables, const ReadOptions& options) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) return file_error(path, "cannot read the config: it is a folder");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return file_error(path, fmt::format("cannot open the config: {}", std::strerror(errno)));
  std::string text;
  std::array<char, 65536> part{};
  while (in && text.size() <= kLargestFile) {
    in.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) return file_error(path, fmt::format("cannot read the config: {}", std::strerror(errno)));
  if (text.size() > kLargestFile) return file_error(path, "the config is larger than 16 MiB", "is it a data file?");
  return read_config(text, path, overrides, tables, options);
}

void resolve_auto(LoadedConfig& config, std::string_view path, std::string value, std::string source) {
  const auto at =
      std::find_if(config.keys.begin(), config.keys.end(), [&](const ResolvedKey& key) { return key.path == path; });
  HEADRACE_CHECK(at != config.keys.end(), "the plan resolves a key that no table registers");
  at->value = std::move(value);
  at->source = std::move(source);
  at->source_kind = SourceKind::kDerived;
}

std::string fingerprint(const LoadedConfig& config) {
  std::string out;
  for (const ResolvedKey& key : config.keys) {
    if (key.use == FieldUse::kUsed && key.on_resume == OnResume::kMustMatch)
      out += fmt::format("{}={}\n", key.path, key.value);
  }
  return out;
}

Result<void> check_resumable(std::string_view stored_fingerprint, const LoadedConfig& config) {
  const auto stored = parse_fingerprint(stored_fingerprint);
  for (const ResolvedKey& key : config.keys) {
    if (key.use != FieldUse::kUsed || key.on_resume != OnResume::kMustMatch) continue;
    const auto before = stored.find(key.path);
    if (before == stored.end() || before->second == key.value) continue;
    Error error = make_error(
        ErrorCode::kConfig,
        fmt::format("\"{}\" is {} ({}), but the run to resume was trained with {}: it cannot change on resume",
                    key.path, key.value, key.source, before->second),
        fmt::format("{}={} goes on as before; or start anew: --resume never with another --run-dir", key.path,
                    before->second));
    error.file = key.source_kind == SourceKind::kFile ? config.file : "";
    error.line = key.position.line;
    error.column = key.position.column;
    return error;
  }
  return {};
}

std::span<const FieldTable* const> documented_tables() {
  struct Documented {
    Draft draft;
    FieldTable table;
    const FieldTable* tables[1] = {&table};
    Documented() { fill(table, draft); }
  };
  static const Documented documented;  // immutable after construction
  return documented.tables;
}

}  // namespace headrace::config
