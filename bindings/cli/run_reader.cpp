// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/run_reader.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/file.h"
#include "models/trainer/read_setup.h"

namespace headrace::cli {

bool is_run_folder(const std::string& path) { return path_exists(join_path(path, "run.json")); }

Result<OpenRun> open_run(const std::string& run_dir) {
  if (!is_run_folder(run_dir))
    return make_error(ErrorCode::kPreflight, fmt::format("{} is no run folder: it has no run.json", run_dir),
                      "give the folder that headrace train printed (runs/NAME)");
  OpenRun run;
  HEADRACE_TRY(const models::RunFolder folder, models::RunFolder::open(run_dir));
  HEADRACE_TRY(std::optional<models::RunIdentity> identity, folder.identity());
  if (!identity.has_value()) return make_error(ErrorCode::kPreflight, fmt::format("{} has lost its run.json", run_dir));
  run.identity = std::move(*identity);
  if (!run.identity.durable)
    return make_error(ErrorCode::kPreflight,
                      fmt::format("run {} kept state in host memory: nothing of it is on disk", run.identity.run_id),
                      "its weights were exported to a folder beside run.json when it ended");
  HEADRACE_TRY(run.setup, models::setup_of_run(run.identity.config_text, run_dir));
  const config::RunConfig& config = run.setup.config.run;
  run.model = std::make_unique<models::Model>(run.setup.model, config.weights_dtype, config.batch.micro_batch_size,
                                              run.setup.train_data.sequence_length);
  HEADRACE_TRY(run.input, models::make_plan_input(run.setup, run.model->info(), run.identity.tile_elements, 0));
  runtime::EngineOptions options = models::make_engine_options(run.setup, run.identity.run_id);
  options.volume.read_only = true;  // also on a read-only mount, and beside other readers
  HEADRACE_TRY(run.store,
               runtime::NvmeStore::open(run.identity.nvme_paths, run.identity.run_id,
                                        runtime::ShardGeometry::of_state(run.input, config.slots), options.volume));
  return run;
}

}  // namespace headrace::cli
