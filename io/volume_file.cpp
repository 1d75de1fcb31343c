// SPDX-License-Identifier: Apache-2.0
#include "io/volume_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "core/file.h"
#include "core/log.h"
#include "core/process.h"
#include "io/block_device.h"

namespace headrace::io {
namespace {

std::string fix_for(const std::string& folder, int error_number) {
  switch (error_number) {
    case ENOENT: return fmt::format("make it first: mkdir -p {}", folder);
    case EROFS:
      return "that file system is mounted read-only: remount it for writing, or name a folder on another disk";
    case ENOSPC:
    case EDQUOT: return "free space there, or name a folder on another disk";
    case EACCES:
    case EPERM: return fmt::format("name a folder of your own, or: chown {} {}", ::geteuid(), folder);
    default: return "name a folder on the fast disk in which this user may write";
  }
}

Error cannot_use(const std::string& folder, const char* attempt, int error_number) {
  return make_error(ErrorCode::kPreflight,
                    fmt::format("{} in {} as user {}: {}", attempt, folder, ::geteuid(), errno_text(error_number)),
                    fix_for(folder, error_number));
}

// Files there are memory that no budget counts.
bool lies_in_memory(const std::string& folder) {
  struct statfs system {};
  return ::statfs(folder.c_str(), &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

// What the kernel says that direct I/O needs, 0 when it says that there is none, kMinAlignment when it says nothing.
Bytes asked_alignment(int fd) {
  // Debian 12's <sys/stat.h> does not have these fields yet; their place is kernel ABI.
  constexpr unsigned kDirectIoAlign = 0x2000;  // STATX_DIOALIGN
  constexpr std::size_t kMemoryAlignAt = 0x98;
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, kDirectIoAlign, &status) != 0) return kMinAlignment;
  if ((status.stx_mask & kDirectIoAlign) == 0) return kMinAlignment;
  std::uint32_t alignments[2] = {};  // of memory, of offset and length
  static_assert(sizeof status >= kMemoryAlignAt + sizeof alignments);
  std::memcpy(alignments, reinterpret_cast<const char*>(&status) + kMemoryAlignAt, sizeof alignments);
  if (alignments[1] == 0) return 0;
  return std::max<Bytes>({kMinAlignment, alignments[0], alignments[1]});
}

// Whether the first page of a range lies in the page cache: where "direct" is accepted and ignored, it does.
bool is_cached(int fd, std::int64_t offset, Bytes bytes) {
  const auto length = static_cast<std::size_t>(bytes);
  void* map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, offset);
  if (map == MAP_FAILED) return false;
  unsigned char resident[kMaxAlignment / kMinAlignment] = {};
  const bool cached = ::mincore(map, length, resident) == 0 && (resident[0] & 1U) != 0;
  ::munmap(map, length);
  return cached;
}

// Empty when one direct block went to the disk and back.
std::string try_direct(int fd, std::int64_t offset, Bytes alignment) {
  if (alignment == 0 || set_direct(fd, true) != 0) return "its file system has no direct I/O";
  if (alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    return fmt::format("its direct I/O needs an alignment of {}", format_bytes(alignment));
  }
  const AlignedMemory block = allocate_aligned(alignment, alignment);
  if (block == nullptr) return "there was no memory to try direct I/O";
  const std::span<std::byte> bytes(block.get(), static_cast<std::size_t>(alignment));
  int status = write_fully(fd, bytes, offset);
  if (status == 0) status = read_fully(fd, bytes, offset);
  if (status != 0) return "direct I/O fails there: " + errno_text(status);
  if (is_cached(fd, offset, alignment))
    return "its file system accepts direct I/O but keeps the data in the page cache";
  return {};
}

Error damaged(const std::string& path, const std::string& what) {
  return make_error(ErrorCode::kIo, fmt::format("{}: {}", path, what),
                    "the volume cannot be used; start the run anew: --resume never");
}

// Whether the path still names the file that is open (another process may have removed it while we waited for its
// lock).
bool is_still_named(int fd, const std::string& path) {
  struct stat open_file {};
  struct stat named {};
  return ::fstat(fd, &open_file) == 0 && ::stat(path.c_str(), &named) == 0 && open_file.st_ino == named.st_ino &&
         open_file.st_dev == named.st_dev;
}

}  // namespace

std::string volume_path(const std::string& folder, const std::string& run_id) {
  if (is_block_device(folder)) return folder;
  return folder + (folder.ends_with('/') ? "" : "/") + "headrace-" + run_id + ".volume";
}

int set_direct(int fd, bool direct) noexcept {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return errno;
  return ::fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 ? 0 : errno;
}

Result<UniqueFd> make_nameless_file(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return cannot_use(folder, "making a file", errno);
  std::string name = folder + "/.headrace-probe-XXXXXX";
  file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return cannot_use(folder, "making a file", errno);
  if (::unlink(name.c_str()) != 0) return cannot_use(folder, "removing a file", errno);
  return file;
}

Result<std::vector<FolderProbe>> identify_folders(const std::vector<std::string>& folders) {
  if (folders.empty()) {
    return make_error(ErrorCode::kPreflight, "no path was given for the volumes", "name a folder on the fast disk");
  }
  std::vector<FolderProbe> probes;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    struct stat status {};
    constexpr const char* kAttempt = "looking for the nvme_path";
    if (::stat(folders[i].c_str(), &status) != 0) return cannot_use(folders[i], kAttempt, errno);
    const bool is_device = S_ISBLK(status.st_mode);
    if (!S_ISDIR(status.st_mode) && !is_device)
      return make_error(ErrorCode::kPreflight,
                        fmt::format("the nvme_path {} is {}, neither a folder nor a block device", folders[i],
                                    S_ISREG(status.st_mode) ? "a file" : "a special file"),
                        "name a folder on the fast disk");
    FolderProbe probe;
    probe.is_device = is_device;
    probe.device = is_device ? status.st_rdev : status.st_dev;
    probe.inode = is_device ? 0 : status.st_ino;
    for (std::size_t j = 0; j < i; ++j) {
      if (probes[j].device == probe.device && probes[j].inode == probe.inode) {
        return make_error(ErrorCode::kPreflight, fmt::format("{} and {} are the same folder", folders[j], folders[i]),
                          "name each folder once");
      }
    }
    probes.push_back(probe);
  }
  return probes;
}

void probe_direct(int fd, std::int64_t offset, FolderProbe& probe) {
  const Bytes asked = asked_alignment(fd);
  probe.why_buffered = try_direct(fd, offset, asked);
  probe.direct = probe.why_buffered.empty();
  if (probe.direct) probe.alignment = asked;
  if (const int status = set_direct(fd, false); status != 0 && probe.direct) {
    probe.direct = false;
    probe.why_buffered = "its file system does not switch direct I/O off: " + errno_text(status);
  }
}

void probe_direct_reading(int fd, std::int64_t offset, FolderProbe& probe) {
  const Bytes asked = asked_alignment(fd);
  const bool usable = asked > 0 && asked <= kMaxAlignment && set_direct(fd, true) == 0;
  const AlignedMemory block = allocate_aligned(std::max(asked, kMinAlignment), std::max(asked, kMinAlignment));
  probe.direct =
      usable && block != nullptr && read_fully(fd, {block.get(), static_cast<std::size_t>(asked)}, offset) == 0;
  probe.why_buffered = probe.direct ? "" : "its file system has no direct I/O";
  if (probe.direct) probe.alignment = asked;
  (void)set_direct(fd, false);
}

Result<void> probe_writing(const std::string& folder, FolderProbe& probe) {
  if (probe.is_device) {
    HEADRACE_TRY(const UniqueFd device, open_device(folder, std::chrono::milliseconds(0)));
    HEADRACE_TRY(probe.device_bytes, device_bytes(device.get(), folder));
    probe.alignment = std::max(kMinAlignment, device_alignment(device.get()));
    probe.direct = true;  // tried for good once it is ours to write to
    return {};
  }
  HEADRACE_TRY(const UniqueFd file, make_nameless_file(folder));
  std::byte block[kMinAlignment] = {};
  if (const int status = write_fully(file.get(), block, 0); status != 0)
    return cannot_use(folder, "writing a file", status);
  if (const int status = read_fully(file.get(), block, 0); status != 0)
    return cannot_use(folder, "reading a file", status);
  probe_direct(file.get(), 0, probe);
  return {};
}

Result<void> check_paths(const std::vector<std::string>& paths, const VolumeOptions& options) {
  HEADRACE_TRY(std::vector<FolderProbe> probes, identify_folders(paths));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (options.mode == IoMode::kAuto && !probes[i].is_device && lies_in_memory(paths[i]))
      return make_error(
          ErrorCode::kPreflight,
          fmt::format("{} is on tmpfs: its files lie in memory, which no budget of ours counts", paths[i]),
          "name a folder on a disk; headrace.io.mode \"buffered\" takes this one all the same");
    HEADRACE_RETURN_IF_ERROR(probe_writing(paths[i], probes[i]));
  }
  return {};
}

Result<void> lock_file(int fd, const std::string& path, std::chrono::milliseconds deadline, bool shared) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  bool said = false;
  while (::flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return make_error(ErrorCode::kPreflight, fmt::format("locking {}: {}", path, errno_text(errno)));
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) {
      return make_error(ErrorCode::kPreflight, fmt::format("{} is in use by {}", path, lock_holder(fd)),
                        "wait for that run to end, or stop it; --run-dir with another folder starts a run of its own");
    }
    if (!said && deadline > std::chrono::milliseconds(500)) {
      log_info(fmt::format("{} is in use by {}; waiting for it for up to {} s", path, lock_holder(fd),
                           std::chrono::duration_cast<std::chrono::seconds>(deadline).count()));
      said = true;
    }
    // flock has no deadline of its own, so it is asked again.
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(end - now, std::chrono::milliseconds(20)));
  }
  if (!is_still_named(fd, path)) {
    return make_error(ErrorCode::kPreflight, fmt::format("{} was removed while it was being opened", path));
  }
  return {};
}

namespace {
Result<UniqueFd> take_device(const std::string& path, Bytes bytes, Bytes records_end) {
  HEADRACE_TRY(UniqueFd device, open_device(path, std::chrono::milliseconds(200)));
  HEADRACE_RETURN_IF_ERROR(lock_file(device.get(), path, std::chrono::milliseconds(200)));
  HEADRACE_TRY(const Bytes size, device_bytes(device.get(), path));
  if (size < bytes)
    return make_error(ErrorCode::kPreflight,
                      fmt::format("{} is too small: the volume needs {} ({} bytes), the device has {} ({} bytes)", path,
                                  format_bytes(bytes), bytes, format_bytes(size), size),
                      "add a path on another disk, or set slots to 1");
  HEADRACE_RETURN_IF_ERROR(wipe_device(device.get(), path, records_end));
  return device;
}
}  // namespace

Result<UniqueFd> make_volume_file(const std::string& path, Bytes bytes, Bytes records_end) {
  if (is_block_device(path)) return take_device(path, bytes, records_end);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return make_error(ErrorCode::kPreflight, fmt::format("making {}: {}", path, errno_text(errno)));
  const auto fail = [&](Error error) {
    ::unlink(path.c_str());
    return error;
  };
  if (auto locked = lock_file(file.get(), path, std::chrono::milliseconds(200)); !locked.ok())
    return std::move(locked).error();
  const BlockFileSizeSignal blocked;
  int status = ::fallocate(file.get(), 0, 0, bytes) == 0 ? 0 : errno;
  while (status == EINTR) status = ::fallocate(file.get(), 0, 0, bytes) == 0 ? 0 : errno;
  if (status == EOPNOTSUPP) status = ::posix_fallocate(file.get(), 0, bytes);  // writes each block
  if (status != 0) {
    ::unlink(path.c_str());  // gives its blocks back before the free space is asked
    file = UniqueFd();
    const auto free = free_bytes(parent_folder(path));
    const std::string had = free.ok() ? format_bytes(*free) : "an unknown number of bytes";
    return make_error(ErrorCode::kPreflight,
                      fmt::format("reserving {} ({} bytes) for {}: {}; {} are free", format_bytes(bytes), bytes, path,
                                  errno_text(status), had),
                      status == EFBIG ? "raise the limit of file sizes: ulimit -f unlimited"
                                      : "free space there, add a path on another disk, or set slots to 1");
  }
  struct stat now {};
  if (::fstat(file.get(), &now) != 0 || now.st_size != bytes) {
    return fail(
        make_error(ErrorCode::kPreflight, fmt::format("{} has {} bytes after reserving {}", path, now.st_size, bytes)));
  }
  return file;
}

namespace {
Error cannot_open(const std::string& path, int error_number) {
  return make_error(
      ErrorCode::kPreflight, fmt::format("opening the volume {}: {}", path, errno_text(error_number)),
      error_number == ENOENT ? "check nvme_path; headrace checkpoint ls PATH lists the volumes below a path" : "");
}
}  // namespace

Result<UniqueFd> open_volume_file(const std::string& path, std::chrono::milliseconds lock_deadline) {
  UniqueFd file;
  if (is_block_device(path)) {
    HEADRACE_TRY(file, open_device(path, lock_deadline));
  } else {
    file = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file.valid()) return cannot_open(path, errno);
  }
  HEADRACE_RETURN_IF_ERROR(lock_file(file.get(), path, lock_deadline));
  return file;
}

Result<UniqueFd> open_volume_for_reading(const std::string& path, std::chrono::milliseconds lock_deadline) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return cannot_open(path, errno);
  HEADRACE_RETURN_IF_ERROR(lock_file(file.get(), path, lock_deadline, true));
  return file;
}

Result<void> remove_volume(int fd, const std::string& path, Bytes records_end) {
  if (is_block_device(path)) return wipe_device(fd, path, records_end);
  if (::unlink(path.c_str()) != 0)
    return make_error(ErrorCode::kPreflight, fmt::format("removing {}: {}", path, errno_text(errno)));
  return {};
}

Result<void> write_superblocks(int fd, const std::string& path, const Superblock& superblock) {
  HEADRACE_TRY(const std::vector<std::byte> bytes, encode_superblock(superblock));
  for (const std::int64_t offset : {std::int64_t{0}, kSuperblockAreaBytes}) {
    if (const int status = write_fully(fd, bytes, offset); status != 0) {
      return make_error(ErrorCode::kPreflight,
                        fmt::format("writing the superblock of {}: {}", path, errno_text(status)));
    }
    if (::fsync(fd) != 0)
      return make_error(ErrorCode::kPreflight, fmt::format("flushing {}: {}", path, errno_text(errno)));
  }
  // Nothing of the file stays in the page cache beside the direct I/O that follows.
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<Superblock> read_superblock(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return damaged(path, errno_text(errno));
  const bool is_device = S_ISBLK(status.st_mode);
  Bytes size = status.st_size;
  if (is_device) {
    HEADRACE_TRY(size, device_bytes(fd, path));
  }
  std::string first_fault;
  for (const std::int64_t offset : {std::int64_t{0}, kSuperblockAreaBytes}) {
    std::vector<std::byte> area(static_cast<std::size_t>(kSuperblockAreaBytes));
    const int error_number = read_fully(fd, area, offset);
    auto superblock = error_number == 0 ? decode_superblock(area)
                                        : Result<Superblock>(make_error(ErrorCode::kIo, errno_text(error_number)));
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (!superblock.ok()) {
      if (first_fault.empty()) first_fault = superblock.error().message;
      continue;
    }
    if (!first_fault.empty())
      log_warn(fmt::format("{}: the superblock is damaged ({}); its copy is used", path, first_fault));
    if (is_device ? size < superblock->file_bytes : size != superblock->file_bytes) {
      return damaged(
          path, fmt::format("the {} is {}: wanted {} bytes, had {}", is_device ? "device" : "file",
                            size < superblock->file_bytes ? "truncated" : "too long", superblock->file_bytes, size));
    }
    return superblock;
  }
  return damaged(path, fmt::format("both superblocks are damaged ({}; the file has {} bytes)", first_fault, size));
}

}  // namespace headrace::io
