// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/search.h"

#include <algorithm>
#include <array>

namespace headrace::runtime::planning {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// How far reads run ahead, step by step. Fewer leave the lanes waiting for each other; beyond, memory is better spent
// on moving less.
struct Pipeline {
  std::int32_t prefetch_units, tile_buffers;
  bool overlap_out;
  std::int32_t activations_ahead;
};
constexpr std::array<Pipeline, 7> kPipeline = {{{0, 2, false, 0},
                                                {1, 2, false, 1},
                                                {1, 4, false, 1},
                                                {1, 4, true, 2},
                                                {2, 4, true, 4},
                                                {2, 8, true, 4},
                                                {2, 12, true, 4}}};

// Optimizer tiles begin to be held in so many steps; more steps use a budget better and compile longer.
constexpr std::int64_t kTileSteps = 32;

}  // namespace

Choices eval_choices(const Choices& step, std::int32_t prefetch_units) {
  Choices choices = step;
  choices.prefetch_units = prefetch_units;
  choices.stay_turn = choices.stay_other = 0;
  choices.stay_device = choices.activations_ahead = 0;
  return choices;
}

Ladder::Ladder(const Facts& facts, std::int32_t group_size, UpdatePolicy update, ActivationPolicy activations)
    : facts_(facts), activations_(activations), timeline_(make_step_timeline(facts, group_size, update)) {
  const std::size_t units = facts.units.size();
  Choices& choices = rung_.choices;
  choices.prefetch_units = kPipeline.front().prefetch_units;
  choices.tile_buffers = kPipeline.front().tile_buffers;
  choices.spilled.assign(units, false);
  choices.keep.assign(units, false);
  place_activations();
  choices.held_weights.assign(units, !facts.nvme_weights);
  choices.held_tiles.assign(units, 0);
  for (std::size_t u = 0; u < units; ++u) {
    if (!facts.nvme_optimizer) choices.held_tiles[u] = facts.units[u].tiles;
  }
  if (facts.input->eval_micro_batches > 0) {
    eval_timeline_ = make_eval_timeline(facts, 1);
    eval_device_bytes_ = make_device_layout(facts, eval_timeline_, eval_choices(choices, 0)).slab_bytes;
  }
  if (facts.any_nvme) {  // spill what can be spilled where that needs less memory
    build();
    const Rung in_memory = rung_;
    for (std::size_t u = 0; u < units; ++u) choices.spilled[u] = facts.units[u].trained;
    choices.stay_turn = choices.stay_other = 0;
    build();
    if (in_memory.host_slab_bytes <= rung_.host_slab_bytes) rung_ = in_memory;
  } else {
    build();
  }
}

bool Ladder::streams_weights() const noexcept { return facts_.nvme_weights && facts_.input->cache; }

bool Ladder::climb() {
  while (phase_ != Phase::kTop) {
    if (upgrade()) {
      build();
      return true;
    }
    phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  }
  return false;
}

void Ladder::skip_from(const Rung& rung) {
  rung_ = rung;
  device_changed_ = false;
  phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
}

bool Ladder::upgrade() {
  Choices& choices = rung_.choices;
  switch (phase_) {
    case Phase::kPipeline: return upgrade_pipeline();
    case Phase::kGradients: {  // the first units' gradients live shortest
      const auto spilled = std::find(choices.spilled.begin(), choices.spilled.end(), true);
      if (spilled == choices.spilled.end()) return false;
      *spilled = false;
      return true;
    }
    case Phase::kBoundaries: return keep_boundary();
    case Phase::kActivations: {  // the last units' activations live shortest
      if (activations_ != ActivationPolicy::kMemory && activations_ != ActivationPolicy::kBoundaries) return false;
      const auto made_again = std::find(choices.keep.rbegin(), choices.keep.rend(), false);
      if (made_again == choices.keep.rend()) return false;
      *made_again = true;
      device_changed_ = true;
      return true;
    }
    case Phase::kDevice: return hold_on_device();
    case Phase::kWeights: return streams_weights() && hold_weights();
    case Phase::kOptimizer: return facts_.nvme_optimizer && facts_.input->cache && hold_tiles();
    case Phase::kTop: return false;
  }
  return false;
}

// What leaves the device, and what is kept, on the lowest rung.
void Ladder::place_activations() {
  Choices& choices = rung_.choices;
  const std::size_t units = facts_.units.size();
  const bool all = activations_ == ActivationPolicy::kHost || activations_ == ActivationPolicy::kNvme;
  const Tier tier = activations_ == ActivationPolicy::kHost ? Tier::kHost : Tier::kNvme;
  choices.boundary.assign(units, Tier::kDevice);
  choices.saved = choices.boundary;
  for (UnitId u = 0; u < facts_.num_units(); ++u) {
    choices.keep[at(u)] =
        facts_.unit(u).saved_bytes == 0 || facts_.info(u).fused_loss || all || activations_ == ActivationPolicy::kKeep;
    if ((all || activations_ == ActivationPolicy::kBoundaries) &&
        can_leave(facts_, timeline_, StateStream::kBoundary, u))
      choices.boundary[at(u)] = tier;
    if (all && can_leave(facts_, timeline_, StateStream::kSaved, u)) choices.saved[at(u)] = tier;
  }
}

// Of the last unit first: its output would stay shortest.
bool Ladder::keep_boundary() {
  if (activations_ != ActivationPolicy::kBoundaries) return false;
  auto& boundary = rung_.choices.boundary;
  const auto left = std::find_if(boundary.rbegin(), boundary.rend(), [](Tier tier) { return tier != Tier::kDevice; });
  if (left == boundary.rend()) return false;
  *left = Tier::kDevice;
  device_changed_ = true;
  return true;
}

bool Ladder::upgrade_pipeline() {
  if (pipeline_step_ + 1 >= static_cast<int>(kPipeline.size())) return false;
  const Pipeline& next = kPipeline[at(++pipeline_step_)];
  device_changed_ = device_changed_ || rung_.choices.prefetch_units != next.prefetch_units ||
                    rung_.choices.overlap_out != next.overlap_out ||
                    rung_.choices.activations_ahead != next.activations_ahead;
  rung_.choices.activations_ahead = next.activations_ahead;
  rung_.choices.overlap_out = next.overlap_out;
  rung_.choices.prefetch_units = next.prefetch_units;
  rung_.choices.tile_buffers = next.tile_buffers;
  return true;
}

// Copies that stay in a device's own memory until the next visit are neither read nor copied again. Not with early
// updates, which take the weights from host memory: the copy there would have to stay as long.
bool Ladder::hold_on_device() {
  if (!facts_.input->separate_device || !facts_.input->cache || timeline_.early) return false;
  for (const std::int32_t distance : device_distances(timeline_)) {
    if (distance <= rung_.choices.stay_device) continue;
    Choices longer = rung_.choices;
    longer.stay_device = distance;
    const std::vector<Run> runs = device_runs(facts_, timeline_, longer);
    if (make_host_layout(facts_, timeline_, longer, runs).slab_bytes > rung_.host.slab_bytes) return false;
    rung_.choices = std::move(longer);
    device_changed_ = true;
    return true;
  }
  return false;
}

// Holds the unit that is still read most often: that saves most per byte.
bool Ladder::hold_weights() {
  std::vector<std::int32_t> reads(facts_.units.size(), 0);
  for (UnitId u = 0; u < facts_.num_units(); ++u) reads[at(u)] = facts_.unit(u).update_reads_weights ? 1 : 0;
  for (const Run& run : rung_.host.runs) reads[at(run.unit)] += run.into_update || run.from_update ? 0 : 1;
  UnitId best = -1;
  for (UnitId u = 0; u < facts_.num_units(); ++u) {
    if (rung_.choices.held_weights[at(u)] || facts_.unit(u).weights_bytes == 0) continue;
    if (best < 0 || reads[at(u)] > reads[at(best)]) best = u;
  }
  if (best < 0) return false;
  rung_.choices.held_weights[at(best)] = true;
  return true;
}

bool Ladder::hold_tiles() {
  std::int64_t total = 0;
  for (const UnitFacts& unit : facts_.units) total += unit.trained ? unit.tiles : 0;
  std::int64_t left = ceil_div(total, kTileSteps);
  bool changed = false;
  for (std::size_t u = 0; u < facts_.units.size() && left > 0; ++u) {
    if (!facts_.units[u].trained) continue;
    const std::int64_t more = std::min(left, facts_.units[u].tiles - rung_.choices.held_tiles[u]);
    rung_.choices.held_tiles[u] += more;
    left -= more;
    changed = changed || more > 0;
  }
  return changed;
}

void Ladder::build() {
  if (device_changed_) {
    rung_.device = make_device_layout(facts_, timeline_, rung_.choices);
    device_changed_ = false;
  }
  build_host();
  include_eval();
}

void Ladder::build_host() {
  rung_.host = make_host_layout(facts_, timeline_, rung_.choices, rung_.device.runs);
  if (!streams_weights()) return;
  const Distances distances = visit_distances(facts_, timeline_, rung_.choices);
  grow(&Choices::stay_turn, distances.turn);
  grow(&Choices::stay_other, distances.other);
}

// Memory that is free at the right time costs nothing: weights stay between visits while the slab does not grow.
void Ladder::grow(std::int32_t Choices::*stay, const std::vector<std::int32_t>& distances) {
  for (const std::int32_t distance : distances) {
    if (distance <= rung_.choices.*stay) continue;
    Choices longer = rung_.choices;
    longer.*stay = distance;
    HostLayout host = make_host_layout(facts_, timeline_, longer, rung_.device.runs);
    if (host.slab_bytes > rung_.host.slab_bytes) return;
    rung_.choices = std::move(longer);
    rung_.host = std::move(host);
  }
}

void Ladder::include_eval() {
  rung_.host_slab_bytes = rung_.host.slab_bytes;
  rung_.device_slab_bytes = rung_.device.slab_bytes;
  if (facts_.input->eval_micro_batches == 0) return;
  const Choices choices = eval_choices(rung_.choices, 0);
  const std::vector<Run> device = device_runs(facts_, eval_timeline_, choices);
  rung_.host_slab_bytes =
      std::max(rung_.host_slab_bytes, make_host_layout(facts_, eval_timeline_, choices, device).slab_bytes);
  rung_.device_slab_bytes = std::max(rung_.device_slab_bytes, eval_device_bytes_);
}

}  // namespace headrace::runtime::planning
