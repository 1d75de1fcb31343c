// SPDX-License-Identifier: Apache-2.0
// Buffers, lifetimes and offsets that follow from a timeline and choices, tier by tier, with the tables by which the
// operations find them. Private to the compiler.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/activations.h"
#include "runtime/plan/place.h"
#include "runtime/plan/residency.h"
#include "runtime/plan/timeline.h"

namespace headrace::runtime::planning {

// Buffer ids below count from 0 within one tier.
struct TierLayout {
  std::vector<Buffer> buffers;
  std::vector<Life> lives;
  Bytes slab_bytes = 0;

  BufferId add(const Buffer& buffer, Life life);
};

struct HostLayout : TierLayout {
  std::vector<Run> runs;                              // streamed weights …
  std::vector<BufferId> run_buffers;                  // … and their buffers
  std::vector<BufferId> held_weights;                 // per unit
  std::vector<std::vector<BufferId>> held_optimizer;  // per unit and tile
  std::vector<std::vector<BufferId>> gradients;       // per unit and group; the same in all groups unless spilled
  std::vector<BufferId> ring;                         // tile buffers
  // The first tiles of the early updates, or of those after the norm, are read while the stage before the first update
  // computes.
  bool ring_ahead = false;
  // Of the redo of early updates; or of the drain of delayed ones, and of the updates after the norm beside them.
  std::vector<BufferId> second_ring;
  std::vector<DelayedUpdate> delayed;
  std::vector<BufferId> old_weights, old_optimizer;  // per unit: state at home in memory while early updates may fail
  // Per DeviceLayout::moves; of an activation that host memory keeps both are the same.
  std::vector<BufferId> activations_out, activations_in;
};

struct DeviceLayout : TierLayout {
  std::vector<Run> runs;  // copies of weights
  std::vector<BufferId> run_buffers;
  std::vector<std::vector<BufferId>> boundaries, boundary_gradients, saved;  // per unit and micro-batch
  // The first and the third as the backward pass finds them: others where they have left and come back.
  std::vector<std::vector<BufferId>> boundaries_back, saved_back;
  std::vector<ActivationMove> moves;
  std::vector<BufferId> scratch_saved, workspace;   // per stage
  std::vector<std::vector<BufferId>> accumulators;  // per unit and group
};

// Held buffers come first and depend on the choices alone, so that the step's and the evaluation's are the same.
[[nodiscard]] HostLayout make_host_layout(const Facts& facts, const Timeline& timeline, const Choices& choices,
                                          const std::vector<Run>& device);
[[nodiscard]] DeviceLayout make_device_layout(const Facts& facts, const Timeline& timeline, const Choices& choices);

}  // namespace headrace::runtime::planning
