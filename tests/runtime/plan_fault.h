// SPDX-License-Identifier: Apache-2.0
// Faults that are planted into a plan, each of which the checker has to name.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "plan_support.h"

namespace headrace::runtime {

struct Fault {
  const char* name;
  std::function<void(Plan&)> plant;
  const char* message;
};

// The checker refuses the plan with each of the faults, and says which.
inline void expect_named(const Plan& plan, const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    Plan faulty = plan;
    fault.plant(faulty);
    const std::string message = message_of(check_plan(faulty));
    EXPECT_NE(message, "") << fault.name;
    EXPECT_THAT(message, ::testing::HasSubstr(fault.message)) << fault.name;
  }
}

}  // namespace headrace::runtime
