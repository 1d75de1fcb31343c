// SPDX-License-Identifier: Apache-2.0
// One volume file on disk: the checks of its folder, its lock, its blocks, and whether direct I/O works there. Control
// path; the bytes of tiles move through the Queue. Internal to io.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "io/layout.h"
#include "io/posix.h"

namespace headrace::io {

// A block device is its own volume.
[[nodiscard]] std::string volume_path(const std::string& folder, const std::string& run_id);

// A folder of volumes and what its file system does, or a block device.
struct FolderProbe {
  bool is_device = false;
  Bytes device_bytes = 0;    // of a device
  std::uint64_t device = 0;  // files with equal numbers share their free space
  std::uint64_t inode = 0;
  bool direct = false;              // direct I/O works and bypasses the page cache
  std::string why_buffered;         // when not
  Bytes alignment = kMinAlignment;  // power of two that memory, offset and length of direct I/O need, at least 4096
};
// kPreflight when none is given, one is missing or no folder, or two are the same.
[[nodiscard]] Result<std::vector<FolderProbe>> identify_folders(const std::vector<std::string>& folders);
// Tries direct I/O with one block (written and read back) at `offset` of an open file, which is left buffered.
void probe_direct(int fd, std::int64_t offset, FolderProbe& probe);
// Makes a nameless file in the folder, writes and reads it; opens and closes a device. kPreflight with path, user and
// the system's word.
[[nodiscard]] Result<void> probe_writing(const std::string& folder, FolderProbe& probe);
// As probe_direct, by reading alone.
void probe_direct_reading(int fd, std::int64_t offset, FolderProbe& probe);

// A file without a name, gone when it is closed.
[[nodiscard]] Result<UniqueFd> make_nameless_file(const std::string& folder);
// Turns direct I/O on or off for an open file; errno or 0.
[[nodiscard]] int set_direct(int fd, bool direct) noexcept;

// Locks an open file for this open file description. kPreflight when another holder keeps it until the deadline; one
// line of text says that it waits.
[[nodiscard]] Result<void> lock_file(int fd, const std::string& path, std::chrono::milliseconds deadline,
                                     bool shared = false);

// Makes `path` with `bytes` real blocks, locked and without direct I/O; the file is removed again on failure. A device
// is cleared up to `records_end`, so that no record of an earlier run is left.
[[nodiscard]] Result<UniqueFd> make_volume_file(const std::string& path, Bytes bytes, Bytes records_end);
// Opens and locks an existing volume for reading and writing.
[[nodiscard]] Result<UniqueFd> open_volume_file(const std::string& path, std::chrono::milliseconds lock_deadline);
// For reading alone, which also works on a read-only mount; the lock is shared with other readers.
[[nodiscard]] Result<UniqueFd> open_volume_for_reading(const std::string& path,
                                                       std::chrono::milliseconds lock_deadline);
// Removes the file; a device is cleared up to `records_end` instead. The caller holds its lock.
[[nodiscard]] Result<void> remove_volume(int fd, const std::string& path, Bytes records_end);

// Writes both superblocks through the page cache and out of it, one after the other: while the copy is not there, no
// record is.
[[nodiscard]] Result<void> write_superblocks(int fd, const std::string& path, const Superblock& superblock);
// The superblock or its copy (said in a line of text); kIo when both are damaged or the file is not as long as it says.
[[nodiscard]] Result<Superblock> read_superblock(int fd, const std::string& path);

}  // namespace headrace::io
