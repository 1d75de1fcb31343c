// SPDX-License-Identifier: Apache-2.0
#include "io/block_device.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace headrace::io {
namespace {

constexpr Bytes kLooked = kMiB;  // from each end: every signature of a file system, a RAID or a table lies there

struct Signature {
  std::size_t offset;
  std::string_view bytes;
  const char* name;
};

using namespace std::string_view_literals;
constexpr Signature kSignatures[] = {{512, "EFI PART"sv, "a partition table (GPT)"},
                                     {1080, "\x53\xEF"sv, "an ext2, ext3 or ext4 file system"},
                                     {0, "XFSB"sv, "an XFS file system"},
                                     {65'600, "_BHRfS_M"sv, "a btrfs file system"},
                                     {4086, "SWAPSPACE2"sv, "swap space"},
                                     {536, "LVM2 001"sv, "an LVM volume"},
                                     {0, "LUKS\xBA\xBE"sv, "an encrypted volume (LUKS)"},
                                     {3, "NTFS    "sv, "an NTFS file system"},
                                     {510, "\x55\xAA"sv, "a partition table or a FAT file system"}};

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

Error busy(const std::string& path) {
  return make_error(
      ErrorCode::kPreflight,
      fmt::format("{} is in use: it is mounted, has a mounted partition, or another process holds it", path),
      fmt::format("lsblk {} shows by whom; unmount it, or name a folder on it instead", path));
}

}  // namespace

bool is_block_device(const std::string& path) noexcept {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
}

Result<Bytes> device_bytes(int fd, const std::string& path) {
  std::uint64_t bytes = 0;
  if (::ioctl(fd, BLKGETSIZE64, &bytes) != 0)
    return make_error(ErrorCode::kPreflight, fmt::format("asking for the size of {}: {}", path, errno_text(errno)));
  return static_cast<Bytes>(bytes);
}

Bytes device_alignment(int fd) noexcept {
  int block = 0;
  return ::ioctl(fd, BLKSSZGET, &block) == 0 ? std::max(block, 512) : 512;
}

Result<UniqueFd> open_device(const std::string& path, std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  const auto read_only = [&] {
    return make_error(ErrorCode::kPreflight, fmt::format("{} is a read-only device", path),
                      fmt::format("blockdev --setrw {}, or name another path", path));
  };
  for (;;) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_EXCL | O_CLOEXEC));
    int is_read_only = 0;
    if (file.valid() && ::ioctl(file.get(), BLKROGET, &is_read_only) == 0 && is_read_only != 0) return read_only();
    if (file.valid()) return file;
    if (errno == EROFS) return read_only();
    if (errno != EBUSY)
      return make_error(ErrorCode::kPreflight,
                        fmt::format("opening {} as user {}: {}", path, ::geteuid(), errno_text(errno)),
                        "this user needs to read and write the device: join its group, or name a folder");
    if (std::chrono::steady_clock::now() >= end) return busy(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // nothing tells when a device becomes free
  }
}

Result<std::string> content_of_device(int fd, const std::string& path) {
  HEADRACE_TRY(const Bytes size, device_bytes(fd, path));
  const auto length = static_cast<std::size_t>(std::min(kLooked, size));
  std::vector<std::byte> ends(2 * length);
  const std::span<std::byte> first = std::span(ends).first(length);
  const std::span<std::byte> last = std::span(ends).subspan(length);
  int status = read_fully(fd, first, 0);
  if (status == 0) status = read_fully(fd, last, size - static_cast<Bytes>(length));
  if (status != 0) return make_error(ErrorCode::kPreflight, fmt::format("reading {}: {}", path, errno_text(status)));
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  for (const Signature& signature : kSignatures) {
    if (text.size() >= signature.offset && text.substr(signature.offset).starts_with(signature.bytes))
      return std::string(signature.name);
  }
  return std::string(is_zero(ends) ? "" : "data");
}

Result<void> wipe_device(int fd, const std::string& path, Bytes bytes) {
  HEADRACE_TRY(const Bytes size, device_bytes(fd, path));
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kMiB));
  const auto clear = [&](Bytes begin, Bytes end) {
    for (Bytes at = begin; at < end; at += kMiB) {
      const auto length = static_cast<std::size_t>(std::min(kMiB, end - at));
      if (const int status = write_fully(fd, std::span(zeros).first(length), at); status != 0) return status;
    }
    return 0;
  };
  // The superblocks go last: whoever dies before leaves a device that is still known as its run's.
  int status = clear(std::max(size - kLooked, Bytes{0}), size);
  if (status == 0) status = clear(kLooked, std::min(bytes, size));
  if (status == 0 && ::fsync(fd) != 0) status = errno;
  if (status == 0) status = clear(0, std::min(kLooked, size));
  if (status == 0 && ::fsync(fd) != 0) status = errno;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  if (status == 0) return {};
  return make_error(ErrorCode::kPreflight, fmt::format("clearing the start of {}: {}", path, errno_text(status)));
}

}  // namespace headrace::io
