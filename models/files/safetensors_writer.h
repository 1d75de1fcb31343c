// SPDX-License-Identifier: Apache-2.0
// Writing one safetensors file with bounded memory: all names and shapes are given first, then the data in order, piece
// by piece. The file appears under its name only when it is complete and on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/result.h"
#include "models/files/safetensors_header.h"

namespace headrace::models {

struct NewTensor {
  std::string name;
  DType dtype = DType::kFp32;
  std::vector<std::int64_t> shape;
};

// One owner thread. Destroying it before finish() removes what was written.
class SafetensorsWriter {
 public:
  // Checks names, sizes, the length of the header and the free space, then writes the header to `path`.partial.
  // kConfig: duplicate name, header beyond what readers accept. kPreflight: not enough free space. kIo: the system
  // refused.
  [[nodiscard]] static Result<SafetensorsWriter> create(const std::string& path, const std::vector<NewTensor>& tensors,
                                                        const std::map<std::string, std::string>& metadata = {
                                                            {"format", "pt"}});
  SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept = delete;
  ~SafetensorsWriter();

  // The next bytes of the data section: the tensors in the order given to create(), each in its dtype, C order.
  [[nodiscard]] Result<void> append(std::span<const std::byte> data);
  // Flushes to the disk and gives the file its name, replacing an older one. Error if bytes are missing.
  [[nodiscard]] Result<void> finish();

  [[nodiscard]] Bytes data_bytes() const noexcept { return data_bytes_; }

  // The data starts at a multiple of this, so that direct I/O can read it; smaller would need a copy on such a read.
  static constexpr Bytes kDataAlignment = 4096;

 private:
  SafetensorsWriter(std::string path, File file, Bytes data_offset, Bytes data_bytes);

  std::string path_;
  std::unique_ptr<File> file_;  // null once finished or moved from
  Bytes data_offset_ = 0;
  Bytes data_bytes_ = 0;
  Bytes written_ = 0;
};

}  // namespace headrace::models
