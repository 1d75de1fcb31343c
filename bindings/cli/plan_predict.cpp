// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan_predict.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_text.h"
#include "runtime/plan/choose.h"

namespace headrace::cli {

namespace {

constexpr double kMore = 1.25;            // of what advice is about
constexpr double kWorthSaying = 0.01;     // of the step
constexpr std::size_t kSpokenAdvice = 2;  // the best ones
constexpr double kSecondsPerDay = 86'400, kDaysPerYear = 365.25;

// The same job planned again; nothing where it does not compile (more memory than 64 bits count).
Result<runtime::Simulation> planned_again(const runtime::PlanInput& input, const runtime::Machine& machine) {
  HEADRACE_TRY(runtime::Choice choice, runtime::choose_plan(input, machine));
  return std::move(choice.simulation);
}

// A quarter more, as a whole number of its unit.
Bytes quarter_more(Bytes bytes) {
  const Bytes unit = bytes >= 8 * kGiB ? kGiB : kMiB;
  return std::max(unit, round_up(bytes / 4, unit));
}

void scale(std::vector<double>& values, double factor) {
  for (double& value : values) value *= factor;
}

struct Variation {
  const char* what;
  void (*apply)(runtime::Rates& rates);
};

constexpr Variation kDisk{"+25 % disk bandwidth", [](runtime::Rates& rates) {
                            rates.read_bytes_per_s *= kMore;
                            rates.write_bytes_per_s *= kMore;
                            rates.mixed_bytes_per_s *= kMore;
                          }};
constexpr Variation kCores{"+25 % cores", [](runtime::Rates& rates) {
                             scale(rates.forward_seconds, 1 / kMore);
                             scale(rates.backward_seconds, 1 / kMore);
                             rates.update_seconds_per_element /= kMore;
                             rates.gradient_out_seconds_per_element /= kMore;
                             rates.io_cpu_seconds_per_byte /= kMore;
                           }};
constexpr Variation kHostCores{"+25 % host cores and memory bandwidth", [](runtime::Rates& rates) {
                                 rates.update_seconds_per_element /= kMore;
                                 rates.gradient_out_seconds_per_element /= kMore;
                                 rates.io_cpu_seconds_per_byte /= kMore;
                                 rates.memory_bytes_per_s *= kMore;
                               }};
constexpr Variation kDevice{"+25 % device arithmetic", [](runtime::Rates& rates) {
                              scale(rates.forward_seconds, 1 / kMore);
                              scale(rates.backward_seconds, 1 / kMore);
                            }};
constexpr Variation kLink{"+25 % link bandwidth", [](runtime::Rates& rates) {
                            rates.copy_bytes_per_s *= kMore;
                            rates.d2h_bytes_per_s *= kMore;
                          }};
constexpr Variation kNetwork{"+25 % network bandwidth", [](runtime::Rates& rates) {
                               rates.network.intra_bytes_per_s *= kMore;
                               rates.network.inter_bytes_per_s *= kMore;
                             }};

std::string duration_text(double days) {
  if (days < 2) return fmt::format("{:.1f} hours", days * 24);
  if (days < 2 * kDaysPerYear) return fmt::format("{:.0f} days", days);
  return fmt::format("{:.1f} years", days / kDaysPerYear);
}

std::string large_bytes(double bytes) {
  if (bytes >= 1e12) return fmt::format("{:.1f} TB", bytes * 1e-12);
  return fmt::format("{:.1f} GB", bytes * 1e-9);
}

std::string waiting_text(const Prediction& prediction) {
  std::string text;
  for (const runtime::Waited& waited : prediction.waited) {
    if (waited.seconds < kWorthSaying / 2 * prediction.step_seconds()) continue;
    text += fmt::format("{}{} {:.3f} s", text.empty() ? "waiting   nothing computes while it waits for " : " · ",
                        runtime::waiting_name(waited.waiting), waited.seconds);
  }
  return text.empty() ? text : text + "\n";
}

std::string flops_text(const Prediction& prediction, const runtime::Plan& plan) {
  if (prediction.peak_flops_per_s <= 0) return {};
  const double flops = model_flops(plan);
  return fmt::format(
      "flops     {:.1f} % of {} {:.3g} FLOP/s{}: 3 × forward products × {} micro-batches = {:.3g} FLOP, nothing "
      "computed again counted, ÷ step\n",
      100 * flops / prediction.step_seconds() / prediction.peak_flops_per_s,
      prediction.is_maker_peak ? "the maker's" : "the measured", prediction.peak_flops_per_s,
      prediction.world_size > 1 ? " per rank" : "", plan.input.micro_batches, flops);
}

std::string floor_text(const runtime::Plan& plan) {
  const auto moved = static_cast<double>(plan.read_bytes_per_step + plan.write_bytes_per_step);
  const Bytes memory = std::max<Bytes>(0, plan.input.host_budget - plan.input.program_bytes);
  const runtime::TrafficFloor floor = runtime::traffic_floor(plan, memory);
  const double least = floor.read_bytes + floor.write_bytes;
  if (moved <= 0 || least <= 0) return {};
  return fmt::format(
      "floor     no schedule with this memory reads less than {} and writes less than {}: {:.2f} × that\n",
      format_bytes(static_cast<Bytes>(floor.read_bytes)), format_bytes(static_cast<Bytes>(floor.write_bytes)),
      moved / least);
}

std::string wear_text(const Prediction& prediction, const runtime::Plan& plan) {
  const auto written = static_cast<double>(plan.write_bytes_per_step);
  if (written <= 0) return {};
  const double per_day = written / prediction.step_seconds() * kSecondsPerDay;
  std::string text = fmt::format("wear      {} written per step, {} per day{}", large_bytes(written),
                                 large_bytes(per_day), prediction.world_size > 1 ? " and rank" : "");
  if (prediction.endurance_bytes > 0)
    text += fmt::format("; the drives' rating of {} is reached in {}", large_bytes(prediction.endurance_bytes),
                        duration_text(prediction.endurance_bytes / per_day));
  return text + "\n";
}

std::string advice_text(const Prediction& prediction) {
  std::string text;
  std::size_t spoken = 0;
  for (const Advice& advice : prediction.advice) {
    const double change = advice.step_seconds / prediction.step_seconds() - 1;
    if (change > -kWorthSaying || ++spoken > kSpokenAdvice) continue;
    text += fmt::format("{}{}: −{:.0f} % step time", text.empty() ? "helps     " : " · ", advice.what, -100 * change);
  }
  if (text.empty() && !prediction.advice.empty()) text = "helps     no single quarter more of anything by 1 % or more";
  return text.empty() ? text : text + "\n";
}

}  // namespace

double model_flops(const runtime::Plan& plan) {
  double flops = 0;
  for (const runtime::UnitInfo& unit : plan.input.model.units) flops += 3 * unit.forward_flops;
  return flops * plan.input.micro_batches;
}

Result<Prediction> predict(const runtime::Plan& plan, const runtime::Machine& machine) {
  Prediction prediction;
  prediction.rates = machine.rates;
  prediction.collectives = machine.collectives;
  prediction.peak_flops_per_s = machine.peak_flops_per_s;
  prediction.is_maker_peak = machine.is_maker_peak;
  prediction.endurance_bytes = machine.endurance_bytes;
  prediction.world_size = machine.collectives.world_size;
  HEADRACE_TRY(prediction.simulation, runtime::simulate(plan, machine.rates, machine.collectives));
  prediction.bound = runtime::bound_of(plan, machine.rates, machine.collectives);
  prediction.waited = runtime::where_time_went(plan, prediction.simulation.times, prediction.simulation.collectives,
                                               prediction.step_seconds());
  return prediction;
}

void add_advice(Prediction& prediction, const runtime::Plan& plan, const runtime::PlanInput& asked,
                const runtime::Machine& machine) {
  const auto add = [&](std::string what, const Result<runtime::Simulation>& simulation) {
    if (simulation.ok()) prediction.advice.push_back({std::move(what), simulation->step_seconds});
  };
  const auto vary = [&](const Variation& variation) {
    runtime::Rates rates = machine.rates;
    variation.apply(rates);
    add(variation.what, runtime::simulate(plan, rates, machine.collectives));
  };
  const auto enlarge = [&](const char* tier, Bytes runtime::PlanInput::*budget) {
    runtime::PlanInput more = asked;
    more.*budget += quarter_more(asked.*budget);
    add(fmt::format("+{} {}", format_bytes(more.*budget - asked.*budget), tier), planned_again(more, machine));
  };
  enlarge("host", &runtime::PlanInput::host_budget);
  if (asked.device_budget > 0) enlarge("device", &runtime::PlanInput::device_budget);
  if (plan.read_bytes_per_step + plan.write_bytes_per_step > 0) vary(kDisk);
  vary(machine.rates.has_device ? kHostCores : kCores);
  if (machine.rates.has_device) {
    vary(kDevice);
    vary(kLink);
  }
  if (machine.collectives.world_size > 1) vary(kNetwork);
  std::stable_sort(prediction.advice.begin(), prediction.advice.end(),
                   [](const Advice& a, const Advice& b) { return a.step_seconds < b.step_seconds; });
}

std::string prediction_text(const Prediction& prediction, const runtime::Plan& plan) {
  const double tokens = tokens_per_step(plan, prediction.world_size);
  std::string text = fmt::format(
      "step      {:.3f} s = {:.0f} tokens/s on a virtual clock: {:.2f} of the bound ({}); critical path {:.3f} s\n",
      prediction.step_seconds(), tokens / prediction.step_seconds(),
      prediction.step_seconds() / prediction.bound.seconds(), prediction.bound.resource(),
      prediction.simulation.critical_path_seconds);
  text += bound_text(prediction.bound, plan, tokens) + "\n";
  return text + floor_text(plan) + waiting_text(prediction) + flops_text(prediction, plan) +
         wear_text(prediction, plan) + advice_text(prediction);
}

}  // namespace headrace::cli
