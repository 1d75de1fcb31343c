// SPDX-License-Identifier: Apache-2.0
// Opens the committed state of a run folder for reading: `generate` and `checkpoint` work on it without training.
#pragma once

#include <memory>
#include <string>

#include "core/result.h"
#include "models/model.h"
#include "models/trainer/run_folder.h"
#include "models/trainer/setup.h"
#include "runtime/store/nvme_store.h"

namespace headrace::cli {

// Holds the run's lock while it lives.
struct OpenRun {
  models::RunIdentity identity;
  models::TrainingSetup setup;
  std::unique_ptr<models::Model> model;
  runtime::PlanInput input;
  std::unique_ptr<runtime::NvmeStore> store;
};
// kPreflight for a folder without a run or a run whose state was in host memory.
[[nodiscard]] Result<OpenRun> open_run(const std::string& run_dir);
[[nodiscard]] bool is_run_folder(const std::string& path);

}  // namespace headrace::cli
