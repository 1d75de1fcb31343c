// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace headrace::runtime {

namespace {

using Named = std::vector<std::pair<std::string, double>>;

Error lacks(const std::string& key) {
  return make_error(ErrorCode::kConfig, fmt::format("the hardware file has no {}, which this job needs", key),
                    "docs/hardware-files.md lists the keys; a run writes its own file as hardware.json");
}

const double* find(const Named& named, const std::string& name) {
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

bool uses_disk(const PlanInput& input) {
  return input.weights_home == Home::kNvme || input.optimizer_home == Home::kNvme;
}

const char* format_word(const PlanInput& input) { return cpu_adam::state_format_name(input.state_format); }

// The storage entries whose paths the job names, added up; else the first.
StorageHardware storage_of(const Hardware& hardware, const Job& job) {
  StorageHardware sum;
  sum.drives = 0;
  for (const StorageHardware& entry : hardware.storage) {
    if (std::find(job.storage_paths.begin(), job.storage_paths.end(), entry.path) == job.storage_paths.end()) continue;
    sum.drives += entry.drives;
    sum.read_bytes_per_s += entry.read_bytes_per_s;
    sum.write_bytes_per_s += entry.write_bytes_per_s;
    sum.mixed_bytes_per_s += entry.mixed_bytes_per_s;
    sum.read_latency_seconds = std::max(sum.read_latency_seconds, entry.read_latency_seconds);
    sum.write_latency_seconds = std::max(sum.write_latency_seconds, entry.write_latency_seconds);
    sum.cpu_seconds_per_byte = std::max(sum.cpu_seconds_per_byte, entry.cpu_seconds_per_byte);
    sum.endurance_bytes += entry.endurance_bytes;
  }
  return sum.drives > 0 ? sum : hardware.storage.front();
}

Result<void> add_storage(const Hardware& hardware, const Job& job, Machine& machine) {
  if (hardware.storage.empty()) return lacks("storage");
  const StorageHardware storage = storage_of(hardware, job);
  const double share = 1.0 / job.ranks_per_node;
  Rates& rates = machine.rates;
  rates.read_bytes_per_s = storage.read_bytes_per_s * share;
  rates.write_bytes_per_s = storage.write_bytes_per_s * share;
  rates.mixed_bytes_per_s = storage.mixed_bytes_per_s * share;
  rates.read_latency_seconds = storage.read_latency_seconds;
  rates.write_latency_seconds = rates.commit_seconds = storage.write_latency_seconds;
  rates.io_cpu_seconds_per_byte = storage.cpu_seconds_per_byte;
  machine.endurance_bytes = storage.endurance_bytes * share;
  return {};
}

Result<void> add_compute(const Hardware& hardware, const PlanInput& input, Machine& machine) {
  const std::string dtype = dtype_name(input.weights_dtype);
  const bool device = machine.rates.has_device;
  const double* flops = find(device ? hardware.device.flops_per_s : hardware.flops_per_s, dtype);
  if (flops == nullptr)
    return lacks(device ? "device.flops_per_s." + dtype : fmt::format("compute entry with \"dtype\": \"{}\"", dtype));
  const Named& rates = device ? hardware.device.flops_per_s : hardware.flops_per_s;
  const double* forward = find(rates, dtype + " forward");
  const double* backward = find(rates, dtype + " backward");
  for (const UnitInfo& unit : input.model.units) {
    machine.rates.forward_seconds.push_back(unit.forward_flops / *(forward != nullptr ? forward : flops));
    // A fused unit makes its forward products in its backward pass.
    machine.rates.backward_seconds.push_back((unit.fused_loss ? 3 : 2) * unit.forward_flops /
                                             *(backward != nullptr ? backward : flops));
  }
  machine.peak_flops_per_s = *flops;
  if (const double* peak = find(hardware.device.peak_flops_per_s, dtype); device && peak != nullptr) {
    machine.peak_flops_per_s = *peak;
    machine.is_maker_peak = true;
  }
  return {};
}

Result<void> add_network(const Hardware& hardware, const PlanInput& input, const Job& job, Machine& machine) {
  Network& network = machine.rates.network;
  network.ranks_per_node = job.ranks_per_node;
  network.intra_bytes_per_s = hardware.intra_bytes_per_s;
  network.inter_bytes_per_s = hardware.inter_bytes_per_s;
  network.latency_seconds = hardware.network_latency_seconds;
  if (job.ranks_per_node > 1 && network.intra_bytes_per_s <= 0) return lacks("network.intra_bytes_per_s");
  if (job.nodes > 1 && network.inter_bytes_per_s <= 0) return lacks("network.inter_bytes_per_s");
  machine.collectives.world_size = job.world_size();
  if (job.world_size() == 1) return {};
  for (const UnitInfo& unit : input.model.units) {
    machine.collectives.weights_bytes.push_back(unit.flat_elements * dtype_bytes(input.weights_dtype));
    machine.collectives.gradient_bytes.push_back(unit.flat_elements * dtype_bytes(input.gradient_dtype));
  }
  return {};
}

}  // namespace

Result<Machine> machine_for(const Hardware& hardware, const PlanInput& input, const Job& job) {
  Machine machine;
  Rates& rates = machine.rates;
  const double share = 1.0 / job.ranks_per_node;
  rates.has_device = hardware.device.count > 0;
  if (job.ranks_per_node > std::max(1, hardware.device.count))
    return make_error(ErrorCode::kConfig,
                      fmt::format("{} ranks on a machine with {}", job.ranks_per_node,
                                  rates.has_device ? fmt::format("{} devices", hardware.device.count)
                                                   : std::string("no device: one rank uses all its cores")),
                      fmt::format("--ranks-per-node {}", std::max(1, hardware.device.count)));
  rates.cores = std::max(1, static_cast<int>(hardware.cores * share));
  rates.machine_cores = std::max(rates.cores, static_cast<int>(hardware.host_cores * share));
  HEADRACE_RETURN_IF_ERROR(add_compute(hardware, input, machine));
  const double* updates = find(hardware.updates_per_s, format_word(input));
  if (updates == nullptr) return lacks(fmt::format("optimizer entry with \"format\": \"{}\"", format_word(input)));
  if (hardware.gradient_elements_per_s <= 0) return lacks("gradients.elements_per_s");
  rates.update_seconds_per_element = 1 / (*updates * share);
  if (input.optimizer == cpu_adam::OptimizerKind::kMuon) {
    const double* products = find(hardware.flops_per_s, kMuonProducts);
    if (products == nullptr) products = find(hardware.flops_per_s, "fp32");
    if (products == nullptr) return lacks(fmt::format("compute entry with \"dtype\": \"{}\"", kMuonProducts));
    rates.update_seconds_per_product_flop = 1 / (*products * share);
  }
  rates.gradient_out_seconds_per_element = 1 / (hardware.gradient_elements_per_s * share);
  rates.copy_bytes_per_s = hardware.copy_bytes_per_s;
  rates.memory_bytes_per_s = rates.has_device ? hardware.read_memory_bytes_per_s * share : 0;
  if (rates.has_device) {
    if (hardware.h2d_bytes_per_s <= 0) return lacks("links.h2d_bytes_per_s");
    if (hardware.d2h_bytes_per_s <= 0) return lacks("links.d2h_bytes_per_s");
    rates.copy_bytes_per_s = hardware.h2d_bytes_per_s;
    rates.d2h_bytes_per_s = hardware.d2h_bytes_per_s;
    rates.link_latency_seconds = hardware.link_latency_seconds;
  } else if (rates.copy_bytes_per_s <= 0) {
    return lacks("memory.copy_bytes_per_s");
  }
  if (uses_disk(input)) HEADRACE_RETURN_IF_ERROR(add_storage(hardware, job, machine));
  HEADRACE_RETURN_IF_ERROR(add_network(hardware, input, job, machine));
  return machine;
}

ModelInfo rank_model(const ModelInfo& model, const Collectives& collectives, DType weights_dtype,
                     DType gradient_dtype) {
  const int world_size = collectives.world_size, in_flight = collectives.units_in_flight;
  if (world_size <= 1) return model;
  ModelInfo share = model;
  for (std::size_t u = 0; u < share.units.size(); ++u) {
    UnitInfo& unit = share.units[u];
    std::int64_t whole = unit.flat_elements;
    for (const UnitId used : model.units[u].uses) whole += model.units[static_cast<std::size_t>(used)].flat_elements;
    const bool frozen =
        std::all_of(unit.tensors.begin(), unit.tensors.end(), [](const TensorInfo& tensor) { return tensor.frozen; });
    const Bytes gathered = in_flight * whole * dtype_bytes(weights_dtype);
    unit.forward_workspace_bytes += gathered;
    unit.backward_workspace_bytes += gathered + whole * (4 + (in_flight > 1 ? dtype_bytes(gradient_dtype) : 0));
    if (unit.tensors.empty()) continue;
    TensorInfo slice;
    slice.name = unit.name + ".shard";
    slice.elements = partition_range(unit.flat_elements, 0, world_size).padded_elements;
    slice.shape = {slice.elements};
    slice.frozen = frozen;
    unit.tensors = {slice};
    lay_out(unit);
  }
  return share;
}

ZeroMemory zero_memory(const PlanInput& input, int stage, int world_size) {
  double elements = 0;
  double optimizer = 0;
  for (UnitId u = 0; u < static_cast<UnitId>(input.model.units.size()); ++u) {
    const UnitInfo& unit = input.model.units[static_cast<std::size_t>(u)];
    elements += static_cast<double>(unit.flat_elements);
    optimizer += static_cast<double>(optimizer_bytes(input, u, unit.flat_elements));
  }
  ZeroMemory memory;
  memory.weights = elements * static_cast<double>(dtype_bytes(input.weights_dtype)) / (stage >= 3 ? world_size : 1);
  memory.gradients = elements * static_cast<double>(dtype_bytes(input.gradient_dtype)) / (stage >= 2 ? world_size : 1);
  memory.optimizer = optimizer / (stage >= 1 ? world_size : 1);
  return memory;
}

}  // namespace headrace::runtime
