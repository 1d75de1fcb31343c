// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/choose.h"

#include <array>
#include <optional>
#include <vector>

namespace headrace::runtime {

namespace {

// A gain below this is rounding.
constexpr double kSame = 1e-9;
// Of the parameters, whose updates are delayed. Finer ones differ by less than predictions are right.
constexpr std::array<double, 4> kFractions = {1, 0.75, 0.5, 0.25};

class Search {
 public:
  Search(const Machine& machine, const ChooseOptions& options) : machine_(machine), options_(options) {}

  // Simulates one plan; true while plans with less memory may still be faster.
  Result<bool> consider(Plan plan) {
    const double least = bound_of(plan, machine_.rates, machine_.collectives).seconds();
    if (best_.has_value() && least >= best_->simulation.step_seconds * (1 - kSame)) return false;
    HEADRACE_TRY(Simulation simulation, simulate(plan, machine_.rates, machine_.collectives));
    ++tried_;
    if (!best_.has_value() || simulation.step_seconds < best_->simulation.step_seconds * (1 - kSame))
      best_ = Choice{std::move(plan), std::move(simulation), 0};
    return true;
  }

  // From the plan that uses most memory down: each next one has to do with less than the one before used. Plans with
  // less memory move no fewer bytes and compute no less, so their bounds only grow.
  // False where that would take too long: the plan is a large one, and no other was looked at.
  Result<bool> descend(PlanInput input) {
    const Bytes asked = input.host_budget;
    for (int i = 0; i < options_.plans_per_kind; ++i) {
      Result<Plan> plan = compile_plan(input);
      if (!plan.ok()) return true;  // nothing smaller fits
      plan->input.host_budget = asked;
      input.host_budget = plan->host_peak_bytes - 1;
      const bool large = static_cast<std::int64_t>(plan->operations.size()) > options_.most_operations;
      HEADRACE_TRY(const bool go_on, consider(std::move(plan).value()));
      if (large) return false;
      if (!go_on) return true;
    }
    return true;
  }

  Choice take() {
    best_->tried = tried_;
    return std::move(*best_);
  }

 private:
  const Machine& machine_;
  const ChooseOptions& options_;
  std::optional<Choice> best_;
  int tried_ = 0;
};

std::vector<std::int32_t> group_sizes(const PlanInput& input) {
  if (input.group_size > 0) return {input.group_size};
  std::vector<std::int32_t> sizes;
  for (std::int32_t size = input.micro_batches;; size = (size + 1) / 2) {
    sizes.push_back(size);
    if (size == 1) return sizes;
  }
}

// Where activations may be beside kMemory. Its descent ends where all is computed again; where there was none, that is
// tried by itself.
std::vector<ActivationPolicy> other_places(const PlanInput& input, bool descends) {
  if (input.activations != ActivationPolicy::kAuto) return {};
  if (!descends) return {ActivationPolicy::kRecompute};
  std::vector<ActivationPolicy> places;
  if (input.force_copies) places.push_back(ActivationPolicy::kHost);
  const bool any_nvme = input.weights_home == Home::kNvme || input.optimizer_home == Home::kNvme;
  if (any_nvme && input.can_spill)
    places.insert(places.end(), {ActivationPolicy::kBoundaries, ActivationPolicy::kNvme});
  return places;
}

// When updates are made: the policies that the input leaves open, and fractions of those that are delayed.
std::vector<PlanInput> schedules(const PlanInput& input) {
  std::vector<UpdatePolicy> policies{input.update};
  if (input.update == UpdatePolicy::kAuto)
    policies = {UpdatePolicy::kAfterBackward, UpdatePolicy::kInBackward, UpdatePolicy::kIntoForward};
  std::vector<PlanInput> result;
  for (const UpdatePolicy policy : policies) {
    PlanInput kind = input;
    kind.update = policy;
    const bool is_open = policy == UpdatePolicy::kIntoForward && input.delayed_fraction < 0;
    if (policy == UpdatePolicy::kIntoForward && input.delayed_fraction == 0) continue;  // that is kAfterBackward
    if (!is_open) result.push_back(kind);
    for (const double fraction : kFractions) {
      if (!is_open) break;
      kind.delayed_fraction = fraction;
      result.push_back(kind);
    }
  }
  return result;
}

// One of several fractions, which are not tried for large plans.
bool is_finer(const PlanInput& kind, const PlanInput& input) {
  return input.delayed_fraction < 0 && kind.delayed_fraction >= 0 && kind.delayed_fraction < 1;
}

}  // namespace

Result<Choice> choose_plan(const PlanInput& input, const Machine& machine, const ChooseOptions& options) {
  HEADRACE_TRY(Plan usual, compile_plan(input));
  Search search(machine, options);
  HEADRACE_RETURN_IF_ERROR(search.consider(std::move(usual)));
  bool large = false;
  for (PlanInput& kind : schedules(input)) {
    if (large && is_finer(kind, input)) continue;
    for (const std::int32_t size : group_sizes(input)) {
      kind.group_size = size;
      if (input.activations == ActivationPolicy::kAuto) kind.activations = ActivationPolicy::kMemory;
      HEADRACE_TRY(const bool descends, search.descend(kind));
      large = large || !descends;
      for (const ActivationPolicy place : other_places(input, descends)) {
        kind.activations = place;
        HEADRACE_TRY([[maybe_unused]] const bool done, search.descend(kind));
      }
    }
  }
  return search.take();
}

}  // namespace headrace::runtime
