// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace headrace::config {
namespace {

using Kind = JsonValue::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c); }

// Length of the UTF-8 sequence at the start of `text`, 0 when it is not valid (overlong, surrogate, cut off, >
// U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | (code >> 6));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | (code >> 12));
    out += static_cast<char>(0x80U | ((code >> 6) & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | (code >> 18));
    out += static_cast<char>(0x80U | ((code >> 12) & 0x3FU));
    out += static_cast<char>(0x80U | ((code >> 6) & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  }
}

// What a person sees of one character in a message.
std::string shown(std::string_view at) {
  if (at.empty()) return "the end of the file";
  const std::size_t length = utf8_length(at);
  const auto byte = static_cast<unsigned char>(at[0]);
  if (length == 0 || byte < 0x20 || byte == 0x7F) return fmt::format("byte 0x{:02X}", byte);
  return fmt::format("'{}'", at.substr(0, length));
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Result<JsonValue> read() {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") offset_ = 3;
    if (text_.substr(0, 2) == "\xFF\xFE" || text_.substr(0, 2) == "\xFE\xFF") {
      return fault(here(), "the file is UTF-16", "save it as UTF-8");
    }
    HEADRACE_RETURN_IF_ERROR(skip_space());
    if (at_end()) return fault(here(), "the file is empty", "a config is one JSON object: { … }");
    HEADRACE_TRY(JsonValue value, read_value(0));
    HEADRACE_RETURN_IF_ERROR(skip_space());
    if (!at_end()) return fault(here(), fmt::format("unexpected {} after the end of the value", shown(rest())));
    return value;
  }

 private:
  [[nodiscard]] bool at_end() const { return offset_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return offset_ + ahead < text_.size() ? text_[offset_ + ahead] : '\0';
  }
  [[nodiscard]] std::string_view rest() const { return text_.substr(std::min(offset_, text_.size())); }
  [[nodiscard]] Position here() const { return {line_, column_}; }

  [[nodiscard]] Error fault(Position at, std::string message, std::string hint = {}) const {
    Error error = make_error(ErrorCode::kConfig, std::move(message), std::move(hint));
    error.file = file_;
    error.line = at.line;
    error.column = at.column;
    return error;
  }

  // One character forward. A line ends with \n, \r\n or a lone \r; continuation bytes of UTF-8 are no columns.
  void advance() {
    const auto c = static_cast<unsigned char>(text_[offset_++]);
    if (c == '\n' || (c == '\r' && peek() != '\n')) {
      ++line_;
      column_ = 1;
    } else if (c != '\r' && (at_end() || (static_cast<unsigned char>(peek()) & 0xC0U) != 0x80U)) {
      ++column_;
    }
  }

  Result<void> skip_space() {
    while (!at_end()) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        advance();
      } else if (c == '#' || (c == '/' && peek(1) == '/')) {
        while (!at_end() && peek() != '\n' && peek() != '\r') advance();
      } else if (c == '/' && peek(1) == '*') {
        HEADRACE_RETURN_IF_ERROR(skip_block_comment());
      } else {
        break;
      }
    }
    return {};
  }

  Result<void> skip_block_comment() {
    const Position start = here();
    advance();
    advance();
    while (!at_end() && !(peek() == '*' && peek(1) == '/')) advance();
    if (at_end()) return fault(start, "this comment is never closed", "end it with */");
    advance();
    advance();
    return {};
  }

  Result<JsonValue> read_value(int depth) {
    if (depth > kMaxJsonDepth) {
      return fault(here(), fmt::format("nested more than {} levels deep", kMaxJsonDepth));
    }
    JsonValue value;
    value.position = here();
    const char c = peek();
    if (at_end()) return fault(here(), "the file ends where a value is expected");
    if (c == '{') return read_object(std::move(value), depth);
    if (c == '[') return read_array(std::move(value), depth);
    if (c == '"') {
      value.kind = Kind::kString;
      HEADRACE_TRY(value.text, read_string());
      return value;
    }
    if (c == '\'') return fault(here(), "text is written in double quotes", "write \"…\" instead of '…'");
    if (is_digit(c) || c == '-' || c == '+' || c == '.') return read_number(std::move(value));
    if (is_word(c)) return read_word(std::move(value));
    return fault(here(), fmt::format("expected a value, found {}", shown(rest())));
  }

  Result<JsonValue> read_word(JsonValue value) {
    const std::size_t start = offset_;
    while (is_word(peek())) advance();
    const std::string word(text_.substr(start, offset_ - start));
    if (word == "null") return value;
    if (word == "true" || word == "false") {
      value.kind = Kind::kBool;
      value.boolean = word == "true";
      return value;
    }
    if (word == "NaN" || word == "nan" || word == "Infinity" || word == "inf") {
      value.kind = Kind::kNumber;
      value.text = word;
      return value;
    }
    std::string hint = "text is written in double quotes: \"" + word + "\"";
    if (word == "True" || word == "TRUE" || word == "yes" || word == "on") hint = "write true";
    if (word == "False" || word == "FALSE" || word == "no" || word == "off") hint = "write false";
    if (word == "None" || word == "NULL") hint = "write null, or leave the key out";
    return fault(value.position, fmt::format("\"{}\" is not a JSON value", word), std::move(hint));
  }

  // Takes the JSON grammar; what people write beside it (+1, .5, 1., 0x10, 007) is named and refused.
  Result<JsonValue> read_number(JsonValue value) {
    const std::size_t start = offset_;
    value.kind = Kind::kNumber;
    if (peek() == '-' && (text_.substr(offset_ + 1, 8) == "Infinity" || text_.substr(offset_ + 1, 3) == "inf"))
      advance();
    while (is_word(peek()) || peek() == '.' || ((peek() == '-' || peek() == '+') && sign_belongs(start))) advance();
    value.text = std::string(text_.substr(start, offset_ - start));
    if (value.text == "-Infinity" || value.text == "-inf" || is_json_number(value.text)) return value;
    return fault(
        value.position, fmt::format("\"{}\" is not a JSON number", value.text),
        "write digits with an optional fraction and exponent: 12, 0.5, 3e-4; sizes with units are text: \"160MiB\"");
  }

  // A sign is part of a number at its start and behind an exponent.
  [[nodiscard]] bool sign_belongs(std::size_t start) const {
    if (offset_ == start) return true;
    return text_[offset_ - 1] == 'e' || text_[offset_ - 1] == 'E';
  }

  static bool is_json_number(std::string_view text) {
    std::size_t i = 0;
    const auto digits = [&] {
      const std::size_t first = i;
      while (i < text.size() && is_digit(text[i])) ++i;
      return i > first;
    };
    if (i < text.size() && text[i] == '-') ++i;
    const std::size_t first = i;
    if (!digits()) return false;
    if (i - first > 1 && text[first] == '0') return false;
    if (i < text.size() && text[i] == '.') {
      ++i;
      if (!digits()) return false;
    }
    if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
      ++i;
      if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
      if (!digits()) return false;
    }
    return i == text.size();
  }

  Result<std::string> read_string() {
    const Position start = here();
    std::string out;
    advance();
    while (true) {
      if (at_end() || peek() == '\n' || peek() == '\r') {
        return fault(start, "this text is not closed on its line", "end it with \"");
      }
      const char c = peek();
      if (c == '"') break;
      if (c == '\\') {
        HEADRACE_RETURN_IF_ERROR(read_escape(out));
        continue;
      }
      if (static_cast<unsigned char>(c) < 0x20 && c != '\t') {
        return fault(here(), fmt::format("{} inside text", shown(rest())), "write it as an escape: \\u00XX");
      }
      const std::size_t length = utf8_length(rest());
      if (length == 0)
        return fault(here(), fmt::format("{} is not valid UTF-8", shown(rest())), "save the file as UTF-8");
      out += rest().substr(0, length);
      for (std::size_t i = 0; i < length; ++i) advance();
    }
    advance();
    return out;
  }

  Result<void> read_escape(std::string& out) {
    const Position start = here();
    advance();
    const char c = peek();
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
    if (const std::size_t at = kNames.find(c); !at_end() && at != std::string_view::npos) {
      out += kBytes[at];
      advance();
      return {};
    }
    if (c != 'u')
      return fault(start, fmt::format("unknown escape \\ before {}", shown(rest())), "write \\\\ for a backslash");
    advance();
    std::optional<std::uint32_t> code = read_hex();
    if (code && *code >= 0xD800 && *code <= 0xDBFF) {
      if (peek() != '\\' || peek(1) != 'u') return fault(start, "half of a surrogate pair");
      advance();
      advance();
      const std::optional<std::uint32_t> low = read_hex();
      if (!low || *low < 0xDC00 || *low > 0xDFFF) return fault(start, "half of a surrogate pair");
      code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
    } else if (code && *code >= 0xDC00 && *code <= 0xDFFF) {
      return fault(start, "half of a surrogate pair");
    }
    if (!code) return fault(start, "\\u needs four hexadecimal digits");
    if (*code == 0) return fault(start, "a zero byte inside text");
    append_utf8(out, *code);
    return {};
  }

  std::optional<std::uint32_t> read_hex() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = peek();
      std::uint32_t digit = 0;
      if (is_digit(c)) {
        digit = static_cast<std::uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<std::uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<std::uint32_t>(c - 'A' + 10);
      } else {
        return std::nullopt;
      }
      code = code * 16 + digit;
      advance();
    }
    return code;
  }

  Result<JsonValue> read_array(JsonValue value, int depth) {
    value.kind = Kind::kArray;
    advance();
    while (true) {
      HEADRACE_RETURN_IF_ERROR(skip_space());
      if (peek() == ']') break;
      HEADRACE_TRY(JsonValue element, read_value(depth + 1));
      value.elements.push_back(std::move(element));
      HEADRACE_RETURN_IF_ERROR(read_separator(value.position, ']'));
    }
    advance();
    return value;
  }

  Result<JsonValue> read_object(JsonValue value, int depth) {
    value.kind = Kind::kObject;
    advance();
    while (true) {
      HEADRACE_RETURN_IF_ERROR(skip_space());
      if (peek() == '}') break;
      JsonMember member;
      member.position = here();
      HEADRACE_TRY(member.key, read_key(value.position));
      if (const JsonMember* first = value.find(member.key); first != nullptr) {
        return fault(member.position,
                     fmt::format("duplicate key \"{}\": it already stands at {}:{}", member.key, first->position.line,
                                 first->position.column),
                     "remove one of them");
      }
      HEADRACE_RETURN_IF_ERROR(skip_space());
      if (peek() != ':')
        return fault(here(), fmt::format("expected ':' after key \"{}\", found {}", member.key, shown(rest())));
      advance();
      HEADRACE_RETURN_IF_ERROR(skip_space());
      HEADRACE_TRY(member.value, read_value(depth + 1));
      value.members.push_back(std::move(member));
      HEADRACE_RETURN_IF_ERROR(read_separator(value.position, '}'));
    }
    advance();
    return value;
  }

  Result<std::string> read_key(Position object) {
    if (peek() == '"') return read_string();
    if (at_end()) return fault(object, "this object is never closed", "end it with }");
    if (is_word(peek()) || peek() == '\'') return fault(here(), "a key is written in double quotes");
    return fault(here(), fmt::format("expected a key or }}, found {}", shown(rest())));
  }

  // After an element: a comma (also a trailing one) or the closing bracket, which is left to the caller.
  Result<void> read_separator(Position opened, char close) {
    HEADRACE_RETURN_IF_ERROR(skip_space());
    if (peek() == ',') {
      advance();
      HEADRACE_RETURN_IF_ERROR(skip_space());
      if (peek() == ',') return fault(here(), "two commas in a row");
      if (at_end()) return not_closed(opened, close);
      return {};
    }
    if (peek() == close) return {};
    if (at_end()) return not_closed(opened, close);
    return fault(here(), fmt::format("expected ',' or '{}', found {}", close, shown(rest())));
  }

  [[nodiscard]] Error not_closed(Position opened, char close) const {
    return fault(opened, close == '}' ? "this object is never closed" : "this list is never closed",
                 fmt::format("end it with {}", close));
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t offset_ = 0;
  int line_ = 1;
  int column_ = 1;
};

void append_json(std::string& out, const JsonValue& value) {
  switch (value.kind) {
    case Kind::kNull: out += "null"; return;
    case Kind::kBool: out += value.boolean ? "true" : "false"; return;
    case Kind::kNumber: out += value.text; return;
    case Kind::kString: out += json_quote(value.text); return;
    case Kind::kArray:
      out += '[';
      for (std::size_t i = 0; i < value.elements.size(); ++i) {
        if (i > 0) out += ',';
        append_json(out, value.elements[i]);
      }
      out += ']';
      return;
    case Kind::kObject:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ',';
        out += json_quote(value.members[i].key) + ":";
        append_json(out, value.members[i].value);
      }
      out += '}';
      return;
  }
}

}  // namespace

const JsonMember* JsonValue::find(std::string_view key) const noexcept {
  const auto at = std::find_if(members.begin(), members.end(), [&](const JsonMember& m) { return m.key == key; });
  return at == members.end() ? nullptr : &*at;
}

JsonMember* JsonValue::find(std::string_view key) noexcept {
  const auto at = std::find_if(members.begin(), members.end(), [&](const JsonMember& m) { return m.key == key; });
  return at == members.end() ? nullptr : &*at;
}

Result<JsonValue> parse_json(std::string_view text, const std::string& file) { return Reader(text, file).read(); }

std::string to_json_text(const JsonValue& value) {
  std::string out;
  append_json(out, value);
  return out;
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

const char* kind_name(Kind kind) noexcept {
  constexpr std::array<const char*, 6> kNames = {"null", "true or false", "a number", "text", "a list", "an object"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace headrace::config
