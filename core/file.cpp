// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

// Linux moves at most 0x7ffff000 bytes in one call; asking for less keeps the offsets aligned.
constexpr std::size_t kLargestCall = std::size_t{1} << 30;

Error system_failure(std::string_view attempt, std::string_view path, int system_error) {
  return make_error(ErrorCode::kIo, fmt::format("{}: {} failed: {}", path, attempt, std::strerror(system_error)));
}

Error transfer_failure(std::string_view verb, const std::string& path, Bytes offset, std::size_t wanted,
                       std::size_t got, int system_error) {
  const char* reason = system_error == 0 ? "the file ends there" : std::strerror(system_error);
  return make_error(ErrorCode::kIo, fmt::format("{}: {} of {} bytes at offset {} stopped after {}: {}", path, verb,
                                                wanted, offset, got, reason));
}

}  // namespace

Result<File> File::open(const std::string& path, int flags, const char* attempt) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return system_failure(attempt, path, errno);
  File file(fd, path);
  struct stat status {};
  if (fstat(fd, &status) != 0) return system_failure(attempt, path, errno);
  if (S_ISDIR(status.st_mode)) return system_failure(attempt, path, EISDIR);
  return file;
}

Result<File> File::open_read(const std::string& path) { return open(path, O_RDONLY, "opening for reading"); }
Result<File> File::open_read_write(const std::string& path) { return open(path, O_RDWR, "opening for writing"); }
Result<File> File::create_new(const std::string& path) { return open(path, O_RDWR | O_CREAT | O_EXCL, "creating"); }
Result<File> File::open_append(const std::string& path) {
  return open(path, O_WRONLY | O_CREAT | O_APPEND, "opening for appending");
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> File::read_exact(Bytes offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t part = std::min(out.size() - done, kLargestCall);
    const ssize_t moved = ::pread(fd_, out.data() + done, part, offset + static_cast<off_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return transfer_failure("reading", path_, offset, out.size(), done, moved == 0 ? 0 : errno);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Result<void> File::write_all(Bytes offset, std::span<const std::byte> data) {
  std::size_t done = 0;
  while (done < data.size()) {
    const std::size_t part = std::min(data.size() - done, kLargestCall);
    const ssize_t moved = ::pwrite(fd_, data.data() + done, part, offset + static_cast<off_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return transfer_failure("writing", path_, offset, data.size(), done, moved == 0 ? ENOSPC : errno);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Result<void> File::append(std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t moved = ::write(fd_, text.data() + done, text.size() - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      return make_error(ErrorCode::kIo, fmt::format("{}: appending {} bytes stopped after {}: {}", path_, text.size(),
                                                    done, std::strerror(moved == 0 ? ENOSPC : errno)));
    }
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Result<Bytes> File::size() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) return system_failure("asking for the size", path_, errno);
  return static_cast<Bytes>(status.st_size);
}

Result<void> File::truncate(Bytes size) {
  if (ftruncate(fd_, size) != 0) return system_failure(fmt::format("cutting to {} bytes", size), path_, errno);
  return {};
}

Result<void> File::sync() {
  if (fsync(fd_) != 0) return system_failure("fsync", path_, errno);
  return {};
}

Result<std::string> read_text_file(const std::string& path) {
  HEADRACE_TRY(const File file, File::open_read(path));
  std::string text;
  std::array<char, 16384> block;
  for (;;) {
    const ssize_t moved = ::read(file.fd(), block.data(), block.size());
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return system_failure(fmt::format("reading at offset {}", text.size()), path, errno);
    if (moved == 0) return text;
    text.append(block.data(), static_cast<std::size_t>(moved));
  }
}

Result<void> write_file_atomically(const std::string& path, std::string_view contents) {
  const std::string temporary = fmt::format("{}.{}.part", path, ::getpid());
  ::unlink(temporary.c_str());  // left by a process of the same number that was killed
  HEADRACE_TRY(File file, File::create_new(temporary));
  const auto give_up = [&temporary](Error error) {
    ::unlink(temporary.c_str());
    return error;
  };
  if (auto written = file.write_all(0, std::as_bytes(std::span(contents))); !written.ok())
    return give_up(written.error());
  if (auto synced = file.sync(); !synced.ok()) return give_up(synced.error());
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    return give_up(system_failure("renaming into place", path, errno));
  return sync_folder(parent_folder(path));
}

Result<void> sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_failure("opening the folder", path, errno);
  const int fault = fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (fault != 0 && fault != EINVAL)
    return system_failure("fsync of the folder", path, fault);  // EINVAL: cannot be flushed
  return {};
}

Result<void> create_folders(const std::string& path) {
  std::error_code fault;
  std::filesystem::create_directories(path, fault);
  if (!fault && !is_folder(path)) fault = std::make_error_code(std::errc::not_a_directory);
  if (fault) return system_failure("making the folder", path, fault.value());
  return {};
}

bool path_exists(const std::string& path) noexcept { return ::access(path.c_str(), F_OK) == 0; }

bool is_folder(const std::string& path) noexcept {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string join_path(std::string_view folder, std::string_view name) {
  if (folder.empty() || name.starts_with('/')) return std::string(name);
  return folder.ends_with('/') ? fmt::format("{}{}", folder, name) : fmt::format("{}/{}", folder, name);
}

std::string parent_folder(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

Result<Bytes> free_bytes(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_block_file(path, unknown)) {
    HEADRACE_TRY(const File device, File::open_read(path));
    const off_t end = ::lseek(device.fd(), 0, SEEK_END);
    if (end < 0) return system_failure("asking for the size", path, errno);
    return static_cast<Bytes>(end);
  }
  struct statvfs status {};
  if (statvfs(path.c_str(), &status) != 0) return system_failure("asking for free space", path, errno);
  return static_cast<Bytes>(status.f_bavail) * static_cast<Bytes>(status.f_frsize);
}

}  // namespace headrace
