// SPDX-License-Identifier: Apache-2.0
// `headrace doctor`: what works on this machine and what does not, with the command that fixes it.
#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>

#include "bindings/cli/command.h"
#include "core/file.h"
#include "core/host_slab.h"
#include "core/json.h"
#include "core/topology.h"
#include "io/volume_set.h"
#include "kernels/cpu/gemm.h"
#include "models/trainer/read_setup.h"

namespace headrace::cli {
namespace {

struct Finding {
  std::string what;  // "cpu", "memory", …
  bool ok = true;
  std::string text;
};

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : format_bytes(static_cast<Bytes>(limit));
}

Finding cpu_finding(const Topology& topology) {
  return {"cpu", true,
          fmt::format("{} · {} cores usable, {} NUMA node{} · {} · products: {}", topology.cpu_model,
                      topology.usable_cores, topology.numa_nodes.size(), topology.numa_nodes.size() == 1 ? "" : "s",
                      describe(topology.features), kernels::gemm_target())};
}

Finding memory_finding(const Topology& topology) {
  rlimit locked{};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  const std::string group =
      topology.cgroup_memory_limit.has_value() ? format_bytes(*topology.cgroup_memory_limit) : "none";
  return {"memory", true,
          fmt::format("{} · cgroup limit {} · locked limit {}", format_bytes(topology.total_memory), group,
                      limit_text(locked.rlim_cur))};
}

Finding pages_finding() {
  const Result<HostSlab> slab = HostSlab::allocate(4 * kMiB);
  if (!slab.ok()) return {"pages", false, slab.error().to_string()};
  return {"pages", slab->page_kind() != PageKind::kOrdinary, slab->describe()};
}

// A small volume is made, written, read and removed: what really works there, not what should.
Finding path_finding(const std::string& path, io::IoMode mode, io::IoBackendChoice backend, const char* name) {
  io::VolumeGeometry geometry;
  geometry.streams.push_back({0, 1, 64 * kKiB, 64 * kKiB, 1});
  geometry.record_payload_bytes = 64;
  io::VolumeOptions options;
  options.backend = backend;
  options.mode = mode;
  options.deadline = std::chrono::seconds(30);  // of each transfer below
  if (auto usable = io::check_paths({path}, options); !usable.ok()) return {name, false, usable.error().to_string()};
  const std::string id = fmt::format("doctor-{}", getpid());
  auto volumes = io::VolumeSet::create({path}, id, geometry, options);
  if (!volumes.ok()) return {name, false, volumes.error().to_string()};
  HostSlabOptions slab_options;
  slab_options.best_pages = PageKind::kTransparentHuge;
  const Result<HostSlab> memory = HostSlab::allocate(2 * kMiB, slab_options);
  Finding finding{name, memory.ok(), memory.ok() ? (*volumes)->describe() : memory.error().to_string()};
  if (memory.ok()) {
    const io::TileTransfer transfer{{0, 0, 0}, {1, 0}, memory->bytes().data()};
    auto result = (*volumes)->write({&transfer, 1}).wait(io::TimePoint::max());
    if (result.ok()) result = (*volumes)->read({&transfer, 1}).wait(io::TimePoint::max());
    if (!result.ok()) finding = {name, false, result.error().to_string()};
  }
  volumes->reset();
  if (auto removed = io::remove_volumes({path}, id); !removed.ok())
    finding = {name, false, removed.error().to_string()};
  return finding;
}

Result<int> doctor(const std::string& config_file, bool json) {
  std::vector<std::string> paths{"."};
  io::IoMode mode = io::IoMode::kAuto;
  std::vector<Finding> findings;
  const Topology topology = detect_topology();
  findings.push_back(cpu_finding(topology));
  findings.push_back(memory_finding(topology));
  findings.push_back(pages_finding());
  if (!config_file.empty()) {
    models::SetupRequest request;
    request.config_file = config_file;
    HEADRACE_TRY(const models::TrainingSetup setup, models::read_setup(request));
    if (const auto configured = models::nvme_paths_of(setup.config.run); !configured.empty()) paths = configured;
    mode = models::make_engine_options(setup, "").volume.mode;
    findings.push_back({"config", true, config_file + " is fine"});
  }
  for (const std::string& path : paths) {
    // In the order in which a run takes them; the first line is what it would use.
    findings.push_back(path_finding(path, mode, io::IoBackendChoice::kAuto, "storage"));
    findings.push_back(path_finding(path, mode, io::IoBackendChoice::kUring, "io_uring"));
    findings.push_back(path_finding(path, mode, io::IoBackendChoice::kLibaio, "libaio"));
    findings.push_back(path_finding(path, mode, io::IoBackendChoice::kThreads, "threads"));
  }
  bool all_ok = true;
  JsonArray list;
  std::vector<std::vector<std::string>> rows;
  for (const Finding& finding : findings) {
    all_ok = all_ok && finding.ok;
    rows.push_back({finding.what, finding.ok ? "✔" : "✘", finding.text});
    JsonObject object;
    object.add("what", finding.what);
    object.add("ok", finding.ok);
    object.add("text", finding.text);
    list.add_raw(object.text());
  }
  if (json) {
    JsonObject document;
    document.add("ok", all_ok);
    document.add_raw("findings", list.text());
    print(document.text() + "\n");
  } else {
    for (const auto& row : rows) print(fmt::format("{:<9} {} {}\n", row[0], row[1], row[2]));
  }
  return 0;
}

}  // namespace

void add_doctor(Program& program) {
  CLI::App* const command =
      program.app->add_subcommand("doctor", "Say what works here and what does not, with what fixes it");
  auto config_file = std::make_shared<std::string>();
  command->add_option("config", *config_file, "Also look at this config and its nvme paths");
  command->add_flag("--json", program.json, "One JSON document on standard output");
  command->callback([&program, config_file] {
    program.job = [&program, config_file] { return doctor(*config_file, program.json); };
  });
}

}  // namespace headrace::cli
