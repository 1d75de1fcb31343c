// SPDX-License-Identifier: Apache-2.0
// Small owners of POSIX resources that the io layer shares: descriptors, aligned memory, a blocked SIGXFSZ. Internal to
// io.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/bytes.h"
#include "core/result.h"

namespace headrace::io {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

struct FreeDeleter {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeDeleter>;

// Zeroed memory at a power-of-two alignment; empty when the system has none.
[[nodiscard]] AlignedMemory allocate_aligned(Bytes bytes, Bytes alignment) noexcept;

// A write beyond RLIMIT_FSIZE sends SIGXFSZ, which kills by default. While this lives the calling thread gets EFBIG
// instead.
class BlockFileSizeSignal {
 public:
  BlockFileSizeSignal() noexcept;
  ~BlockFileSizeSignal();
  BlockFileSizeSignal(const BlockFileSizeSignal&) = delete;
  BlockFileSizeSignal& operator=(const BlockFileSizeSignal&) = delete;

 private:
  sigset_t previous_{};
};

[[nodiscard]] std::string errno_text(int error_number);  // "No space left on device (errno 28)"

// Reads or writes all of `bytes` at `offset` on the calling thread, through interruptions and short counts. errno, or
// 0; a read that meets the end of the file gives ENODATA.
[[nodiscard]] int read_fully(int fd, std::span<std::byte> bytes, std::int64_t offset) noexcept;
[[nodiscard]] int write_fully(int fd, std::span<const std::byte> bytes, std::int64_t offset) noexcept;

}  // namespace headrace::io
