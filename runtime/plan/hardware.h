// SPDX-License-Identifier: Apache-2.0
// A machine as a hardware file describes it, and what it means for one rank of a job: rates per operation. Pure; files
// are read by models/trainer/hardware_file.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "runtime/plan/cost.h"

namespace headrace::runtime {

// The name among the rates of products of those of Muon, whose other work is part of it; "fp32" where it is not there.
inline constexpr const char* kMuonProducts = "fp32 muon";

struct StorageHardware {
  std::string path;
  int drives = 1;  // that the rates are the sum of
  double read_bytes_per_s = 0, write_bytes_per_s = 0, mixed_bytes_per_s = 0;
  double read_latency_seconds = 0, write_latency_seconds = 0;
  double cpu_seconds_per_byte = 0;
  double capacity_bytes = 0;   // of all drives; 0 = not known
  double endurance_bytes = 0;  // that may be written to all drives in their life; 0 = not known
};

struct DeviceHardware {
  std::string name;
  int count = 0;  // per machine; 0 = the host computes
  Bytes memory_bytes = 0;
  std::vector<std::pair<std::string, double>> flops_per_s;       // by dtype: what products reach
  std::vector<std::pair<std::string, double>> peak_flops_per_s;  // by dtype: the maker's figure; may be empty
};

struct Hardware {
  std::string name;
  int cores = 0;                                              // that compute
  std::vector<std::pair<std::string, double>> flops_per_s;    // of the host, by dtype; also "bf16 forward" where known
  std::vector<std::pair<std::string, double>> updates_per_s;  // parameters, by state format
  double gradient_elements_per_s = 0;
  double copy_bytes_per_s = 0, read_memory_bytes_per_s = 0, write_memory_bytes_per_s = 0;
  int host_cores = 0;  // of the machine, also those that do not compute
  Bytes host_memory_bytes = 0;
  std::vector<StorageHardware> storage;
  DeviceHardware device;
  double h2d_bytes_per_s = 0, d2h_bytes_per_s = 0, link_latency_seconds = 0;         // per device
  double intra_bytes_per_s = 0, inter_bytes_per_s = 0, network_latency_seconds = 0;  // per device
  // The file states what the machine has; one that a run or `profile` wrote is about the machine it ran on.
  [[nodiscard]] bool is_elsewhere() const noexcept { return host_memory_bytes > 0; }
};

// One rank of a job on machines of a kind.
struct Job {
  int nodes = 1, ranks_per_node = 1;
  std::vector<std::string> storage_paths;  // that the rank writes to; with none of them in the file, the first entry
  [[nodiscard]] int world_size() const noexcept { return nodes * ranks_per_node; }
};

// What a plan is predicted with.
struct Machine {
  Rates rates;
  Collectives collectives;
  double peak_flops_per_s = 0;  // of what computes, per rank; 0 = not known
  bool is_maker_peak = false;
  double endurance_bytes = 0;  // this rank's share; 0 = not known
};

// kConfig that names the key which this job needs and the file lacks. The units of `input` are the whole model's;
// `weights_dtype` and `state_format` pick the rates.
[[nodiscard]] Result<Machine> machine_for(const Hardware& hardware, const PlanInput& input, const Job& job);

// One rank's share of a model: each unit's tensors are one slice of the flat space, and what a rank gathers or sums
// before it hands it on stands in its workspace: the weights of as many units as are in flight, one unit's gradient in
// fp32 and, where two are in flight, one in the gradient's dtype. For planning: a plan made for it has one rank, and
// its simulation is given the collectives.
[[nodiscard]] ModelInfo rank_model(const ModelInfo& model, const Collectives& collectives, DType weights_dtype,
                                   DType gradient_dtype);

// Bytes per rank of model states as ZeRO divides them over `world_size` ranks: stage 0 nothing, 1 the optimizer, 2 the
// gradients too, 3 the weights too.
struct ZeroMemory {
  double weights = 0, gradients = 0, optimizer = 0;
  [[nodiscard]] double total() const noexcept { return weights + gradients + optimizer; }
};
[[nodiscard]] ZeroMemory zero_memory(const PlanInput& input, int stage, int world_size);

}  // namespace headrace::runtime
