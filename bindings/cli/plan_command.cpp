// SPDX-License-Identifier: Apache-2.0
// `headrace plan`: whether a job fits, where its bytes are and how many move, without touching any state.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_predict.h"
#include "bindings/cli/plan_text.h"
#include "core/file.h"
#include "kernels/cpu/parallel.h"
#include "models/trainer/hardware_file.h"
#include "models/trainer/read_setup.h"
#include "runtime/plan/compile.h"

namespace headrace::cli {
namespace {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string preset;
  std::string hardware;
  std::string trace, html;
};

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

Result<int> plan(const PlanArguments& arguments, bool json) {
  models::SetupRequest request;
  request.config_file = arguments.config;
  request.overrides = arguments.overrides;
  // With --preset the first word may be an override: there need be no config.
  if (!arguments.preset.empty()) {
    request.preset = arguments.preset;
    if (request.config_file.find('=') != std::string::npos) {
      request.overrides.insert(request.overrides.begin(), request.config_file);
      request.config_file.clear();
    }
  } else if (request.config_file.empty()) {
    return make_error(ErrorCode::kUsage, "headrace plan needs a config file or --preset NAME",
                      "headrace plan run.json");
  }
  request.purpose = config::Purpose::kPlan;
  HEADRACE_TRY(const models::TrainingSetup setup, models::read_setup(request));
  const config::RunConfig& run = setup.config.run;
  const models::Model model(setup.model, run.weights_dtype, run.batch.micro_batch_size,
                            setup.train_data.sequence_length);
  const Bytes scratch = static_cast<Bytes>(models::resolve_threads(run)) * kernels::Parallel::kScratchBytes;
  HEADRACE_TRY(const runtime::PlanInput input, models::make_plan_input(setup, model.info(), 0, scratch));
  const Result<runtime::Plan> compiled = runtime::compile_plan(input);
  if (!compiled.ok() && compiled.error().code == ErrorCode::kDoesNotFit && json) {
    print(misfit_json(compiled.error()) + "\n");
    print_error(compiled.error().to_string() + "\n");
    return exit_code(ErrorCode::kDoesNotFit);
  }
  if (!compiled.ok()) return compiled.error();
  HEADRACE_RETURN_IF_ERROR(runtime::check_plan(*compiled));
  HEADRACE_RETURN_IF_ERROR(models::check_nvme_budget(*compiled, run));
  std::optional<Prediction> prediction;
  const std::string hardware = arguments.hardware.empty() ? run.hardware.value_or("") : arguments.hardware;
  if (!hardware.empty()) {
    runtime::Machine machine;
    HEADRACE_TRY(machine.rates, models::read_hardware(hardware, compiled->input));
    HEADRACE_TRY(prediction, predict(*compiled, machine));
    add_advice(*prediction, *compiled, input, machine);
  }
  HEADRACE_RETURN_IF_ERROR(write_pictures(arguments, prediction.has_value() ? &*prediction : nullptr, *compiled));
  if (json) {
    print(plan_json(*compiled, setup, prediction.has_value() ? &*prediction : nullptr) + "\n");
    return 0;
  }
  print(plan_text(*compiled, setup, ""));
  print(prediction.has_value() ? prediction_text(*prediction, *compiled)
                               : std::string("step      not predicted: --hardware FILE gives the machine's rates (a "
                                             "run writes its own as hardware.json)\n"));
  for (const std::string& note : setup.config.notes) print("note: " + note + "\n");
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
  command->add_option("--trace", arguments->trace, "Write the simulated step as a Chrome trace to this file");
  command->add_option("--html", arguments->html, "Write a page with pictures of lanes and memory to this file");
  command->add_flag("--json", program.json, "One JSON document on standard output");
  command->callback(
      [&program, arguments] { program.job = [&program, arguments] { return plan(*arguments, program.json); }; });
}

}  // namespace headrace::cli
