// SPDX-License-Identifier: Apache-2.0
// `headrace plan --compare`: the same job by the rules of other systems, and what ZeRO's stages divide.
#pragma once

#include <string>
#include <vector>

#include "bindings/cli/plan_job.h"
#include "bindings/cli/plan_predict.h"
#include "runtime/plan/compare.h"

namespace headrace::cli {

struct ComparedRules {
  runtime::Rules rules;
  runtime::Comparison comparison;  // once simulated
};
struct Compared {
  std::vector<ComparedRules> rules;
  bool zero_stages = false;
};
// `words`: names of rules and "zero-stages", comma separated. kUsage for others, and where no rates are known.
[[nodiscard]] Result<Compared> find_compared(const PlanJob& job, const std::string& words);
[[nodiscard]] Result<void> simulate_compared(const PlanJob& job, Compared& compared);
[[nodiscard]] std::string compare_text(const Compared& compared, const PlanJob& job, const runtime::Plan& plan,
                                       const Prediction* prediction);
[[nodiscard]] std::string compare_json(const Compared& compared, const PlanJob& job);  // an array of objects

}  // namespace headrace::cli
