// SPDX-License-Identifier: Apache-2.0
// `headrace plan`: whether a job fits, where its bytes are, how many move, and what a step will take, without touching
// any state.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_compare.h"
#include "bindings/cli/plan_job.h"
#include "bindings/cli/plan_predict.h"
#include "bindings/cli/plan_text.h"
#include "core/file.h"
#include "runtime/plan/choose.h"

namespace headrace::cli {
namespace {

Result<void> write_pictures(const PlanArguments& arguments, const Prediction* prediction, const runtime::Plan& plan) {
  if (arguments.trace.empty() && arguments.html.empty()) return {};
  if (prediction == nullptr)
    return make_error(ErrorCode::kUsage, "--trace and --html show a simulated step, which needs the machine's rates",
                      "--hardware FILE (a run writes its own as hardware.json)");
  if (!arguments.trace.empty())
    HEADRACE_RETURN_IF_ERROR(write_file_atomically(arguments.trace, simulation_trace(*prediction, plan)));
  if (!arguments.html.empty())
    HEADRACE_RETURN_IF_ERROR(write_file_atomically(arguments.html, simulation_page(*prediction, plan)));
  return {};
}

void print_plan(const PlanJob& job, const runtime::Plan& plan, const Prediction* prediction) {
  print(job.is_elsewhere() ? job_text(job, plan) : plan_text(plan, job.setup, ""));
  print(prediction != nullptr ? prediction_text(*prediction, plan)
                              : std::string("step      not predicted: --hardware FILE gives the machine's rates (a run "
                                            "writes its own as hardware.json)\n"));
  for (const std::string& note : job.notes) print("note: " + note + "\n");
  for (const std::string& note : job.setup.config.notes) print("note: " + note + "\n");
}

// With rates: the plan whose step is shortest.
Result<runtime::Plan> compile(const PlanJob& job) {
  if (!job.machine.has_value()) return runtime::compile_plan(job.input);
  HEADRACE_TRY(runtime::Choice choice, runtime::choose_plan(job.input, *job.machine));
  return std::move(choice.plan);
}

Result<int> plan(const PlanArguments& arguments, bool json) {
  HEADRACE_TRY(PlanJob job, make_job(arguments));
  HEADRACE_TRY(Compared compared, find_compared(job, arguments.compare));
  Result<runtime::Plan> compiled = compile(job);
  if (!compiled.ok() && compiled.error().code == ErrorCode::kDoesNotFit && job.ranks.world_size() > 1) {
    gather_units(job, 1);
    compiled = compile(job);
    job.notes.push_back("the device has no room to gather a unit while another computes");
  }
  if (!compiled.ok() && compiled.error().code == ErrorCode::kDoesNotFit && json) {
    print(misfit_json(compiled.error()) + "\n");
    print_error(compiled.error().to_string() + "\n");
    return exit_code(ErrorCode::kDoesNotFit);
  }
  if (!compiled.ok()) return compiled.error();
  HEADRACE_RETURN_IF_ERROR(runtime::check_plan(*compiled));
  HEADRACE_RETURN_IF_ERROR(models::check_nvme_budget(*compiled, job.setup.config.run));
  std::optional<Prediction> prediction;
  if (job.machine.has_value()) {
    HEADRACE_TRY(prediction, predict(*compiled, *job.machine));
    add_advice(*prediction, *compiled, job.input, *job.machine);
  }
  const Prediction* const predicted = prediction.has_value() ? &*prediction : nullptr;
  HEADRACE_RETURN_IF_ERROR(write_pictures(arguments, predicted, *compiled));
  HEADRACE_RETURN_IF_ERROR(simulate_compared(job, compared));
  if (json) {
    std::string document = plan_json(*compiled, job.setup, predicted);
    if (!arguments.compare.empty()) document.insert(document.size() - 1, ",\"compare\":" + compare_json(compared, job));
    print(document + "\n");
  } else {
    print_plan(job, *compiled, predicted);
    print(compare_text(compared, job, *compiled, predicted));
  }
  return 0;
}

}  // namespace

void add_plan(Program& program) {
  CLI::App* const command =
      program.app->add_subcommand("plan", "Show whether a job fits, its memory by tier and its bytes per step");
  auto arguments = std::make_shared<PlanArguments>();
  command->add_option("config", arguments->config, "JSON config file");
  command->add_option("overrides", arguments->overrides, "key=value: sets a key of the config");
  command->add_option("--preset", arguments->preset, "Plan this model (llama-1b, …) instead of the config's");
  command->add_option("--hardware", arguments->hardware, "File of measured rates: predicts the step and its bound");
  command->add_option("--nodes", arguments->nodes, "Machines of that kind")->check(CLI::Range(1, 100'000));
  command->add_option("--ranks-per-node", arguments->ranks_per_node, "Ranks on each (default: one, or one per device)")
      ->check(CLI::Range(1, 1'000));
  command->add_option(
      "--compare", arguments->compare,
      "The same job by other rules: zero-infinity, zero-infinity-optimizer, greedysnake, lohan, zero-offload; or what "
      "zero-stages divide. Comma separated");
  command->add_option("--trace", arguments->trace, "Write the simulated step as a Chrome trace to this file");
  command->add_option("--html", arguments->html, "Write a page with pictures of lanes and memory to this file");
  command->add_flag("--json", program.json, "One JSON document on standard output");
  command->callback(
      [&program, arguments] { program.job = [&program, arguments] { return plan(*arguments, program.json); }; });
}

}  // namespace headrace::cli
