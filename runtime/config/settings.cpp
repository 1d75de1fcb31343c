// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "runtime/config/suggest.h"

namespace headrace::config {
namespace {

using Kind = JsonValue::Kind;

constexpr std::string_view kNative = "headrace";

std::string joined(std::string_view prefix, std::string_view key) {
  return prefix.empty() ? std::string(key) : fmt::format("{}.{}", prefix, key);
}

std::string_view first_part(std::string_view path) { return path.substr(0, path.find('.')); }
std::string_view last_part(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}
std::string_view parent(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

// Keys that start with an underscore are the user's remarks.
bool is_remark(std::string_view key) { return key.substr(0, 1) == "_"; }

void mark_origin(JsonValue& value, int origin) {
  value.origin = origin;
  for (JsonValue& element : value.elements) mark_origin(element, origin);
  for (JsonMember& member : value.members) mark_origin(member.value, origin);
}

JsonValue make_object(int origin) {
  JsonValue value;
  value.kind = Kind::kObject;
  value.origin = origin;
  return value;
}

// A refused key may have the value that says "not used": its default, null, or a section that is switched off.
bool is_neutral(const Field& field, const FieldValue& value, const JsonValue& json) {
  if (std::holds_alternative<Unset>(value)) return true;
  if (field.type == FieldType::kSection) {
    const JsonMember* enabled = json.find("enabled");
    return enabled != nullptr && enabled->value.kind == Kind::kBool && !enabled->value.boolean;
  }
  const Result<FieldValue> neutral = default_value(field);
  return neutral.ok() && *neutral == value;
}

JsonValue override_value(const std::string& text) {
  const Result<JsonValue> json = parse_json(text, "");
  if (json.ok() && (json->kind != Kind::kNumber || json->text.find_first_of("0123456789") != std::string::npos))
    return *json;
  JsonValue value;  // not JSON, and that includes NaN
  value.kind = Kind::kString;
  value.text = text;
  return value;
}

}  // namespace

Settings::Settings(std::span<const FieldTable* const> tables, std::string file, Purpose purpose)
    : file_(std::move(file)), purpose_(purpose), tables_(tables) {
  for (const FieldTable* table : tables) {
    for (const Field& entry : table->fields()) {
      const bool added = fields_.emplace(entry.path, &entry).second;
      HEADRACE_CHECK(added, "two tables register one key");
      std::string_view path = entry.path;
      while (true) {  // every prefix is a section with the next part as its member
        std::vector<std::string>& members = sections_[std::string(parent(path))];
        const std::string name(last_part(path));
        if (std::find(members.begin(), members.end(), name) == members.end()) members.push_back(name);
        path = parent(path);
        if (path.empty()) break;
      }
    }
  }
}

const Field* Settings::field(std::string_view path) const {
  const auto at = fields_.find(path);
  return at == fields_.end() ? nullptr : at->second;
}
bool Settings::is_section(std::string_view path) const { return sections_.find(path) != sections_.end(); }
std::vector<std::string> Settings::children(std::string_view section) const {
  const auto at = sections_.find(section);
  return at == sections_.end() ? std::vector<std::string>() : at->second;
}

const Setting& Settings::at(std::string_view path) const {
  const auto found = settings_.find(path);
  HEADRACE_CHECK(found != settings_.end(), "a check asks for a key that no table registers");
  return found->second;
}

bool Settings::given(std::string_view path) const { return given_as_.find(path) != given_as_.end(); }

Error Settings::fail(std::string_view path, std::string message, std::string hint) const {
  Error error = make_error(ErrorCode::kConfig, std::move(message), std::move(hint));
  const Source& source = at(path).source;
  if (source.kind == SourceKind::kOverride) error.message += fmt::format(" ({})", source.text);
  if (source.kind == SourceKind::kFile) {
    error.file = file_;
    error.line = source.position.line;
    error.column = source.position.column;
  } else if (source.kind == SourceKind::kDefault) {
    error.file = file_;
  }
  return error;
}

void Settings::derive(std::string_view path, FieldValue value, std::string from) {
  const auto found = settings_.find(path);
  HEADRACE_CHECK(found != settings_.end(), "a check derives a key that no table registers");
  found->second.value = std::move(value);
  found->second.source = {SourceKind::kDerived, {}, std::move(from)};
}

Error Settings::locate(Error error, Position position, int origin) const {
  if (origin > 0) {
    error.message = fmt::format("argument \"{}\": {}", overrides_[static_cast<std::size_t>(origin) - 1], error.message);
  } else {
    error.file = file_;
    error.line = position.line;
    error.column = position.column;
  }
  return error;
}

Source Settings::source_of(const JsonMember& member) const {
  const int origin = member.value.origin;
  if (origin > 0) {
    return {SourceKind::kOverride, {}, "override " + overrides_[static_cast<std::size_t>(origin) - 1]};
  }
  return {SourceKind::kFile, member.value.position, fmt::format("{}:{}", file_, member.value.position.line)};
}

// The path as the config has it: "headrace." is put before what starts with no top-level key.
std::string Settings::full_path(std::string_view path) const {
  const std::vector<std::string> top = children("");
  const bool known = std::find(top.begin(), top.end(), first_part(path)) != top.end();
  return known ? std::string(path) : joined(kNative, path);
}

Result<void> Settings::merge_override(JsonValue& root, std::size_t index) {
  const std::string& argument = overrides_[index];
  const int origin = static_cast<int>(index) + 1;
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0) {
    return make_error(ErrorCode::kUsage, fmt::format("argument \"{}\" is not of the form key=value", argument),
                      "example: memory.host=160MiB");
  }
  const std::string path = full_path(std::string_view(argument).substr(0, equals));
  if (field(path) == nullptr && !is_section(path)) {
    JsonMember member;
    member.key = std::string(last_part(path));
    member.value.origin = origin;
    return unknown_key(std::string(parent(path)), member);
  }
  JsonValue* at = &root;
  std::string_view rest = path;
  while (true) {
    const std::string key(first_part(rest));
    if (at->kind != Kind::kObject) *at = make_object(origin);
    if (at->find(key) == nullptr) {
      at->members.push_back({key, {}, make_object(origin)});
    }
    at = &at->find(key)->value;
    if (key.size() == rest.size()) break;
    rest.remove_prefix(key.size() + 1);
  }
  *at = override_value(argument.substr(equals + 1));
  mark_origin(*at, origin);
  return {};
}

Result<void> Settings::bind(JsonValue root, std::span<const std::string> overrides) {
  overrides_ = overrides;
  if (root.kind != Kind::kObject) {
    return locate(
        make_error(ErrorCode::kConfig, fmt::format("a config is one object {{ … }}, this is {}", kind_name(root.kind))),
        root.position, 0);
  }
  for (std::size_t i = 0; i < overrides.size(); ++i) HEADRACE_RETURN_IF_ERROR(merge_override(root, i));
  HEADRACE_RETURN_IF_ERROR(bind_object(root, ""));
  for (const auto& [path, entry] : fields_) {
    if (!entry->alias_of.empty() || settings_.find(path) != settings_.end()) continue;
    Setting setting{entry, FieldValue(Unset{}), {SourceKind::kDefault, {}, "default"}};
    HEADRACE_TRY(setting.value, default_value(*entry));
    settings_.emplace(path, std::move(setting));
  }
  for (const auto& [path, setting] : settings_) {
    if (setting.field->setter) setting.field->setter(setting.value);
  }
  for (const FieldTable* table : tables_) {
    for (const auto& check : table->checks()) HEADRACE_RETURN_IF_ERROR(check(*this));
  }
  return {};
}

Result<void> Settings::bind_object(const JsonValue& object, const std::string& prefix) {
  for (const JsonMember& member : object.members) {
    const std::string path = joined(prefix, member.key);
    if (is_remark(member.key)) {
      notes_.push_back(fmt::format("\"{}\" starts with '_': taken as a remark", path));
    } else if (const Field* named = field(path); named != nullptr && member.key.find('.') == std::string::npos) {
      HEADRACE_RETURN_IF_ERROR(bind_value(*named, member));
    } else if (is_section(path) && member.key.find('.') == std::string::npos) {
      if (member.value.kind == Kind::kObject) {
        HEADRACE_RETURN_IF_ERROR(bind_object(member.value, path));
      } else if (member.value.kind != Kind::kNull) {
        Error error =
            make_error(ErrorCode::kConfig,
                       fmt::format("\"{}\" is {}; it takes an object of settings", path, kind_name(member.value.kind)),
                       "write \"" + member.key + "\": { … }, or leave it out");
        return locate(std::move(error), member.value.position, member.value.origin);
      }
    } else {
      return unknown_key(prefix, member);
    }
  }
  return {};
}

Result<void> Settings::bind_value(const Field& named, const JsonMember& member) {
  const Field* target = named.alias_of.empty() ? &named : field(named.alias_of);
  HEADRACE_CHECK(target != nullptr, "an alias of a key that no table registers");
  const Position position = member.value.position;
  const int origin = member.value.origin;
  if (const auto first = given_as_.find(target->path); first != given_as_.end()) {
    Error error = make_error(ErrorCode::kConfig,
                             fmt::format("\"{}\" and \"{}\" are two names of one setting ({})", first->second,
                                         named.path, settings_.find(target->path)->second.source.text),
                             "keep one of them");
    return locate(std::move(error), member.position, origin);
  }
  if (member.value.kind == Kind::kString && member.value.text == "auto" && !target->allows_auto) {
    return locate(auto_not_allowed(named.path), position, origin);
  }
  Result<FieldValue> value = check_value(*target, member.value, notes_);
  if (!value.ok()) return locate(std::move(value).error(), position, origin);
  if (target->use == FieldUse::kRefused && !is_neutral(*target, *value, member.value)) {
    Error error =
        make_error(ErrorCode::kConfig,
                   fmt::format("\"{}\" = {} is not supported: {}", named.path, to_json_text(*value), target->reason),
                   target->default_json.empty() ? "remove it" : "remove it, or set it to " + target->default_json);
    return locate(std::move(error), position, origin);
  }
  if (&named != target) notes_.push_back(fmt::format("\"{}\" is taken as \"{}\"", named.path, target->path));
  if (target->use == FieldUse::kNoEffect) {
    notes_.push_back(fmt::format("\"{}\" is accepted and has no effect: {}", named.path, target->reason));
  }
  given_as_.emplace(target->path, named.path);
  settings_.insert_or_assign(target->path, Setting{target, std::move(*value), source_of(member)});
  return {};
}

Error Settings::auto_not_allowed(const std::string& path) const {
  std::string keys;
  for (const auto& [name, entry] : fields_) {
    if (entry->allows_auto && entry->use == FieldUse::kUsed) keys += (keys.empty() ? "" : ", ") + name;
  }
  return make_error(ErrorCode::kConfig, fmt::format("\"{}\" cannot be \"auto\"", path),
                    "write a value or leave the key out; keys that take \"auto\": " + keys);
}

// "" when no other place has the key.
std::string Settings::where_it_belongs(const std::string& prefix, const std::string& key, bool with_typos) const {
  std::vector<std::string> places;
  for (const auto& [section, members] : sections_) {
    if (section == prefix) continue;
    const bool here = std::find(members.begin(), members.end(), key) != members.end();
    const std::string name = here ? key : with_typos ? nearest(key, members) : "";
    if (name.empty()) continue;
    places.push_back(section.empty() ? fmt::format("\"{}\" belongs at the top level", name)
                                     : fmt::format("\"{}\" belongs under \"{}\"", name, section));
  }
  constexpr std::size_t kShown = 3;  // more places than this mean an ordinary word
  if (places.empty() || places.size() > kShown) return "";
  return fmt::format("{}", fmt::join(places, ", or "));
}

Error Settings::unknown_key(const std::string& prefix, const JsonMember& member) const {
  const std::string path = joined(prefix, member.key);
  std::string message = fmt::format("unknown key \"{}\"", path);
  std::string hint;
  const std::vector<std::string> valid = children(prefix);
  const std::string elsewhere = where_it_belongs(prefix, member.key, false);
  if (!elsewhere.empty()) {
    message += "; " + elsewhere;
  } else if (const std::string near = nearest(member.key, valid); !near.empty()) {
    // In a file the word goes where it stands; an argument is written with its path.
    std::string wanted = member.value.origin > 0 ? joined(prefix, near) : near;
    if (constexpr std::string_view kOurs = "headrace."; wanted.starts_with(kOurs)) wanted.erase(0, kOurs.size());
    message += fmt::format("; did you mean \"{}\"?", wanted);
  } else if (const std::string near_elsewhere = where_it_belongs(prefix, member.key, true); !near_elsewhere.empty()) {
    message += "; " + near_elsewhere;
  } else if (field(prefix) != nullptr && valid.empty()) {
    hint = fmt::format("\"{}\" is a value without keys of its own", prefix);
  } else if (!valid.empty() && valid.size() <= 16) {
    hint = fmt::format("keys of \"{}\": {}", prefix, fmt::join(valid, ", "));
  } else if (!valid.empty()) {
    hint = "headrace config settings lists all keys; a key that starts with '_' is a remark";
  }
  return locate(make_error(ErrorCode::kConfig, std::move(message), std::move(hint)), member.position,
                member.value.origin);
}

}  // namespace headrace::config
