// SPDX-License-Identifier: Apache-2.0
// Finds what a budget allows. For one group size the configurations form a ladder that starts from the one that needs
// least memory; each rung adds one use of memory, and none moves more NVMe bytes than the rung below. Rungs do not
// depend on the budget, so a larger budget climbs at least as high. Private to the compiler.
#pragma once

#include <vector>

#include "runtime/plan/memory_layout.h"

namespace headrace::runtime::planning {

struct Rung {
  Choices choices;
  HostLayout host;
  DeviceLayout device;
  Bytes host_slab_bytes = 0, device_slab_bytes = 0;  // the evaluation pass included
};

class Ladder {
 public:
  // Stands on the lowest rung. `activations`: anything but kAuto.
  Ladder(const Facts& facts, std::int32_t group_size, UpdatePolicy update, ActivationPolicy activations);

  [[nodiscard]] const Timeline& timeline() const noexcept { return timeline_; }
  [[nodiscard]] const Rung& rung() const noexcept { return rung_; }
  // Takes the next rung; false at the top.
  bool climb();
  // Back to a rung that was left, and on with what memory is used for next.
  void skip_from(const Rung& rung);

 private:
  enum class Phase : std::uint8_t {
    kPipeline,
    kGradients,
    kBoundaries,
    kActivations,
    kDevice,
    kWeights,
    kOptimizer,
    kTop
  };

  bool upgrade();  // changes the choices; false when this phase has nothing left
  void place_activations();
  bool upgrade_pipeline();
  bool keep_boundary();
  bool hold_on_device();
  bool hold_weights();
  bool hold_tiles();
  void build();
  void build_host();
  void grow(std::int32_t Choices::*stay, const std::vector<std::int32_t>& distances);
  void include_eval();
  [[nodiscard]] bool streams_weights() const noexcept;

  const Facts& facts_;
  ActivationPolicy activations_;
  Timeline timeline_;
  Timeline eval_timeline_;
  Bytes eval_device_bytes_ = 0;
  Rung rung_;
  Phase phase_ = Phase::kPipeline;
  int pipeline_step_ = 0;
  bool device_changed_ = true;
};

// The choices of an evaluation: nothing of the step but what is held.
[[nodiscard]] Choices eval_choices(const Choices& step, std::int32_t prefetch_units);

}  // namespace headrace::runtime::planning
