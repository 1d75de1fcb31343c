// SPDX-License-Identifier: Apache-2.0
// The weights of a run as a Hugging Face folder, streamed out of their store tile by tile.
#pragma once

#include <string>

#include "core/result.h"
#include "models/model.h"
#include "runtime/engine/state_reader.h"

namespace headrace::models {

// `folder` must be missing or empty. Memory: one tile and one piece of the export.
[[nodiscard]] Result<void> export_weights_to(const std::string& folder, const ModelConfig& config,
                                             const runtime::ModelInfo& model, DType dtype,
                                             runtime::WeightsReader& reader);

}  // namespace headrace::models
