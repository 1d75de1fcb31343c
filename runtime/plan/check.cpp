// SPDX-License-Identifier: Apache-2.0
// The plan checker's entry: budgets and totals, then structure, order and contents of the step and of the evaluation.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/plan/check_order.h"
#include "runtime/plan/check_step.h"
#include "runtime/plan/compile.h"

namespace headrace::runtime {

namespace {

Result<void> check_budgets(const Plan& plan) {
  const PlanInput& input = plan.input;
  const Bytes arena = input.separate_device ? 0 : plan.device_slab_bytes;
  const Bytes peak = input.program_bytes + plan.host_slab_bytes + arena;
  if (plan.host_peak_bytes != peak)
    return checking::fault(
        fmt::format("the host peak is {} bytes, program and slabs are {}", plan.host_peak_bytes, peak));
  if (peak > input.host_budget)
    return checking::fault(fmt::format("{} bytes exceed the host budget of {}", peak, input.host_budget));
  if (input.device_budget > 0 && plan.device_slab_bytes > input.device_budget)
    return checking::fault(
        fmt::format("{} bytes exceed the device budget of {}", plan.device_slab_bytes, input.device_budget));
  Bytes host = 0, device = 0, nvme = 0;
  for (const MemoryLine& line : plan.memory) {
    if (line.host < 0 || line.device < 0 || line.nvme < 0)
      return checking::fault("the memory table has a negative number in \"" + line.what + "\"");
    host += line.host;
    device += line.device;
    nvme += line.nvme;
  }
  if (host != plan.host_peak_bytes || device != plan.device_slab_bytes || nvme != plan.nvme_state_bytes)
    return checking::fault(fmt::format("the memory table adds up to {}, {} and {} bytes, not to {}, {} and {}", host,
                                       device, nvme, plan.host_peak_bytes, plan.device_slab_bytes,
                                       plan.nvme_state_bytes));
  return {};
}

// A step with early updates ends in one of three ways: they stand, or all of it is done again, or nothing of it counts.
Result<void> check_redo(const Plan& plan, const checking::StepCheck& step) {
  if (plan.input.update != UpdatePolicy::kInBackward)
    return plan.redo_operations.empty() ? Result<void>() : Result<void>(checking::fault("there is nothing to redo"));
  HEADRACE_RETURN_IF_ERROR(checking::check_structure(plan, plan.redo_operations));
  const checking::Order order(plan.redo_operations);
  HEADRACE_RETURN_IF_ERROR(checking::check_conflicts(plan, plan.redo_operations, order));
  using Phase = checking::StepCheck::Phase;
  if (plan.input.can_clip)
    HEADRACE_RETURN_IF_ERROR(checking::StepCheck(step).run_redo(plan.redo_operations, order, Phase::kAgain));
  return checking::StepCheck(step).run_redo(plan.redo_operations, order, Phase::kDropped);
}

// Of the trained units so many are delayed that they have the asked share of the parameters, and no more.
Result<void> check_delayed_units(const Plan& plan) {
  const std::vector<UnitInfo>& units = plan.input.model.units;
  const bool is_delayed = plan.input.update == UpdatePolicy::kIntoForward;
  if (plan.update_delayed.size() != (is_delayed ? units.size() : 0))
    return checking::fault("the list of delayed units has another length");
  double all = 0, delayed = 0, largest = 0;
  for (std::size_t u = 0; is_delayed && u < units.size(); ++u) {
    const bool trained = std::any_of(units[u].tensors.begin(), units[u].tensors.end(),
                                     [](const TensorInfo& tensor) { return !tensor.frozen; });
    const auto elements = static_cast<double>(units[u].flat_elements);
    if (plan.update_delayed[u] && (!trained || elements == 0))
      return checking::fault(fmt::format("unit {} has no update to delay", u));
    all += trained ? elements : 0;
    delayed += plan.update_delayed[u] ? elements : 0;
    largest = std::max(largest, plan.update_delayed[u] ? elements : 0);
  }
  const double wanted = plan.input.delayed_fraction * all;
  if (is_delayed && (delayed < wanted || delayed - largest >= wanted))
    return checking::fault(fmt::format("{} of {} parameters are delayed, asked for is a share of {}", delayed, all,
                                       plan.input.delayed_fraction));
  return {};
}

// Steps with delayed updates, one after another: nothing pending, then twice the updates of the step before; and after
// each of them the drain instead of a next step.
Result<void> check_delayed(const Plan& plan) {
  for (const auto* const list : {&plan.start_operations, &plan.operations, &plan.drain_operations})
    HEADRACE_RETURN_IF_ERROR(checking::check_structure(plan, *list));
  const checking::Order first(plan.start_operations), next(plan.operations), drain(plan.drain_operations);
  HEADRACE_RETURN_IF_ERROR(checking::check_conflicts(plan, plan.start_operations, first));
  HEADRACE_RETURN_IF_ERROR(checking::check_conflicts(plan, plan.operations, next));
  HEADRACE_RETURN_IF_ERROR(checking::check_conflicts(plan, plan.drain_operations, drain));
  checking::StepCheck step(plan, plan.start_operations, first, false);
  const auto check_drain = [&] {
    return checking::StepCheck(step).run_redo(plan.drain_operations, drain, checking::StepCheck::Phase::kDrain);
  };
  HEADRACE_RETURN_IF_ERROR(step.run_start());
  HEADRACE_RETURN_IF_ERROR(check_drain());
  for (int i = 0; i < 2; ++i) {
    HEADRACE_RETURN_IF_ERROR(step.run_next(plan.operations, next));
    HEADRACE_RETURN_IF_ERROR(check_drain());
  }
  return {};
}

Result<void> check_operations(const Plan& plan, const std::vector<Operation>& operations, bool is_eval) {
  HEADRACE_RETURN_IF_ERROR(checking::check_structure(plan, operations));
  const checking::Order order(operations);
  HEADRACE_RETURN_IF_ERROR(checking::check_conflicts(plan, operations, order));
  checking::StepCheck step(plan, operations, order, is_eval);
  HEADRACE_RETURN_IF_ERROR(step.run());
  return is_eval ? Result<void>() : check_redo(plan, step);
}

}  // namespace

Result<void> check_plan(const Plan& plan) {
  if (plan.input.group_size < 1 || plan.input.group_size > plan.input.micro_batches)
    return checking::fault(fmt::format("group size {} is not resolved", plan.input.group_size));
  if (plan.input.update == UpdatePolicy::kAuto) return checking::fault("the update policy is not resolved");
  HEADRACE_RETURN_IF_ERROR(check_budgets(plan));
  HEADRACE_RETURN_IF_ERROR(check_delayed_units(plan));
  HEADRACE_RETURN_IF_ERROR(checking::check_buffers(plan));
  const bool is_delayed = plan.input.update == UpdatePolicy::kIntoForward;
  if (!is_delayed && !(plan.start_operations.empty() && plan.drain_operations.empty()))
    return checking::fault("there is nothing to start or to drain");
  HEADRACE_RETURN_IF_ERROR(is_delayed ? check_delayed(plan) : check_operations(plan, plan.operations, false));
  if (plan.input.eval_micro_batches > 0) return check_operations(plan, plan.eval_operations, true);
  if (!plan.eval_operations.empty()) return checking::fault("there is an evaluation that nobody asked for");
  return {};
}

}  // namespace headrace::runtime
