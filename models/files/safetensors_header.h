// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: its strict parser and its writer, pure functions of bytes. Opening, reading and
// writing files is in safetensors.h and safetensors_writer.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/result.h"

namespace headrace::models {

// Longest header that readers of the format accept; a file with a longer one could be written but never read.
inline constexpr Bytes kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr Bytes kSafetensorsPrefixBytes = 8;  // the little-endian length in front of the header

struct StoredTensor {
  std::string name;
  std::string stored_dtype;         // as the file says: "F32", "I64", "F8_E4M3", …
  std::optional<DType> dtype;       // the ones that weights may have; none for integers, fp8, …
  std::vector<std::int64_t> shape;  // empty = one element
  std::int64_t elements = 0;
  Bytes begin = 0, end = 0;  // within the data section
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            // in order of their data
  std::map<std::string, std::string> metadata;  // `__metadata__`
};

// Checks everything that can be checked without the data: JSON without duplicate keys, known dtypes, shape × dtype =
// bytes, and tensors that cover exactly `data_bytes` without overlap or hole. `path` is for the message only.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, Bytes data_bytes,
                                                                 const std::string& path);

// The prefix and the header for `header` (begin, end and stored_dtype must be filled), padded with blanks so that the
// data starts at a multiple of `data_alignment`. kConfig error when readers would refuse its length.
[[nodiscard]] Result<std::string> format_safetensors_header(const SafetensorsHeader& header, Bytes data_alignment);

[[nodiscard]] const char* stored_dtype_name(DType dtype) noexcept;             // "F32", "BF16", "F16"
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);  // "[64, 32]"

}  // namespace headrace::models
