// SPDX-License-Identifier: Apache-2.0
#include "models/files/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/file.h"
#include "models/files/input_file.h"

namespace headrace::models {
namespace {

using nlohmann::json;

// The index of a model of a million tensors is about 100 MB.
constexpr Bytes kMaxJsonBytes = 256 * kMiB;

// The callback of the library's parser; remembers the keys of every open object.
class DuplicateKeys {
 public:
  bool operator()(json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key && duplicate.empty() &&
        !open_.back().insert(value.get<std::string>()).second) {
      duplicate = value.get<std::string>();
    }
    return true;
  }
  std::string duplicate;

 private:
  std::vector<std::set<std::string>> open_;
};

Error fault_at(const std::string& path, std::string_view text, std::size_t position, std::string message) {
  const std::string_view before = text.substr(0, std::min(position, text.size()));
  Error error = make_error(ErrorCode::kConfig, std::move(message));
  error.file = path;
  error.line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1;
  error.column = static_cast<int>(before.size() - (before.rfind('\n') + 1)) + 1;  // npos + 1 = 0: the first line
  return error;
}

}  // namespace

Result<json> parse_json_object(std::string_view text, const std::string& path) {
  DuplicateKeys keys;
  try {
    json value = json::parse(text.begin(), text.end(),
                             [&keys](int, json::parse_event_t event, json& item) { return keys(event, item); });
    if (!keys.duplicate.empty())
      return make_error(ErrorCode::kConfig, fmt::format("{}: the key '{}' appears twice", path, keys.duplicate));
    if (!value.is_object())
      return make_error(ErrorCode::kConfig, fmt::format("{}: there must be a JSON object at the top", path));
    return value;
  } catch (const json::parse_error& error) {
    return fault_at(path, text, error.byte == 0 ? 0 : error.byte - 1, fmt::format("not valid JSON: {}", error.what()));
  } catch (const json::exception& error) {  // a number beyond double, invalid UTF-8
    return make_error(ErrorCode::kConfig, fmt::format("{}: not valid JSON: {}", path, error.what()));
  }
}

Result<json> read_json_object(const std::string& path) {
  HEADRACE_TRY(const File file, open_input(path));
  HEADRACE_TRY(const Bytes bytes, file.size());
  if (bytes > kMaxJsonBytes) {
    return make_error(ErrorCode::kConfig, fmt::format("{} has {} bytes; a JSON file of a model has at most {}", path,
                                                      bytes, kMaxJsonBytes));
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  HEADRACE_RETURN_IF_ERROR(file.read_exact(0, std::as_writable_bytes(std::span(text))));
  return parse_json_object(text, path);
}

}  // namespace headrace::models
