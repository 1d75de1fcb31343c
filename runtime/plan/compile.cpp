// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "runtime/plan/emit.h"
#include "runtime/plan/search.h"
#include "runtime/plan/table.h"

namespace headrace::runtime {

namespace {

using planning::Choices;
using planning::DeviceLayout;
using planning::Facts;
using planning::HostLayout;
using planning::Ladder;
using planning::Rung;
using planning::Timeline;

struct Found {
  Timeline timeline;
  Rung rung;
  ActivationPolicy activations = ActivationPolicy::kMemory;
  bool is_top = false;  // more memory is of no use
  Bytes nvme_bytes = 0;
  std::int64_t recomputed = 0, recomputable = 0;  // units
};

struct Smallest {
  Bytes host = 0, device = 0;
};

Smallest needs_of(const PlanInput& input, const Rung& rung) {
  const Bytes arena = input.separate_device ? 0 : rung.device_slab_bytes;
  return {input.program_bytes + rung.host_slab_bytes + arena, rung.device_slab_bytes};
}

bool fits(const PlanInput& input, const Rung& rung) {
  const Smallest needs = needs_of(input, rung);
  return needs.host <= input.host_budget && (input.device_budget == 0 || needs.device <= input.device_budget);
}

// A unit that uses several others must be the first or not the first to add to all of their gradients: one flag says
// it.
Result<void> check_ties(const Facts& facts, const Timeline& timeline) {
  for (std::int32_t s = 0; s < timeline.num_compute; ++s) {
    const planning::Stage& stage = timeline.stage(s);
    if (stage.kind != planning::Stage::Kind::kBackward) continue;
    int first = 0, later = 0;
    for (const UnitId used : facts.info(stage.unit).uses) {
      if (!facts.unit(used).trained) continue;
      const auto& groups = timeline.accumulations[static_cast<std::size_t>(used)];
      (groups[static_cast<std::size_t>(stage.group)].first_stage == s ? first : later) += 1;
    }
    if (first > 0 && later > 0)
      return make_error(
          ErrorCode::kConfig,
          fmt::format("unit \"{}\" shares tensors with units that other units share too; this mix is not supported",
                      facts.info(stage.unit).name));
  }
  return {};
}

// The group sizes that are tried: the given one, else all micro-batches and halves of that.
std::vector<std::int32_t> group_sizes(const PlanInput& input) {
  if (input.group_size > 0) return {input.group_size};
  std::vector<std::int32_t> sizes;
  for (std::int32_t size = input.micro_batches;; size = (size + 1) / 2) {
    sizes.push_back(size);
    if (size == 1) return sizes;
  }
}

// Climbs while the budget allows. Nothing when the lowest rung does not fit; then `smallest` learns its needs.
std::optional<Found> climb(const Facts& facts, std::int32_t group_size, UpdatePolicy update,
                           ActivationPolicy activations, std::optional<Smallest>& smallest) {
  Ladder ladder(facts, group_size, update, activations);
  const Smallest needs = needs_of(*facts.input, ladder.rung());
  if (!smallest || needs.host < smallest->host) smallest = needs;
  if (!fits(*facts.input, ladder.rung())) return std::nullopt;
  Found found;
  found.activations = activations;
  bool skipped = false;
  while (true) {
    found.rung = ladder.rung();
    if (!ladder.climb()) {
      found.is_top = !skipped;
      break;
    }
    if (fits(*facts.input, ladder.rung())) continue;
    // A device's own memory is full; that of the host is of use all the same.
    if (!facts.input->separate_device || needs_of(*facts.input, ladder.rung()).host > facts.input->host_budget) break;
    ladder.skip_from(found.rung);
    skipped = true;
  }
  found.timeline = ladder.timeline();
  const planning::Traffic traffic = step_traffic(facts, found.timeline, found.rung.choices, found.rung.host.runs);
  found.nvme_bytes = traffic.read + traffic.written;
  found.recomputed = std::count(found.rung.choices.keep.begin(), found.rung.choices.keep.end(), false);
  for (UnitId u = 0; u < facts.num_units(); ++u)
    found.recomputable += facts.unit(u).saved_bytes > 0 && !facts.info(u).fused_loss ? 1 : 0;
  return found;
}

// Fewest bytes moved, then least computed again, then the larger group.
bool is_better(const Found& a, const Found& b) {
  if (a.nvme_bytes != b.nvme_bytes) return a.nvme_bytes < b.nvme_bytes;
  if (a.recomputed != b.recomputed) return a.recomputed < b.recomputed;
  return a.timeline.group_size > b.timeline.group_size;
}

// Where activations may be between the two passes, in the order of preference.
std::vector<ActivationPolicy> activation_places(const Facts& facts) {
  const PlanInput& input = *facts.input;
  if (input.activations == ActivationPolicy::kHost && !input.force_copies)
    return {ActivationPolicy::kMemory};  // host memory is where they are
  if (input.activations != ActivationPolicy::kAuto) return {input.activations};
  if (facts.any_nvme && input.can_spill) return {ActivationPolicy::kMemory, ActivationPolicy::kBoundaries};
  return {ActivationPolicy::kMemory};
}

// The best for one group size. Activations leave memory only where more of it would be of use.
std::optional<Found> best_of_places(const Facts& facts, std::int32_t group_size, UpdatePolicy update,
                                    std::optional<Smallest>& smallest) {
  std::optional<Found> best;
  for (const ActivationPolicy place : activation_places(facts)) {
    if (best && best->is_top) break;
    std::optional<Found> found = climb(facts, group_size, update, place, smallest);
    if (found && (!best || is_better(*found, *best))) best = std::move(found);
  }
  return best;
}

// The best over all group sizes.
std::optional<Found> best_of(const Facts& facts, UpdatePolicy update, std::optional<Smallest>& smallest) {
  std::optional<Found> best;
  for (const std::int32_t size : group_sizes(*facts.input)) {
    std::optional<Found> found = best_of_places(facts, size, update, smallest);
    if (found && (!best || is_better(*found, *best))) best = std::move(found);
  }
  return best;
}

// Early updates hide what the disk does for the update behind the backward pass, and take memory for that, which then
// saves no reads elsewhere. So many bytes more are made up for; a step that the disk bounds is slower by that share at
// most.
bool is_worth(const Found& early, const Found& late) {
  constexpr Bytes kShare = 8;
  return early.nvme_bytes <= late.nvme_bytes + late.nvme_bytes / kShare && early.recomputed <= late.recomputed;
}

std::string whole_mebibytes(Bytes bytes) { return fmt::format("{}MiB", ceil_div(bytes, kMiB)); }

Error does_not_fit(const Facts& facts, const Smallest& smallest) {
  const PlanInput& input = *facts.input;
  const bool host = smallest.host > input.host_budget;
  const bool device = input.device_budget > 0 && smallest.device > input.device_budget;
  UnitId largest = 0;
  for (UnitId u = 1; u < facts.num_units(); ++u)
    if (facts.unit(u).weights_bytes > facts.unit(largest).weights_bytes) largest = u;
  std::string message = "does not fit: ";
  if (host)
    message += fmt::format("host needs {}, budget is {}", format_bytes(smallest.host), format_bytes(input.host_budget));
  if (device)
    message += fmt::format("{}device needs {}, budget is {}", host ? "; " : "", format_bytes(smallest.device),
                           format_bytes(input.device_budget));
  std::string works;
  if (host) works += "memory.host=" + whole_mebibytes(smallest.host + input.program_spread_bytes);
  if (device) works += std::string(host ? " " : "") + "memory.device=" + whole_mebibytes(smallest.device);
  std::string early;
  if (input.update == UpdatePolicy::kInBackward)
    early = facts.nvme_weights && facts.nvme_optimizer
                ? "\nschedule.update=after_backward needs less: no tiles beside the backward pass"
                : "\nschedule.update=after_backward needs less: no second copy of state at home in memory";
  Error error = make_error(
      ErrorCode::kDoesNotFit, std::move(message),
      fmt::format("the largest unit ({}, {}) is needed with its gradient and its activations{}{}\nworks with: {}",
                  facts.info(largest).name, format_bytes(facts.unit(largest).weights_bytes),
                  facts.any_nvme ? " and 2 tiles" : ", and all state stays in host memory", early, works));
  error.smallest_host_bytes = smallest.host + input.program_spread_bytes;
  error.smallest_device_bytes = smallest.device;
  return error;
}

std::vector<BufferId> append(std::vector<Buffer>& all, const std::vector<Buffer>& more, std::size_t shared) {
  std::vector<BufferId> ids;
  for (std::size_t i = 0; i < more.size(); ++i) {
    if (i >= shared) all.push_back(more[i]);
    ids.push_back(i < shared ? static_cast<BufferId>(i) : static_cast<BufferId>(all.size()) - 1);
  }
  return ids;
}

struct Eval {
  Timeline timeline;
  Choices choices;
  HostLayout host;
  DeviceLayout device;
};

// The largest group, reads running ahead if possible, that needs no larger slabs than the plan has.
Eval find_eval(const Facts& facts, const Rung& rung) {
  const auto attempt = [&](std::int32_t group, std::int32_t prefetch) {
    Eval eval;
    eval.timeline = planning::make_eval_timeline(facts, group);
    eval.choices = planning::eval_choices(rung.choices, prefetch);
    eval.device = make_device_layout(facts, eval.timeline, eval.choices);
    eval.host = make_host_layout(facts, eval.timeline, eval.choices, eval.device.runs);
    return eval;
  };
  for (const bool ahead : {true, false})
    for (std::int32_t group = facts.input->eval_micro_batches; group > 1 || ahead; group = (group + 1) / 2) {
      for (std::int32_t prefetch = ahead ? 2 : 0; prefetch >= (ahead ? 1 : 0); --prefetch) {
        Eval eval = attempt(group, prefetch);
        if (eval.host.slab_bytes <= rung.host_slab_bytes && eval.device.slab_bytes <= rung.device_slab_bytes)
          return eval;
      }
      if (group == 1) break;
    }
  return attempt(1, 0);  // the ladder has counted it
}

void add_eval(Plan& plan, const Facts& facts, const Rung& rung) {
  const Eval eval = find_eval(facts, rung);
  const auto held = static_cast<std::size_t>(std::count_if(rung.host.buffers.begin(), rung.host.buffers.end(),
                                                           [](const Buffer& buffer) { return buffer.held; }));
  planning::EmitInput emit{&facts, &eval.timeline, &eval.choices, &eval.host, &eval.device, {}, {}};
  emit.host_ids = append(plan.buffers, eval.host.buffers, held);
  emit.device_ids = append(plan.buffers, eval.device.buffers, 0);
  const std::vector<Operation> group = emit_operations(emit);
  const std::int32_t size = eval.timeline.group_size;
  for (std::int32_t first = 0; first < plan.input.eval_micro_batches; first += size)
    for (Operation op : group) {
      op.group = first / size;
      if (op.micro_batch >= 0) op.micro_batch += first;
      if (op.micro_batch < plan.input.eval_micro_batches) plan.eval_operations.push_back(std::move(op));
    }
  planning::add_dependencies(plan.eval_operations, plan.buffers);
}

ActivationPolicy resolved_activations(const Found& found, ActivationPolicy asked) {
  const auto& boundary = found.rung.choices.boundary;
  const bool leave = std::any_of(boundary.begin(), boundary.end(), [](Tier tier) { return tier != Tier::kDevice; });
  if (asked == ActivationPolicy::kHost || asked == ActivationPolicy::kNvme) return asked;
  if (leave) return found.activations;
  if (found.recomputed == 0) return ActivationPolicy::kKeep;
  if (found.recomputed == found.recomputable) return ActivationPolicy::kRecompute;
  return asked;
}

Plan make_plan(const Facts& facts, const Found& found) {
  const Rung& rung = found.rung;
  Plan plan;
  plan.input = *facts.input;
  plan.input.group_size = found.timeline.group_size;
  plan.input.update = found.timeline.early           ? UpdatePolicy::kInBackward
                      : found.timeline.any_delayed() ? UpdatePolicy::kIntoForward
                                                     : UpdatePolicy::kAfterBackward;
  if (found.timeline.any_delayed() && plan.input.delayed_fraction < 0) plan.input.delayed_fraction = 1;
  plan.input.activations = resolved_activations(found, facts.input->activations);
  planning::EmitInput emit{&facts, &found.timeline, &rung.choices, &rung.host, &rung.device, {}, {}};
  emit.host_ids = append(plan.buffers, rung.host.buffers, 0);
  emit.device_ids = append(plan.buffers, rung.device.buffers, 0);
  plan.operations = emit_operations(emit);
  planning::add_dependencies(plan.operations, plan.buffers);
  if (found.timeline.early) {
    plan.redo_operations = emit_redo(emit);
    planning::add_dependencies(plan.redo_operations, plan.buffers);
  }
  if (found.timeline.any_delayed()) {
    plan.start_operations = emit_start(emit);
    plan.drain_operations = emit_drain(emit);
    planning::add_dependencies(plan.start_operations, plan.buffers);
    planning::add_dependencies(plan.drain_operations, plan.buffers);
  }
  plan.keep_activations = rung.choices.keep;
  plan.gradient_spilled = rung.choices.spilled;
  plan.boundary_tier = rung.choices.boundary;
  plan.saved_tier = rung.choices.saved;
  plan.update_delayed = found.timeline.delayed;
  plan.held_weights = rung.host.held_weights;
  plan.held_optimizer = rung.host.held_optimizer;
  plan.prefetch_units = rung.choices.prefetch_units;
  plan.tile_buffers = static_cast<std::int32_t>(rung.host.ring.size());
  if (plan.input.eval_micro_batches > 0) add_eval(plan, facts, rung);
  add_numbers(plan, facts, rung);
  return plan;
}

}  // namespace

Result<Plan> compile_plan(const PlanInput& input) {
  HEADRACE_RETURN_IF_ERROR(planning::validate(input));
  const Facts facts = planning::make_facts(input);
  HEADRACE_RETURN_IF_ERROR(
      check_ties(facts, planning::make_step_timeline(facts, input.micro_batches, UpdatePolicy::kAfterBackward)));
  std::optional<Smallest> smallest;
  const bool is_auto = input.update == UpdatePolicy::kAuto;
  std::optional<Found> best = best_of(facts, is_auto ? UpdatePolicy::kAfterBackward : input.update, smallest);
  if (!best) return does_not_fit(facts, *smallest);
  if (is_auto && facts.nvme_optimizer) {  // else there is nothing that an early update would hide
    std::optional<Smallest> other;        // in groups of the same size, so that the policy changes no bit
    std::optional<Found> early = best_of_places(facts, best->timeline.group_size, UpdatePolicy::kInBackward, other);
    if (early && is_worth(*early, *best)) best = std::move(early);
  }
  return make_plan(facts, *best);
}

}  // namespace headrace::runtime
