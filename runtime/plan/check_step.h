// SPDX-License-Identifier: Apache-2.0
// Part of the plan checker: runs the operations of steps, of a redo or a drain, or of an evaluation on symbolic
// contents and verifies that each one finds what it should, that everything happens exactly once, and what is in memory
// and on disk at the end.
#pragma once

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "runtime/plan/check_contents.h"
#include "runtime/plan/check_order.h"

namespace headrace::runtime::checking {

// Copies go on from the contents at which the original stands.
class StepCheck {
 public:
  StepCheck(const Plan& plan, const std::vector<Operation>& operations, const Order& order, bool is_eval);
  [[nodiscard]] Result<void> run();
  // After run() of a step with early updates: all of it is done again, or the step is dropped and only what is in
  // memory comes back (updates and writes are then passed over). After a step whose updates are delayed: they are made.
  // All operations of the step are complete before.
  enum class Phase : std::uint8_t { kStep, kAgain, kDropped, kStart, kDrain };
  [[nodiscard]] Result<void> run_redo(const std::vector<Operation>& operations, const Order& order, Phase phase);
  // With delayed updates: a step that finds none pending (kStart; the first thing to run), and the one after it
  // (kStep).
  [[nodiscard]] Result<void> run_start();
  [[nodiscard]] Result<void> run_next(const std::vector<Operation>& operations, const Order& order);

 private:
  // Of one activation through a step.
  struct Trip {
    std::int32_t outs = 0, ins = 0;  // copies
    OperationId write = -1, read = -1;
  };
  struct UnitState {
    bool trained = false, weights_needed_by_update = false;
    bool delayed = false;                                   // its update is left to the next step
    Bytes weights_bytes = 0, gradient_bytes = 0;            // extents of all tiles
    Bytes weights_disk_bytes = 0, gradient_disk_bytes = 0;  // with trailers
    std::vector<UnitId> contributors;                       // units whose backward adds to its gradient
    std::set<std::pair<UnitId, std::int32_t>> contributed;  // (unit, micro-batch) over the step
    std::int64_t group_contributions = 0;                   // of the group under way
    std::int32_t groups_out = 0;
    std::int32_t groups_spilled = 0;
    OperationId spill_write = -1;
    std::vector<OperationId> spill_reads;                          // since that write
    std::vector<bool> forward_done, backward_done;                 // per micro-batch
    std::vector<std::int32_t> state_reads, updates, state_writes;  // per tile
    bool any_update = false;
    std::vector<Trip> boundary_trips, saved_trips;  // per micro-batch, once there is one
  };

  // What an operation on an activation moves.
  struct Activation {
    const BufferUse* use = nullptr;
    bool is_saved = false;
    Bytes bytes = 0, extent = 0;
    Tier tier = Tier::kDevice;
    Content content;
    std::vector<Trip>* trips = nullptr;
  };

  [[nodiscard]] Result<void> check_all();
  [[nodiscard]] Result<void> check(OperationId id);
  [[nodiscard]] Result<void> check_in_redo(OperationId id);
  [[nodiscard]] Result<void> check_copy_state(const Operation& op);
  [[nodiscard]] Result<void> check_redo_end();
  [[nodiscard]] bool is_early() const noexcept { return plan_.input.update == UpdatePolicy::kInBackward; }
  [[nodiscard]] bool is_delayed() const noexcept { return plan_.input.update == UpdatePolicy::kIntoForward; }
  // The delayed updates of the step before are made in this one.
  [[nodiscard]] bool has_pending() const noexcept { return is_delayed() && phase_ == Phase::kStep && !is_eval_; }
  [[nodiscard]] bool has_pending(UnitId unit) const { return has_pending() && state(unit).delayed; }
  [[nodiscard]] bool is_after_step() const noexcept { return phase_ != Phase::kStep && phase_ != Phase::kStart; }
  void begin_list(const std::vector<Operation>& operations, const Order& order, Phase phase);
  [[nodiscard]] Result<void> check_place_of_commit(const Operation& op) const;
  [[nodiscard]] std::int64_t version_before(UnitId unit) const;   // of state that an update of this list finds …
  [[nodiscard]] std::int64_t updated_version(UnitId unit) const;  // … and makes
  [[nodiscard]] Content weights_of(UnitId unit) const;            // that computations of this list read
  [[nodiscard]] Content whole_gradient(UnitId unit) const;        // that updates of this list take
  [[nodiscard]] Content stamped(Content content) const noexcept;
  [[nodiscard]] Result<void> check_compute(const Operation& op);
  [[nodiscard]] Result<void> check_forward(const Operation& op);
  [[nodiscard]] Result<void> check_backward(const Operation& op);
  [[nodiscard]] Result<void> check_accumulation(const Operation& op);
  [[nodiscard]] Result<void> contribute(const Operation& op, UnitId owner, const BufferUse* use, bool first);
  [[nodiscard]] Result<void> check_saved(const Operation& op);
  [[nodiscard]] Result<void> check_gradient_out(const Operation& op);
  [[nodiscard]] Result<void> check_read_weights(OperationId id);
  [[nodiscard]] Result<void> check_spill(OperationId id);
  [[nodiscard]] Result<void> check_read_state(OperationId id);
  [[nodiscard]] Result<void> check_copy(const Operation& op);
  [[nodiscard]] Result<void> check_update(OperationId id);
  [[nodiscard]] Result<void> check_write_state(OperationId id);
  [[nodiscard]] Result<void> check_tile(OperationId id);
  [[nodiscard]] Result<void> check_norm(OperationId id);
  // Activations, in check_activations.cpp.
  [[nodiscard]] Result<void> check_tiers() const;
  [[nodiscard]] Result<Activation> activation_of(const Operation& op);
  [[nodiscard]] Result<void> expect_payload(BufferUse use, const Activation& activation);
  void write_payload(BufferUse use, const Activation& activation);
  [[nodiscard]] Result<void> check_activation_copy(const Operation& op);
  [[nodiscard]] Result<void> check_activation_transfer(OperationId id);
  [[nodiscard]] Result<void> check_trips() const;
  [[nodiscard]] Result<void> check_commit(OperationId id);
  [[nodiscard]] Result<void> check_end();
  [[nodiscard]] Result<void> check_updated(UnitId unit) const;  // every tile once, in this phase
  [[nodiscard]] Result<void> check_held_at_end();
  [[nodiscard]] Result<void> load_held();

  // The single use of a role with these bytes; of one that must read, must overwrite or must update.
  enum class Access : std::uint8_t { kRead, kOverwrite, kUpdate };
  [[nodiscard]] Result<const BufferUse*> need(const Operation& op, Role role, Bytes bytes, Access access) const;
  [[nodiscard]] Result<void> none(const Operation& op, Role role) const;
  [[nodiscard]] Result<void> expect(const BufferUse& use, const Content& content, Bytes from = 0);
  void write(const BufferUse& use, const Content& content, Bytes from = 0);
  [[nodiscard]] Memory& memory_of(const BufferUse& use);
  [[nodiscard]] Bytes begin_of(const BufferUse& use) const;
  [[nodiscard]] const UnitInfo& info(UnitId unit) const;
  [[nodiscard]] UnitState& state(UnitId unit);
  [[nodiscard]] const UnitState& state(UnitId unit) const;
  [[nodiscard]] Bytes extent(StateStream stream, UnitId unit, std::int64_t tile) const;
  [[nodiscard]] Bytes on_disk(Bytes extent) const noexcept { return extent + plan_.input.trailer_bytes; }
  [[nodiscard]] std::int32_t num_groups() const noexcept;

  const Plan& plan_;
  const std::vector<Operation>* operations_;
  const Order* order_;
  bool is_eval_;
  Phase phase_ = Phase::kStep;
  std::int64_t step_ = 1;     // under way, or done last
  std::int64_t version_ = 0;  // updates that the state had seen when the list began, not counting those of a step
                              // whose others are pending
  std::int32_t micro_batches_;
  std::array<Memory, 2> slabs_;  // device, host
  std::vector<UnitState> units_;
  OperationId norm_ = -1, commit_ = -1;
  std::vector<OperationId> last_outs_;
  Bytes read_bytes_ = 0, written_bytes_ = 0;
  std::pair<Bytes, Bytes> activation_bytes_;  // read and written
};

}  // namespace headrace::runtime::checking
