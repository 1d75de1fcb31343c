// SPDX-License-Identifier: Apache-2.0
#include "models/files/input_file.h"

#include <fmt/format.h>

namespace headrace::models {

Result<File> open_input(const std::string& path) {
  if (!path_exists(path)) return make_error(ErrorCode::kConfig, fmt::format("{}: there is no such file", path));
  if (is_folder(path)) return make_error(ErrorCode::kConfig, fmt::format("{} is a directory, not a file", path));
  return File::open_read(path);
}

}  // namespace headrace::models
