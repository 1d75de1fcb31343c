// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/field.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/bytes.h"
#include "core/check.h"
#include "runtime/config/suggest.h"

namespace headrace::config {
namespace {

using Kind = JsonValue::Kind;

constexpr std::int64_t kNoSmallest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kNoLargest = std::numeric_limits<std::int64_t>::max();

// "1e9", "5e8", "1.5e3" and "12.0" are whole numbers; exact, no rounding on the way. nullopt: not whole, or beyond 64
// bits.
std::optional<std::int64_t> exact_integer(std::string_view text) {
  const bool negative = text.substr(0, 1) == "-";
  if (negative) text.remove_prefix(1);
  std::string digits;
  std::int64_t exponent = 0;
  bool fraction = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.') {
      fraction = true;
    } else if (c == 'e' || c == 'E') {
      std::string_view power = text.substr(i + 1);
      if (power.substr(0, 1) == "+") power.remove_prefix(1);
      std::int64_t value = 0;
      const auto [end, fault] = std::from_chars(power.data(), power.data() + power.size(), value);
      if (fault != std::errc() || value > 1'000'000 || value < -1'000'000) return std::nullopt;
      exponent += value;
      break;
    } else if (c >= '0' && c <= '9') {
      digits += c;
      if (fraction) --exponent;
    } else {
      return std::nullopt;  // NaN, Infinity
    }
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return 0;
  while (exponent < 0 && !digits.empty() && digits.back() == '0') {
    digits.pop_back();
    ++exponent;
  }
  if (exponent < 0 || static_cast<std::int64_t>(digits.size()) + exponent > 19) return std::nullopt;
  digits.append(static_cast<std::size_t>(exponent), '0');
  std::int64_t value = 0;
  const std::string signed_digits = (negative ? "-" : "") + digits;
  const auto [end, fault] = std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), value);
  if (fault != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> finite_number(const std::string& text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool number_in_range(const Field& field, double value) {
  const bool low = field.above_minimum ? value > field.minimum : value >= field.minimum;
  const bool high = field.below_maximum ? value < field.maximum : value <= field.maximum;
  return low && high;
}

std::string shortened(std::string text) {
  constexpr std::size_t kShown = 80;  // longer values hide the message, shorter ones hide the value
  if (text.size() <= kShown) return text;
  std::size_t cut = kShown;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;
  return text.substr(0, cut) + "…";
}

Error bad_value(const Field& field, const JsonValue& json, std::string why = {}) {
  std::string hint = "see: headrace config explain " + field.path;
  if (json.kind == Kind::kString && (field.type == FieldType::kInteger || field.type == FieldType::kNumber) &&
      (exact_integer(json.text).has_value() || finite_number(json.text).has_value()) && !json.text.empty()) {
    hint = "write the number without quotes";
  }
  if (json.kind == Kind::kString && field.type == FieldType::kBool) hint = "write true or false without quotes";
  return make_error(ErrorCode::kConfig,
                    fmt::format("\"{}\" is {}{}; it takes {}", field.path, shortened(to_json_text(json)),
                                why.empty() ? "" : " (" + why + ")", allowed_text(field)),
                    std::move(hint));
}

Result<FieldValue> check_integer(const Field& field, const JsonValue& json) {
  if (json.kind != Kind::kNumber) return bad_value(field, json);
  const std::optional<std::int64_t> value = exact_integer(json.text);
  if (!value || *value < field.smallest || *value > field.largest) return bad_value(field, json);
  return FieldValue(*value);
}

Result<FieldValue> check_number(const Field& field, const JsonValue& json) {
  if (json.kind != Kind::kNumber) return bad_value(field, json);
  const std::optional<double> value = finite_number(json.text);
  if (!value || !number_in_range(field, *value)) return bad_value(field, json);
  return FieldValue(*value);
}

Result<FieldValue> check_bytes(const Field& field, const JsonValue& json) {
  std::optional<std::int64_t> value;
  if (json.kind == Kind::kNumber) value = exact_integer(json.text);
  if (json.kind == Kind::kString) {
    const Result<Bytes> bytes = parse_bytes(json.text);
    if (!bytes.ok()) return bad_value(field, json, bytes.error().hint);
    value = *bytes;
  }
  if (!value || *value < field.smallest || *value > field.largest) return bad_value(field, json);
  return FieldValue(*value);
}

Result<FieldValue> check_choice(const Field& field, const JsonValue& json) {
  if (json.kind != Kind::kString) return bad_value(field, json);
  for (const std::string& word : field.choices) {
    if (same_word(word, json.text)) return FieldValue(word);
  }
  for (const std::string& word : field.later_choices) {
    if (!same_word(word, json.text)) continue;
    return make_error(ErrorCode::kConfig,
                      fmt::format("\"{}\" is \"{}\", which this version does not support", field.path, json.text),
                      "supported: " + allowed_text(field));
  }
  Error error = bad_value(field, json);
  if (const std::string near = nearest(json.text, field.choices); !near.empty())
    error.hint = fmt::format("did you mean \"{}\"?", near);
  return error;
}

Result<FieldValue> check_texts(const Field& field, const JsonValue& json) {
  std::vector<std::string> texts;
  if (json.kind == Kind::kString) texts.push_back(json.text);
  if (json.kind == Kind::kArray) {
    for (const JsonValue& element : json.elements) {
      if (element.kind != Kind::kString) return bad_value(field, json);
      texts.push_back(element.text);
    }
  }
  const bool has_empty = std::any_of(texts.begin(), texts.end(), [](const std::string& text) { return text.empty(); });
  if (texts.empty() || has_empty) return bad_value(field, json);
  return FieldValue(std::move(texts));
}

Result<FieldValue> check_numbers(const Field& field, const JsonValue& json) {
  if (json.kind != Kind::kArray || json.elements.size() != field.length) return bad_value(field, json);
  std::vector<double> numbers;
  for (const JsonValue& element : json.elements) {
    const std::optional<double> value = element.kind == Kind::kNumber ? finite_number(element.text) : std::nullopt;
    if (!value || !number_in_range(field, *value)) return bad_value(field, json);
    numbers.push_back(*value);
  }
  return FieldValue(std::move(numbers));
}

Result<FieldValue> check_bool(const Field& field, const JsonValue& json, std::vector<std::string>& notes) {
  if (json.kind == Kind::kBool) return FieldValue(json.boolean);
  if (field.text_booleans && json.kind == Kind::kString &&
      (same_word(json.text, "true") || same_word(json.text, "false"))) {
    notes.push_back(fmt::format("\"{}\" is text; taken as {}", field.path, same_word(json.text, "true")));
    return FieldValue(same_word(json.text, "true"));
  }
  return bad_value(field, json);
}

std::string integer_range(const Field& field) {
  const bool bytes = field.type == FieldType::kBytes;
  const auto shown = [&](std::int64_t value) { return bytes ? format_bytes(value) : fmt::format("{}", value); };
  const std::string what = bytes ? "a size" : "a whole number";
  if (field.smallest == kNoSmallest && field.largest == kNoLargest) return what;
  if (field.largest == kNoLargest) return fmt::format("{} of at least {}", what, shown(field.smallest));
  return fmt::format("{} from {} to {}", what, shown(field.smallest), shown(field.largest));
}

std::string number_range_text(const Field& field) {
  std::string out = "a number";
  if (std::isfinite(field.minimum)) out += fmt::format(" {} {}", field.above_minimum ? ">" : "≥", field.minimum);
  if (std::isfinite(field.maximum)) {
    out += fmt::format("{} {} {}", std::isfinite(field.minimum) ? " and" : "", field.below_maximum ? "<" : "≤",
                       field.maximum);
  }
  return out;
}

std::string type_text(const Field& field) {
  switch (field.type) {
    case FieldType::kBool: return "true or false";
    case FieldType::kInteger: return integer_range(field);
    case FieldType::kNumber: return number_range_text(field);
    case FieldType::kBytes: return integer_range(field) + " (160MiB, 1.5GiB, or bytes)";
    case FieldType::kText: return "text that is not empty";
    case FieldType::kChoice: return "one of \"" + fmt::format("{}", fmt::join(field.choices, "\", \"")) + '"';
    case FieldType::kTexts: return "text or a list of texts, none empty";
    case FieldType::kNumbers:
      return fmt::format("a list of {} values, each {}", field.length, number_range_text(field));
    case FieldType::kSection: return "an object";
  }
  HEADRACE_CHECK(false, "unknown field type");
  return {};
}

}  // namespace

Field& Field::range(std::int64_t low, std::int64_t high) {
  smallest = low;
  largest = high;
  return *this;
}
Field& Field::at_least(std::int64_t low) {
  smallest = low;
  return *this;
}
Field& Field::number_range(double low, double high) {
  minimum = low;
  maximum = high;
  return *this;
}
Field& Field::above(double low) {
  minimum = low;
  above_minimum = true;
  return *this;
}
Field& Field::below(double high) {
  maximum = high;
  below_maximum = true;
  return *this;
}
Field& Field::one_of(std::vector<std::string> words, std::vector<std::string> later) {
  choices = std::move(words);
  later_choices = std::move(later);
  return *this;
}
Field& Field::numbers(std::size_t count) {
  length = count;
  return *this;
}
Field& Field::or_auto() {
  allows_auto = true;
  return *this;
}
Field& Field::or_null() {
  allows_null = true;
  return *this;
}
Field& Field::may_change() {
  on_resume = OnResume::kMayChange;
  return *this;
}
Field& Field::no_effect(std::string why) {
  use = FieldUse::kNoEffect;
  reason = std::move(why);
  on_resume = OnResume::kMayChange;
  return *this;
}
Field& Field::refuse(std::string why) {
  use = FieldUse::kRefused;
  reason = std::move(why);
  on_resume = OnResume::kMayChange;  // only ever its neutral value
  return *this;
}

Field& FieldTable::add(std::string path, FieldType type, std::string default_json, std::string doc) {
  Field field;
  field.path = std::move(path);
  field.type = type;
  field.default_json = std::move(default_json);
  field.doc = std::move(doc);
  return fields_.emplace_back(std::move(field));
}

Field& FieldTable::alias(std::string path, std::string of, std::string doc) {
  Field& field = add(std::move(path), FieldType::kBool, "", std::move(doc));
  field.alias_of = std::move(of);
  return field;
}

Result<FieldValue> check_value(const Field& field, const JsonValue& json, std::vector<std::string>& notes) {
  if (json.kind == Kind::kNull && (field.allows_null || field.type == FieldType::kSection)) return FieldValue(Unset{});
  if (json.kind == Kind::kString && json.text == "auto" && field.allows_auto) return FieldValue(AutoValue{});
  switch (field.type) {
    case FieldType::kBool: return check_bool(field, json, notes);
    case FieldType::kInteger: return check_integer(field, json);
    case FieldType::kNumber: return check_number(field, json);
    case FieldType::kBytes: return check_bytes(field, json);
    case FieldType::kText:
      if (json.kind != Kind::kString || json.text.empty()) return bad_value(field, json);
      return FieldValue(json.text);
    case FieldType::kChoice: return check_choice(field, json);
    case FieldType::kTexts: return check_texts(field, json);
    case FieldType::kNumbers: return check_numbers(field, json);
    case FieldType::kSection:
      if (json.kind != Kind::kObject) return bad_value(field, json);
      return FieldValue(to_json_text(json));
  }
  HEADRACE_CHECK(false, "unknown field type");
  return FieldValue(Unset{});
}

Result<FieldValue> default_value(const Field& field) {
  if (field.default_json.empty()) return FieldValue(Unset{});
  HEADRACE_TRY(const JsonValue json, parse_json(field.default_json, "default of " + field.path));
  std::vector<std::string> notes;
  return check_value(field, json, notes);
}

std::string to_json_text(const FieldValue& value) {
  struct Visitor {
    std::string operator()(Unset) const { return "null"; }
    std::string operator()(AutoValue) const { return "\"auto\""; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(const std::string& v) const { return json_quote(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      std::string out;
      for (const std::string& text : v) out += (out.empty() ? "" : ", ") + json_quote(text);
      return "[" + out + "]";
    }
    std::string operator()(const std::vector<double>& v) const { return fmt::format("[{}]", fmt::join(v, ", ")); }
  };
  return std::visit(Visitor{}, value);
}

std::string allowed_text(const Field& field) {
  std::string out = type_text(field);
  if (field.allows_auto) out += ", or \"auto\"";
  if (field.allows_null) out += ", or null";
  return out;
}

}  // namespace headrace::config
