// SPDX-License-Identifier: Apache-2.0
// A block device or partition that is used whole as one volume: whether it is free, what lies on it, and wiping what
// was ours. Control path. Internal to io.
#pragma once

#include <chrono>
#include <string>

#include "core/bytes.h"
#include "core/result.h"
#include "io/posix.h"

namespace headrace::io {

[[nodiscard]] bool is_block_device(const std::string& path) noexcept;
[[nodiscard]] Result<Bytes> device_bytes(int fd, const std::string& path);
[[nodiscard]] Bytes device_alignment(int fd) noexcept;  // its logical block, at least 512

// Opens for reading and writing with O_EXCL: the kernel refuses a device that is mounted, that another volume uses, or
// that has a mounted partition. kPreflight with what to do, after `deadline`.
[[nodiscard]] Result<UniqueFd> open_device(const std::string& path, std::chrono::milliseconds deadline);

// What lies on a device by its first and last MiB: "an ext4 file system", "a partition table", "data"; empty when there
// are only zeros.
[[nodiscard]] Result<std::string> content_of_device(int fd, const std::string& path);
// Writes zeros over the first `bytes` and the last MiB, superblocks last, and flushes.
[[nodiscard]] Result<void> wipe_device(int fd, const std::string& path, Bytes bytes);

}  // namespace headrace::io
