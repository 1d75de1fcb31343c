// SPDX-License-Identifier: Apache-2.0
// Lines for people, on standard error: progress and notes bare, warnings and errors with their word in front. Texts
// arrive formatted. Thread-safe; a line is never torn.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace headrace {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);  // kInfo at start
[[nodiscard]] std::optional<LogLevel> parse_log_level(
    std::string_view name) noexcept;  // "debug", "info", "warning", "error", "off"

void log_debug(std::string_view text);
void log_info(std::string_view text);
void log_warn(std::string_view text);
void log_error(std::string_view text);

}  // namespace headrace
