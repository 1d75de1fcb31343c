// SPDX-License-Identifier: Apache-2.0
// Writes JSON: one object per line for metrics.jsonl and the documents of --json. Keys keep their order, doubles come
// back exactly, and values that are not finite become null. Reading is runtime/config's business.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

[[nodiscard]] std::string json_text(
    std::string_view value);  // quoted and escaped; bytes that are not UTF-8 are replaced
[[nodiscard]] std::string json_text(double value);

// One object under construction. `raw` values are JSON already: text() of another object or array.
class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view value) { return add_raw(key, json_text(value)); }
  JsonObject& add(std::string_view key, const char* value) { return add_raw(key, json_text(std::string_view(value))); }
  JsonObject& add(std::string_view key, double value) { return add_raw(key, json_text(value)); }
  template <std::same_as<bool> T>
  JsonObject& add(std::string_view key, T value) {
    return add_raw(key, value ? "true" : "false");
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonObject& add(std::string_view key, T value) {
    return add_raw(key, std::to_string(value));
  }
  JsonObject& add_null(std::string_view key) { return add_raw(key, "null"); }
  JsonObject& add_raw(std::string_view key, std::string_view json);

  [[nodiscard]] std::string text() const { return "{" + body_ + "}"; }  // one line, without its end

 private:
  std::string body_;
};

class JsonArray {
 public:
  JsonArray& add(std::string_view value) { return add_raw(json_text(value)); }
  JsonArray& add(const char* value) { return add_raw(json_text(std::string_view(value))); }
  JsonArray& add(double value) { return add_raw(json_text(value)); }
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonArray& add(T value) { return add_raw(std::to_string(value)); }
  JsonArray& add_raw(std::string_view json);

  [[nodiscard]] std::string text() const { return "[" + body_ + "]"; }

 private:
  std::string body_;
};

}  // namespace headrace
