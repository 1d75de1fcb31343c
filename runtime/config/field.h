// SPDX-License-Identifier: Apache-2.0
// A config key as data: path, type, range, default, words for people, and where its value goes. Layers above the
// runtime register the keys of their sections as FieldTables, so that the reader, the settings table, the schema and
// `config explain` know every key without knowing models. The default stands here and nowhere else.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.h"
#include "runtime/config/json_reader.h"
#include "runtime/config/run_config.h"

namespace headrace::config {

enum class FieldType : std::uint8_t {
  kBool,
  kInteger,
  kNumber,
  kBytes,  // "160MiB" or a number of bytes
  kText,
  kChoice,   // one of Field::choices, letter case does not matter
  kTexts,    // one text or a list of texts
  kNumbers,  // a list of Field::length numbers
  kSection,  // any object; its contents are not looked at
};

// What a key does here: most do what they say; some of DeepSpeed's steer machinery that we do not have; some would
// change results in a way that is not supported and may only have their neutral value.
enum class FieldUse : std::uint8_t { kUsed, kNoEffect, kRefused };
enum class OnResume : std::uint8_t { kMustMatch, kMayChange };

struct Unset {
  friend bool operator==(Unset, Unset) { return true; }
};
struct AutoValue {
  friend bool operator==(AutoValue, AutoValue) { return true; }
};
using FieldValue = std::variant<Unset, AutoValue, bool, std::int64_t, double, std::string, std::vector<std::string>,
                                std::vector<double>>;

struct Field {
  std::string path;  // "zero_optimization.stage"
  FieldType type = FieldType::kBool;
  std::string default_json;  // "1.0", "\"auto\""; empty = unset
  std::string doc;           // one or two sentences; the first one stands alone
  std::function<void(const FieldValue&)> setter;

  std::int64_t smallest = std::numeric_limits<std::int64_t>::min();  // kInteger, kBytes
  std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  double minimum = -std::numeric_limits<double>::infinity();  // kNumber, kNumbers
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;  // the minimum itself is not allowed
  bool below_maximum = false;
  std::size_t length = 0;  // kNumbers
  std::vector<std::string> choices;
  std::vector<std::string> later_choices;  // known words that this version refuses by name

  bool allows_auto = false;
  bool allows_null = false;    // null = unset
  bool text_booleans = false;  // "true" and "false" in quotes are taken, with a note
  FieldUse use = FieldUse::kUsed;
  std::string reason;  // of kNoEffect and kRefused
  OnResume on_resume = OnResume::kMustMatch;
  std::string alias_of;  // another name of that key; everything else is taken from there

  Field& range(std::int64_t low, std::int64_t high);
  Field& at_least(std::int64_t low);
  Field& number_range(double low, double high);
  Field& above(double low);
  Field& below(double high);
  Field& one_of(std::vector<std::string> words, std::vector<std::string> later = {});
  Field& numbers(std::size_t count);
  Field& or_auto();
  Field& or_null();
  Field& may_change();
  Field& no_effect(std::string why);
  Field& refuse(std::string why);

  // The value goes to `target`, which must outlive the table's use.
  template <class T>
  Field& to(T& target);
  // kChoice: words and what they mean.
  template <class E>
  Field& to(E& target, std::vector<std::pair<std::string, std::type_identity_t<E>>> words);
  template <class E>
  Field& to(Auto<E>& target, std::vector<std::pair<std::string, std::type_identity_t<E>>> words);
};

class Settings;

// The keys of one owner. `check` runs after every value is in place: rules between keys, derived values.
class FieldTable {
 public:
  Field& add(std::string path, FieldType type, std::string default_json, std::string doc);
  Field& alias(std::string path, std::string of, std::string doc);
  void check(std::function<Result<void>(Settings&)> rule) { checks_.push_back(std::move(rule)); }

  [[nodiscard]] const std::deque<Field>& fields() const noexcept { return fields_; }
  [[nodiscard]] const std::vector<std::function<Result<void>(Settings&)>>& checks() const noexcept { return checks_; }

 private:
  std::deque<Field> fields_;
  std::vector<std::function<Result<void>(Settings&)>> checks_;
};

// The value of `json` if it is of the field's type and in its range; else a kConfig error without position that names
// the full key, the value and what is allowed. `notes` receives what was taken although it is odd.
[[nodiscard]] Result<FieldValue> check_value(const Field& field, const JsonValue& json,
                                             std::vector<std::string>& notes);
[[nodiscard]] Result<FieldValue> default_value(const Field& field);
[[nodiscard]] std::string to_json_text(const FieldValue& value);  // null when unset
[[nodiscard]] std::string allowed_text(const Field& field);       // "a whole number from 1 to 100, or \"auto\""

namespace detail {

template <class T>
struct Wrapped {
  using type = T;
  static constexpr bool value = false;
};
template <class T>
struct Wrapped<std::optional<T>> {
  using type = T;
  static constexpr bool value = true;
};
template <class T>
struct Wrapped<Auto<T>> {
  using type = T;
  static constexpr bool value = true;
};

template <class T>
void assign(T& target, const FieldValue& value) {
  if constexpr (std::is_same_v<T, bool>) {
    target = std::get<bool>(value);
  } else if constexpr (std::is_integral_v<T>) {
    target = static_cast<T>(std::get<std::int64_t>(value));  // the field's range fits T
  } else if constexpr (std::is_floating_point_v<T>) {
    target = std::get<double>(value);
  } else if constexpr (Wrapped<T>::value) {
    if (std::holds_alternative<Unset>(value) || std::holds_alternative<AutoValue>(value)) {
      target = T();
    } else {
      typename Wrapped<T>::type inner{};
      assign(inner, value);
      target = T(std::move(inner));
    }
  } else {
    if (!std::holds_alternative<Unset>(value)) target = std::get<T>(value);
  }
}

template <class E>
E choice(const std::vector<std::pair<std::string, E>>& words, const FieldValue& value) {
  const std::string& word = std::get<std::string>(value);
  for (const auto& [name, meaning] : words) {
    if (name == word) return meaning;
  }
  return words.front().second;  // check_value lets only these words through
}

}  // namespace detail

template <class T>
Field& Field::to(T& target) {
  setter = [&target](const FieldValue& value) { detail::assign(target, value); };
  return *this;
}

template <class E>
Field& Field::to(E& target, std::vector<std::pair<std::string, std::type_identity_t<E>>> words) {
  choices.clear();
  for (const auto& [name, meaning] : words) choices.push_back(name);
  setter = [&target, words = std::move(words)](const FieldValue& value) { target = detail::choice(words, value); };
  return *this;
}

template <class E>
Field& Field::to(Auto<E>& target, std::vector<std::pair<std::string, std::type_identity_t<E>>> words) {
  choices.clear();
  allows_auto = true;
  for (const auto& [name, meaning] : words) choices.push_back(name);
  setter = [&target, words = std::move(words)](const FieldValue& value) {
    target = std::holds_alternative<AutoValue>(value) ? Auto<E>() : Auto<E>(detail::choice(words, value));
  };
  return *this;
}

}  // namespace headrace::config
