// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace headrace {
namespace {

std::string standard_error_of(const std::function<void()>& action) {
  ::testing::internal::CaptureStderr();
  action();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, PutsAWordBeforeWarningsAndErrorsOnly) {
  const std::string text = standard_error_of([] {
    log_info("step 1/2");
    log_warn("low on memory");
    log_error("no such file {}");
  });
  EXPECT_EQ(text, "step 1/2\nwarning: low on memory\nerror: no such file {}\n");
}

TEST(Log, DropsLinesBelowTheLevel) {
  const std::string text = standard_error_of([] {
    log_debug("hidden");
    set_log_level(LogLevel::kError);
    log_warn("hidden too");
    log_error("shown");
    set_log_level(LogLevel::kDebug);
    log_debug("now shown");
    set_log_level(LogLevel::kOff);
    log_error("hidden as well");
    set_log_level(LogLevel::kInfo);
  });
  EXPECT_EQ(text, "error: shown\ndebug: now shown\n");
}

TEST(Log, ParsesItsLevels) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("off"), LogLevel::kOff);
  EXPECT_FALSE(parse_log_level("loud"));
}

}  // namespace
}  // namespace headrace
