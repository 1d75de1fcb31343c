// SPDX-License-Identifier: Apache-2.0
// The chosen plan on random models, budgets and machines: never slower than the plan without rates, never slower with
// more memory, at least its bound, and accepted by the checker.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "plan_support.h"
#include "runtime/plan/choose.h"

namespace headrace::runtime {
namespace {

template <class T>
T any_of(std::vector<T> values) {
  return *rc::gen::elementOf(std::move(values));
}
std::int64_t any_int(std::int64_t low, std::int64_t high) { return *rc::gen::inRange<std::int64_t>(low, high + 1); }
bool any_bool() { return *rc::gen::arbitrary<bool>(); }

PlanInput any_input() {
  TransformerShape shape;
  shape.blocks = static_cast<int>(any_int(1, 4));
  shape.block_elements = any_of<std::int64_t>({8'192, 40'960});
  shape.saved = any_of<Bytes>({0, 40'960, 200'000});
  shape.tied = any_bool();
  PlanInput input = make_input(make_transformer(shape));
  input.micro_batches = static_cast<std::int32_t>(any_int(1, 4));
  input.group_size = static_cast<std::int32_t>(any_bool() ? 0 : any_int(1, input.micro_batches));
  input.weights_home = any_of<Home>({Home::kNvme, Home::kNvme, Home::kHost});
  input.update = any_of<UpdatePolicy>({UpdatePolicy::kAuto, UpdatePolicy::kAuto, UpdatePolicy::kAfterBackward,
                                       UpdatePolicy::kInBackward, UpdatePolicy::kIntoForward});
  input.can_clip = any_bool();
  input.cache = any_bool();
  input.force_copies = any_bool();
  return input;
}

Machine any_machine(const PlanInput& input) {
  Machine machine;
  Rates& rates = machine.rates;
  const double unit = any_of<double>({1e-5, 1e-3, 1e-2});
  for (const UnitInfo& info : input.model.units) {
    rates.forward_seconds.push_back(info.fused_loss ? 0 : unit);
    rates.backward_seconds.push_back(2 * unit);
  }
  rates.update_seconds_per_element = any_of<double>({1e-10, 1e-8});
  rates.gradient_out_seconds_per_element = 1e-10;
  rates.copy_bytes_per_s = 1e9;
  rates.read_bytes_per_s = any_of<double>({1e7, 1e9});
  rates.write_bytes_per_s = any_of<double>({1e7, 1e9});
  rates.mixed_bytes_per_s = any_of<double>({0.6, 1.0}) * (rates.read_bytes_per_s + rates.write_bytes_per_s);
  rates.read_latency_seconds = any_of<double>({0, 1e-4});
  rates.io_cpu_seconds_per_byte = any_of<double>({0, 1e-10});
  rates.cores = static_cast<int>(any_int(1, 4));
  rates.machine_cores = rates.cores + static_cast<int>(any_int(0, 2));
  return machine;
}

RC_GTEST_PROP(ChoosePlan, IsNeverSlowerThanTheUsualPlanNorWithLessMemory, ()) {
  PlanInput input = any_input();
  const Machine machine = any_machine(input);
  ChooseOptions all;
  all.plans_per_kind = 1'000;
  Bytes budget = smallest_host_budget(input);
  double before = -1;
  for (int i = 0; i < 3; ++i) {
    input.host_budget = budget;
    const Result<Choice> choice = choose_plan(input, machine, all);
    RC_ASSERT(choice.ok());
    const Result<Plan> usual = compile_plan(input);
    RC_ASSERT(usual.ok());
    const double step = choice->simulation.step_seconds;
    RC_ASSERT(step <= simulate(*usual, machine.rates)->step_seconds * (1 + 1e-9));
    RC_ASSERT(before < 0 || step <= before * (1 + 1e-9));
    RC_ASSERT(step >= bound_of(choice->plan, machine.rates).seconds() * (1 - 1e-9));
    RC_ASSERT(step >= choice->simulation.critical_path_seconds * (1 - 1e-9));
    RC_ASSERT(choice->plan.host_peak_bytes <= budget);
    RC_ASSERT(choice->plan.input.host_budget == budget);  // as asked, whatever plan was taken
    const Result<void> checked = check_plan(choice->plan);
    if (!checked.ok()) RC_FAIL(checked.error().message);
    before = step;
    budget += any_of<Bytes>({4'096, 50'000, 300'000, 2'000'000});
  }
}

RC_GTEST_PROP(ChoosePlan, NoPlanMovesFewerBytesThanTheFloor, ()) {
  PlanInput input = any_input();
  input.host_budget = smallest_host_budget(input) + any_of<Bytes>({0, 50'000, 500'000, 5'000'000});
  const Result<Plan> plan = compile_plan(input);
  RC_ASSERT(plan.ok());
  const TrafficFloor floor = traffic_floor(*plan, input.host_budget - input.program_bytes);
  RC_ASSERT(static_cast<double>(plan->read_bytes_per_step) >= floor.read_bytes);
  RC_ASSERT(static_cast<double>(plan->write_bytes_per_step) >= floor.write_bytes);
}

}  // namespace
}  // namespace headrace::runtime
