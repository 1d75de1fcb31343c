// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/test_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <sstream>

#include "core/file.h"
#include "io/volume_file.h"

namespace headrace::profile {
namespace {

using io::errno_text;

// What stays free on a disk beside the test file: a full disk stops other programs, and is slower.
constexpr Bytes kReserve = 256 * kMiB;

Error refuse(std::string message, std::string hint) {
  return make_error(ErrorCode::kPreflight, std::move(message), std::move(hint));
}

// Where a block device is mounted, empty when it is not.
std::string mount_point_of(const std::string& device) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string source, target;
    if (words >> source >> target && source == device) return target;
  }
  return {};
}

Error not_a_folder(const std::string& path, mode_t mode) {
  if (S_ISBLK(mode)) {
    const std::string mounted = mount_point_of(path);
    if (!mounted.empty())
      return refuse(fmt::format("{} is a disk with a file system, mounted at {}", path, mounted),
                    fmt::format("profile makes a file of its own: headrace profile {}", mounted));
    return refuse(fmt::format("{} is a disk that is not mounted; profile measures in a file of its own", path),
                  "mount its file system and name the folder");
  }
  if (S_ISREG(mode))
    return refuse(fmt::format("{} is a file; profile never writes into files that are there", path),
                  fmt::format("name its folder: headrace profile {}", parent_folder(path)));
  return refuse(fmt::format("{} is neither a folder nor on a disk", path), "name a folder on the disk");
}

Error cannot_make(const std::string& path, int error_number) {
  if (error_number == EROFS)
    return refuse(fmt::format("{} is on a file system that is mounted read-only", path),
                  "name a folder on a disk that may be written");
  if (error_number == EACCES || error_number == EPERM)
    return refuse(fmt::format("user {} may not make a file in {}: {}", ::geteuid(), path, errno_text(error_number)),
                  fmt::format("name a folder of your own, or: chown {} {}", ::geteuid(), path));
  if (error_number == ENOSPC || error_number == EDQUOT)
    return refuse(fmt::format("{} has no room for another file: {}", path, errno_text(error_number)),
                  "free space there, or name a folder on another disk");
  return refuse(fmt::format("making a file in {}: {}", path, errno_text(error_number)), "name another folder");
}

Result<struct stat> look_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    const int error_number = errno;
    if (error_number == ENOENT)
      return refuse(fmt::format("{} does not exist", path), fmt::format("make it first: mkdir -p {}", path));
    return refuse(fmt::format("looking at {}: {}", path, errno_text(error_number)), "name another folder");
  }
  if (!S_ISDIR(status.st_mode)) return not_a_folder(path, status.st_mode);
  struct statfs system {};
  if (::statfs(path.c_str(), &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC))
    return refuse(fmt::format("{} is on tmpfs: its files lie in memory, there is no disk to measure", path),
                  "name a folder on a disk; --only memory measures the memory");
  return status;
}

Result<io::UniqueFd> open_nameless(const std::string& path) {
  io::UniqueFd fd(::open(path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return cannot_make(path, errno);
  // A file system without nameless files: the name is there for an instant.
  std::string name = join_path(path, ".headrace-profile-XXXXXX");
  fd = io::UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd.valid()) return cannot_make(path, errno);
  if (::unlink(name.c_str()) != 0) return cannot_make(path, errno);
  return fd;
}

Result<void> check_space(const std::vector<TestFile>& files, Bytes bytes_each) {
  std::map<std::uint64_t, Bytes> wanted;
  for (const TestFile& file : files) wanted[file.device] += bytes_each;
  for (const TestFile& file : files) {
    HEADRACE_TRY(const Bytes free, free_bytes(file.path));
    const Bytes needed = wanted[file.device];
    if (needed + kReserve <= free) continue;
    return refuse(fmt::format("{} has too little space: the test files there need {} and {} are to stay free, {} are "
                              "free",
                              file.path, format_bytes(needed), format_bytes(kReserve), format_bytes(free)),
                  free > kReserve + 128 * kMiB
                      ? fmt::format("write less: --max-write {}MiB makes a smaller file", (free - kReserve) / kMiB / 2)
                      : std::string("free space there, or name a folder on another disk"));
  }
  return {};
}

// Real blocks, so that a full disk shows now and not while it is measured.
Result<void> reserve(const TestFile& file, Bytes bytes) {
  int status = 0;
  do {
    status = ::fallocate(file.fd.get(), 0, 0, bytes) == 0 ? 0 : errno;
  } while (status == EINTR);
  if (status == EOPNOTSUPP) status = ::posix_fallocate(file.fd.get(), 0, bytes);
  if (status == 0) return {};
  const auto free = free_bytes(file.path);
  return refuse(fmt::format("reserving {} in {}: {}; {} are free", format_bytes(bytes), file.path, errno_text(status),
                            free.ok() ? format_bytes(*free) : std::string("an unknown number of bytes")),
                status == EFBIG ? "raise the limit of file sizes: ulimit -f unlimited"
                                : "free space there, or name a folder on another disk");
}

}  // namespace

std::string name_for_others(const TestFile& file) { return fmt::format("/proc/{}/fd/{}", ::getpid(), file.fd.get()); }

Result<std::vector<TestFile>> make_test_files(const std::vector<std::string>& paths, Bytes bytes_each) {
  std::vector<TestFile> files;
  std::vector<std::uint64_t> inodes;
  for (const std::string& path : paths) {
    HEADRACE_TRY(const struct stat status, look_at(path));
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (files[i].device == status.st_dev && inodes[i] == status.st_ino)
        return refuse(fmt::format("{} and {} are the same folder", files[i].path, path), "name each folder once");
    }
    TestFile& file = files.emplace_back();
    file.path = path;
    file.device = status.st_dev;
    inodes.push_back(status.st_ino);
    HEADRACE_TRY(file.fd, open_nameless(path));
  }
  HEADRACE_RETURN_IF_ERROR(check_space(files, bytes_each));
  for (TestFile& file : files) {
    HEADRACE_RETURN_IF_ERROR(reserve(file, bytes_each));
    file.bytes = bytes_each;
    io::FolderProbe probe;
    io::probe_direct(file.fd.get(), 0, probe);
    file.direct = probe.direct && io::set_direct(file.fd.get(), true) == 0;
    file.why_buffered = probe.direct && !file.direct ? "direct I/O cannot be switched on" : probe.why_buffered;
    file.alignment = probe.alignment;
  }
  return files;
}

}  // namespace headrace::profile
