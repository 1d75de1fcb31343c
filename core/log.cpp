// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>

namespace headrace {
namespace {

// %w: the word that stands before a line.
class LevelWord : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/, spdlog::memory_buf_t& out) override {
    std::string_view word;
    if (message.level == spdlog::level::debug) word = "debug: ";
    if (message.level == spdlog::level::warn) word = "warning: ";
    if (message.level == spdlog::level::err) word = "error: ";
    out.append(word.data(), word.data() + word.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelWord>(); }
};

spdlog::logger& logger() {
  // Never destroyed: a thread may still log while the process exits.
  static spdlog::logger& instance = *[] {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<LevelWord>('w').set_pattern("%^%w%$%v");
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();  // colours on a terminal only
    auto* made = new spdlog::logger("headrace", std::move(sink));
    made->set_formatter(std::move(formatter));
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return instance;
}

spdlog::string_view_t view(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void set_log_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return logger().set_level(spdlog::level::debug);
    case LogLevel::kInfo: return logger().set_level(spdlog::level::info);
    case LogLevel::kWarning: return logger().set_level(spdlog::level::warn);
    case LogLevel::kError: return logger().set_level(spdlog::level::err);
    case LogLevel::kOff: return logger().set_level(spdlog::level::off);
  }
}

std::optional<LogLevel> parse_log_level(std::string_view name) noexcept {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return std::nullopt;
}

void log_debug(std::string_view text) { logger().log(spdlog::level::debug, view(text)); }
void log_info(std::string_view text) { logger().log(spdlog::level::info, view(text)); }
void log_warn(std::string_view text) { logger().log(spdlog::level::warn, view(text)); }
void log_error(std::string_view text) { logger().log(spdlog::level::err, view(text)); }

}  // namespace headrace
