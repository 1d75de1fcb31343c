// SPDX-License-Identifier: Apache-2.0
// Opening a file that the user named as input: model, shard, text. That it is missing or a folder is a fault of the
// configuration (exit 3), not of the storage.
#pragma once

#include <string>

#include "core/file.h"
#include "core/result.h"

namespace headrace::models {

// kConfig when nothing is there or a folder is; kIo when the system refuses to open it.
[[nodiscard]] Result<File> open_input(const std::string& path);

}  // namespace headrace::models
