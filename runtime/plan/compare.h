// SPDX-License-Identifier: Apache-2.0
// The same job by the published rules of other systems, on the same virtual clock: which bytes they move when, what
// overlaps and where they wait. docs/planning.md gives the source of each rule and how far they are off. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/result.h"
#include "runtime/plan/hardware.h"
#include "runtime/plan/simulate.h"

namespace headrace::runtime {

enum class UpdateRule : std::uint8_t {
  kAfterBackward,  // one phase of its own, a part of the state after the other: read, update, write
  kInBackward,     // as soon as a unit's gradient is complete
  kSplit,          // a share `delayed` in the next forward pass, the others in the backward pass
};

// Bytes per parameter, of one rank's share; weights and gradients cross the link in two bytes each.
struct Rules {
  std::string_view name;
  bool vertical = false;                       // all micro-batches visit a unit before the next one
  bool weights_on_nvme = true;                 // read for each visit of a pass
  bool weights_on_device = false;              // stay there: copied once, after the update
  double gradient_written = 0;                 // to NVMe in the last micro-batch, and read again for the update
  double state_read = 12, state_written = 14;  // of the optimizer, with the new 16-bit weights
  UpdateRule update = UpdateRule::kAfterBackward;
  double delayed = 0;
  bool reads_and_writes_overlap = true;
  bool waits_per_unit = false;  // nothing of the next unit but its weights begins before all of this one is done
};

// "zero-infinity", "zero-infinity-optimizer" (only optimizer and gradients on NVMe), "greedysnake", "lohan",
// "zero-offload".
[[nodiscard]] std::span<const Rules> known_rules();
[[nodiscard]] Result<Rules> find_rules(std::string_view name);  // kUsage with the known names

struct Comparison {
  double step_seconds = 0;
  double forward_seconds = 0, backward_seconds = 0, update_seconds = 0;  // by what ends when; they add up to the step
  double read_bytes = 0, written_bytes = 0;                              // of one rank
};
// `input` with the rank's share of the model; activations are recomputed, as all of these systems do.
[[nodiscard]] Result<Comparison> simulate_rules(const Rules& rules, const PlanInput& input, const Machine& machine);

}  // namespace headrace::runtime
