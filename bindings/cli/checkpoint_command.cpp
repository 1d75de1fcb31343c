// SPDX-License-Identifier: Apache-2.0
// `headrace checkpoint`: what runs a path or a run folder holds, whether their bytes are sound, export, and removal.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "bindings/cli/command.h"
#include "bindings/cli/run_reader.h"
#include "core/file.h"
#include "core/json.h"
#include "io/volume_set.h"
#include "models/trainer/export_weights.h"
#include "runtime/engine/state_reader.h"

namespace headrace::cli {
namespace {

// Why a run whose state is on NVMe cannot be resumed; empty when its volumes are there and one holds a committed step.
std::string obstacle_of(const models::RunIdentity& identity) {
  bool committed = false;
  for (const std::string& path : identity.nvme_paths) {
    const auto volumes = io::list_volumes(path);
    if (!volumes.ok()) return volumes.error().message;
    const auto ours = std::find_if(volumes->begin(), volumes->end(),
                                   [&](const io::VolumeInfo& volume) { return volume.run_id == identity.run_id; });
    if (ours == volumes->end()) return fmt::format("its volume in {} is gone", path);
    committed = committed || ours->has_record;
  }
  return committed ? "" : "it has committed no step";
}

Result<int> list(const std::string& path) {
  std::vector<std::string> paths{path};
  if (is_run_folder(path)) {
    HEADRACE_TRY(const models::RunFolder folder, models::RunFolder::open(path));
    HEADRACE_TRY(const auto identity, folder.identity());
    paths = identity->nvme_paths;
    const std::string obstacle = identity->durable ? obstacle_of(*identity) : "its state was in host memory";
    print(
        fmt::format("run {} · {}\n", identity->run_id, obstacle.empty() ? "resumable" : "not resumable: " + obstacle));
    std::erase_if(paths, [](const std::string& each) { return !path_exists(each); });  // said above
  }
  std::vector<std::vector<std::string>> rows{{"run", "bytes", "committed", "in use", "file"}};
  for (const std::string& each : paths) {
    HEADRACE_TRY(const auto volumes, io::list_volumes(each));
    for (const io::VolumeInfo& volume : volumes)
      rows.push_back({volume.run_id, format_bytes(volume.bytes), volume.has_record ? "yes" : "no",
                      volume.locked ? "yes" : "no", volume.file});
  }
  print(rows.size() > 1 ? format_table(rows) : fmt::format("no volume of headrace in {}\n", path));
  return 0;
}

// Reads every tile of the current state through its checksum; a line for each that is not sound.
std::int64_t print_damage(OpenRun& run, std::uint64_t version) {
  std::int64_t damaged = 0;
  for (const runtime::ShardGeometry::Stream& stream : run.store->geometry().streams()) {
    for (std::int64_t tile = 0; tile < stream.tiles; ++tile) {
      const auto sound = runtime::verify_tile(run.input, *run.store, {stream.unit, stream.stream, tile}, version);
      if (sound.ok()) continue;
      ++damaged;
      const std::string& unit = run.input.model.units[static_cast<std::size_t>(stream.unit)].name;
      print(fmt::format("unit {} \"{}\", {} tile {}: {}\n", stream.unit, unit,
                        stream.stream == runtime::StateStream::kWeights ? "weights" : "optimizer", tile,
                        sound.error().message));
    }
  }
  return damaged;
}

Result<int> verify(const std::string& run_dir) {
  HEADRACE_TRY(OpenRun run, open_run(run_dir));
  const std::uint64_t version = run.store->committed().state_version;
  const std::int64_t damaged = print_damage(run, version);
  if (damaged > 0)
    return make_error(ErrorCode::kIo,
                      fmt::format("run {} at step {}: {} damaged, every other tile is sound", run.identity.run_id,
                                  run.store->committed().step, count_text(damaged, "tile")),
                      "bytes on the disk changed since they were written; the run cannot go on from this state");
  // Every byte of the current state is read through its checksum; the digest is that of the logical values.
  HEADRACE_TRY(const std::uint64_t digest, runtime::state_digest([&](const runtime::StateVisitor& visit) {
                 return runtime::visit_state(run.input, *run.store, *run.store, version, visit);
               }));
  print(fmt::format("run {} at step {} ({}): every tile is sound · digest {:016x}\n", run.identity.run_id,
                    run.store->committed().step,
                    count_text(static_cast<std::int64_t>(run.store->committed().optimizer_step), "update"), digest));
  return 0;
}

Result<int> export_run(const std::string& run_dir, const std::string& out) {
  HEADRACE_TRY(OpenRun run, open_run(run_dir));
  runtime::WeightsReader reader(run.input, *run.store, run.store->committed().state_version);
  HEADRACE_RETURN_IF_ERROR(
      models::export_weights_to(out, run.setup.model, run.model->info(), run.input.weights_dtype, reader));
  print(fmt::format("step {} of run {} as {} in {}\n", run.store->committed().step, run.identity.run_id,
                    dtype_name(run.input.weights_dtype), out));
  return 0;
}

Result<int> prune(const std::string& run_dir, bool yes) {
  if (!is_run_folder(run_dir))
    return make_error(ErrorCode::kPreflight, fmt::format("{} is no run folder", run_dir),
                      "headrace checkpoint ls PATH lists the runs below a path");
  HEADRACE_TRY(models::RunFolder folder, models::RunFolder::open(run_dir));
  HEADRACE_RETURN_IF_ERROR(folder.lock(std::chrono::milliseconds(0)));
  HEADRACE_TRY(const auto identity, folder.identity());
  if (!yes)
    return make_error(
        ErrorCode::kUsage,
        fmt::format("this removes the state of run {}; it cannot be resumed afterwards", identity->run_id),
        "add --yes to do it");
  HEADRACE_RETURN_IF_ERROR(io::remove_volumes(identity->nvme_paths, identity->run_id));
  HEADRACE_RETURN_IF_ERROR(io::remove_volumes(identity->nvme_paths, identity->run_id + "-spill"));
  std::error_code status;
  std::filesystem::remove(join_path(folder.path(), "run.json"), status);
  if (status)
    return make_error(ErrorCode::kIo,
                      fmt::format("cannot remove {}: {}", join_path(folder.path(), "run.json"), status.message()));
  print(fmt::format("removed the volumes of run {}; {} keeps its metrics\n", identity->run_id, folder.path()));
  return 0;
}

}  // namespace

void add_checkpoint(Program& program) {
  CLI::App* const command =
      program.app->add_subcommand("checkpoint", "List, verify, export or remove the committed state of runs");
  command->require_subcommand(1);
  auto folder = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  auto yes = std::make_shared<bool>(false);

  CLI::App* const ls = command->add_subcommand("ls", "List the volumes below a path, or of a run folder");
  ls->add_option("path", *folder, "Path or run folder")->required();
  ls->callback([&program, folder] { program.job = [folder] { return list(*folder); }; });

  CLI::App* const verify_command =
      command->add_subcommand("verify", "Read all committed state through its checksums and print its digest");
  verify_command->add_option("run", *folder, "Run folder")->required();
  verify_command->callback([&program, folder] { program.job = [folder] { return verify(*folder); }; });

  CLI::App* const export_command =
      command->add_subcommand("export", "Write the weights as a Hugging Face folder, memory bounded by one tile");
  export_command->add_option("run", *folder, "Run folder")->required();
  export_command->add_option("out", *out, "Folder to make")->required();
  export_command->callback(
      [&program, folder, out] { program.job = [folder, out] { return export_run(*folder, *out); }; });

  CLI::App* const prune_command = command->add_subcommand("prune", "Remove the volumes of a run");
  prune_command->add_option("run", *folder, "Run folder")->required();
  prune_command->add_flag("--yes", *yes, "Really remove them");
  prune_command->callback([&program, folder, yes] { program.job = [folder, yes] { return prune(*folder, *yes); }; });
}

}  // namespace headrace::cli
