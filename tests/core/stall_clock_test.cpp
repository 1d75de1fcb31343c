// SPDX-License-Identifier: Apache-2.0
#include "core/stall_clock.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using std::chrono::seconds;

TEST(StallClock, CountsWhatPassesBetweenLooks) {
  const StallClock::TimePoint start{seconds(1000)};
  StallClock clock(seconds(5));
  StallClock::TimePoint progress = start;
  for (int second = 0; second <= 600; ++second)
    EXPECT_EQ(clock.look(start + seconds(second), progress), seconds(second));
  EXPECT_EQ(progress, start);
}

TEST(StallClock, ATimeInWhichNobodyLookedCountsForNothing) {
  const StallClock::TimePoint start{seconds(1000)};
  StallClock clock(seconds(5));
  StallClock::TimePoint progress = start;
  EXPECT_EQ(clock.look(start + seconds(3), progress), seconds(3));
  EXPECT_EQ(clock.look(start + seconds(3 + 4000), progress), seconds(3));  // stopped for 4000 s
  EXPECT_EQ(clock.look(start + seconds(3 + 4000 + 2), progress), seconds(5));
}

TEST(StallClock, ProgressNeverLiesInTheFuture) {
  const StallClock::TimePoint start{seconds(1000)};
  StallClock clock(seconds(5));
  StallClock::TimePoint progress = start;
  (void)clock.look(start, progress);
  progress = start + seconds(99);  // much was done while nobody had to look
  EXPECT_EQ(clock.look(start + seconds(100), progress), seconds(0));
  EXPECT_EQ(progress, start + seconds(100));
}

}  // namespace
}  // namespace headrace
