// SPDX-License-Identifier: Apache-2.0
// Ordinary files: configs, models, metrics. Plain positioned reads and writes through the page cache; never mapped, so
// that a truncated file is an error and not a signal. The tier on NVMe has its own I/O in io/.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "core/result.h"

namespace headrace {

// An open file. Move-only; positioned reads are thread-safe, the rest has one owner thread. Every error is kIo and
// names the path, the offset, the bytes wanted and got, and what the system said.
class File {
 public:
  [[nodiscard]] static Result<File> open_read(const std::string& path);
  [[nodiscard]] static Result<File> open_read_write(const std::string& path);  // must exist
  [[nodiscard]] static Result<File> create_new(const std::string& path);       // must not exist
  [[nodiscard]] static Result<File> open_append(const std::string& path);      // made when missing

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  // Fills all of `out` or fails; the end of the file inside the range is a failure.
  [[nodiscard]] Result<void> read_exact(Bytes offset, std::span<std::byte> out) const;
  [[nodiscard]] Result<void> write_all(Bytes offset, std::span<const std::byte> data);
  [[nodiscard]] Result<void> append(std::string_view text);  // files from open_append: one write at the end
  [[nodiscard]] Result<Bytes> size() const;
  [[nodiscard]] Result<void> truncate(Bytes size);
  [[nodiscard]] Result<void> sync();  // data and metadata are on the device when this returns

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  static Result<File> open(const std::string& path, int flags, const char* attempt);

  int fd_ = -1;
  std::string path_;
};

[[nodiscard]] Result<std::string> read_text_file(const std::string& path);  // also of /proc, whose files have no size
// After this the path has either its old or its new contents, also when the machine loses power: a temporary file
// beside it is written, flushed and renamed, then the folder is flushed.
[[nodiscard]] Result<void> write_file_atomically(const std::string& path, std::string_view contents);
[[nodiscard]] Result<void> sync_folder(const std::string& path);

[[nodiscard]] Result<void> create_folders(const std::string& path);  // with its parents; fine when it exists
[[nodiscard]] bool path_exists(const std::string& path) noexcept;
[[nodiscard]] bool is_folder(const std::string& path) noexcept;
[[nodiscard]] std::string join_path(std::string_view folder, std::string_view name);
[[nodiscard]] std::string parent_folder(const std::string& path);  // "." for a bare name
// Bytes that this user may still write below an existing path.
[[nodiscard]] Result<Bytes> free_bytes(const std::string& path);

}  // namespace headrace
