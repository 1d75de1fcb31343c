// SPDX-License-Identifier: Apache-2.0
// Random models, budgets and settings: every plan passes the independent checker, keeps its promises about budgets, and
// more memory never moves more bytes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "plan_support.h"

namespace headrace::runtime {
namespace {

template <class T>
T any_of(std::vector<T> values) {
  return *rc::gen::elementOf(std::move(values));
}
std::int64_t any_int(std::int64_t low, std::int64_t high) { return *rc::gen::inRange<std::int64_t>(low, high + 1); }
bool any_bool() { return *rc::gen::arbitrary<bool>(); }

ModelInfo any_model() {
  ModelInfo model;
  model.name = "random";
  const std::int64_t units = any_int(1, 7);
  for (std::int64_t u = 0; u < units; ++u) {
    const bool last = u + 1 == units;
    const std::int64_t elements = any_of<std::int64_t>({0, 64, 640, 4'096, 12'352, 20'480, 40'960});
    UnitInfo unit = make_unit("unit" + std::to_string(u), elements, last ? 0 : any_of<Bytes>({0, 100, 4'096, 20'000}),
                              any_of<Bytes>({0, 5'000, 65'536}), any_of<Bytes>({0, 1'000, 30'000}));
    unit.fused_loss = last && any_bool();
    if (elements > 64 && any_int(0, 7) == 0) unit.tensors[0].frozen = true;
    model.units.push_back(unit);
  }
  model.units[0].tensors.clear();
  model.units[0] = make_unit("first", 8'256, units > 1 ? 4'096 : 0, 3'000, 2'000);
  model.units[0].fused_loss = units == 1 && any_bool();
  if (units > 1 && any_bool()) model.units.back().uses = {0};
  if (units > 3 && any_bool()) model.units[2].uses = {0};
  return model;
}

PlanInput any_input() {
  PlanInput input = make_input(any_model());
  input.weights_dtype = any_of<DType>({DType::kBf16, DType::kFp32, DType::kFp16});
  input.gradient_dtype = any_of<DType>({DType::kBf16, DType::kFp32});
  using Format = cpu_adam::StateFormat;
  input.state_format = Format::kFp32;
  if (input.weights_dtype == DType::kBf16)
    input.state_format = any_of<Format>({Format::kFp32, Format::kSplit, Format::kSplitBf16, Format::kCompact});
  input.weights_home = any_of<Home>({Home::kNvme, Home::kNvme, Home::kHost, Home::kDevice});
  input.optimizer_home = any_of<Home>({Home::kNvme, Home::kNvme, Home::kHost});
  input.micro_batches = static_cast<std::int32_t>(any_int(1, 5));
  input.group_size = static_cast<std::int32_t>(any_int(0, input.micro_batches));
  input.snake = any_bool();
  input.activations = any_of<ActivationPolicy>(
      {ActivationPolicy::kAuto, ActivationPolicy::kAuto, ActivationPolicy::kKeep, ActivationPolicy::kRecompute,
       ActivationPolicy::kHost, ActivationPolicy::kNvme, ActivationPolicy::kNvme, ActivationPolicy::kBoundaries});
  const bool any_nvme = input.weights_home == Home::kNvme || input.optimizer_home == Home::kNvme;
  if (!any_nvme && input.activations != ActivationPolicy::kHost) input.activations = ActivationPolicy::kAuto;
  input.update = any_of<UpdatePolicy>({UpdatePolicy::kAuto, UpdatePolicy::kAfterBackward, UpdatePolicy::kInBackward,
                                       UpdatePolicy::kInBackward, UpdatePolicy::kIntoForward,
                                       UpdatePolicy::kIntoForward, UpdatePolicy::kIntoForward});
  if (input.update == UpdatePolicy::kIntoForward)
    input.delayed_fraction =
        any_of<double>({-1, 1, 0.75, 0.5, 0.25, 1e-9, static_cast<double>(any_int(1, 999)) / 1000});
  input.can_clip = any_bool();
  input.cache = any_bool();
  input.force_copies = any_bool();
  input.separate_device = input.force_copies && any_bool();
  input.tile_elements = any_of<std::int64_t>({4'096, 8'192, 65'536});
  input.trailer_bytes = any_of<Bytes>({0, 4'096});
  input.eval_micro_batches = static_cast<std::int32_t>(any_int(0, 4));
  return input;
}

RC_GTEST_PROP(CompilePlan, EveryPlanPassesTheCheckerWithinItsBudget, ()) {
  PlanInput input = any_input();
  const Bytes smallest = smallest_host_budget(input);
  RC_ASSERT(smallest > 0);
  if (input.separate_device) {
    input.host_budget = 0;
    input.device_budget = 1;
    input.device_budget =
        compile_plan(input).error().smallest_device_bytes + any_of<Bytes>({0, 10'000, 100'000, 1'000'000});
  }
  Bytes budget = smallest;
  Bytes last_bytes = -1;
  for (int i = 0; i < 4; ++i) {
    input.host_budget = budget;
    const Result<Plan> plan = compile_plan(input);
    RC_ASSERT(plan.ok());
    const Result<void> checked = check_plan(*plan);
    if (!checked.ok()) RC_FAIL(checked.error().message);
    RC_ASSERT(plan->host_peak_bytes <= budget);
    const Bytes bytes = plan->read_bytes_per_step + plan->write_bytes_per_step;
    // Early updates may cost an eighth more bytes, for time.
    const Bytes limit = last_bytes + (input.update == UpdatePolicy::kAuto ? last_bytes / 8 : 0);
    RC_ASSERT(last_bytes < 0 || bytes <= limit);
    last_bytes = bytes;
    budget += any_of<Bytes>({1, 4'096, 20'000, 100'000, 1'000'000});
  }
}

RC_GTEST_PROP(CompilePlan, OneByteLessThanTheSmallestBudgetDoesNotFit, ()) {
  PlanInput input = any_input();
  const Bytes smallest = smallest_host_budget(input);
  input.host_budget = smallest - 1;
  const Result<Plan> plan = compile_plan(input);
  RC_ASSERT(!plan.ok());
  RC_ASSERT(plan.error().code == ErrorCode::kDoesNotFit);
  RC_ASSERT(plan.error().smallest_host_bytes == smallest);
}

}  // namespace
}  // namespace headrace::runtime
