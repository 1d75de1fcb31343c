// SPDX-License-Identifier: Apache-2.0
// The files that storage is measured in: one below each path, without a name, so that nothing is left behind however
// the program ends. Checks the paths first; every fault has a message of its own.
#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "io/posix.h"

namespace headrace::profile {

struct TestFile {
  std::string path;  // as the user gave it
  io::UniqueFd fd;
  Bytes bytes = 0;  // of real blocks
  std::uint64_t device = 0;
  bool direct = false;       // direct I/O works there and is on
  std::string why_buffered;  // when not
  Bytes alignment = 0;       // of memory, offset and length
};

// kPreflight for a path that is missing, no folder, given twice, read-only, not writable, in memory, or too full for
// `bytes_each` and a reserve. Paths on one file system share its free space. Takes well below a second.
[[nodiscard]] Result<std::vector<TestFile>> make_test_files(const std::vector<std::string>& paths, Bytes bytes_each);

// "/proc/<pid>/fd/<n>": by this name another process can open the nameless file.
[[nodiscard]] std::string name_for_others(const TestFile& file);

}  // namespace headrace::profile
