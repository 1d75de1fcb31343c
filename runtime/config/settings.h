// SPDX-License-Identifier: Apache-2.0
// All keys of all tables with the values they got and where these came from: the config file, an override, the default,
// or another key. Tables' checks read it, point errors at the right place with fail(), and note derived values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "runtime/config/field.h"
#include "runtime/config/json_reader.h"

namespace headrace::config {

// What the config is read for: a run needs to know how long and on which data, a plan does not.
enum class Purpose : std::uint8_t { kTrain, kPlan };
enum class SourceKind : std::uint8_t { kDefault, kFile, kOverride, kDerived };

struct Source {
  SourceKind kind = SourceKind::kDefault;
  Position position;  // kFile
  std::string text;   // "run.json:14", "override memory.host=160MiB", "default", "train_batch_size ÷ world size"
};

struct Setting {
  const Field* field = nullptr;
  FieldValue value;
  Source source;
};

class Settings {
 public:
  // `tables` must outlive it. A path registered twice is a defect (CHECK).
  Settings(std::span<const FieldTable* const> tables, std::string file, Purpose purpose);

  // Binds every key of `root` (with the overrides merged in), then defaults, then runs setters and checks. Once.
  [[nodiscard]] Result<void> bind(JsonValue root, std::span<const std::string> overrides);

  // For checks. `path` must be registered.
  [[nodiscard]] const Setting& at(std::string_view path) const;
  [[nodiscard]] bool given(std::string_view path) const;  // in the file or by an override
  // kConfig error that points at the key's value if it was given.
  [[nodiscard]] Error fail(std::string_view path, std::string message, std::string hint = {}) const;
  void derive(std::string_view path, FieldValue value, std::string from);
  void note(std::string text) { notes_.push_back(std::move(text)); }

  [[nodiscard]] const std::map<std::string, Setting, std::less<>>& all() const noexcept { return settings_; }
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] Purpose purpose() const noexcept { return purpose_; }

 private:
  [[nodiscard]] const Field* field(std::string_view path) const;
  [[nodiscard]] bool is_section(std::string_view path) const;
  [[nodiscard]] std::vector<std::string> children(std::string_view section) const;
  [[nodiscard]] Result<void> merge_override(JsonValue& root, std::size_t index);
  [[nodiscard]] std::string full_path(std::string_view path) const;
  [[nodiscard]] Result<void> bind_object(const JsonValue& object, const std::string& prefix);
  [[nodiscard]] Result<void> bind_value(const Field& named, const JsonMember& member);
  [[nodiscard]] Error unknown_key(const std::string& prefix, const JsonMember& member) const;
  [[nodiscard]] std::string where_it_belongs(const std::string& prefix, const std::string& key, bool with_typos) const;
  [[nodiscard]] Error auto_not_allowed(const std::string& path) const;
  [[nodiscard]] Error locate(Error error, Position position, int origin) const;
  [[nodiscard]] Source source_of(const JsonMember& member) const;

  std::string file_;
  Purpose purpose_;
  std::span<const FieldTable* const> tables_;
  std::span<const std::string> overrides_;
  std::map<std::string, const Field*, std::less<>> fields_;                // aliases too
  std::map<std::string, std::vector<std::string>, std::less<>> sections_;  // section → names of its members
  std::map<std::string, Setting, std::less<>> settings_;                   // aliases resolved
  std::map<std::string, std::string, std::less<>> given_as_;               // path → the name it was given by
  std::vector<std::string> notes_;
};

}  // namespace headrace::config
