// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/injection.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace::models {
namespace {

std::string steps_of(std::string_view text) {
  const auto injection = parse_injection(text);
  if (!injection.ok()) return injection.error().to_string();
  std::string steps;
  for (std::uint64_t step = 0; step < 12; ++step)
    if (injection->nan_at(step)) steps.append(steps.empty() ? "" : " ").append(std::to_string(step));
  return steps;
}

TEST(Injection, NamesSingleStepsAndRangesBothEndsIncluded) {
  EXPECT_EQ(steps_of("nan:3"), "3");
  EXPECT_EQ(steps_of("nan:7-9"), "7 8 9");
  EXPECT_EQ(steps_of("nan:3,7-9"), "3 7 8 9");
  EXPECT_EQ(steps_of("nan:5-5,1"), "1 5");
  EXPECT_EQ(steps_of("nan:2-4,3-6"), "2 3 4 5 6");
}

TEST(Injection, OfNoTextIsNone) { EXPECT_EQ(steps_of(""), ""); }

TEST(Injection, RefusesWhatIsNoFaultWithTheTextAndTheForms) {
  for (const char* text : {"nan",
                           "nan:",
                           "inf:3",
                           "NAN:3",
                           "3",
                           "nan:0",
                           "nan:-3",
                           "nan:3-",
                           "nan:9-7",
                           "nan:3,",
                           "nan:,3",
                           "nan:3 ",
                           "nan: 3",
                           "nan:+3",
                           "nan:3.5",
                           "nan:3-4-5",
                           "nan:x",
                           "nan:1,y",
                           "nan:99999999999999999999",
                           "nan:3,nan:4"}) {
    const auto injection = parse_injection(text);
    ASSERT_FALSE(injection.ok()) << text;
    EXPECT_EQ(injection.error().code, ErrorCode::kConfig) << text;
    EXPECT_NE(injection.error().message.find("headrace.debug.inject"), std::string::npos) << text;
    EXPECT_NE(injection.error().hint.find("nan:STEP"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace headrace::models
