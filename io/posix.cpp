// SPDX-License-Identifier: Apache-2.0
#include "io/posix.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>

namespace headrace::io {

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

AlignedMemory allocate_aligned(Bytes bytes, Bytes alignment) noexcept {
  void* memory = nullptr;
  if (::posix_memalign(&memory, static_cast<std::size_t>(alignment), static_cast<std::size_t>(bytes)) != 0)
    return nullptr;
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  return AlignedMemory(static_cast<std::byte*>(memory));
}

namespace {
sigset_t file_size_signal() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}
}  // namespace

BlockFileSizeSignal::BlockFileSizeSignal() noexcept {
  const sigset_t set = file_size_signal();
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
}

BlockFileSizeSignal::~BlockFileSizeSignal() {
  if (sigismember(&previous_, SIGXFSZ) == 0) {
    const sigset_t set = file_size_signal();
    const timespec no_wait{};
    while (sigtimedwait(&set, nullptr, &no_wait) > 0) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number) + " (errno " + std::to_string(error_number) + ")";
}

int read_fully(int fd, std::span<std::byte> bytes, std::int64_t offset) noexcept {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return ENODATA;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return 0;
}

int write_fully(int fd, std::span<const std::byte> bytes, std::int64_t offset) noexcept {
  while (!bytes.empty()) {
    const ssize_t got = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return 0;
}

}  // namespace headrace::io
