// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/activations.h"

#include <algorithm>

namespace headrace::runtime::planning {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Times of a group's computations of one pass, ascending.
std::vector<std::int64_t> times_of(const Timeline& timeline, std::int32_t group, Stage::Kind kind) {
  std::vector<std::int64_t> times;
  for (std::int32_t s = 0; s < timeline.num_compute; ++s) {
    const Stage& stage = timeline.stage(s);
    if (stage.group != group || stage.kind != kind) continue;
    for (std::int64_t t = stage.first_compute(); t <= stage.last_compute(); ++t) times.push_back(t);
  }
  return times;
}

// `steps` computations later, or earlier; not beyond the first or the last one.
std::int64_t shifted(const std::vector<std::int64_t>& times, std::int64_t time, std::int64_t steps) {
  const auto index = std::lower_bound(times.begin(), times.end(), time) - times.begin();
  return times[at(std::clamp<std::int64_t>(index + steps, 0, static_cast<std::int64_t>(times.size()) - 1))];
}

// The last computation of the forward pass that needs it; of an output that is the next unit's, if it has one.
std::int64_t last_forward_use(const Timeline& timeline, StateStream stream, UnitId unit, std::size_t m) {
  const std::int64_t made = timeline.forward_time[at(unit)][m];
  return stream == StateStream::kSaved ? made : std::max(made, timeline.forward_time[at(unit) + 1][m]);
}

std::int64_t backward_use(const Timeline& timeline, StateStream stream, UnitId unit, std::size_t m) {
  return timeline.backward_time[at(unit) + (stream == StateStream::kSaved ? 0 : 1)][m];
}

}  // namespace

bool can_leave(const Facts& facts, const Timeline& timeline, StateStream stream, UnitId unit) {
  const UnitFacts& unit_facts = facts.unit(unit);
  if ((stream == StateStream::kSaved ? unit_facts.saved_bytes : unit_facts.boundary_bytes) == 0) return false;
  if (timeline.is_eval || timeline.forward_time[at(unit)].front() < 0) return false;
  const std::int64_t last = last_forward_use(timeline, stream, unit, 0), use = backward_use(timeline, stream, unit, 0);
  // Whole stages in between.
  return std::any_of(timeline.stages.begin(), timeline.stages.begin() + timeline.num_compute,
                     [&](const Stage& stage) { return stage.time > last && stage.out() < use; });
}

std::vector<ActivationMove> activation_moves(const Facts& facts, const Timeline& timeline, const Choices& choices) {
  std::vector<ActivationMove> moves;
  if (timeline.is_eval) return moves;
  const auto stays = [](Tier tier) { return tier == Tier::kDevice; };
  if (std::all_of(choices.boundary.begin(), choices.boundary.end(), stays) &&
      std::all_of(choices.saved.begin(), choices.saved.end(), stays))
    return moves;
  for (std::int32_t group = 0; group < timeline.num_groups; ++group) {
    const std::vector<std::int64_t> forward = times_of(timeline, group, Stage::Kind::kForward);
    const std::vector<std::int64_t> backward = times_of(timeline, group, Stage::Kind::kBackward);
    const auto add = [&](StateStream stream, UnitId unit, std::int32_t m, Tier tier) {
      if (tier == Tier::kDevice) return;
      const bool saved = stream == StateStream::kSaved;
      ActivationMove move{stream, unit, m, group, tier};
      move.bytes = saved ? facts.unit(unit).saved_bytes : facts.unit(unit).boundary_bytes;
      move.disk_bytes = saved ? facts.unit(unit).saved_disk_bytes : facts.unit(unit).boundary_disk_bytes;
      move.made = timeline.forward_time[at(unit)][at(m)];
      move.used = backward_use(timeline, stream, unit, at(m));
      // The next computation need not wait for what leaves.
      const std::int64_t late = choices.overlap_out ? 1 : 0;
      move.out_end = std::max(shifted(forward, move.made, late), last_forward_use(timeline, stream, unit, at(m)));
      move.staged_end = shifted(forward, move.made, late);
      move.read = shifted(backward, move.used, -choices.activations_ahead);
      move.copied = shifted(backward, move.used, -std::min(choices.activations_ahead, 1));
      moves.push_back(move);
    };
    for (std::int32_t s = 0; s < timeline.num_compute; ++s) {
      const Stage& stage = timeline.stage(s);
      if (stage.group != group || stage.kind != Stage::Kind::kForward) continue;
      for (const std::int32_t m : stage.micro_batches) {
        add(StateStream::kBoundary, stage.unit, m, choices.boundary[at(stage.unit)]);
        if (choices.keep[at(stage.unit)]) add(StateStream::kSaved, stage.unit, m, choices.saved[at(stage.unit)]);
      }
    }
  }
  return moves;
}

}  // namespace headrace::runtime::planning
