// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan_compare.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_text.h"
#include "core/json.h"

namespace headrace::cli {

namespace {

constexpr const char* kZeroStages = "zero-stages";

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> result;
  std::size_t begin = 0;
  while (begin <= words.size()) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    if (end > begin) result.push_back(words.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

double share_of_parameters(const runtime::PlanInput& input) {
  double sum = 0;
  for (const runtime::UnitInfo& unit : input.model.units) sum += static_cast<double>(unit.flat_elements);
  return std::max(1.0, sum);
}

std::vector<std::string> row(const std::string& name, double tokens, double step, const std::string& phases,
                             double read, double written, double parameters, double ours) {
  return {name,
          fmt::format("{:.3f} s", step),
          fmt::format("{:.0f}", tokens / step),
          phases,
          fmt::format("{:.1f} + {:.1f}", read / parameters, written / parameters),
          fmt::format("{:.2f}", step / ours)};
}

std::string rules_text(const Compared& compared, const PlanJob& job, const runtime::Plan& plan,
                       const Prediction& prediction) {
  const double tokens = tokens_per_step(plan, job.ranks.world_size());
  const double parameters = share_of_parameters(job.input);
  std::vector<std::vector<std::string>> rows{{"rules", "step", "tokens/s", "forward + backward + update",
                                              "NVMe bytes read + written per parameter", "× ours"}};
  const double ours = prediction.step_seconds();
  rows.push_back(row("headrace", tokens, ours, "", static_cast<double>(plan.read_bytes_per_step),
                     static_cast<double>(plan.write_bytes_per_step), parameters, ours));
  for (const ComparedRules& rules : compared.rules) {
    const runtime::Comparison& other = rules.comparison;
    rows.push_back(row(
        std::string(rules.rules.name), tokens, other.step_seconds,
        fmt::format("{:.3f} + {:.3f} + {:.3f} s", other.forward_seconds, other.backward_seconds, other.update_seconds),
        other.read_bytes, other.written_bytes, parameters, ours));
  }
  return "\nthe same job by published rules, on the same virtual clock (docs/planning.md says what they leave out)\n" +
         format_table(rows);
}

runtime::PlanInput whole_input(const PlanJob& job) {
  runtime::PlanInput input = job.input;
  input.model = job.whole;
  return input;
}

std::string zero_text(const PlanJob& job) {
  const int ranks = job.ranks.world_size();
  const runtime::PlanInput input = whole_input(job);
  std::vector<std::vector<std::string>> rows{{"ZeRO stage", "weights", "gradients", "optimizer", "per rank", "saves"}};
  const double none = runtime::zero_memory(input, 0, ranks).total();
  const auto cell = [](double bytes) { return format_bytes(static_cast<Bytes>(bytes)); };
  for (int stage = 0; stage <= 3; ++stage) {
    const runtime::ZeroMemory memory = runtime::zero_memory(input, stage, ranks);
    rows.push_back({stage == 0 ? "none" : std::to_string(stage), cell(memory.weights), cell(memory.gradients),
                    cell(memory.optimizer), cell(memory.total()), fmt::format("{:.1f}×", none / memory.total())});
  }
  return fmt::format("\nmodel states as ZeRO divides them over {} ranks\n", ranks) + format_table(rows);
}

}  // namespace

Result<Compared> find_compared(const PlanJob& job, const std::string& words) {
  Compared compared;
  for (const std::string& word : split(words)) {
    if (word == kZeroStages) {
      compared.zero_stages = true;
      continue;
    }
    Result<runtime::Rules> rules = runtime::find_rules(word);
    if (!rules.ok()) {
      Error error = std::move(rules).error();
      error.hint += fmt::format(", {}", kZeroStages);
      return error;
    }
    if (!job.machine.has_value())
      return make_error(ErrorCode::kUsage, "--compare " + word + " needs the rates of a machine",
                        "--hardware FILE (a run writes its own as hardware.json)");
    compared.rules.push_back({*rules, {}});
  }
  return compared;
}

Result<void> simulate_compared(const PlanJob& job, Compared& compared) {
  for (ComparedRules& rules : compared.rules) {
    HEADRACE_TRY(rules.comparison, runtime::simulate_rules(rules.rules, job.input, *job.machine));
  }
  return {};
}

std::string compare_text(const Compared& compared, const PlanJob& job, const runtime::Plan& plan,
                         const Prediction* prediction) {
  std::string text;
  if (!compared.rules.empty() && prediction != nullptr) text += rules_text(compared, job, plan, *prediction);
  if (compared.zero_stages) text += zero_text(job);
  return text;
}

std::string compare_json(const Compared& compared, const PlanJob& job) {
  JsonArray array;
  for (const ComparedRules& rules : compared.rules) {
    JsonObject object;
    object.add("rules", rules.rules.name);
    object.add("step_seconds", rules.comparison.step_seconds);
    object.add("forward_seconds", rules.comparison.forward_seconds);
    object.add("backward_seconds", rules.comparison.backward_seconds);
    object.add("update_seconds", rules.comparison.update_seconds);
    object.add("nvme_read_bytes", rules.comparison.read_bytes);
    object.add("nvme_write_bytes", rules.comparison.written_bytes);
    array.add_raw(object.text());
  }
  if (!compared.zero_stages) return array.text();
  const runtime::PlanInput input = whole_input(job);
  for (int stage = 0; stage <= 3; ++stage) {
    const runtime::ZeroMemory memory = runtime::zero_memory(input, stage, job.ranks.world_size());
    JsonObject object;
    object.add("rules", "zero-stage-" + std::to_string(stage));
    object.add("weights_bytes", memory.weights);
    object.add("gradient_bytes", memory.gradients);
    object.add("optimizer_bytes", memory.optimizer);
    array.add_raw(object.text());
  }
  return array.text();
}

}  // namespace headrace::cli
