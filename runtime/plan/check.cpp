// SPDX-License-Identifier: Apache-2.0
// The plan checker's entry: budgets and totals, then structure, order and contents of the step and of the evaluation.
#include <fmt/format.h>

#include "runtime/plan/check_order.h"
#include "runtime/plan/check_step.h"
#include "runtime/plan/compile.h"

namespace headrace::runtime {

namespace {

Result<void> check_budgets(const Plan& plan) {
  const PlanInput& input = plan.input;
  const Bytes peak = input.program_bytes + plan.host_slab_bytes + plan.device_slab_bytes;
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

Result<void> check_operations(const Plan& plan, const std::vector<Operation>& operations, bool is_eval) {
  HEADRACE_RETURN_IF_ERROR(checking::check_structure(plan, operations));
  const checking::Order order(operations);
  HEADRACE_RETURN_IF_ERROR(checking::check_conflicts(plan, operations, order));
  return checking::StepCheck(plan, operations, order, is_eval).run();
}

}  // namespace

Result<void> check_plan(const Plan& plan) {
  if (plan.input.group_size < 1 || plan.input.group_size > plan.input.micro_batches)
    return checking::fault(fmt::format("group size {} is not resolved", plan.input.group_size));
  HEADRACE_RETURN_IF_ERROR(check_budgets(plan));
  HEADRACE_RETURN_IF_ERROR(checking::check_buffers(plan));
  HEADRACE_RETURN_IF_ERROR(check_operations(plan, plan.operations, false));
  if (plan.input.eval_micro_batches > 0) return check_operations(plan, plan.eval_operations, true);
  if (!plan.eval_operations.empty()) return checking::fault("there is an evaluation that nobody asked for");
  return {};
}

}  // namespace headrace::runtime
