// SPDX-License-Identifier: Apache-2.0
#include "core/cgroup.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace headrace {
namespace {

constexpr Bytes kNoLimit = Bytes{1} << 60;  // version 1 writes "no limit" as a number near 2^63

struct Mount {
  std::string root;     // the part of the hierarchy that is mounted
  std::string point;    // where
  std::string type;     // cgroup or cgroup2
  std::string options;  // controllers of version 1
};

std::string read_or_empty(const std::string& path) {
  Result<std::string> text = read_text_file(path);
  return text.ok() ? std::move(text).value() : std::string();
}

std::vector<Mount> cgroup_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::istringstream lines(read_or_empty(root + "/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash));
    std::istringstream tail(line.substr(dash + 3));
    Mount mount;
    std::string skip;
    head >> skip >> skip >> skip >> mount.root >> mount.point;
    tail >> mount.type >> skip >> mount.options;
    if (mount.type == "cgroup" || mount.type == "cgroup2") mounts.push_back(std::move(mount));
  }
  return mounts;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return false;
}

// The group of this process in the hierarchy of a version 1 controller, or of version 2 for an empty name.
std::string own_group(const std::string& table, std::string_view controller) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view names = std::string_view(line).substr(first + 1, second - first - 1);
    if (controller.empty() ? names.empty() : has_word(names, controller)) return line.substr(second + 1);
  }
  return "/";
}

// Folders from the group up to the mount point. The group is seen from the mounted part; one outside of it (a container
// sees the host's path) leaves the mount point alone.
std::vector<std::string> folders_up(const std::string& root, const Mount& mount, std::string group) {
  if (mount.root != "/") group = group.starts_with(mount.root) ? group.substr(mount.root.size()) : "";
  if (group.find("..") != std::string::npos) group.clear();
  std::vector<std::string> folders;
  while (!group.empty() && group != "/") {
    folders.push_back(root + mount.point + group);
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  folders.push_back(root + mount.point);
  return folders;
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc()) return std::nullopt;  // also "max"
  return value;
}

void lower_memory(CgroupLimits& limits, const std::string& path) {
  const std::optional<std::int64_t> bytes = number(read_or_empty(path));
  if (bytes && *bytes >= 0 && *bytes < kNoLimit) limits.memory = std::min(limits.memory.value_or(*bytes), *bytes);
}

void lower_cpu(CgroupLimits& limits, std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
  limits.cpu_cores = std::min(limits.cpu_cores.value_or(cores), cores);
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  const std::string table = read_or_empty(root + "/proc/self/cgroup");
  for (const Mount& mount : cgroup_mounts(root)) {
    if (mount.type == "cgroup2") {
      for (const std::string& folder : folders_up(root, mount, own_group(table, ""))) {
        lower_memory(limits, folder + "/memory.max");
        lower_memory(limits, folder + "/memory.high");  // above it the kernel stalls the process: as good as a limit
        std::istringstream cpu(read_or_empty(folder + "/cpu.max"));
        std::string quota;
        std::string period;
        cpu >> quota >> period;
        lower_cpu(limits, number(quota), number(period));
      }
      continue;
    }
    if (has_word(mount.options, "memory")) {
      for (const std::string& folder : folders_up(root, mount, own_group(table, "memory"))) {
        lower_memory(limits, folder + "/memory.limit_in_bytes");
      }
    }
    if (has_word(mount.options, "cpu")) {
      for (const std::string& folder : folders_up(root, mount, own_group(table, "cpu"))) {
        lower_cpu(limits, number(read_or_empty(folder + "/cpu.cfs_quota_us")),
                  number(read_or_empty(folder + "/cpu.cfs_period_us")));
      }
    }
  }
  return limits;
}

}  // namespace headrace
