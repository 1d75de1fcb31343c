// SPDX-License-Identifier: Apache-2.0
// The machine as this process may use it: cores, memory and their limits, NUMA nodes, instruction sets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"

namespace headrace {

// What both the CPU and the operating system support. All false on other architectures than x86-64.
struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
};
[[nodiscard]] const CpuFeatures& cpu_features() noexcept;         // detected once; thread-safe
[[nodiscard]] std::string describe(const CpuFeatures& features);  // "AVX2 FMA AVX-512 BF16"

struct NumaNodeInfo {
  int index = 0;          // as the system numbers it
  Bytes memory = 0;       // installed, 0 when unknown
  std::vector<int> cpus;  // those this process may use
};

struct Topology {
  int usable_cores = 1;  // CPUs in the affinity mask, lowered by a CPU quota (rounded to the nearest, at least 1)
  int affinity_cpus = 1;
  std::optional<double> cpu_quota;       // cores' worth of CPU time, from control groups
  std::vector<NumaNodeInfo> numa_nodes;  // at least one
  Bytes total_memory = 0;
  std::optional<Bytes> cgroup_memory_limit;
  Bytes effective_memory_limit = 0;  // the smaller of both
  std::string cpu_model;
  CpuFeatures features;
};
// Asks the system anew; meant for once, at the start, before threads run. What cannot be found out keeps a safe value.
[[nodiscard]] Topology detect_topology();

}  // namespace headrace
