// SPDX-License-Identifier: Apache-2.0
// Reads the current state of a shard out of its stores, tile by tile: for export, verification, digests and generation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/result.h"
#include "runtime/store/tier_store.h"

namespace headrace::runtime {

// One tile: master weights in fp32 and moments (zero where frozen), [length] each, elements [first, first + length) of
// the unit's flat space; of optimizers of whole tensors the planes of moments as tensor_state.h lays them. The spans
// live until it returns.
using StateVisitor = std::function<Result<void>(UnitId, std::int64_t first, std::span<const float> master,
                                                std::span<const float> exp_avg, std::span<const float> exp_avg_sq)>;
// Visits every tile in order. `state_version` is StepRecord::state_version. Blocks; memory is that of one tile.
[[nodiscard]] Result<void> visit_state(const PlanInput& input, TierStore& weights, TierStore& optimizer,
                                       std::uint64_t state_version, const StateVisitor& visit);
// Reads one tile through its checksum and forgets it.
[[nodiscard]] Result<void> verify_tile(const PlanInput& input, TierStore& store, const TileId& id,
                                       std::uint64_t state_version);

// Elements of the compute weights by tensor, widened to fp32: ascending reads load each tile once. One owner thread.
class WeightsReader {
 public:
  // Both must outlive it.
  WeightsReader(const PlanInput& input, TierStore& weights, std::uint64_t state_version);
  ~WeightsReader();
  [[nodiscard]] Result<void> read(UnitId unit, const TensorInfo& tensor, std::int64_t first, std::span<float> out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// All weights of a unit in the compute dtype into `out`: aligned to PlanInput::alignment, flat_elements rounded up to
// it.
[[nodiscard]] Result<void> read_unit_weights(const PlanInput& input, TierStore& weights, std::uint64_t state_version,
                                             UnitId unit, std::byte* out);
// XXH3 over master weights and moments of every unit in model order: equal for equal state in any tier, tile size, and
// for the `fp32` and `split` formats. `visit_all` is a call of visit_state.
[[nodiscard]] Result<std::uint64_t> state_digest(const std::function<Result<void>(const StateVisitor&)>& visit_all);

}  // namespace headrace::runtime
