// SPDX-License-Identifier: Apache-2.0
// What the field tables say, for people and tools: the settings page, a JSON Schema, and the text of `config explain`.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/result.h"
#include "runtime/config/field.h"

namespace headrace::config {

// Pass documented_tables() together with the tables of the layers above.
[[nodiscard]] std::string settings_markdown(std::span<const FieldTable* const> tables);
[[nodiscard]] std::string settings_schema(std::span<const FieldTable* const> tables);  // JSON Schema 2020-12
// One key, or all keys of a section; kUsage with the nearest key for an unknown one. `path` as in overrides.
[[nodiscard]] Result<std::string> explain(std::span<const FieldTable* const> tables, std::string_view path);

}  // namespace headrace::config
