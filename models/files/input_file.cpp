// SPDX-License-Identifier: Apache-2.0
#include "models/files/input_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace headrace::models {

Result<File> open_input(const std::string& path) {
  if (!path_exists(path)) {
    std::error_code ignored;  // then the folder is not named
    const std::filesystem::path folder = std::filesystem::current_path(ignored);
    const bool relative = std::filesystem::path(path).is_relative() && !folder.empty();
    return make_error(ErrorCode::kConfig, fmt::format("{}: there is no such file", path),
                      relative
                          ? fmt::format("a relative path begins where headrace was started, in {}", folder.string())
                          : std::string("check the path"));
  }
  if (is_folder(path)) return make_error(ErrorCode::kConfig, fmt::format("{} is a directory, not a file", path));
  return File::open_read(path);
}

}  // namespace headrace::models
