// SPDX-License-Identifier: Apache-2.0
// What the rates of a machine make of a plan: its step on a virtual clock, its bound, what more hardware would change,
// in words, as a Chrome trace and as a page with pictures.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/compile.h"
#include "runtime/plan/hardware.h"
#include "runtime/plan/simulate.h"
#include "runtime/plan/trace.h"

namespace headrace::cli {

// One thing more of which there could be, and the step with it.
struct Advice {
  std::string what;  // "+16 GiB host"
  double step_seconds = 0;
};

struct Prediction {
  runtime::Rates rates;
  runtime::Collectives collectives;  // of a job of several ranks
  runtime::Simulation simulation;
  runtime::Bound bound;
  std::vector<runtime::Waited> waited;
  std::vector<Advice> advice;   // by step, shortest first
  double peak_flops_per_s = 0;  // of one rank; 0 = not known
  bool is_maker_peak = false;   // a figure of the maker, not a measured rate
  double endurance_bytes = 0;   // that one rank's share of the drives may be written in their life; 0 = not known
  int world_size = 1;

  [[nodiscard]] double step_seconds() const noexcept { return simulation.step_seconds; }
};

[[nodiscard]] Result<Prediction> predict(const runtime::Plan& plan, const runtime::Machine& machine);
// Plans and simulates the job again with a quarter more of each thing. `asked` is what the plan was compiled from.
void add_advice(Prediction& prediction, const runtime::Plan& plan, const runtime::PlanInput& asked,
                const runtime::Machine& machine);

// The lines "step", "bound", "waiting", "flops", "wear" and "helps".
[[nodiscard]] std::string prediction_text(const Prediction& prediction, const runtime::Plan& plan);
[[nodiscard]] std::string simulation_trace(const Prediction& prediction, const runtime::Plan& plan);  // Chrome trace
[[nodiscard]] std::string simulation_page(const Prediction& prediction, const runtime::Plan& plan);   // HTML
// Floating-point operations of the model in one step of one rank: what the products of forward and backward need,
// nothing computed again counted.
[[nodiscard]] double model_flops(const runtime::Plan& plan);

}  // namespace headrace::cli
