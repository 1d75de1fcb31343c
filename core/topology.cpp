// SPDX-License-Identifier: Apache-2.0
#include "core/topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

#include "core/cgroup.h"

namespace headrace {
namespace {

#if defined(__x86_64__)
// AMX: leaf 7 announces the tiles and their bf16 product; XCR0 says whether the system saves them.
bool has_amx_bf16() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & (1U << 22)) == 0 || (d & (1U << 24)) == 0) return false;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1U << 27)) == 0) return false;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & 0x60000U) == 0x60000U;
}

bool has_avx512_bf16() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 5)) != 0;
}

bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 29)) != 0;
}

std::string cpu_model_name() {
  std::array<unsigned, 13> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* part = words.data() + std::size_t{4} * leaf;
    if (__get_cpuid(0x80000002U + leaf, part, part + 1, part + 2, part + 3) == 0) return "x86-64 CPU";
  }
  std::string name(reinterpret_cast<const char*>(words.data()));
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "x86-64 CPU" : name;
}

CpuFeatures detect_features() noexcept {
  CpuFeatures features;
  features.avx2 = __builtin_cpu_supports("avx2") != 0;
  features.fma = __builtin_cpu_supports("fma") != 0;
  features.f16c = has_f16c();
  features.avx512f = __builtin_cpu_supports("avx512f") != 0;
  features.avx512bw = __builtin_cpu_supports("avx512bw") != 0;
  features.avx512vl = __builtin_cpu_supports("avx512vl") != 0;
  features.avx512dq = __builtin_cpu_supports("avx512dq") != 0;
  features.avx512_bf16 = has_avx512_bf16();
  features.amx_bf16 = has_amx_bf16();
  return features;
}
#else
std::string cpu_model_name() { return "unknown CPU"; }
CpuFeatures detect_features() noexcept { return {}; }
#endif

int affinity_count() {
  // The mask must be as wide as the kernel's; 16,384 CPUs is beyond any kernel's limit.
  constexpr int kCpus = 16384;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(CPU_ALLOC(kCpus), [](cpu_set_t* set) { CPU_FREE(set); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kCpus);
  if (mask && sched_getaffinity(0, bytes, mask.get()) == 0) return std::max(1, CPU_COUNT_S(bytes, mask.get()));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

// hwloc's plug-ins (PCI, GPUs) load drivers' libraries and tens of MiB; nothing here needs them. They are found through
// a variable of the environment, which is set for the time of the call.
class WithoutPlugins {
 public:
  WithoutPlugins() : set_(std::getenv(kVariable) == nullptr) {
    if (set_) setenv(kVariable, "/nonexistent", 0);
  }
  ~WithoutPlugins() {
    if (set_) unsetenv(kVariable);
  }
  WithoutPlugins(const WithoutPlugins&) = delete;
  WithoutPlugins& operator=(const WithoutPlugins&) = delete;

 private:
  static constexpr const char* kVariable = "HWLOC_PLUGINS_PATH";
  bool set_;
};

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

std::vector<NumaNodeInfo> numa_nodes() {
  const WithoutPlugins guard;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {};
  const std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology> topology(raw);
  hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  if (hwloc_topology_load(raw) != 0) return {};
  std::vector<NumaNodeInfo> nodes;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
    NumaNodeInfo node;
    node.index = static_cast<int>(object->os_index);
    node.memory = static_cast<Bytes>(object->attr->numanode.local_memory);
    for (int cpu = hwloc_bitmap_first(object->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(object->cpuset, cpu))
      node.cpus.push_back(cpu);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace

const CpuFeatures& cpu_features() noexcept {
  static const CpuFeatures features = detect_features();
  return features;
}

std::string describe(const CpuFeatures& features) {
  std::string text;
  const auto word = [&text](bool present, const char* name) {
    if (present) text += fmt::format("{}{}", text.empty() ? "" : " ", name);
  };
  word(features.avx2, "AVX2");
  word(features.fma, "FMA");
  word(features.avx512f && features.avx512bw && features.avx512vl && features.avx512dq, "AVX-512");
  word(features.avx512_bf16, "BF16");
  word(features.amx_bf16, "AMX");
  return text.empty() ? "no vector extensions beyond the baseline" : text;
}

Topology detect_topology() {
  Topology topology;
  const CgroupLimits limits = read_cgroup_limits();
  topology.affinity_cpus = affinity_count();
  topology.cpu_quota = limits.cpu_cores;
  topology.usable_cores = topology.affinity_cpus;
  if (limits.cpu_cores) {
    topology.usable_cores = std::clamp(static_cast<int>(std::lround(*limits.cpu_cores)), 1, topology.affinity_cpus);
  }
  topology.numa_nodes = numa_nodes();
  if (topology.numa_nodes.empty()) topology.numa_nodes.emplace_back();
  topology.total_memory = static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  topology.cgroup_memory_limit = limits.memory;
  topology.effective_memory_limit = std::min(topology.total_memory, limits.memory.value_or(topology.total_memory));
  topology.cpu_model = cpu_model_name();
  topology.features = cpu_features();
  return topology;
}

}  // namespace headrace
