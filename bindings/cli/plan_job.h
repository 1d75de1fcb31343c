// SPDX-License-Identifier: Apache-2.0
// What `headrace plan` is asked to plan: a job on this machine, or on machines that a hardware file describes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/trainer/setup.h"
#include "runtime/plan/compile.h"
#include "runtime/plan/hardware.h"

namespace headrace::cli {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string preset;
  std::string hardware;
  int nodes = 1, ranks_per_node = 0;  // 0 = one per device of the hardware
  std::string trace, html;
  std::string compare;  // rules, comma separated
};

struct PlanJob {
  models::TrainingSetup setup;
  runtime::PlanInput input;  // of one rank
  runtime::Job ranks;
  runtime::ModelInfo whole;  // the model of all ranks
  std::optional<runtime::Hardware> hardware;
  std::optional<runtime::Machine> machine;
  std::vector<std::string> notes;
  // A machine other than this one: its memory and devices, not ours, are the budgets.
  [[nodiscard]] bool is_elsewhere() const noexcept { return hardware.has_value() && hardware->is_elsewhere(); }
};

[[nodiscard]] Result<PlanJob> make_job(const PlanArguments& arguments);
// How many units several ranks hold gathered at once: 2 gather the next while one computes, 1 needs least memory.
void gather_units(PlanJob& job, int units_in_flight);
// The head and the memory table of a plan for machines elsewhere.
[[nodiscard]] std::string job_text(const PlanJob& job, const runtime::Plan& plan);

}  // namespace headrace::cli
