// SPDX-License-Identifier: Apache-2.0
// JSON with positions: what a person writes (comments //, /* */ and #, trailing commas, a byte order mark), each value
// and key with its line and column. Numbers keep their text, so that nothing is rounded before somebody knows what type
// is wanted. Duplicate keys, invalid UTF-8 and anything that is not JSON are errors that point at the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace headrace::config {

// 1-based; a column is a Unicode code point, a tab is one column. Line 0 = not from a file.
struct Position {
  int line = 0;
  int column = 0;
};

struct JsonMember;

struct JsonValue {
  enum class Kind : std::uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  Position position;
  int origin = 0;  // for its user: which of several inputs it came from
  bool boolean = false;
  std::string text;  // kString: decoded; kNumber: as written ("NaN" and "Infinity" too, for a better message)
  std::vector<JsonValue> elements;  // kArray
  std::vector<JsonMember> members;  // kObject, in the order of the file, keys distinct

  [[nodiscard]] const JsonMember* find(std::string_view key) const noexcept;
  [[nodiscard]] JsonMember* find(std::string_view key) noexcept;
};

struct JsonMember {
  std::string key;
  Position position;  // of the key
  JsonValue value;
};

inline constexpr int kMaxJsonDepth = 64;

// `file` is what errors name. Errors are kConfig with line and column.
[[nodiscard]] Result<JsonValue> parse_json(std::string_view text, const std::string& file);

// One line of canonical JSON: members in order, strings escaped, numbers as written.
[[nodiscard]] std::string to_json_text(const JsonValue& value);
[[nodiscard]] std::string json_quote(std::string_view text);
[[nodiscard]] const char* kind_name(JsonValue::Kind kind) noexcept;  // "a number", "an object", …

}  // namespace headrace::config
