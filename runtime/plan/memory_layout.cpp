// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/memory_layout.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace headrace::runtime::planning {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Buffer buffer_of(BufferKind kind, Tier tier, UnitId unit, Bytes bytes, bool held = false) {
  Buffer buffer;
  buffer.kind = kind;
  buffer.tier = tier;
  buffer.unit = unit;
  buffer.bytes = bytes;
  buffer.held = held;
  return buffer;
}

void add_held(HostLayout& layout, const Facts& facts, const Choices& choices) {
  layout.held_weights.assign(facts.units.size(), kNoBuffer);
  layout.held_optimizer.resize(facts.units.size());
  for (UnitId u = 0; u < facts.num_units(); ++u)
    if (choices.held_weights[at(u)] && facts.unit(u).weights_bytes > 0)
      layout.held_weights[at(u)] =
          layout.add(buffer_of(BufferKind::kWeights, Tier::kHost, u, facts.unit(u).weights_bytes, true), {});
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    layout.held_optimizer[at(u)].assign(at(facts.unit(u).tiles), kNoBuffer);
    if (!facts.unit(u).trained) continue;
    for (std::int64_t t = 0; t < std::min(choices.held_tiles[at(u)], facts.unit(u).tiles); ++t)
      layout.held_optimizer[at(u)][at(t)] =
          layout.add(buffer_of(BufferKind::kOptimizer, Tier::kHost, u, facts.tile(u, t).optimizer, true), {});
  }
}

void add_weights(HostLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  for (const Run& run : layout.runs) {
    const Stage& last = timeline.stage(run.last);
    Life life{timeline.stage(run.start).time, facts.input->force_copies ? last.time : last.last_compute()};
    if (run.into_update)
      life.end = timeline.early ? std::max(life.end, early_update_end(timeline, choices, run.unit))
                                : timeline.stage(timeline.update_stage(run.unit)).time;
    layout.run_buffers.push_back(
        layout.add(buffer_of(BufferKind::kWeights, Tier::kHost, run.unit, facts.unit(run.unit).weights_bytes), life));
  }
}

void add_gradients(HostLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  layout.gradients.resize(facts.units.size());
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    const auto& accumulations = timeline.accumulations[at(u)];
    if (accumulations.empty()) continue;
    const Buffer buffer = buffer_of(BufferKind::kGradient, Tier::kHost, u, facts.unit(u).gradient_bytes);
    if (!choices.spilled[at(u)] && timeline.is_delayed(u)) {
      const auto update = std::find_if(layout.delayed.begin(), layout.delayed.end(),
                                       [u](const DelayedUpdate& delayed) { return delayed.unit == u; });
      const Life life{timeline.stage(accumulations.front().last_stage).out(), timeline.stage(update->need).time};
      layout.gradients[at(u)].assign(accumulations.size(), layout.add(buffer, life));
      continue;
    }
    if (!choices.spilled[at(u)]) {
      const bool done_early = timeline.early && !facts.input->can_clip;  // nothing is ever done again with it
      const Life life{
          timeline.stage(accumulations.front().last_stage).out(),
          done_early ? early_update_end(timeline, choices, u) : timeline.stage(timeline.update_stage(u)).time};
      layout.gradients[at(u)].assign(accumulations.size(), layout.add(buffer, life));
      continue;
    }
    for (std::size_t group = 0; group < accumulations.size(); ++group) {
      const std::int32_t stage = accumulations[group].last_stage;
      const std::int64_t begin = group == 0 ? timeline.stage(stage).out() : timeline.stage(stage).time;
      layout.gradients[at(u)].push_back(layout.add(buffer, {begin, out_end(timeline, choices, stage)}));
    }
  }
}

// Tile buffers for one pass over the tiles.
struct RingShape {
  Bytes slot = 0;
  std::int64_t tiles = 0;  // that pass through it
  UnitId first = -1;       // the first unit, in the order of the pass, with such a tile
};

RingShape ring_shape(const Facts& facts, const Choices& choices, const std::vector<bool>& resident,
                     const std::vector<UnitId>& units, UpdatePass pass) {
  RingShape shape;
  for (const UnitId u : units) {
    // Tiles differ in length (the last one) and in whether their optimizer state is held (the first ones).
    const std::int64_t count = facts.unit(u).tiles, streamed = std::min(choices.held_tiles[at(u)], count - 1);
    bool all = false;
    for (const std::int64_t t : {std::int64_t{0}, streamed, count - 1}) {
      const TileNeeds needs = tile_needs(facts, choices, u, t, resident[at(u)], pass);
      const TileFacts& tile = facts.tile(u, t);
      shape.slot = std::max(shape.slot, (needs.buffer_optimizer ? tile.optimizer : 0) +
                                            (needs.buffer_weights ? tile.weights : 0) +
                                            (needs.buffer_gradient ? tile.gradient : 0));
      all = needs.buffer_weights || needs.buffer_gradient;
    }
    const std::int64_t in_ring = all ? count : count - std::min(choices.held_tiles[at(u)], count);
    if (in_ring > 0 && shape.first < 0) shape.first = u;
    shape.tiles += in_ring;
  }
  return shape;
}

void add_ring(HostLayout& layout, std::vector<BufferId>& ring, const RingShape& shape, std::int64_t buffers,
              Life life) {
  for (std::int64_t i = 0; i < std::min(shape.tiles, buffers); ++i)
    ring.push_back(layout.add(buffer_of(BufferKind::kTile, Tier::kHost, -1, shape.slot), life));
}

// The ring of the next forward pass. What is updated after the norm and what a drain updates never meet in time: one
// second ring serves both.
void add_delayed_rings(HostLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  const auto shape_of = [&](UpdatePass pass, const std::vector<bool>& resident) {
    return ring_shape(facts, choices, resident, timeline.updated_units(pass), pass);
  };
  add_ring(layout, layout.ring, shape_of(UpdatePass::kDelayed, choices.held_weights), choices.tile_buffers,
           {timeline.stage(0).time, timeline.stage(layout.delayed.back().need).time});
  const RingShape late = shape_of(UpdatePass::kAfterNorm, resident_in_update(choices, layout.runs));
  RingShape shape = shape_of(UpdatePass::kDrain, choices.held_weights);
  shape.slot = std::max(shape.slot, late.slot);
  shape.tiles = std::max(shape.tiles, late.tiles);
  layout.ring_ahead = choices.prefetch_units > 0 && late.first >= 0 && !choices.spilled[at(late.first)];
  const std::int64_t begin = layout.ring_ahead ? timeline.stage(timeline.num_compute - 1).time : timeline.norm_time;
  add_ring(layout, layout.second_ring, shape, choices.tile_buffers, {begin, timeline.end_time});
}

void add_rings(HostLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  if (timeline.any_delayed()) return add_delayed_rings(layout, facts, timeline, choices);
  const Life after_step{timeline.norm_time, timeline.end_time};
  const UpdatePass pass = timeline.early ? UpdatePass::kEarly : UpdatePass::kAfterNorm;
  const std::vector<UnitId> units = timeline.updated_units(pass);
  const RingShape shape = ring_shape(facts, choices, resident_in_update(choices, layout.runs), units, pass);
  layout.ring_ahead =
      choices.prefetch_units > 0 && shape.first >= 0 && (timeline.early || !choices.spilled[at(shape.first)]);
  Life life = after_step;
  if (timeline.early) {
    const Stage& stage = timeline.stage(timeline.last_stage(units.front()));
    life = {layout.ring_ahead ? stage.time : stage.out(), timeline.norm_time};
  } else if (layout.ring_ahead) {
    life.begin = timeline.stage(timeline.num_compute - 1).time;
  }
  add_ring(layout, layout.ring, shape, choices.tile_buffers, life);
  if (!timeline.early || !facts.input->can_clip) return;
  const RingShape redo = ring_shape(facts, choices, choices.held_weights, units, UpdatePass::kRedo);
  add_ring(layout, layout.second_ring, redo, choices.tile_buffers,
           {timeline.stage(timeline.num_compute).time, timeline.end_time});
}

// A tile on NVMe has its old state in the other slot; one at home in memory needs a second copy until the step is
// decided.
void add_old_state(HostLayout& layout, const Facts& facts, const Timeline& timeline) {
  layout.old_weights.assign(facts.units.size(), kNoBuffer);
  layout.old_optimizer = layout.old_weights;
  if (!timeline.early) return;
  for (const UnitId u : timeline.updated_units(UpdatePass::kEarly)) {
    const Life life{timeline.stage(timeline.last_stage(u)).out(), timeline.end_time};
    if (!facts.nvme_weights)
      layout.old_weights[at(u)] =
          layout.add(buffer_of(BufferKind::kOldState, Tier::kHost, u, facts.unit(u).weights_bytes), life);
    if (facts.nvme_optimizer) continue;
    const Bytes bytes =
        (facts.unit(u).tiles - 1) * facts.unit(u).full_tile.optimizer + facts.unit(u).last_tile.optimizer;
    layout.old_optimizer[at(u)] = layout.add(buffer_of(BufferKind::kOldState, Tier::kHost, u, bytes), life);
  }
}

std::set<std::tuple<StateStream, UnitId, std::int32_t>> leaving_activations(const std::vector<ActivationMove>& moves) {
  std::set<std::tuple<StateStream, UnitId, std::int32_t>> leaving;
  for (const ActivationMove& move : moves) leaving.emplace(move.stream, move.unit, move.micro_batch);
  return leaving;
}

void add_activations(DeviceLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  const auto micro_batches = at(timeline.num_micro_batches);
  const std::vector<std::vector<BufferId>> none(facts.units.size(), std::vector<BufferId>(micro_batches, kNoBuffer));
  layout.boundaries = layout.boundary_gradients = layout.saved = none;
  const std::set<std::tuple<StateStream, UnitId, std::int32_t>> leaving = leaving_activations(layout.moves);
  const auto leaves = [&](StateStream stream, UnitId unit, std::size_t m) {
    return leaving.count({stream, unit, static_cast<std::int32_t>(m)}) > 0;
  };
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    const UnitFacts& unit = facts.unit(u);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      const std::int64_t forward = timeline.forward_time[at(u)][m], backward = timeline.backward_time[at(u)][m];
      if (unit.boundary_bytes > 0) {  // then there is a next unit
        const std::int64_t next_forward = timeline.forward_time[at(u) + 1][m],
                           next_backward = timeline.backward_time[at(u) + 1][m];
        if (!leaves(StateStream::kBoundary, u, m))
          layout.boundaries[at(u)][m] =
              layout.add(buffer_of(BufferKind::kBoundary, Tier::kDevice, u, unit.boundary_bytes),
                         {forward, std::max(next_forward, next_backward)});
        if (!timeline.is_eval)
          layout.boundary_gradients[at(u)][m] =
              layout.add(buffer_of(BufferKind::kBoundaryGradient, Tier::kDevice, u, unit.boundary_bytes),
                         {next_backward, backward});
      }
      if (!timeline.is_eval && unit.saved_bytes > 0 && choices.keep[at(u)] && forward >= 0 &&
          !leaves(StateStream::kSaved, u, m))
        layout.saved[at(u)][m] =
            layout.add(buffer_of(BufferKind::kSaved, Tier::kDevice, u, unit.saved_bytes), {forward, backward});
    }
  }
}

// What leaves has a buffer for the forward pass and another one for the backward pass.
void add_moved_activations(DeviceLayout& layout, const Facts& facts) {
  layout.boundaries_back = layout.boundaries;
  layout.saved_back = layout.saved;
  for (const ActivationMove& move : layout.moves) {
    const bool saved = move.stream == StateStream::kSaved;
    const Buffer buffer =
        buffer_of(saved ? BufferKind::kSaved : BufferKind::kBoundary, Tier::kDevice, move.unit, move.bytes);
    const std::int64_t back = facts.input->force_copies ? move.copied : move.read;
    (saved ? layout.saved : layout.boundaries)[at(move.unit)][at(move.micro_batch)] =
        layout.add(buffer, {move.made, move.out_end});
    (saved ? layout.saved_back : layout.boundaries_back)[at(move.unit)][at(move.micro_batch)] =
        layout.add(buffer, {back, move.used});
  }
}

// Between a device with memory of its own and NVMe, and of what host memory keeps.
void add_host_activations(HostLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  if (!facts.input->force_copies) return;
  for (const ActivationMove& move : activation_moves(facts, timeline, choices)) {
    const BufferKind kind = move.stream == StateStream::kSaved ? BufferKind::kSaved : BufferKind::kBoundary;
    const Buffer buffer = buffer_of(kind, Tier::kHost, move.unit, move.bytes);
    const bool stays = move.tier == Tier::kHost;
    layout.activations_out.push_back(layout.add(buffer, {move.made, stays ? move.copied : move.staged_end}));
    layout.activations_in.push_back(stays ? layout.activations_out.back()
                                          : layout.add(buffer, {move.read, move.copied}));
  }
}

void add_scratch(DeviceLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  for (std::int32_t s = 0; s < timeline.num_compute; ++s) {
    const Stage& stage = timeline.stage(s);
    const UnitFacts& unit = facts.unit(stage.unit);
    const bool backward = stage.kind == Stage::Kind::kBackward;
    const Life life{stage.first_compute(), stage.last_compute()};
    const Bytes workspace = backward ? unit.backward_workspace_bytes : unit.forward_workspace_bytes;
    layout.workspace.push_back(
        workspace > 0 ? layout.add(buffer_of(BufferKind::kWorkspace, Tier::kDevice, stage.unit, workspace), life)
                      : kNoBuffer);
    const bool makes_saved =
        backward && unit.saved_bytes > 0 && (facts.info(stage.unit).fused_loss || !choices.keep[at(stage.unit)]);
    layout.scratch_saved.push_back(
        makes_saved ? layout.add(buffer_of(BufferKind::kSaved, Tier::kDevice, stage.unit, unit.saved_bytes), life)
                    : kNoBuffer);
  }
}

void add_accumulators(DeviceLayout& layout, const Facts& facts, const Timeline& timeline, const Choices& choices) {
  layout.accumulators.resize(facts.units.size());
  for (UnitId u = 0; u < facts.num_units(); ++u)
    for (const Accumulation& accumulation : timeline.accumulations[at(u)])
      layout.accumulators[at(u)].push_back(
          layout.add(buffer_of(BufferKind::kAccumulator, Tier::kDevice, u, facts.unit(u).accumulator_bytes),
                     {timeline.stage(accumulation.first_stage).first_compute(),
                      out_end(timeline, choices, accumulation.last_stage)}));
}

}  // namespace

BufferId TierLayout::add(const Buffer& buffer, Life life) {
  buffers.push_back(buffer);
  lives.push_back(life);
  return static_cast<BufferId>(buffers.size()) - 1;
}

HostLayout make_host_layout(const Facts& facts, const Timeline& timeline, const Choices& choices,
                            const std::vector<Run>& device) {
  HostLayout layout;
  layout.runs = host_runs(facts, timeline, choices, device);
  layout.delayed = delayed_updates(facts, timeline, choices, device);
  add_held(layout, facts, choices);
  add_weights(layout, facts, timeline, choices);
  if (!timeline.is_eval) {
    add_gradients(layout, facts, timeline, choices);
    add_rings(layout, facts, timeline, choices);
    add_old_state(layout, facts, timeline);
    add_host_activations(layout, facts, timeline, choices);
  }
  layout.slab_bytes = place(layout.buffers, layout.lives);
  return layout;
}

DeviceLayout make_device_layout(const Facts& facts, const Timeline& timeline, const Choices& choices) {
  DeviceLayout layout;
  layout.runs = device_runs(facts, timeline, choices);
  for (const Run& run : layout.runs)
    layout.run_buffers.push_back(
        layout.add(buffer_of(BufferKind::kDeviceWeights, Tier::kDevice, run.unit, facts.unit(run.unit).weights_bytes),
                   {timeline.stage(run.start).time, timeline.stage(run.last).last_compute()}));
  layout.moves = activation_moves(facts, timeline, choices);
  add_activations(layout, facts, timeline, choices);
  add_moved_activations(layout, facts);
  add_scratch(layout, facts, timeline, choices);
  add_accumulators(layout, facts, timeline, choices);
  layout.slab_bytes = place(layout.buffers, layout.lives);
  return layout;
}

}  // namespace headrace::runtime::planning
