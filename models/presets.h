// SPDX-License-Identifier: Apache-2.0
// Named model shapes for `"model": {"preset": NAME}` and `headrace plan --preset NAME`. A preset states its own
// vocabulary; whoever knows the tokenizer replaces it unless the user has set one.
#pragma once

#include <span>
#include <string_view>

#include "core/result.h"
#include "models/model.h"

namespace headrace::models {

struct Preset {
  std::string_view name;
  std::string_view origin;  // where the shape comes from
  ModelConfig config;
};

[[nodiscard]] std::span<const Preset> presets();
[[nodiscard]] Result<ModelConfig> preset(std::string_view name);  // kConfig with the known names when there is none

}  // namespace headrace::models
