// SPDX-License-Identifier: Apache-2.0
// Internal to models/files: strict reading of the small JSON files of a Hugging Face folder. Equal keys are an error,
// where the library alone would silently keep the last one.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/result.h"

namespace headrace::models {

// An object at the top, standard JSON, no duplicate keys. kConfig error with file, line and column otherwise.
[[nodiscard]] Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& path);
// The same from a file of at most 256 MiB.
[[nodiscard]] Result<nlohmann::json> read_json_object(const std::string& path);

}  // namespace headrace::models
