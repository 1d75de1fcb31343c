// SPDX-License-Identifier: Apache-2.0
// The plan compiler and its independent checker: pure functions of their inputs.
#pragma once

#include "core/result.h"
#include "runtime/plan/cost.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

// kDoesNotFit with the smallest budgets that work (which then do work), naming what needs them; kConfig for
// contradictions.
[[nodiscard]] Result<Plan> compile_plan(const PlanInput& input);

// Shares no code with the compiler. Proves for the step, its redo and the evaluation pass: dependencies point backwards
// and no lane order deadlocks; any two operations that touch overlapping bytes, one of them writing, are ordered; every
// read sees the version it should (old weights until the unit's update, every micro-batch's gradient exactly once, …);
// held buffers overlap nothing; offsets are aligned and within the slabs; budgets hold; bytes per step are the sum over
// the operations. First fault as message.
[[nodiscard]] Result<void> check_plan(const Plan& plan);

}  // namespace headrace::runtime
