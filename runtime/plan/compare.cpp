// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace headrace::runtime {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

constexpr double kWeightBytes = 2;  // a 16-bit copy, in all of these systems

constexpr Rules rules_named(std::string_view name) {
  Rules rules;
  rules.name = name;
  rules.reads_and_writes_overlap = false;
  return rules;
}
constexpr Rules zero_infinity() {
  Rules rules = rules_named("zero-infinity");
  rules.gradient_written = 4;
  return rules;
}
constexpr Rules zero_infinity_optimizer() {
  Rules rules = rules_named("zero-infinity-optimizer");
  rules.weights_on_nvme = false;
  rules.gradient_written = 4;
  rules.state_written = 12;
  return rules;
}
constexpr Rules greedysnake() {
  Rules rules = rules_named("greedysnake");
  rules.vertical = true;
  rules.update = UpdateRule::kSplit;
  rules.delayed = 0.3;  // the most that its planner considers
  rules.waits_per_unit = true;
  return rules;
}
constexpr Rules lohan() {
  Rules rules = rules_named("lohan");
  rules.vertical = true;
  rules.update = UpdateRule::kInBackward;
  return rules;
}
constexpr Rules zero_offload() {
  Rules rules = rules_named("zero-offload");
  rules.weights_on_nvme = false;
  rules.weights_on_device = true;
  rules.state_read = rules.state_written = 0;
  return rules;
}
constexpr std::array<Rules, 5> kRules = {zero_infinity(), zero_infinity_optimizer(), greedysnake(), lohan(),
                                         zero_offload()};

// Writes the operations of a step by the rules; they touch no buffers, since who waits for whom is all that counts.
class Script {
 public:
  Script(const Rules& rules, const PlanInput& input) : rules_(rules), input_(input) {
    plan_.input = input;
    // Whole tiles, as many of all as the share says; a unit without a forward visit has none.
    std::int64_t tiles = 0, delayed = 0;
    for (UnitId u = 0; u < static_cast<UnitId>(input.model.units.size()); ++u) {
      if (!input.model.units[at(u)].fused_loss) tiles += num_tiles(input, u);
      const auto so_far = static_cast<std::int64_t>(rules.delayed * static_cast<double>(tiles));
      delayed_.push_back(so_far - delayed);
      delayed = so_far;
    }
  }

  Plan write() {
    const std::vector<Visit> visits = all_visits();
    OperationId ready = fetch(visits.front());
    for (std::size_t i = 0; i < visits.size(); ++i) {
      // The next unit's weights are asked for before this one's update, which would keep the one queue busy.
      const OperationId next = i + 1 < visits.size() ? fetch(visits[i + 1]) : -1;
      visit(visits[i], ready);
      ready = next;
    }
    if (rules_.update == UpdateRule::kAfterBackward) update_phase();
    for (const Operation& op : plan_.operations) {
      const bool read = is_read(op.kind);
      (read ? plan_.read_bytes_per_step : plan_.write_bytes_per_step) += op.bytes;
    }
    return std::move(plan_);
  }

  [[nodiscard]] OperationId forward_end() const noexcept { return forward_end_; }
  [[nodiscard]] OperationId backward_end() const noexcept { return last_compute_; }

 private:
  struct Visit {
    UnitId unit;
    Pass pass;
    std::int32_t round;
  };

  static bool is_read(OperationKind kind) {
    return kind == OperationKind::kReadWeights || kind == OperationKind::kReadState;
  }

  [[nodiscard]] double elements(UnitId unit) const {
    return static_cast<double>(input_.model.units[at(unit)].flat_elements);
  }

  OperationId add(OperationKind kind, Lane lane, UnitId unit, double bytes, std::vector<OperationId> dependencies) {
    Operation op;
    op.kind = kind;
    op.lane = lane;
    op.unit = unit;
    op.bytes = static_cast<Bytes>(bytes);
    if (barrier_ >= 0) dependencies.push_back(barrier_);
    for (const OperationId id : dependencies)
      if (id >= 0) op.dependencies.push_back(id);
    plan_.operations.push_back(std::move(op));
    const auto id = static_cast<OperationId>(plan_.operations.size()) - 1;
    since_barrier_.push_back(id);
    return id;
  }

  // Systems with one queue for both directions have one lane for both.
  OperationId move(OperationKind kind, UnitId unit, double bytes, std::vector<OperationId> dependencies) {
    const bool read = is_read(kind) || !rules_.reads_and_writes_overlap;
    return add(kind, read ? Lane::kNvmeRead : Lane::kNvmeWrite, unit, bytes, std::move(dependencies));
  }

  OperationId copy(UnitId unit, OperationId after) {
    const OperationId id = add(OperationKind::kCopyToDevice, Lane::kHostToDevice, unit, 0, {after});
    plan_.operations.back().uses.push_back(
        {Role::kDestination, kNoBuffer, 0, static_cast<Bytes>(kWeightBytes * elements(unit)), true, false});
    return id;
  }

  void wait_for_all() {
    if (!rules_.waits_per_unit) return;
    barrier_ = -1;
    const std::vector<OperationId> all = std::move(since_barrier_);
    since_barrier_.clear();
    barrier_ = add(OperationKind::kNorm, Lane::kCpuOptimizer, -1, 0, all);
  }

  [[nodiscard]] std::vector<Visit> all_visits() const {
    std::vector<Visit> visits;
    const std::int32_t rounds = rules_.vertical ? 1 : input_.micro_batches;
    const auto units = static_cast<UnitId>(input_.model.units.size());
    for (std::int32_t round = 0; round < rounds; ++round) {
      for (UnitId u = 0; u < units; ++u)
        if (!input_.model.units[at(u)].fused_loss) visits.push_back({u, Pass::kForward, round});
      for (UnitId u = units - 1; u >= 0; --u) visits.push_back({u, Pass::kBackward, round});
    }
    return visits;
  }

  // Brings the unit's weights; the operation after which it can compute, or -1.
  OperationId fetch(const Visit& visit) {
    const UnitId unit = visit.unit;
    if (elements(unit) <= 0) return -1;
    OperationId ready = -1;
    // Two units' weights have room: the one that computes next and this one, once the last computation is done.
    if (rules_.weights_on_nvme)
      ready = move(OperationKind::kReadWeights, unit, kWeightBytes * elements(unit), {last_compute_});
    return rules_.weights_on_device ? ready : copy(unit, ready);
  }

  void visit(const Visit& visit, OperationId ready) {
    const auto [unit, pass, round] = visit;
    const bool backward = pass == Pass::kBackward;
    if (rules_.update == UpdateRule::kSplit && !backward) update(unit, 0, delayed_[at(unit)], {});
    const std::int32_t times = rules_.vertical ? input_.micro_batches : 1;
    for (std::int32_t m = 0; m < times; ++m) {
      last_compute_ =
          add(backward ? OperationKind::kBackward : OperationKind::kForward, Lane::kCompute, unit, 0, {ready});
      Operation& op = plan_.operations.back();
      op.pass = pass;
      op.micro_batch = rules_.vertical ? m : round;
      op.group = rules_.vertical ? 0 : round;
      op.recompute = backward && !input_.model.units[at(unit)].fused_loss;
    }
    if (!backward) forward_end_ = last_compute_;
    if (backward) gradient(unit, round);
    wait_for_all();
  }

  void gradient(UnitId unit, std::int32_t round) {
    if (elements(unit) <= 0) return;
    const bool last = rules_.vertical || round + 1 == input_.micro_batches;
    const OperationId out = add(OperationKind::kGradientOut, Lane::kDeviceToHost, unit, 0, {last_compute_});
    plan_.operations.back().first = rules_.vertical || round == 0;
    plan_.operations.back().group = rules_.vertical ? 0 : round;
    if (!last) return;
    if (rules_.gradient_written > 0)
      move(OperationKind::kWriteGradient, unit, rules_.gradient_written * elements(unit), {out});
    if (rules_.update != UpdateRule::kAfterBackward) update(unit, delayed_[at(unit)], num_tiles(input_, unit), {out});
  }

  // Tiles of the unit's state, read, updated and written, so that the three overlap where they may.
  OperationId update(UnitId unit, std::int64_t first, std::int64_t end, const std::vector<OperationId>& dependencies) {
    OperationId last = -1;
    for (std::int64_t t = first; t < end; ++t) {
      const auto part = static_cast<double>(tile_length(input_, unit, t));
      std::vector<OperationId> before = t == first ? dependencies : std::vector<OperationId>{};
      if (rules_.update == UpdateRule::kAfterBackward) before.push_back(last_update_write_);
      const OperationId read = move(OperationKind::kReadState, unit,
                                    (rules_.state_read + rules_.gradient_written) * part, std::move(before));
      std::vector<OperationId> ready = dependencies;
      ready.push_back(read);
      const OperationId updated = add(OperationKind::kUpdate, Lane::kCpuOptimizer, unit, 0, std::move(ready));
      plan_.operations.back().tile = t;
      last = move(OperationKind::kWriteState, unit, rules_.state_written * part, {updated});
      if (rules_.update == UpdateRule::kAfterBackward) last_update_write_ = last;
    }
    return last;
  }

  void update_phase() {
    std::vector<OperationId> all = std::move(since_barrier_);
    since_barrier_.clear();
    barrier_ = add(OperationKind::kNorm, Lane::kCpuOptimizer, -1, 0, std::move(all));
    for (UnitId u = 0; u < static_cast<UnitId>(input_.model.units.size()); ++u)
      if (elements(u) > 0) {
        const OperationId last = update(u, 0, num_tiles(input_, u), {});
        if (rules_.weights_on_device) copy(u, last);
      }
  }

  const Rules& rules_;
  const PlanInput& input_;
  Plan plan_;
  std::vector<std::int64_t> delayed_;  // per unit: its first tiles, updated in the next forward pass
  std::vector<OperationId> since_barrier_;
  OperationId barrier_ = -1, last_compute_ = -1, forward_end_ = -1, last_update_write_ = -1;
};

}  // namespace

std::span<const Rules> known_rules() { return kRules; }

Result<Rules> find_rules(std::string_view name) {
  std::string known;
  for (const Rules& rules : kRules) {
    if (rules.name == name) return rules;
    known += (known.empty() ? "" : ", ") + std::string(rules.name);
  }
  return make_error(ErrorCode::kUsage, fmt::format("there are no rules \"{}\" to compare with", name),
                    "known are " + known);
}

Result<Comparison> simulate_rules(const Rules& rules, const PlanInput& input, const Machine& machine) {
  Script script(rules, input);
  const Plan plan = script.write();
  HEADRACE_TRY(const Simulation simulation, simulate(plan, machine.rates, machine.collectives));
  Comparison comparison;
  comparison.step_seconds = simulation.step_seconds;
  const double forward = script.forward_end() >= 0 ? simulation.times[at(script.forward_end())].end : 0;
  const double backward = simulation.times[at(script.backward_end())].end;
  comparison.forward_seconds = forward;
  comparison.backward_seconds = backward - forward;
  comparison.update_seconds = simulation.step_seconds - backward;
  comparison.read_bytes = static_cast<double>(plan.read_bytes_per_step);
  comparison.written_bytes = static_cast<double>(plan.write_bytes_per_step);
  return comparison;
}

}  // namespace headrace::runtime
