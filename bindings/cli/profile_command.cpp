// SPDX-License-Identifier: Apache-2.0
// `headrace profile`: measures disks, memory and cores of this machine and says what they mean for training.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>

#include "bindings/cli/command.h"
#include "bindings/cli/profile_text.h"
#include "core/file.h"
#include "core/topology.h"
#include "runtime/config/suggest.h"

namespace headrace::cli {
namespace {

using profile::Progress;

struct ProfileArguments {
  std::vector<std::string> paths;
  std::vector<std::string> only;
  bool quick = false;
  bool no_fio = false;
  std::string max_write = "8GiB";
  std::string output;
  std::string html;
};

struct Parts {
  bool storage = false, memory = false, compute = false, optimizer = false;
};

Result<Parts> parts_of(const ProfileArguments& arguments) {
  static const std::vector<std::string> kNames{"storage", "memory", "compute", "optimizer", "collective"};
  if (arguments.only.empty()) return Parts{true, true, true, true};
  Parts parts;
  for (const std::string& name : arguments.only) {
    if (name == "storage") {
      parts.storage = true;
    } else if (name == "memory") {
      parts.memory = true;
    } else if (name == "compute") {
      parts.compute = true;
    } else if (name == "optimizer") {
      parts.optimizer = true;
    } else if (name == "collective") {
      return make_error(ErrorCode::kUsage,
                        "headrace: --only collective: collectives are measured between several ranks, and this version "
                        "runs one",
                        "leave it out: --only storage,memory,compute,optimizer");
    } else {
      const std::string near = config::nearest(name, kNames);
      return make_error(ErrorCode::kUsage,
                        fmt::format("headrace: --only {}: there is no such part{}", name,
                                    near.empty() ? "" : "; did you mean \"" + near + "\"?"),
                        "the parts are storage, memory, compute, optimizer");
    }
  }
  return parts;
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) > 0 ? text : "";
}

struct Seconds {
  double memory, compute, optimizer;
};
constexpr Seconds kQuick{1.0, 1.2, 1.5}, kFull{4, 6, 6};
constexpr double kQuickMost = 17;  // seconds of all parts: on a busy machine the later ones get what is left

Result<profile::Report> measure(const ProfileArguments& arguments, const Parts& parts) {
  profile::StorageOptions options;
  options.quick = arguments.quick;
  options.with_fio = !arguments.no_fio;
  HEADRACE_TRY(options.max_write, size_option("--max-write", arguments.max_write));
  const Seconds seconds = arguments.quick ? kQuick : kFull;
  double planned = (parts.memory ? seconds.memory : 0) + (parts.compute ? seconds.compute : 0) +
                   (parts.optimizer ? seconds.optimizer : 0);
  if (parts.storage) {
    const bool has_fio = options.with_fio && profile::find_fio().has_value();
    planned += profile::planned_storage_seconds(options, arguments.paths.size(), has_fio);
  }
  Progress progress(progress_line(), planned);
  const auto start = std::chrono::steady_clock::now();
  const Topology topology = detect_topology();
  profile::Report report;
  report.cpu_model = topology.cpu_model;
  report.cores = topology.usable_cores;
  report.memory_bytes = topology.effective_memory_limit;
  report.program_version = version_text().substr(0, version_text().find(" ("));
  report.date = now_text();
  report.quick = arguments.quick;
  if (parts.storage) {
    HEADRACE_TRY(report.storage, profile::measure_storage(arguments.paths, options, progress));
  }
  double ahead = seconds.memory + seconds.compute + seconds.optimizer;
  const auto fitting = [&](double wanted) {
    const double left = kQuickMost - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double share = arguments.quick ? std::clamp(left / ahead, 0.2, 1.0) : 1.0;
    ahead -= wanted;
    return wanted * share;
  };
  if (parts.memory) {
    HEADRACE_TRY(report.memory, profile::measure_memory(fitting(seconds.memory), progress));
  }
  if (parts.compute) {
    HEADRACE_TRY(report.compute, profile::measure_compute(fitting(seconds.compute), progress));
  }
  if (parts.optimizer) {
    HEADRACE_TRY(report.optimizer, profile::measure_optimizer(fitting(seconds.optimizer), progress));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

// Before anything is measured: what cannot be written at the end is known now.
Result<void> check_outputs(const ProfileArguments& arguments) {
  for (const std::string& file : {arguments.output, arguments.html}) {
    if (file.empty()) continue;
    const std::string folder = parent_folder(file);
    if (is_folder(file) || !is_folder(folder) || ::access(folder.c_str(), W_OK) != 0)
      return make_error(ErrorCode::kUsage, fmt::format("headrace: {} cannot be written", file),
                        fmt::format("{} must be a folder in which this user may write", folder));
  }
  return {};
}

Result<int> profile_machine(const ProfileArguments& arguments, bool json) {
  HEADRACE_TRY(const Parts parts, parts_of(arguments));
  if (parts.storage && arguments.paths.empty())
    return make_error(ErrorCode::kUsage, "headrace profile needs a folder on the disk to measure",
                      "headrace profile ./scratch; without a disk: --only memory,compute,optimizer");
  if (!parts.storage && !arguments.paths.empty())
    return make_error(ErrorCode::kUsage, "headrace: paths were given, but --only leaves storage out",
                      "add storage to --only, or leave the paths out");
  HEADRACE_RETURN_IF_ERROR(check_outputs(arguments));
  const Result<profile::Report> report = measure(arguments, parts);
  clear_progress_line();
  if (!report.ok()) return report.error();
  if (json) {
    print(profile::report_json(*report) + "\n");
  } else {
    print(profile_text(*report));
  }
  if (!arguments.output.empty()) {
    HEADRACE_RETURN_IF_ERROR(write_file_atomically(arguments.output, profile::hardware_json(*report) + "\n"));
    const bool complete = parts.storage && parts.memory && parts.compute && parts.optimizer;
    print_error(fmt::format("{} written: headrace plan CONFIG --hardware {}{}\n", arguments.output, arguments.output,
                            complete ? "" : " (it has only what was measured; a plan asks for what it lacks)"));
  }
  if (!arguments.html.empty()) {
    HEADRACE_RETURN_IF_ERROR(write_file_atomically(arguments.html, profile::report_html(*report)));
    print_error(arguments.html + " written\n");
  }
  return 0;
}

}  // namespace

void add_profile(Program& program) {
  CLI::App* const command =
      program.app->add_subcommand("profile", "Measure disks, memory and cores, and say what they mean for training");
  auto arguments = std::make_shared<ProfileArguments>();
  command->add_option("paths", arguments->paths, "Folders on the disks to measure, together and each alone");
  command->add_flag("--quick", arguments->quick, "Under 20 seconds; spreads are wider");
  command->add_option("--only", arguments->only, "Of storage, memory, compute, optimizer")->delimiter(',');
  command->add_option("--max-write", arguments->max_write, "Most that is written to the disks (default 8GiB)");
  command->add_flag("--no-fio", arguments->no_fio, "Do not run fio beside, where it is installed");
  command->add_option("-o,--output", arguments->output, "Write the hardware file that `headrace plan` reads");
  command->add_option("--html", arguments->html, "Write a page with tables and plots");
  command->add_flag("--json", program.json, "One JSON document on standard output");
  command->callback([&program, arguments] {
    program.job = [&program, arguments] { return profile_machine(*arguments, program.json); };
  });
}

}  // namespace headrace::cli
