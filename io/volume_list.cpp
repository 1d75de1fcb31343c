// SPDX-License-Identifier: Apache-2.0
// What lies under a path: looks into volume files that belong to anybody, without their locks.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "core/file.h"
#include "io/block_device.h"
#include "io/volume_impl.h"

namespace headrace::io {
namespace {

constexpr std::string_view kPrefix = "headrace-";
constexpr std::string_view kSuffix = ".volume";

// A shared lock that is let go at once: whoever takes the volume at that instant asks again.
bool is_locked(int fd) {
  if (::flock(fd, LOCK_SH | LOCK_NB) == 0) {
    ::flock(fd, LOCK_UN);
    return false;
  }
  return errno == EWOULDBLOCK;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Without a superblock nobody knows what the file holds. It counts as committed, unless the copy of the superblock was
// never written: that is flushed before the first record.
bool may_hold_record(int fd) {
  std::vector<std::byte> area(static_cast<std::size_t>(kMinAlignment));
  for (const std::int64_t offset : {kSuperblockAreaBytes, kRecordsOffset}) {
    const int status = read_fully(fd, area, offset);
    if (status == ENODATA) return false;  // too short for a record: the preallocation never ended
    if (status != 0 || !all_zero(area)) return true;
  }
  return false;
}

bool has_record(int fd, const Superblock& superblock) {
  const auto layout =
      VolumeLayout::make(superblock.geometry, superblock.num_volumes, superblock.alignment, superblock.shares);
  if (!layout.ok()) return true;
  std::vector<std::byte> area(static_cast<std::size_t>(layout->record_extent_bytes()));
  for (const std::uint64_t place : {std::uint64_t{0}, std::uint64_t{1}}) {
    const int status = read_fully(fd, area, layout->record_offset(place));
    if (status != 0 && status != ENODATA) return true;
    if (status == 0 && decode_record(area, superblock.run_hash()).ok()) return true;
  }
  return false;
}

}  // namespace

Result<VolumeInfo> inspect_volume(const std::string& path, const std::string& run_id) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) {
    return make_error(ErrorCode::kIo, fmt::format("looking into {}: {}", path, errno_text(errno)));
  }
  const bool is_device = S_ISBLK(status.st_mode);
  VolumeInfo info{path, is_device ? "" : run_id, status.st_blocks * 512, false, is_locked(file.get())};
  std::vector<std::byte> area(static_cast<std::size_t>(kSuperblockAreaBytes));
  for (const std::int64_t offset : {std::int64_t{0}, kSuperblockAreaBytes}) {
    if (read_fully(file.get(), area, offset) != 0) continue;
    if (auto superblock = decode_superblock(area); superblock.ok()) {
      info.run_id = superblock->run_id;
      if (is_device) info.bytes = superblock->file_bytes;
      info.has_record = has_record(file.get(), *superblock);
      return info;
    }
  }
  info.has_record = !is_device && may_hold_record(file.get());
  return info;
}

Result<std::vector<VolumeInfo>> list_volumes(const std::string& path) {
  if (is_block_device(path)) {
    HEADRACE_TRY(VolumeInfo info, inspect_volume(path, ""));
    if (info.run_id.empty()) return std::vector<VolumeInfo>{};
    return std::vector<VolumeInfo>{std::move(info)};
  }
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) && name.size() > kPrefix.size() + kSuffix.size())
      names.push_back(std::move(name));
  }
  if (error) return make_error(ErrorCode::kIo, fmt::format("listing {}: {}", path, error.message()));
  std::sort(names.begin(), names.end());
  std::vector<VolumeInfo> volumes;
  for (const std::string& name : names) {
    const std::string run_id = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    auto info = inspect_volume(join_path(path, name), run_id);
    if (info.ok()) {
      volumes.push_back(std::move(*info));
    } else if (path_exists(join_path(path, name))) {  // gone meanwhile is no error
      return std::move(info).error();
    }
  }
  return volumes;
}

Result<std::vector<std::string>> folders_among(const std::vector<std::string>& paths) {
  std::vector<std::string> folders;
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(folders),
               [](const std::string& path) { return !is_block_device(path); });
  if (!folders.empty() || paths.empty()) return folders;
  return make_error(
      ErrorCode::kPreflight,
      fmt::format("gradients or activations do not fit into memory and are spilled, and {} holds the state already",
                  paths.front()),
      "add a folder to nvme_path, or give more memory: headrace.memory.host");
}

Result<void> remove_volumes(const std::vector<std::string>& paths, const std::string& run_id) {
  HEADRACE_RETURN_IF_ERROR(validate_run_id(run_id));
  // All locks first, so that a set in use stays whole.
  std::vector<UniqueFd> held;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    const std::string file = volume_path(path, run_id);
    if (!path_exists(file)) continue;
    if (is_block_device(file)) {  // it may hold another run, or none
      HEADRACE_TRY(const VolumeInfo info, inspect_volume(file, run_id));
      if (info.run_id != run_id) continue;
    }
    HEADRACE_TRY(UniqueFd fd, open_volume_file(file, std::chrono::milliseconds(200)));
    held.push_back(std::move(fd));
    files.push_back(file);
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto superblock =
        is_block_device(files[i]) ? read_superblock(held[i].get(), files[i]) : Result<Superblock>(Superblock{});
    const Bytes extent =
        superblock.ok() ? round_up(kRecordHeaderBytes + superblock->geometry.record_payload_bytes, kMaxAlignment) : 0;
    HEADRACE_RETURN_IF_ERROR(remove_volume(held[i].get(), files[i], kRecordsOffset + 2 * extent));
  }
  return {};
}

}  // namespace headrace::io
