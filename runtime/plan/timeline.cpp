// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/timeline.h"

#include <algorithm>

namespace headrace::runtime::planning {

namespace {

class Builder {
 public:
  Builder(const Facts& facts, std::int32_t micro_batches, std::int32_t group_size, bool is_eval) : facts_(facts) {
    timeline_.group_size = group_size;
    timeline_.num_micro_batches = micro_batches;
    timeline_.num_groups = static_cast<std::int32_t>(ceil_div(micro_batches, group_size));
    timeline_.is_eval = is_eval;
    const auto units = static_cast<std::size_t>(facts.num_units());
    timeline_.weights_stages.resize(units);
    timeline_.forward_time.assign(units, std::vector<std::int64_t>(static_cast<std::size_t>(micro_batches), -1));
    timeline_.backward_time = timeline_.forward_time;
    timeline_.accumulations.resize(units);
  }

  void add_compute(Stage::Kind kind, UnitId unit, std::int32_t group) {
    Stage stage;
    stage.kind = kind;
    stage.unit = unit;
    stage.group = group;
    stage.time = next_time_;
    const std::int32_t begin = group * timeline_.group_size;
    const std::int32_t end = std::min(begin + timeline_.group_size, timeline_.num_micro_batches);
    for (std::int32_t m = begin; m < end; ++m) stage.micro_batches.push_back(m);
    if (facts_.input->snake && unit % 2 == 1) std::reverse(stage.micro_batches.begin(), stage.micro_batches.end());
    auto& times = kind == Stage::Kind::kForward ? timeline_.forward_time : timeline_.backward_time;
    for (std::size_t i = 0; i < stage.micro_batches.size(); ++i)
      times[static_cast<std::size_t>(unit)][static_cast<std::size_t>(stage.micro_batches[i])] =
          stage.first_compute() + static_cast<std::int64_t>(i);
    next_time_ = stage.out() + 1;
    const auto index = static_cast<std::int32_t>(timeline_.stages.size());
    need_weights(unit, index);
    for (const UnitId used : facts_.info(unit).uses) need_weights(used, index);
    if (kind == Stage::Kind::kBackward) {
      contribute(unit, group, index);
      for (const UnitId used : facts_.info(unit).uses) contribute(used, group, index);
    }
    timeline_.stages.push_back(std::move(stage));
  }

  Timeline finish() {
    timeline_.num_compute = static_cast<std::int32_t>(timeline_.stages.size());
    timeline_.norm_time = next_time_++;
    if (!timeline_.is_eval) {
      for (UnitId u = 0; u < facts_.num_units(); ++u) {
        Stage stage;
        stage.kind = Stage::Kind::kUpdate;
        stage.unit = u;
        stage.time = next_time_++;
        timeline_.stages.push_back(std::move(stage));
      }
    }
    timeline_.end_time = next_time_;
    return std::move(timeline_);
  }

 private:
  void need_weights(UnitId unit, std::int32_t stage) {
    auto& stages = timeline_.weights_stages[static_cast<std::size_t>(unit)];
    if (facts_.unit(unit).weights_bytes > 0 && (stages.empty() || stages.back() != stage)) stages.push_back(stage);
  }

  void contribute(UnitId unit, std::int32_t group, std::int32_t stage) {
    if (!facts_.unit(unit).trained) return;
    auto& groups = timeline_.accumulations[static_cast<std::size_t>(unit)];
    groups.resize(static_cast<std::size_t>(timeline_.num_groups));
    Accumulation& accumulation = groups[static_cast<std::size_t>(group)];
    if (accumulation.first_stage < 0) accumulation.first_stage = stage;
    accumulation.last_stage = stage;
  }

  const Facts& facts_;
  Timeline timeline_;
  std::int64_t next_time_ = 0;
};

}  // namespace

namespace {

// At least the asked share of the parameters, of those that are used last: while the first units compute, which were
// updated after the norm, there is time for the updates of the others.
std::vector<bool> delayed_units(const Facts& facts, const Timeline& timeline) {
  std::vector<UnitId> units = timeline.updated_units(UpdatePass::kAfterNorm);
  const auto first_use = [&](UnitId unit) { return timeline.weights_stages[static_cast<std::size_t>(unit)].front(); };
  std::stable_sort(units.begin(), units.end(), [&](UnitId a, UnitId b) { return first_use(a) < first_use(b); });
  double left = 0;
  for (const UnitId unit : units) left += static_cast<double>(facts.unit(unit).elements);
  left *= facts.input->delayed_fraction < 0 ? 1 : facts.input->delayed_fraction;
  std::vector<bool> delayed(facts.units.size(), false);
  for (; !units.empty() && left > 0; units.pop_back()) {
    delayed[static_cast<std::size_t>(units.back())] = true;
    left -= static_cast<double>(facts.unit(units.back()).elements);
  }
  return delayed;
}

}  // namespace

std::vector<UnitId> Timeline::updated_units(UpdatePass pass) const {
  const bool of_delayed = pass == UpdatePass::kDelayed || pass == UpdatePass::kDrain;
  std::vector<UnitId> units;
  for (UnitId u = 0; u < static_cast<UnitId>(accumulations.size()); ++u)
    if (!accumulations[static_cast<std::size_t>(u)].empty() && is_delayed(u) == of_delayed) units.push_back(u);
  if (early)
    std::stable_sort(units.begin(), units.end(), [this](UnitId a, UnitId b) { return last_stage(a) < last_stage(b); });
  return units;
}

Timeline make_step_timeline(const Facts& facts, std::int32_t group_size, UpdatePolicy update) {
  Builder builder(facts, facts.input->micro_batches, group_size, false);
  const auto groups = static_cast<std::int32_t>(ceil_div(facts.input->micro_batches, group_size));
  for (std::int32_t group = 0; group < groups; ++group) {
    for (UnitId u = 0; u < facts.num_units(); ++u)
      if (!facts.info(u).fused_loss) builder.add_compute(Stage::Kind::kForward, u, group);
    for (UnitId u = facts.num_units() - 1; u >= 0; --u) builder.add_compute(Stage::Kind::kBackward, u, group);
  }
  Timeline timeline = builder.finish();
  timeline.early = update == UpdatePolicy::kInBackward;
  if (update == UpdatePolicy::kIntoForward) timeline.delayed = delayed_units(facts, timeline);
  return timeline;
}

Timeline make_eval_timeline(const Facts& facts, std::int32_t group_size) {
  Builder builder(facts, group_size, group_size, true);
  for (UnitId u = 0; u < facts.num_units(); ++u) builder.add_compute(Stage::Kind::kForward, u, 0);
  return builder.finish();
}

}  // namespace headrace::runtime::planning
