// SPDX-License-Identifier: Apache-2.0
// The plan with the shortest simulated step, where a machine's rates are known. Pure.
#pragma once

#include "runtime/plan/compile.h"
#include "runtime/plan/hardware.h"
#include "runtime/plan/simulate.h"

namespace headrace::runtime {

struct Choice {
  Plan plan;
  Simulation simulation;
  int tried = 0;  // plans that were simulated
};

struct ChooseOptions {
  // Of each group size, update policy and place of activations at most so many plans, from the one that uses most
  // memory down. What needs less memory can be faster: memory that holds state is taken from reading ahead or from
  // early updates. A plan that cannot beat the best (its bound is no shorter) ends the descent, so that the limit is
  // seldom reached.
  int plans_per_kind = 48;
  // Of larger plans one per kind, with activations that are kept where there is room or all computed again: a search
  // takes seconds, not minutes.
  std::int64_t most_operations = 4'000;
};

// Over everything that the input leaves open (group size, update policy and the fraction of it that is delayed, where
// activations are), and all that fits into the budgets. Never slower than compile_plan()'s; while the limits are not
// reached, never slower with larger budgets. Errors are compile_plan()'s.
[[nodiscard]] Result<Choice> choose_plan(const PlanInput& input, const Machine& machine,
                                         const ChooseOptions& options = {});

}  // namespace headrace::runtime
