// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/residency.h"

#include <algorithm>

#include "runtime/plan/activations.h"

namespace headrace::runtime::planning {

namespace {

// One need of host memory to hold a unit's weights.
struct Visit {
  std::int32_t stage = 0;
  std::int32_t first_use = 0,
               last_use = 0;  // computing stages that it serves: distances do not depend on how early copies are
  bool is_update = false;
};

std::int32_t distance(const Visit& from, const Visit& to) { return to.first_use - from.last_use; }

std::int32_t copy_ahead(const Choices& choices) { return std::min(choices.prefetch_units, 1); }

bool is_turn(const Timeline& timeline, const Visit& from, const Visit& to) {
  if (to.is_update) return false;
  const Stage& a = timeline.stage(from.last_use);
  const Stage& b = timeline.stage(to.first_use);
  return a.group == b.group && a.kind == Stage::Kind::kForward && b.kind == Stage::Kind::kBackward;
}

std::vector<std::vector<Visit>> host_visits(const Facts& facts, const Timeline& timeline,
                                            const std::vector<Run>& device) {
  std::vector<std::vector<Visit>> visits(static_cast<std::size_t>(facts.num_units()));
  if (facts.input->force_copies) {
    for (const Run& run : device)
      visits[static_cast<std::size_t>(run.unit)].push_back({run.start, run.first, run.last, false});
  } else {
    for (std::size_t u = 0; u < visits.size(); ++u)
      for (const std::int32_t stage : timeline.weights_stages[u]) visits[u].push_back({stage, stage, stage, false});
  }
  if (timeline.is_eval) return visits;
  for (UnitId u = 0; u < facts.num_units(); ++u)
    if (facts.unit(u).update_reads_weights && !timeline.is_delayed(u))
      visits[static_cast<std::size_t>(u)].push_back(
          {timeline.update_stage(u), timeline.update_stage(u), timeline.update_stage(u), true});
  return visits;
}

}  // namespace

std::vector<Run> device_runs(const Facts& facts, const Timeline& timeline, const Choices& choices) {
  std::vector<Run> runs;
  if (!facts.input->force_copies) return runs;
  const std::int32_t ahead = copy_ahead(choices);
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    std::int32_t visit = 0;
    for (const std::int32_t stage : timeline.weights_stages[static_cast<std::size_t>(u)]) {
      const std::int32_t start = std::max(0, stage - ahead);
      // A new copy would begin before the old one could be given back: use the old one.
      const bool stays = visit > 0 && facts.input->cache &&
                         (start <= runs.back().last + 1 || stage - runs.back().last <= choices.stay_device);
      if (stays) {
        runs.back().last = stage;
        runs.back().last_visit = visit;
      } else {
        runs.push_back({u, start, stage, stage, visit, visit, false, false});
      }
      ++visit;
    }
  }
  return runs;
}

std::vector<DelayedUpdate> delayed_updates(const Facts& facts, const Timeline& timeline, const Choices& choices,
                                           const std::vector<Run>& device) {
  std::vector<DelayedUpdate> updates;
  if (!timeline.any_delayed()) return updates;
  const auto visits = host_visits(facts, timeline, device);
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    if (!timeline.is_delayed(u)) continue;
    const std::int32_t need = visits[static_cast<std::size_t>(u)].front().stage;
    updates.push_back({u, std::max(0, need - choices.prefetch_units), need});
  }
  std::stable_sort(updates.begin(), updates.end(),
                   [](const DelayedUpdate& a, const DelayedUpdate& b) { return a.need < b.need; });
  return updates;
}

std::vector<Run> host_runs(const Facts& facts, const Timeline& timeline, const Choices& choices,
                           const std::vector<Run>& device) {
  std::vector<Run> runs;
  const auto visits = host_visits(facts, timeline, device);
  const std::vector<DelayedUpdate> delayed = delayed_updates(facts, timeline, choices, device);
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    const auto index = static_cast<std::size_t>(u);
    if (choices.held_weights[index]) continue;
    const bool is_delayed = timeline.is_delayed(u);
    const Visit* before = nullptr;
    std::int32_t ordinal = 0;
    for (const Visit& visit : visits[index]) {
      std::int32_t start = std::max(0, visit.stage - choices.prefetch_units);
      if (is_delayed && before != nullptr) start = std::max(start, delayed.back().start);  // on disk: with the record
      bool stays = false;
      if (visit.is_update && timeline.early) {
        stays = true;  // the update follows the last backward visit
      } else if (is_delayed && before != nullptr && visit.stage < delayed.back().need) {
        stays = true;  // the new weights are not yet the current ones on disk
      } else if (before != nullptr && facts.input->cache) {
        const std::int32_t limit = is_turn(timeline, *before, visit) ? choices.stay_turn : choices.stay_other;
        const bool free_of_charge = !visit.is_update && start <= before->stage + 1;
        stays = free_of_charge || distance(*before, visit) <= limit;
      }
      if (stays) {
        if (visit.is_update) {
          runs.back().into_update = true;
        } else {
          runs.back().last = visit.stage;
          runs.back().last_visit = ordinal;
        }
      } else if (!visit.is_update) {  // an update alone reads its tiles, never the whole unit
        runs.push_back({u, start, visit.stage, visit.stage, ordinal, ordinal, false, is_delayed && ordinal == 0});
      }
      before = &visit;
      ++ordinal;
    }
  }
  return runs;
}

Distances visit_distances(const Facts& facts, const Timeline& timeline, const Choices& choices) {
  Distances distances;
  for (const auto& visits : host_visits(facts, timeline, device_runs(facts, timeline, choices)))
    for (std::size_t i = 1; i < visits.size(); ++i) {
      if (visits[i].is_update && timeline.early) continue;
      (is_turn(timeline, visits[i - 1], visits[i]) ? distances.turn : distances.other)
          .push_back(distance(visits[i - 1], visits[i]));
    }
  for (auto* list : {&distances.turn, &distances.other}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  return distances;
}

std::vector<std::int32_t> device_distances(const Timeline& timeline) {
  std::vector<std::int32_t> distances;
  for (const std::vector<std::int32_t>& stages : timeline.weights_stages)
    for (std::size_t i = 1; i < stages.size(); ++i) distances.push_back(stages[i] - stages[i - 1]);
  std::sort(distances.begin(), distances.end());
  distances.erase(std::unique(distances.begin(), distances.end()), distances.end());
  return distances;
}

std::int64_t out_end(const Timeline& timeline, const Choices& choices, std::int32_t stage) {
  if (!choices.overlap_out || stage + 1 >= timeline.num_compute) return timeline.stage(stage).out();
  return timeline.stage(stage + 1).last_compute();
}

std::int64_t early_update_end(const Timeline& timeline, const Choices& choices, UnitId unit) {
  return out_end(timeline, choices, timeline.last_stage(unit));
}

std::vector<bool> resident_in_update(const Choices& choices, const std::vector<Run>& host) {
  std::vector<bool> resident = choices.held_weights;
  for (const Run& run : host)
    if (run.into_update) resident[static_cast<std::size_t>(run.unit)] = true;
  return resident;
}

TileNeeds tile_needs(const Facts& facts, const Choices& choices, UnitId unit, std::int64_t tile, bool weights_resident,
                     UpdatePass pass) {
  const auto index = static_cast<std::size_t>(unit);
  TileNeeds needs;
  needs.buffer_optimizer = tile >= choices.held_tiles[index];
  // A delayed update leaves the weights where the forward pass finds them.
  needs.buffer_weights = !weights_resident && pass != UpdatePass::kDelayed;
  needs.read_weights = !weights_resident && facts.unit(unit).update_reads_weights;
  needs.buffer_gradient = choices.spilled[index] && pass != UpdatePass::kEarly;  // early it is still in memory
  return needs;
}

Traffic step_traffic(const Facts& facts, const Timeline& timeline, const Choices& choices,
                     const std::vector<Run>& host) {
  Traffic traffic;
  const std::vector<bool> resident = resident_in_update(choices, host);
  for (const ActivationMove& move : activation_moves(facts, timeline, choices)) {
    if (move.tier != Tier::kNvme) continue;
    traffic.read += move.disk_bytes;
    traffic.written += move.disk_bytes;
  }
  for (const Run& run : host) traffic.read += run.from_update ? 0 : facts.unit(run.unit).weights_disk_bytes;
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    const UnitFacts& unit = facts.unit(u);
    const auto index = static_cast<std::size_t>(u);
    if (!unit.trained) continue;
    if (choices.spilled[index]) {
      // An early update takes the whole gradient from memory; only a redo needs it once more.
      const int reads = timeline.num_groups - (timeline.early ? 1 : 0);
      const int writes = timeline.num_groups - (timeline.early && !facts.input->can_clip ? 1 : 0);
      traffic.read += reads * unit.gradient_disk_bytes;
      traffic.written += writes * unit.gradient_disk_bytes;
    }
    if (!resident[index] && unit.update_reads_weights) traffic.read += unit.weights_disk_bytes;
    if (facts.nvme_weights) traffic.written += unit.weights_disk_bytes;
    if (!facts.nvme_optimizer) continue;
    for (std::int64_t t = 0; t < unit.tiles; ++t) {
      const Bytes bytes = facts.disk(facts.tile(u, t).optimizer);
      traffic.written += bytes;
      if (t >= choices.held_tiles[index]) traffic.read += bytes;
    }
  }
  return traffic;
}

}  // namespace headrace::runtime::planning
