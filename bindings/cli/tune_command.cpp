// SPDX-License-Identifier: Apache-2.0
// `headrace tune`: finds the I/O setting with which a job's bytes cross its disks soonest, and prints it as config.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "bindings/cli/command.h"
#include "bindings/cli/profile_text.h"
#include "core/json.h"
#include "kernels/cpu/parallel.h"
#include "models/trainer/read_setup.h"
#include "runtime/plan/compile.h"
#include "runtime/profile/tune.h"

namespace headrace::cli {
namespace {

struct TuneArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string max_write = "8GiB";
  bool quick = false;
};

const char* choice_name(io::IoBackendChoice choice) {
  switch (choice) {
    case io::IoBackendChoice::kAuto: return "auto";
    case io::IoBackendChoice::kUring: return "io_uring";
    case io::IoBackendChoice::kLibaio: return "libaio";
    case io::IoBackendChoice::kThreads: return "threads";
  }
  return "auto";
}

profile::TransferSetting present_setting(const config::IoConfig& io, std::size_t paths) {
  profile::TransferSetting setting = profile::default_setting(paths);
  setting.block_bytes = io.block_bytes.value_or(setting.block_bytes);
  setting.in_flight_bytes = io.in_flight_bytes.value_or(setting.in_flight_bytes);
  setting.threads = static_cast<int>(io.threads.value_or(setting.threads));
  if (!io.backend.is_auto()) {
    setting.backend = io.backend.value() == config::IoBackendKind::kUring    ? io::IoBackendChoice::kUring
                      : io.backend.value() == config::IoBackendKind::kLibaio ? io::IoBackendChoice::kLibaio
                                                                             : io::IoBackendChoice::kThreads;
  }
  return setting;
}

Result<profile::TuneJob> make_tune_job(const TuneArguments& arguments) {
  models::SetupRequest request;
  request.config_file = arguments.config;
  request.overrides = arguments.overrides;
  request.purpose = config::Purpose::kPlan;
  HEADRACE_TRY(const models::TrainingSetup setup, models::read_setup(request));
  const config::RunConfig& run = setup.config.run;
  profile::TuneJob job;
  job.paths = models::nvme_paths_of(run);
  if (job.paths.empty())
    return make_error(
        ErrorCode::kConfig, fmt::format("{} keeps nothing on NVMe: there is no I/O to tune", arguments.config),
        "zero_optimization.offload_param and offload_optimizer with \"device\": \"nvme\" move state there");
  const models::Model model(setup.model, run.weights_dtype, run.batch.micro_batch_size,
                            setup.train_data.sequence_length);
  const Bytes scratch = static_cast<Bytes>(models::resolve_threads(run)) * kernels::Parallel::kScratchBytes;
  HEADRACE_TRY(const runtime::PlanInput input, models::make_plan_input(setup, model.info(), 0, scratch));
  HEADRACE_TRY(const runtime::Plan plan, runtime::compile_plan(input));
  job.read_bytes = static_cast<double>(plan.read_bytes_per_step);
  job.write_bytes = static_cast<double>(plan.write_bytes_per_step);
  job.present = present_setting(run.io, job.paths.size());
  job.equal_stripes = run.io.striping == config::IoStriping::kEqual;
  job.quick = arguments.quick;
  HEADRACE_TRY(job.max_write, size_option("--max-write", arguments.max_write));
  return job;
}

std::string size_text(Bytes bytes) {
  return bytes % kMiB == 0 ? fmt::format("{}MiB", bytes / kMiB) : fmt::format("{}KiB", bytes / kKiB);
}

// What to put into the config for a setting that is not the present one.
std::string io_text(const profile::TransferSetting& setting, const profile::TransferSetting& present) {
  JsonObject io;
  if (setting.shares.empty() != present.shares.empty())
    io.add("striping", setting.shares.empty() ? "equal" : "measured");
  if (setting.threads != io::kIoThreads) io.add("threads", setting.threads);
  if (setting.backend != io::IoBackendChoice::kAuto) io.add("backend", choice_name(setting.backend));
  io.add("block_bytes", size_text(setting.block_bytes)).add("in_flight_bytes", size_text(setting.in_flight_bytes));
  return io.text();
}

std::string backend_text(const profile::TuneCandidate& candidate) {
  std::string text = candidate.backend;
  if (candidate.backend == "threads") text = fmt::format("{} threads", candidate.setting.threads);
  if (!candidate.setting.shares.empty()) text += fmt::format(", shares {}", fmt::join(candidate.setting.shares, ":"));
  return text;
}

std::string tune_text(const profile::TuneReport& report, const profile::TuneJob& job) {
  std::vector<std::vector<std::string>> rows{
      {"", "backend", "step on disk", "read", "write", "both at once", "buffers", "CPU per GB"}};
  for (std::size_t i = 0; i < report.candidates.size(); ++i) {
    const profile::TuneCandidate& candidate = report.candidates[i];
    const std::string mark = i == report.chosen ? "→ " : "  ";
    rows.push_back({mark + setting_text(candidate.setting) + (i == 0 ? " (present)" : ""), backend_text(candidate),
                    fmt::format("{:.3g} s", candidate.median_seconds()), format_rate(candidate.read_bytes_per_s),
                    format_rate(candidate.write_bytes_per_s), format_rate(candidate.mixed_bytes_per_s),
                    format_bytes(candidate.memory_bytes),
                    fmt::format("{:.2f} s", candidate.cpu_seconds_per_byte * 1e9)});
  }
  std::string text =
      fmt::format("{}: each step reads {} and writes {}\n\n", profile::joined(job.paths),
                  format_bytes(static_cast<Bytes>(job.read_bytes)), format_bytes(static_cast<Bytes>(job.write_bytes)));
  text += format_table(rows) + "\n";
  for (const std::string& reason : report.refused) text += "not compared: " + reason + "\n";
  if (report.chosen == 0) {
    text += fmt::format("keep the present setting: none of {} others was better by more than 3 %\n", report.tried);
  } else {
    const double present = report.candidates[0].median_seconds();
    const double chosen = report.candidates[report.chosen].median_seconds();
    text += fmt::format("{:.0f} % less time on the disk. Put this under \"headrace\":\n\n  \"io\": {}\n",
                        100 * (1 - chosen / present),
                        io_text(report.candidates[report.chosen].setting, report.candidates[0].setting));
  }
  return text + fmt::format("\n{} written to test files that are gone again, {} read through checksums; {:.0f} s\n",
                            format_bytes(report.written_bytes), format_bytes(report.verified_bytes), report.seconds);
}

std::string tune_json(const profile::TuneReport& report, const profile::TuneJob& job) {
  JsonArray candidates;
  for (const profile::TuneCandidate& candidate : report.candidates) {
    JsonObject object;
    object.add("block_bytes", candidate.setting.block_bytes).add("in_flight_bytes", candidate.setting.in_flight_bytes);
    object.add("backend", choice_name(candidate.setting.backend)).add("backend_in_use", candidate.backend);
    if (candidate.backend == "threads") object.add("threads", candidate.setting.threads);
    JsonArray shares;
    for (const std::uint32_t share : candidate.setting.shares) shares.add(share);
    object.add_raw("shares", shares.text());
    object.add("step_seconds", candidate.median_seconds());
    JsonArray samples;
    for (const double seconds : candidate.step_seconds) samples.add(seconds);
    object.add_raw("samples", samples.text());
    object.add("read_bw_bytes", candidate.read_bytes_per_s).add("write_bw_bytes", candidate.write_bytes_per_s);
    object.add("mixed_bw_bytes", candidate.mixed_bytes_per_s).add("memory_bytes", candidate.memory_bytes);
    object.add("cpu_seconds_per_byte", candidate.cpu_seconds_per_byte);
    candidates.add_raw(object.text());
  }
  JsonArray refused;
  for (const std::string& reason : report.refused) refused.add(reason);
  JsonObject document;
  document.add("path", profile::joined(job.paths));
  document.add("nvme_read_bytes_per_step", job.read_bytes).add("nvme_write_bytes_per_step", job.write_bytes);
  document.add_raw("candidates", candidates.text()).add("chosen", report.chosen);
  document.add("keep_present", report.chosen == 0);
  if (report.chosen == 0) {
    document.add_raw("config", "{}");
  } else {
    JsonObject io;
    io.add_raw("io", io_text(report.candidates[report.chosen].setting, report.candidates[0].setting));
    document.add_raw("config", JsonObject().add_raw("headrace", io.text()).text());
  }
  document.add_raw("refused", refused.text());
  document.add("written_bytes", report.written_bytes).add("verified_bytes", report.verified_bytes);
  document.add("seconds", report.seconds);
  return document.text();
}

Result<int> tune(const TuneArguments& arguments, bool json) {
  HEADRACE_TRY(const profile::TuneJob job, make_tune_job(arguments));
  profile::Progress progress(progress_line(), profile::planned_tune_seconds(job));
  const Result<profile::TuneReport> report = profile::tune_io(job, progress);
  clear_progress_line();
  if (!report.ok()) return report.error();
  print(json ? tune_json(*report, job) + "\n" : tune_text(*report, job));
  return 0;
}

}  // namespace

void add_tune(Program& program) {
  CLI::App* const command = program.app->add_subcommand(
      "tune", "Find the I/O setting that moves a job's bytes soonest; never one worse than the present");
  auto arguments = std::make_shared<TuneArguments>();
  command->add_option("config", arguments->config, "JSON config file")->required();
  command->add_option("overrides", arguments->overrides, "key=value: sets a key of the config");
  command->add_option("--max-write", arguments->max_write, "Most that is written to the disks (default 8GiB)");
  command->add_flag("--quick", arguments->quick, "Shorter samples: a hint where a minute is too long");
  command->add_flag("--json", program.json, "One JSON document on standard output");
  command->callback(
      [&program, arguments] { program.job = [&program, arguments] { return tune(*arguments, program.json); }; });
}

}  // namespace headrace::cli
