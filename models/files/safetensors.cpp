// SPDX-License-Identifier: Apache-2.0
#include "models/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "models/files/convert.h"
#include "models/files/input_file.h"

namespace headrace::models {
namespace {

constexpr std::string_view kLfsPointerStart = "version https://git-lfs";

// A Git LFS pointer is a text of about 130 bytes; larger files that begin like one are not.
bool is_lfs_pointer(std::string_view start, Bytes file_bytes) {
  return file_bytes < 1024 && start.starts_with(kLfsPointerStart);
}

Error unusable(const std::string& path, const std::string& fault, std::string hint) {
  return make_error(ErrorCode::kConfig, fmt::format("{} is not a valid safetensors file: {}", path, fault),
                    std::move(hint));
}

std::uint64_t little_endian_64(const char* bytes) {
  std::uint64_t value = 0;
  for (int byte = 0; byte < 8; ++byte)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[byte])) << (8 * byte);
  return value;
}

// The length of the header, or why this cannot be a safetensors file.
Result<Bytes> header_length(const File& file, const std::string& path, Bytes file_bytes) {
  const std::string again = "The download may be incomplete; fetch or write the file again.";
  std::array<char, 32> start{};
  const auto known = static_cast<std::size_t>(std::min<Bytes>(file_bytes, static_cast<Bytes>(start.size())));
  HEADRACE_RETURN_IF_ERROR(file.read_exact(0, std::as_writable_bytes(std::span(start.data(), known))));
  if (is_lfs_pointer({start.data(), known}, file_bytes)) {
    return unusable(path, "it is a Git LFS pointer, a short text that stands for the file",
                    "Fetch the file itself: git lfs pull");
  }
  if (file_bytes < kSafetensorsPrefixBytes) {
    return unusable(path,
                    fmt::format("truncated: it needs {} bytes before the header, the file has {}",
                                kSafetensorsPrefixBytes, file_bytes),
                    again);
  }
  const std::uint64_t length = little_endian_64(start.data());
  if (length > static_cast<std::uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return unusable(path,
                    fmt::format("header too large: its length says {} bytes, at most {} are allowed", length,
                                kMaxSafetensorsHeaderBytes),
                    "Is this a safetensors file at all?");
  }
  const auto needed = kSafetensorsPrefixBytes + static_cast<Bytes>(length);
  if (needed > file_bytes) {
    return unusable(
        path, fmt::format("truncated: prefix and header need {} bytes, the file has {}", needed, file_bytes), again);
  }
  return static_cast<Bytes>(length);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path, File file, Bytes data_offset, SafetensorsHeader header)
    : path_(std::move(path)), file_(std::move(file)), data_offset_(data_offset), header_(std::move(header)) {
  by_name_.reserve(header_.tensors.size());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  HEADRACE_TRY(File file, open_input(path));
  HEADRACE_TRY(const Bytes file_bytes, file.size());
  HEADRACE_TRY(const Bytes length, header_length(file, path, file_bytes));
  std::string json(static_cast<std::size_t>(length), '\0');
  HEADRACE_RETURN_IF_ERROR(file.read_exact(kSafetensorsPrefixBytes, std::as_writable_bytes(std::span(json))));
  const Bytes data_offset = kSafetensorsPrefixBytes + length;
  HEADRACE_TRY(SafetensorsHeader header, parse_safetensors_header(json, file_bytes - data_offset, path));
  return SafetensorsFile(path, std::move(file), data_offset, std::move(header));
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

Result<void> SafetensorsFile::read_bytes(const StoredTensor& tensor, Bytes first_byte, std::span<std::byte> out) const {
  const Bytes bytes = tensor.end - tensor.begin;
  const auto wanted = static_cast<Bytes>(out.size());
  if (first_byte < 0 || first_byte > bytes || wanted > bytes - first_byte) {
    return make_error(ErrorCode::kFailed, fmt::format("{}: {} bytes from {} on of '{}' were asked for, it has {}",
                                                      path_, wanted, first_byte, tensor.name, bytes));
  }
  return file_.read_exact(data_offset_ + tensor.begin + first_byte, out);
}

Result<void> SafetensorsFile::read_range(const StoredTensor& tensor, std::int64_t first_element, std::int64_t count,
                                         DType dtype, std::byte* out) const {
  if (!tensor.dtype) {
    return make_error(
        ErrorCode::kConfig,
        fmt::format("{}: '{}' is {}; weights must be F32, BF16 or F16", path_, tensor.name, tensor.stored_dtype),
        "Convert the weights to one of these dtypes first.");
  }
  if (first_element < 0 || count < 0 || first_element > tensor.elements || count > tensor.elements - first_element) {
    return make_error(ErrorCode::kFailed, fmt::format("{}: {} elements from {} on of '{}' were asked for, it has {}",
                                                      path_, count, first_element, tensor.name, tensor.elements));
  }
  const Bytes stored_bytes = dtype_bytes(*tensor.dtype);
  if (*tensor.dtype == dtype) {
    return read_bytes(tensor, first_element * stored_bytes, {out, static_cast<std::size_t>(count * stored_bytes)});
  }
  const std::int64_t piece_elements = std::min<std::int64_t>(count, kPieceBytes / stored_bytes);
  std::vector<std::byte> piece(static_cast<std::size_t>(piece_elements * stored_bytes));
  for (std::int64_t done = 0; done < count; done += piece_elements) {
    const std::int64_t elements = std::min(piece_elements, count - done);
    const std::span<std::byte> bytes(piece.data(), static_cast<std::size_t>(elements * stored_bytes));
    HEADRACE_RETURN_IF_ERROR(read_bytes(tensor, (first_element + done) * stored_bytes, bytes));
    convert_elements(*tensor.dtype, piece.data(), dtype, out + done * dtype_bytes(dtype), elements);
  }
  return {};
}

Result<void> SafetensorsFile::read_range(std::string_view name, std::int64_t first_element,
                                         std::span<float> out) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) return make_error(ErrorCode::kConfig, fmt::format("{} has no tensor '{}'", path_, name));
  return read_range(*tensor, first_element, static_cast<std::int64_t>(out.size()), DType::kFp32,
                    std::as_writable_bytes(out).data());
}

}  // namespace headrace::models
