// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/plan/tensor_state.h"

namespace headrace::runtime::planning {

namespace {

Error contradiction(std::string message, std::string hint = {}) {
  return make_error(ErrorCode::kConfig, std::move(message), std::move(hint));
}

bool any_trained_tensor(const UnitInfo& unit) {
  return std::any_of(unit.tensors.begin(), unit.tensors.end(), [](const TensorInfo& t) { return !t.frozen; });
}

bool any_frozen_tensor(const UnitInfo& unit) {
  return std::any_of(unit.tensors.begin(), unit.tensors.end(), [](const TensorInfo& t) { return t.frozen; });
}

Result<void> validate_units(const PlanInput& input) {
  const auto count = static_cast<UnitId>(input.model.units.size());
  if (count == 0) return contradiction("the model has no units");
  bool trained = false;
  for (UnitId u = 0; u < count; ++u) {
    const UnitInfo& unit = input.model.units[static_cast<std::size_t>(u)];
    if (unit.flat_elements < 0 || unit.output_bytes < 0 || unit.saved_bytes < 0 || unit.forward_workspace_bytes < 0 ||
        unit.backward_workspace_bytes < 0)
      return contradiction(fmt::format("unit {} \"{}\" has a negative size", u, unit.name));
    if (unit.fused_loss && u + 1 != count)
      return contradiction(
          fmt::format("unit {} \"{}\" computes the loss but is not the last of {}", u, unit.name, count));
    if (u + 1 == count && unit.output_bytes != 0)
      return contradiction(fmt::format("the last unit \"{}\" hands {} bytes to a unit that does not exist", unit.name,
                                       unit.output_bytes));
    for (const UnitId used : unit.uses)
      if (used < 0 || used >= count || used == u || std::count(unit.uses.begin(), unit.uses.end(), used) > 1)
        return contradiction(
            fmt::format("unit {} \"{}\" uses tensors of unit {}, which cannot own them", u, unit.name, used));
    trained = trained || (unit.flat_elements > 0 && any_trained_tensor(unit));
  }
  if (!trained) return contradiction("every tensor of the model is frozen: there is nothing to train");
  return {};
}

Result<void> validate_tiles(const PlanInput& input) {
  if (input.tile_elements <= 0 || input.tile_elements % 4096 != 0)
    return contradiction(
        fmt::format("tile_elements is {}, it must be a positive multiple of 4096", input.tile_elements));
  if (input.alignment <= 0 || input.trailer_bytes < 0)
    return contradiction(
        fmt::format("alignment {} and trailer {} bytes make no layout", input.alignment, input.trailer_bytes));
  const Bytes smallest =
      std::min(dtype_bytes(input.weights_dtype), dtype_bytes(input.gradient_dtype)) * input.tile_elements;
  for (UnitId u = 0; u < static_cast<UnitId>(input.model.units.size()); ++u)
    if (num_tiles(input, u) > 1 && smallest % input.alignment != 0)
      return contradiction(fmt::format("tiles of {} elements are {} bytes, no multiple of the alignment of {} bytes",
                                       input.tile_elements, smallest, input.alignment),
                           fmt::format("use tile_bytes that are a multiple of {}", input.alignment * 2));
  return {};
}

// Optimizers of whole tensors see a unit at a time, and once: nothing takes their update back.
Result<void> validate_whole_tensors(const PlanInput& input) {
  if (cpu_adam::is_elementwise(input.optimizer)) return {};
  const char* const name = cpu_adam::optimizer_name(input.optimizer);
  if (input.world_size > 1)
    return contradiction(
        fmt::format("{} updates whole tensors; {} ranks would each hold a part", name, input.world_size),
        "train on one rank, or use AdamW");
  if (input.update == UpdatePolicy::kInBackward)
    return contradiction(fmt::format("{} cannot take an early update back", name), "update \"after_backward\"");
  if (input.update == UpdatePolicy::kIntoForward)
    return contradiction(fmt::format("{} takes all cores and does not update beside the forward pass", name),
                         "update \"after_backward\"");
  for (UnitId u = 0; u < static_cast<UnitId>(input.model.units.size()); ++u) {
    const UnitInfo& unit = input.model.units[static_cast<std::size_t>(u)];
    if (num_tiles(input, u) > 1)
      return contradiction(fmt::format("{} updates whole tensors: unit \"{}\" of {} elements needs one tile, not {}",
                                       name, unit.name, unit.flat_elements, num_tiles(input, u)),
                           "leave headrace.tile_bytes out");
    for (const TensorInfo& tensor : unit.tensors)
      HEADRACE_RETURN_IF_ERROR(cpu_adam::validate_shape(optimizer_of(input.optimizer, tensor), tensor.shape));
  }
  return {};
}

TileFacts tile_facts(const PlanInput& input, UnitId unit, std::int64_t tile) {
  TileFacts facts;
  facts.length = tile_length(input, unit, tile);
  facts.optimizer = round_up(optimizer_layout(input, unit, tile).bytes, input.alignment);
  facts.weights = round_up(facts.length * dtype_bytes(input.weights_dtype), input.alignment);
  facts.gradient = round_up(facts.length * dtype_bytes(input.gradient_dtype), input.alignment);
  return facts;
}

}  // namespace

Result<void> validate(const PlanInput& input) {
  if (input.world_size < 1 || input.rank < 0 || input.rank >= input.world_size)
    return contradiction(fmt::format("rank {} of {} does not exist", input.rank, input.world_size));
  if (input.world_size > 1)
    return contradiction(fmt::format("a plan for {} ranks needs collectives, which are not planned", input.world_size),
                         "use one rank");
  if (input.state_format != cpu_adam::StateFormat::kFp32 && input.weights_dtype != DType::kBf16)
    return contradiction(fmt::format("state format \"{}\" needs bf16 weights, these are {}",
                                     cpu_adam::state_format_name(input.state_format), dtype_name(input.weights_dtype)),
                         "use state_format \"fp32\" or enable bf16");
  if (input.gradient_dtype == DType::kFp16) return contradiction("gradients are kept in bf16 or fp32, not in fp16");
  if (input.micro_batches < 1)
    return contradiction(fmt::format("a step of {} micro-batches does nothing", input.micro_batches));
  if (!(input.delayed_fraction <= 1) || (input.delayed_fraction == 0 && input.update == UpdatePolicy::kIntoForward))
    return contradiction(
        fmt::format("a share of {} of the updates cannot be left to the next step", input.delayed_fraction),
        "use a delayed_fraction above 0 and up to 1, or update \"after_backward\"");
  if (input.group_size < 0 || input.group_size > input.micro_batches)
    return contradiction(
        fmt::format("group_size {} is not within 1 … {} micro-batches", input.group_size, input.micro_batches));
  const bool on_nvme =
      input.activations == ActivationPolicy::kNvme || input.activations == ActivationPolicy::kBoundaries;
  const bool any_nvme = input.weights_home == Home::kNvme || input.optimizer_home == Home::kNvme;
  if (on_nvme && !(any_nvme && input.can_spill))
    return contradiction(
        any_nvme ? "activations cannot go to NVMe: a block device holds the state and nothing else"
                 : "activations cannot go to NVMe: neither weights nor optimizer state is there, so there is no path",
        "activations \"auto\" or \"recompute\", or a folder as nvme_path of offload_optimizer with device nvme");
  if (input.eval_micro_batches < 0 || input.program_bytes < 0 || input.host_budget < 0 || input.device_budget < 0)
    return contradiction("budgets and counts are not negative");
  HEADRACE_RETURN_IF_ERROR(validate_units(input));
  HEADRACE_RETURN_IF_ERROR(validate_tiles(input));
  return validate_whole_tensors(input);
}

Facts make_facts(const PlanInput& input) {
  Facts facts;
  facts.input = &input;
  facts.nvme_weights = input.weights_home == Home::kNvme;
  facts.nvme_optimizer = input.optimizer_home == Home::kNvme;
  facts.any_nvme = facts.nvme_weights || facts.nvme_optimizer;
  const bool has_master = input.state_format == cpu_adam::StateFormat::kFp32 && input.weights_dtype != DType::kFp32;
  for (UnitId u = 0; u < static_cast<UnitId>(input.model.units.size()); ++u) {
    const UnitInfo& info = input.model.units[static_cast<std::size_t>(u)];
    UnitFacts unit;
    unit.elements = partition_range(info.flat_elements, input.rank, input.world_size).padded_elements;
    unit.tiles = num_tiles(input, u);
    unit.trained = unit.tiles > 0 && any_trained_tensor(info);
    unit.update_reads_weights = unit.trained && (!has_master || any_frozen_tensor(info));
    if (unit.tiles > 0) {
      unit.full_tile = tile_facts(input, u, 0);
      unit.last_tile = tile_facts(input, u, unit.tiles - 1);
    }
    for (std::int64_t t = 0; t < unit.tiles; ++t) {
      const TileFacts& tile = t + 1 == unit.tiles ? unit.last_tile : unit.full_tile;
      unit.weights_bytes += tile.weights;
      unit.weights_disk_bytes += facts.disk(tile.weights);
      if (!unit.trained) continue;
      unit.gradient_bytes += tile.gradient;
      unit.gradient_disk_bytes += facts.disk(tile.gradient);
    }
    if (unit.trained) unit.accumulator_bytes = round_up(info.flat_elements * 4, input.alignment);
    unit.boundary_bytes = round_up(info.output_bytes, input.alignment);
    unit.saved_bytes = round_up(info.saved_bytes, input.alignment);
    unit.boundary_disk_bytes = facts.disk(unit.boundary_bytes);
    unit.saved_disk_bytes = facts.disk(unit.saved_bytes);
    unit.forward_workspace_bytes = round_up(info.forward_workspace_bytes, input.alignment);
    unit.backward_workspace_bytes = round_up(info.backward_workspace_bytes, input.alignment);
    facts.units.push_back(unit);
  }
  return facts;
}

}  // namespace headrace::runtime::planning
