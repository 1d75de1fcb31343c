// SPDX-License-Identifier: Apache-2.0
// One training step (or one evaluation pass) compiled to operations on lanes, with dependencies and buffer offsets.
// Immutable once compiled. The executor runs it, the checker proves it, `headrace plan` prints it.
//
// Operations stand in one global order; each lane runs its own in that order; every dependency points backwards, so the
// lane orders cannot deadlock (check_plan() and simulate() prove it).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "cpu_adam/adamw.h"
#include "cpu_adam/format_state.h"
#include "cpu_adam/optimizer.h"
#include "runtime/unit.h"

namespace headrace::runtime {

enum class Tier : std::uint8_t { kDevice, kHost, kNvme };
enum class Lane : std::uint8_t {
  kNvmeRead,
  kNvmeWrite,
  kHostToDevice,
  kDeviceToHost,
  kCompute,
  kCollective,
  kCpuOptimizer
};
inline constexpr int kNumLanes = 7;
[[nodiscard]] const char* lane_name(Lane lane) noexcept;  // "nvme_read", …
// Of a unit. Activations that leave memory within a step are streams too: a tile is a micro-batch of a group.
enum class StateStream : std::uint8_t { kWeights, kOptimizer, kGradient, kBoundary, kSaved };
enum class Pass : std::uint8_t { kForward, kBackward };

using BufferId = std::int32_t;
using OperationId = std::int32_t;
inline constexpr BufferId kNoBuffer = -1;

enum class BufferKind : std::uint8_t {
  kWeights,        // a unit's weights in compute dtype; held = home on host, or cached (written through)
  kDeviceWeights,  // the copy that forced copies make in the device arena
  kOptimizer,      // held optimizer tile run of a unit (home on host, or cached)
  kTile,           // one tile's optimizer payload (+ weights slice + gradient slice where those are not in memory)
  kGradient,       // a unit's gradient in gradient_dtype on the host
  kAccumulator,    // a unit's fp32 gradient on the device while its backward pass runs
  kBoundary,       // activation between two units, one micro-batch
  kBoundaryGradient,
  kSaved,  // activations saved for (or, under recompute, made again in) the backward pass
  kWorkspace,
  kOldState,  // state at home in memory as it was before its early update, until the step is decided
};
[[nodiscard]] const char* buffer_kind_name(BufferKind kind) noexcept;

struct Buffer {
  BufferKind kind = BufferKind::kWorkspace;
  Tier tier = Tier::kHost;
  Bytes offset = 0;  // in the tier's slab, multiple of PlanInput::alignment
  Bytes bytes = 0;
  UnitId unit = -1;
  bool held = false;  // keeps its contents between steps: no other buffer may overlap it at any time
};

enum class OperationKind : std::uint8_t {
  kReadWeights,   // nvme_read: all weight tiles of the unit → kWeights buffer
  kReadState,     // nvme_read: one tile for the update: optimizer, and weights and spilled gradient where not in memory
  kReadGradient,  // nvme_read: a spilled unit gradient → kGradient buffer, to add the next group to it
  kWriteState,    // nvme_write: new weights and optimizer of one tile to the slot that is not current
  kWriteGradient,  // nvme_write: kGradient buffer → spill
  kCopyToDevice,   // h2d: kWeights → kDeviceWeights (forced copies or a real device)
  // An activation of a unit and micro-batch (its output, or what it saved) that does not stay on the device between the
  // forward and the backward pass: out to host memory where that is another one, and to NVMe, and back.
  kActivationOut,    // d2h
  kWriteActivation,  // nvme_write
  kReadActivation,   // nvme_read
  kActivationIn,     // h2d
  kForward,          // compute: unit, micro-batch
  kBackward,         // compute: unit, micro-batch
  kGradientOut,  // d2h: kAccumulator → kGradient: round, add earlier groups, and on the last group norm and non-finite
                 // check
  kNorm,       // cpu_optimizer: global norm, clip factor, skip decision
  kUpdate,     // cpu_optimizer: one tile
  kCopyState,  // cpu_optimizer: one stream of a tile at home in memory: kept aside before its early update, or put back
  kCommit,     // nvme_write: flush and commit record; the last operation, or after the last delayed update
};
[[nodiscard]] const char* operation_kind_name(OperationKind kind) noexcept;

enum class Role : std::uint8_t {
  kWeights,          // the unit's weights; in kUpdate, kReadState and kWriteState: the tile's slice of them
  kUsedWeights,      // weights of UnitInfo::uses, in that order
  kOptimizer,        // the tile's optimizer payload
  kGradient,         // gradient in gradient_dtype (whole unit, or the tile's slice in kReadState and kUpdate)
  kAccumulator,      // fp32 gradient of the unit
  kUsedAccumulator,  // of UnitInfo::uses, in that order
  kInput,
  kOutput,  // also of the moves of a unit's output; kSaved likewise
  kOutputGradient,
  kInputGradient,  // boundary activations and their gradients
  kSaved,
  kWorkspace,
  kSource,
  kDestination,  // of copies
  kOldState,     // in kCopyState, beside kWeights or kOptimizer
};

struct BufferUse {
  Role role = Role::kWorkspace;
  BufferId buffer = kNoBuffer;
  Bytes offset = 0;  // from the start of the buffer
  Bytes bytes = 0;
  bool write = false;
  bool read = true;  // false: contents before do not matter
};

struct Operation {
  OperationKind kind = OperationKind::kCommit;
  Lane lane = Lane::kCompute;
  UnitId unit = -1;
  Pass pass = Pass::kForward;
  std::int32_t micro_batch = -1;  // 0 … micro_batches-1 of the step
  std::int32_t group = -1;
  std::int64_t tile = -1;  // of the unit, for tile operations
  bool recompute = false;  // kBackward: make the saved activations again first
  bool first = false;      // kBackward: first into the unit's own accumulator (overwrite it); kGradientOut: first group
  bool first_used = false;  // kBackward: the same for each used unit's accumulator
  bool last = false;        // kGradientOut: the last group: norm and check
  Bytes bytes = 0;          // moved on NVMe, trailers and padding included; 0 for other kinds
  std::vector<BufferUse> uses;
  std::vector<OperationId> dependencies;  // smaller ids; not those implied by lane order
};

// Between a unit's forward and its backward pass. kHost and kNvme: its input and what it saved leave the device for
// that tier and come back in time. kAuto is what moves fewest bytes within the budget of kMemory and kBoundaries.
enum class ActivationPolicy : std::uint8_t {
  kAuto,
  kKeep,
  kRecompute,
  kHost,
  kNvme,
  kMemory,      // kept, or computed again where memory is short
  kBoundaries,  // the same, and outputs of units to NVMe where memory is short
};
// kInBackward: a unit is updated as soon as its gradient is complete, on the assumption that nothing is clipped and all
// gradients are finite. Where that was wrong Plan::redo_operations follow.
// kIntoForward: a unit is updated in the next step, just before its first use there, with everything known; with a
// PlanInput::delayed_fraction below 1 only those that are used last are, the others after the norm. Where there is no
// next step, or something else comes first, Plan::drain_operations make the updates.
enum class UpdatePolicy : std::uint8_t { kAuto, kAfterBackward, kInBackward, kIntoForward };
[[nodiscard]] const char* update_policy_name(UpdatePolicy update) noexcept;  // "after_backward", …
enum class Home : std::uint8_t { kDevice, kHost, kNvme };

struct PlanInput {
  ModelInfo model;
  DType weights_dtype = DType::kBf16;
  DType gradient_dtype = DType::kBf16;
  cpu_adam::StateFormat state_format = cpu_adam::StateFormat::kSplit;
  cpu_adam::OptimizerKind optimizer = cpu_adam::OptimizerKind::kAdamW;
  int newton_schulz_steps = 5;      // Muon
  int moments = 2;                  // kept for each element: cpu_adam::num_moments()
  Home weights_home = Home::kNvme;  // kDevice on the `cpu` device is host memory
  Home optimizer_home = Home::kNvme;
  std::int32_t micro_batches = 1;  // per step and rank
  std::int32_t group_size = 0;     // 0 = auto
  bool snake = true;
  ActivationPolicy activations = ActivationPolicy::kAuto;
  UpdatePolicy update = UpdatePolicy::kAfterBackward;
  double delayed_fraction = -1;  // kIntoForward: share of the parameters, above 0 and up to 1; negative = open
  bool can_clip = false;         // gradients may be scaled by the norm: early updates must be able to be made again
  bool cache = true;             // false: nothing of NVMe-home state stays in memory beyond its use
  bool force_copies = false;
  bool separate_device = false;    // device memory is a device's own and not the host's: plans for other machines
  bool can_spill = true;           // NVMe has room for more than state: false where it is a block device
  std::int64_t tile_elements = 0;  // multiple of 4096
  Bytes host_budget = 0;           // everything the process holds
  Bytes device_budget = 0;         // 0 = no limit of its own (the `cpu` device's arena counts as host memory)
  Bytes program_bytes = 0;         // held before any slab: program, libraries, threads, kernel scratch
  Bytes program_spread_bytes = 0;  // by how much the next start may hold more: part of the smallest budget named
  Bytes alignment = 4096;          // of buffers and of payload extents on disk
  Bytes trailer_bytes = 4096;      // behind each payload on disk
  int rank = 0;
  int world_size = 1;
  std::int32_t eval_micro_batches = 0;  // > 0 also compiles the evaluation pass
};

struct MemoryLine {  // one row of the table of `headrace plan`; bytes at the step's peak of the tier (exact, adds up)
  std::string what;  // "weights", "optimizer", "gradients", "activations", "buffers", "program"
  // `host` is everything the process holds, the `cpu` device's arena included, which `device` shows alone; `nvme` has
  // both slots.
  Bytes host = 0, device = 0, nvme = 0;
  std::string note;  // "streamed, 8 of 34 units stay in host memory (written through)"
};

struct Plan {
  PlanInput input;  // with group_size, activations, update and, with kIntoForward, delayed_fraction resolved
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;  // the step; kIntoForward: it begins with the updates of the step before
  std::vector<Operation>
      eval_operations;  // forward of all units for one micro-batch at a time; fused_loss units as kForward
  // kInBackward: what follows a step (all of it but its commit) whose early updates do not stand. From the old slots
  // and the gradients every tile is updated again with the exact factor, or, after gradients that are not finite, only
  // what is held in memory is brought back. Then the commit. Without can_clip there is only the second.
  std::vector<Operation> redo_operations;
  // kIntoForward: the step where no update is pending: the first one, or one after a drain, a skip or a restart. Its
  // buffers are those of `operations`, and so are its computations and their order, and what it updates itself.
  std::vector<Operation> start_operations;
  // kIntoForward: the pending updates and the commit alone, after a step.
  std::vector<Operation> drain_operations;
  std::vector<bool> keep_activations;                 // per unit
  std::vector<bool> gradient_spilled;                 // per unit
  std::vector<Tier> boundary_tier, saved_tier;        // per unit: where these are between forward and backward pass
  std::vector<bool> update_delayed;                   // per unit, kIntoForward; else empty
  std::vector<BufferId> held_weights;                 // per unit, kNoBuffer if streamed
  std::vector<std::vector<BufferId>> held_optimizer;  // per unit and tile, kNoBuffer if streamed
  Bytes host_slab_bytes = 0;                          // peak of all host buffers
  Bytes device_slab_bytes = 0;
  Bytes host_peak_bytes = 0;   // what the process holds at most: program + slabs (device slab too on `cpu`)
  Bytes nvme_state_bytes = 0;  // on disk, both slots, spill included
  Bytes state_bytes = 0;       // weights + optimizer, one slot
  Bytes read_bytes_per_step = 0, write_bytes_per_step = 0;
  Bytes activation_read_bytes = 0, activation_write_bytes = 0;  // of these
  Bytes redo_read_bytes = 0, redo_write_bytes = 0;              // on top, in a step that is done again
  Bytes start_read_bytes = 0, start_write_bytes = 0;            // instead, where no update is pending
  Bytes drain_read_bytes = 0, drain_write_bytes = 0;  // on top, where the updates do not wait for the next step
  std::vector<MemoryLine> memory;
  std::int32_t prefetch_units = 0;
  std::int32_t tile_buffers = 0;
};

// Of the parameters that are trained: the share of those in units whose update is delayed.
[[nodiscard]] double delayed_share(const Plan& plan);

// Tiles of a unit's shard and their payload sizes.
[[nodiscard]] std::int64_t num_tiles(const PlanInput& input, UnitId unit);
// Its first element in the unit's flat space.
[[nodiscard]] std::int64_t tile_begin(const PlanInput& input, UnitId unit, std::int64_t tile);
[[nodiscard]] std::int64_t tile_length(const PlanInput& input, UnitId unit,
                                       std::int64_t tile);  // elements, last one shorter
// Offsets of the planes in a tile's optimizer payload.
using OptimizerLayout = cpu_adam::StatePlanes;
[[nodiscard]] OptimizerLayout optimizer_layout(const PlanInput& input, UnitId unit, std::int64_t tile);
// Of any run of `length` elements; elementwise optimizers only (see tensor_state.h for the others).
[[nodiscard]] OptimizerLayout optimizer_layout(const PlanInput& input, std::int64_t length);
// Bytes of state of `elements` elements of a unit, whose share of a whole unit's state it is.
[[nodiscard]] Bytes optimizer_bytes(const PlanInput& input, UnitId unit, std::int64_t elements);

}  // namespace headrace::runtime
