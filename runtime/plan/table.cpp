// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace headrace::runtime::planning {

namespace {

enum Row : std::size_t {
  kWeightsRow,
  kOptimizerRow,
  kGradientsRow,
  kActivationsRow,
  kBuffersRow,
  kProgramRow,
  kNumRows
};
constexpr std::array<const char*, kNumRows> kRowNames = {"weights",     "optimizer", "gradients",
                                                         "activations", "buffers",   "program"};

Row row_of(const Buffer& buffer) {
  switch (buffer.kind) {
    case BufferKind::kWeights: return buffer.held ? kWeightsRow : kBuffersRow;
    case BufferKind::kOptimizer: return kOptimizerRow;
    case BufferKind::kGradient: return kGradientsRow;
    case BufferKind::kBoundary:
    case BufferKind::kBoundaryGradient:
    case BufferKind::kSaved:
    case BufferKind::kWorkspace: return kActivationsRow;
    case BufferKind::kDeviceWeights:
    case BufferKind::kTile:
    case BufferKind::kAccumulator:
    case BufferKind::kOldState: return kBuffersRow;
  }
  return kBuffersRow;
}

// Bytes by row at the time when most are alive; what the slab has beyond that counts as buffers.
std::array<Bytes, kNumRows> rows_at_peak(const TierLayout& layout, Bytes slab_bytes) {
  std::array<Bytes, kNumRows> rows{};
  const PeakLoad peak = peak_load(layout.buffers, layout.lives);
  for (std::size_t i = 0; i < layout.buffers.size(); ++i)
    if (layout.buffers[i].held || layout.lives[i].includes(peak.time))
      rows[row_of(layout.buffers[i])] += layout.buffers[i].bytes;
  rows[kBuffersRow] += slab_bytes - peak.bytes;
  return rows;
}

struct DiskBytes {
  Bytes weights = 0, optimizer = 0, spill = 0, activations = 0;
};

DiskBytes disk_bytes(const Plan& plan, const Facts& facts) {
  DiskBytes disk;
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    const UnitFacts& unit = facts.unit(u);
    if (facts.nvme_weights) disk.weights += unit.weights_disk_bytes * (unit.trained ? 2 : 1);
    const auto index = static_cast<std::size_t>(u);
    if (plan.gradient_spilled[index]) disk.spill += unit.gradient_disk_bytes;
    if (plan.boundary_tier[index] == Tier::kNvme) disk.activations += plan.input.group_size * unit.boundary_disk_bytes;
    if (plan.saved_tier[index] == Tier::kNvme) disk.activations += plan.input.group_size * unit.saved_disk_bytes;
    if (!facts.nvme_optimizer || !unit.trained) continue;
    for (std::int64_t t = 0; t < unit.tiles; ++t) disk.optimizer += 2 * facts.disk(facts.tile(u, t).optimizer);
  }
  return disk;
}

std::string count_of(std::int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

// What of state at home on NVMe is in host memory too.
std::string residency_note(std::int64_t held, std::int64_t all, const char* one, const char* many) {
  if (held == 0) return "streamed";
  if (held == all) return "all stay in host memory (written through)";
  return fmt::format("streamed, {} of {} {} in host memory (written through)", held, count_of(all, one, many),
                     held == 1 ? "stays" : "stay");
}

std::string weights_note(const Plan& plan, const Facts& facts) {
  if (!facts.nvme_weights) return "stay in host memory";
  std::int64_t held = 0, units = 0;
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    held += plan.held_weights[static_cast<std::size_t>(u)] != kNoBuffer ? 1 : 0;
    units += facts.unit(u).weights_bytes > 0 ? 1 : 0;
  }
  return residency_note(held, units, "unit", "units");
}

std::string optimizer_note(const Plan& plan, const Facts& facts) {
  if (!facts.nvme_optimizer) return "stays in host memory";
  std::int64_t held = 0, tiles = 0;
  for (const auto& unit : plan.held_optimizer)
    held += std::count_if(unit.begin(), unit.end(), [](BufferId id) { return id != kNoBuffer; });
  for (const UnitFacts& unit : facts.units) tiles += unit.trained ? unit.tiles : 0;
  return residency_note(held, tiles, "tile", "tiles");
}

std::string gradients_note(const Plan& plan) {
  const auto spilled = std::count(plan.gradient_spilled.begin(), plan.gradient_spilled.end(), true);
  return spilled == 0 ? std::string() : fmt::format("spilled in {}", count_of(spilled, "unit", "units"));
}

std::string activations_note(const Plan& plan) {
  std::string note;
  const auto add = [&note](std::int64_t units, const char* format) {
    if (units > 0)
      note += fmt::format(fmt::runtime(format), note.empty() ? "" : ", ", count_of(units, "unit", "units"));
  };
  const auto count = [](const auto& list, auto value) {
    return static_cast<std::int64_t>(std::count(list.begin(), list.end(), value));
  };
  add(count(plan.keep_activations, false), "{}recompute in {}");
  add(count(plan.saved_tier, Tier::kHost), "{}saved in host memory for {}");
  add(count(plan.saved_tier, Tier::kNvme), "{}saved on NVMe for {}");
  add(count(plan.boundary_tier, Tier::kHost), "{}outputs of {} in host memory");
  add(count(plan.boundary_tier, Tier::kNvme), "{}outputs of {} on NVMe");
  if (plan.input.activations == ActivationPolicy::kHost && !plan.input.force_copies)
    note += fmt::format("{}host memory is the device's: they stay", note.empty() ? "" : ", ");
  return note;
}

void add_table(Plan& plan, const Facts& facts, const Rung& rung, const DiskBytes& disk) {
  const auto host = rows_at_peak(rung.host, plan.host_slab_bytes);
  const auto device = rows_at_peak(rung.device, plan.device_slab_bytes);
  for (std::size_t row = 0; row < kNumRows; ++row) {
    MemoryLine line;
    line.what = kRowNames[row];
    line.device = device[row];
    line.host = host[row] + (plan.input.separate_device ? 0 : device[row]);  // the `cpu` device's arena is host memory
    plan.memory.push_back(std::move(line));
  }
  plan.memory[kProgramRow].host += plan.input.program_bytes;
  plan.memory[kWeightsRow].nvme = disk.weights;
  plan.memory[kOptimizerRow].nvme = disk.optimizer;
  plan.memory[kGradientsRow].nvme = disk.spill;
  plan.memory[kActivationsRow].nvme = disk.activations;
  plan.memory[kWeightsRow].note = weights_note(plan, facts);
  plan.memory[kOptimizerRow].note = optimizer_note(plan, facts);
  plan.memory[kGradientsRow].note = gradients_note(plan);
  plan.memory[kActivationsRow].note = activations_note(plan);
  if (facts.any_nvme)
    plan.memory[kBuffersRow].note = fmt::format("{} in flight, {}", count_of(plan.prefetch_units + 1, "unit", "units"),
                                                count_of(plan.tile_buffers, "tile", "tiles"));
}

void add_bytes(const std::vector<Operation>& operations, Bytes& read, Bytes& written) {
  for (const Operation& op : operations) {
    if (op.lane == Lane::kNvmeRead) read += op.bytes;
    if (op.lane == Lane::kNvmeWrite) written += op.bytes;
  }
}

Bytes bytes_of(const std::vector<Operation>& operations, OperationKind kind) {
  Bytes bytes = 0;
  for (const Operation& op : operations) bytes += op.kind == kind ? op.bytes : 0;
  return bytes;
}

}  // namespace

void add_numbers(Plan& plan, const Facts& facts, const Rung& rung) {
  plan.host_slab_bytes = rung.host_slab_bytes;
  plan.device_slab_bytes = rung.device_slab_bytes;
  const Bytes arena = plan.input.separate_device ? 0 : plan.device_slab_bytes;
  plan.host_peak_bytes = plan.input.program_bytes + plan.host_slab_bytes + arena;
  add_bytes(plan.operations, plan.read_bytes_per_step, plan.write_bytes_per_step);
  plan.activation_read_bytes = bytes_of(plan.operations, OperationKind::kReadActivation);
  plan.activation_write_bytes = bytes_of(plan.operations, OperationKind::kWriteActivation);
  add_bytes(plan.redo_operations, plan.redo_read_bytes, plan.redo_write_bytes);
  add_bytes(plan.start_operations, plan.start_read_bytes, plan.start_write_bytes);
  add_bytes(plan.drain_operations, plan.drain_read_bytes, plan.drain_write_bytes);
  for (UnitId u = 0; u < facts.num_units(); ++u) {
    const UnitFacts& unit = facts.unit(u);
    plan.state_bytes += unit.elements * dtype_bytes(plan.input.weights_dtype);
    if (!unit.trained) continue;
    for (std::int64_t t = 0; t < unit.tiles; ++t) plan.state_bytes += optimizer_layout(plan.input, u, t).bytes;
  }
  const DiskBytes disk = disk_bytes(plan, facts);
  plan.nvme_state_bytes = disk.weights + disk.optimizer + disk.spill + disk.activations;
  add_table(plan, facts, rung, disk);
}

}  // namespace headrace::runtime::planning
