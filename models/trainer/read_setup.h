// SPDX-License-Identifier: Apache-2.0
// From a config file and overrides to a TrainingSetup, with every key's table of the runtime, the model and the data.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/result.h"
#include "models/trainer/setup.h"

namespace headrace::models {

struct SetupRequest {
  std::string config_file;             // empty only with a preset: all keys at their defaults
  std::vector<std::string> overrides;  // key=value
  std::optional<std::string> preset;   // takes the place of headrace.model
  config::Purpose purpose = config::Purpose::kTrain;
  std::int32_t world_size = 1;
};
[[nodiscard]] Result<TrainingSetup> read_setup(const SetupRequest& request);
// The setup that a run was started with, from RunIdentity::config_text.
[[nodiscard]] Result<TrainingSetup> setup_of_run(const std::string& config_text, const std::string& run_dir);

}  // namespace headrace::models
