// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/injection.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace headrace::models {

namespace {

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Result<Injection> parse_injection(std::string_view text) {
  const auto bad = [&](std::string_view part) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("headrace.debug.inject: \"{}\" is no fault that can be injected", part),
                      "\"nan:STEP\", \"nan:FIRST-LAST\", or several separated by commas");
  };
  Injection injection;
  if (text.empty()) return injection;
  constexpr std::string_view kNan = "nan:";
  if (text.substr(0, kNan.size()) != kNan) return bad(text);
  text.remove_prefix(kNan.size());
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const std::size_t dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (!first.has_value() || !last.has_value() || *first == 0 || *last < *first) return bad(part);
    injection.nan_steps.emplace_back(*first, *last);
    if (comma == std::string_view::npos) return injection;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace headrace::models
