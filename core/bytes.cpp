// SPDX-License-Identifier: Apache-2.0
#include "core/bytes.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace headrace {
namespace {

constexpr Bytes kLargest = Bytes{1} << 62;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Bytes of one "KiB", "mb", "g", "b" or "".
std::optional<Bytes> unit_bytes(std::string_view unit) {
  if (unit.empty() || (unit.size() == 1 && lower(unit[0]) == 'b')) return 1;
  const std::size_t power = std::string_view("kmgt").find(lower(unit[0]));
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = unit.substr(1);
  const bool decimal = rest.size() == 1 && lower(rest[0]) == 'b';
  const bool binary = rest.empty() || (rest.size() == 2 && lower(rest[0]) == 'i' && lower(rest[1]) == 'b');
  if (!decimal && !binary) return std::nullopt;
  Bytes bytes = 1;
  for (std::size_t i = 0; i <= power; ++i) bytes *= decimal ? 1000 : 1024;
  return bytes;
}

Error not_a_size(std::string_view text) {
  return make_error(ErrorCode::kConfig, fmt::format("\"{}\" is not a size", text),
                    "write a number of bytes with an optional unit: 400M, 1GiB, 1.5GiB, 500MB");
}

Error too_large(std::string_view text) {
  return make_error(ErrorCode::kConfig, fmt::format("the size \"{}\" is larger than 2^62 bytes", text));
}

// Digits alone are exact up to 2^62; a fraction is rounded to the nearest byte.
Result<Bytes> scaled(std::string_view text, std::string_view number, Bytes unit) {
  if (number.find('.') == std::string_view::npos) {
    Bytes whole = 0;
    const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), whole);
    if (fault == std::errc::result_out_of_range || whole > kLargest / unit) return too_large(text);
    return whole * unit;
  }
  double value = 0;
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (fault == std::errc::result_out_of_range) return too_large(text);
  if (fault != std::errc() || end != number.data() + number.size()) return not_a_size(text);
  const double bytes = value * static_cast<double>(unit);
  if (bytes > static_cast<double>(kLargest)) return too_large(text);
  return static_cast<Bytes>(std::llround(bytes));
}

// Three significant digits, or none behind the point where the value is whole.
std::string short_number(double value) {
  if (value == std::floor(value) && value < 10000) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, digits);
  std::string_view unit = digits == std::string_view::npos ? std::string_view() : text.substr(digits);
  if (unit.size() > 1 && unit[0] == ' ') unit.remove_prefix(1);
  const std::optional<Bytes> factor = unit_bytes(unit);
  const bool starts_with_digit = !number.empty() && number.front() != '.';
  const bool one_point = number.find('.') == number.rfind('.') && (number.empty() || number.back() != '.');
  if (!factor || !starts_with_digit || !one_point) return not_a_size(text);
  return scaled(text, number, *factor);
}

std::string format_bytes(Bytes bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const char* sign = bytes < 0 ? "-" : "";
  double value = std::abs(static_cast<double>(bytes));
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{}{} {}", sign, short_number(value), kUnits[unit]);
}

std::string format_rate(double bytes_per_second) {
  if (!std::isfinite(bytes_per_second)) return "unknown rate";
  constexpr std::array kUnits{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  double value = bytes_per_second;
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{} {}", short_number(value), kUnits[unit]);
}

}  // namespace headrace
