// SPDX-License-Identifier: Apache-2.0
// What a training job is, once its configuration has been read and its model and data found: shared by `train` and
// `plan`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/result.h"
#include "models/data/token_data.h"
#include "models/model.h"
#include "runtime/config/read_config.h"
#include "runtime/engine/engine.h"
#include "runtime/plan/plan.h"

namespace headrace::models {

struct TrainingSetup {
  config::LoadedConfig config;
  ModelConfig model;
  std::string model_folder;  // weights come from this HF folder; empty = fresh from the seed
  TokenDataOptions train_data;
  std::optional<TokenDataOptions> validation_data;
};

// Threads that compute: the setting, else the cores this process may use.
[[nodiscard]] int resolve_threads(const config::RunConfig& run);
// The plan's question for this job. `tile_elements` > 0 is the geometry of an existing volume. program_bytes is what
// this process holds now and what it will hold beside the plan's slabs, so call it late.
[[nodiscard]] Result<runtime::PlanInput> make_plan_input(const TrainingSetup& setup, const runtime::ModelInfo& model,
                                                         std::int64_t tile_elements, Bytes scratch_bytes);
// kDoesNotFit when the plan wants more on NVMe than memory.nvme allows.
[[nodiscard]] Result<void> check_nvme_budget(const runtime::Plan& plan, const config::RunConfig& run);
[[nodiscard]] runtime::EngineOptions make_engine_options(const TrainingSetup& setup, const std::string& run_id);
[[nodiscard]] std::vector<std::string> nvme_paths_of(const config::RunConfig& run);  // distinct, in order

}  // namespace headrace::models
