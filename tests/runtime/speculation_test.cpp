// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/speculation.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan_support.h"

namespace headrace::runtime {
namespace {

// A unit of two tiles.
PlanInput two_tiles() {
  PlanInput input = make_input({});
  input.model.units.push_back(make_unit("unit", 12'288, 0, 0, 0));
  return input;
}

Operation tile(std::int64_t number) {
  Operation operation;
  operation.unit = 0;
  operation.tile = number;
  return operation;
}

TEST(Speculation, KnowsItsUpdatesAndMakesNoMoreAfterAMiss) {
  Speculation speculation(two_tiles());
  speculation.begin(true);
  EXPECT_FALSE(speculation.any_updated());
  EXPECT_TRUE(speculation.update(tile(0)));
  EXPECT_TRUE(speculation.updated(tile(0)));
  EXPECT_FALSE(speculation.updated(tile(1)));
  speculation.miss();
  EXPECT_FALSE(speculation.stands());
  EXPECT_FALSE(speculation.update(tile(1)));
  EXPECT_FALSE(speculation.updated(tile(1)));
  EXPECT_TRUE(speculation.updated(tile(0)));
  EXPECT_TRUE(speculation.any_updated());
  speculation.begin(true);
  EXPECT_TRUE(speculation.stands());
  EXPECT_FALSE(speculation.updated(tile(0)));
  EXPECT_FALSE(speculation.any_updated());
  speculation.begin(false);
  EXPECT_FALSE(speculation.stands());
  EXPECT_FALSE(speculation.update(tile(1)));
}

TEST(Speculation, APartOfTheNormThatIsTooLargeEndsItAndTheLimitItselfDoesNot) {
  Speculation speculation(two_tiles());
  speculation.begin(true);
  speculation.add_gradient(3, true, 4);
  speculation.add_gradient(1, true, 4);
  EXPECT_TRUE(speculation.stands());
  speculation.add_gradient(1e-9, true, 4);
  EXPECT_FALSE(speculation.stands());
  speculation.begin(true);
  speculation.add_gradient(1e30, true, 0);  // no limit
  EXPECT_TRUE(speculation.stands());
  speculation.add_gradient(std::numeric_limits<double>::infinity(), true, 0);
  EXPECT_FALSE(speculation.stands());
  speculation.begin(true);
  speculation.add_gradient(0, false, 0);
  EXPECT_FALSE(speculation.stands());
}

TEST(ClipHistory, FrequentClippingEndsEarlyUpdatesUntilItIsRare) {
  ClipHistory history;
  for (std::size_t i = 0; i < ClipHistory::kTooMany; ++i) {
    history.add(true);
    EXPECT_TRUE(history.worthwhile());
  }
  history.add(true);
  EXPECT_FALSE(history.worthwhile());
  // The clipped steps leave the window one by one.
  std::size_t quiet = 0;
  while (!history.worthwhile() && quiet < 2 * ClipHistory::kSteps) {
    history.add(false);
    ++quiet;
  }
  EXPECT_EQ(quiet, ClipHistory::kSteps - ClipHistory::kFewAgain);
  for (int i = 0; i < 100; ++i) history.add(i % 8 == 0);
  EXPECT_TRUE(history.worthwhile());
}

}  // namespace
}  // namespace headrace::runtime
