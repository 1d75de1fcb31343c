// SPDX-License-Identifier: Apache-2.0
#include "core/check.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(CheckDeathTest, PrintsPlaceMessageAndConditionThenAborts) {
  const int slots = 3;
  EXPECT_EXIT(HEADRACE_CHECK(slots <= 2, "more slots than places"), ::testing::KilledBySignal(SIGABRT),
              "check_test.cpp:[0-9]+: internal check failed: more slots than places \\(slots <= 2\\)");
}

TEST(Check, EvaluatesItsConditionOnce) {
  int calls = 0;
  HEADRACE_CHECK(++calls == 1, "first call");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace headrace
