// SPDX-License-Identifier: Apache-2.0
#include <core/bytes.h>
#include <core/host_slab.h>
#include <core/topology.h>

#include <cstdio>

int main() {
  const headrace::Topology topology = headrace::detect_topology();
  const headrace::Result<headrace::HostSlab> slab = headrace::HostSlab::allocate(headrace::kMiB);
  if (!slab.ok() || topology.usable_cores < 1) return 1;
  std::printf("%d cores, %s\n", topology.usable_cores, slab->describe().c_str());
}
