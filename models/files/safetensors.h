// SPDX-License-Identifier: Apache-2.0
// Reading one safetensors file: a strict check of its header on opening, then ranges of tensors in any of our dtypes.
// Nothing is mapped and nothing larger than one piece is held, so a file of any size can be streamed into tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/result.h"
#include "models/files/safetensors_header.h"

namespace headrace::models {

// Immutable after opening; thread-safe. May block on the disk in every member that returns a Result.
class SafetensorsFile {
 public:
  // kConfig error that says what is wrong: a directory, a Git LFS pointer, a truncated file, each fault of the header.
  [[nodiscard]] static Result<SafetensorsFile> open(const std::string& path);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const noexcept {
    return header_.tensors;
  }  // in order of their data
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const noexcept;  // null if there is none

  // Elements [first_element, first_element + count) of a tensor in F32, F16 or BF16, converted to `dtype` (convert.h),
  // into `out`, which has count · dtype_bytes(dtype) bytes. Holds at most kPieceBytes beside `out`.
  [[nodiscard]] Result<void> read_range(const StoredTensor& tensor, std::int64_t first_element, std::int64_t count,
                                        DType dtype, std::byte* out) const;
  // The same by name and fp32.
  [[nodiscard]] Result<void> read_range(std::string_view name, std::int64_t first_element, std::span<float> out) const;
  // Raw bytes of a tensor of any dtype, from `first_byte` of its data on.
  [[nodiscard]] Result<void> read_bytes(const StoredTensor& tensor, Bytes first_byte, std::span<std::byte> out) const;

  // Bytes read at a time when the dtype changes: smaller means more system calls, larger more memory per reader.
  static constexpr Bytes kPieceBytes = 256 * kKiB;

 private:
  SafetensorsFile(std::string path, File file, Bytes data_offset, SafetensorsHeader header);

  std::string path_;
  File file_;
  Bytes data_offset_ = 0;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views of header_.tensors' names, which never move
};

}  // namespace headrace::models
