// SPDX-License-Identifier: Apache-2.0
#include "core/topology.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "core/process.h"

namespace headrace {
namespace {

TEST(Topology, AgreesWithTheSystem) {
  const Topology topology = detect_topology();
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(topology.affinity_cpus, CPU_COUNT(&mask));
  EXPECT_GE(topology.usable_cores, 1);
  EXPECT_LE(topology.usable_cores, topology.affinity_cpus);
  EXPECT_GT(topology.total_memory, 64 * kMiB);
  EXPECT_LE(topology.effective_memory_limit, topology.total_memory);
  if (topology.cgroup_memory_limit) {
    EXPECT_LE(topology.effective_memory_limit, *topology.cgroup_memory_limit);
  }
  EXPECT_FALSE(topology.cpu_model.empty());
  ASSERT_FALSE(topology.numa_nodes.empty());
  std::size_t cpus = 0;
  for (const NumaNodeInfo& node : topology.numa_nodes) cpus += node.cpus.size();
  EXPECT_GE(cpus, static_cast<std::size_t>(topology.affinity_cpus));
}

TEST(Topology, FollowsTheAffinityOfTheProcess) {
  std::thread([] {
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(detect_topology().usable_cores, 1);
  }).join();
}

TEST(Topology, LeavesTheEnvironmentAsItWas) {
  const char* before = std::getenv("HWLOC_PLUGINS_PATH");
  const std::string text = before == nullptr ? "" : before;
  static_cast<void>(detect_topology());
  const char* after = std::getenv("HWLOC_PLUGINS_PATH");
  EXPECT_EQ(after == nullptr ? "" : std::string(after), text);
}

TEST(CpuFeatures, AreThoseThatTheSystemLists) {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; std::getline(file, line) && flags.empty();) {
    if (line.starts_with("flags")) flags = line + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags here";
  const auto listed = [&flags](const char* name) {
    return flags.find(std::string(" ") + name + " ") != std::string::npos;
  };
  const CpuFeatures& features = cpu_features();
  EXPECT_EQ(features.avx2, listed("avx2"));
  EXPECT_EQ(features.fma, listed("fma"));
  EXPECT_EQ(features.f16c, listed("f16c"));
  EXPECT_EQ(features.avx512f, listed("avx512f"));
  EXPECT_EQ(features.avx512bw, listed("avx512bw"));
  EXPECT_EQ(features.avx512vl, listed("avx512vl"));
  EXPECT_EQ(features.avx512dq, listed("avx512dq"));
  EXPECT_EQ(features.avx512_bf16, listed("avx512_bf16"));
  EXPECT_EQ(features.amx_bf16, listed("amx_bf16"));
}

TEST(CpuFeatures, AreDescribedShortly) {
  CpuFeatures features;
  EXPECT_EQ(describe(features), "no vector extensions beyond the baseline");
  features.avx2 = features.fma = true;
  EXPECT_EQ(describe(features), "AVX2 FMA");
  features.avx512f = features.avx512bw = features.avx512vl = features.avx512dq = features.avx512_bf16 = true;
  EXPECT_EQ(describe(features), "AVX2 FMA AVX-512 BF16");
}

}  // namespace
}  // namespace headrace
