// SPDX-License-Identifier: Apache-2.0
#include "models/files/safetensors_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

namespace headrace::models {
namespace {

std::string partial_path(const std::string& path) { return path + ".partial"; }

Result<SafetensorsHeader> lay_out_header(const std::string& path, const std::vector<NewTensor>& tensors) {
  SafetensorsHeader header;
  std::set<std::string> names = {"__metadata__"};
  Bytes end = 0;
  for (const NewTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return make_error(ErrorCode::kConfig, fmt::format("{}: two tensors would be called '{}'", path, tensor.name));
    }
    StoredTensor stored;
    stored.name = tensor.name;
    stored.stored_dtype = stored_dtype_name(tensor.dtype);
    stored.dtype = tensor.dtype;
    stored.shape = tensor.shape;
    stored.elements = 1;
    stored.begin = end;
    Bytes bytes = 0;
    bool impossible = false;
    for (const std::int64_t size : tensor.shape) {
      impossible = impossible || size < 0 || __builtin_mul_overflow(stored.elements, size, &stored.elements);
    }
    impossible = impossible || __builtin_mul_overflow(stored.elements, dtype_bytes(tensor.dtype), &bytes) ||
                 __builtin_add_overflow(end, bytes, &end);
    if (impossible) {
      return make_error(ErrorCode::kConfig, fmt::format("{}: '{}' of shape {} cannot be stored", path, tensor.name,
                                                        shape_text(tensor.shape)));
    }
    stored.end = end;
    header.tensors.push_back(std::move(stored));
  }
  return header;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, File file, Bytes data_offset, Bytes data_bytes)
    : path_(std::move(path)),
      file_(std::make_unique<File>(std::move(file))),
      data_offset_(data_offset),
      data_bytes_(data_bytes) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ != nullptr) std::remove(partial_path(path_).c_str());
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, const std::vector<NewTensor>& tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  HEADRACE_TRY(SafetensorsHeader header, lay_out_header(path, tensors));
  header.metadata = metadata;
  HEADRACE_TRY(const std::string text, format_safetensors_header(header, kDataAlignment));
  const auto data_offset = static_cast<Bytes>(text.size());
  const Bytes data_bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
  HEADRACE_TRY(const Bytes free, free_bytes(parent_folder(path)));
  if (data_bytes > free - data_offset) {
    return make_error(ErrorCode::kPreflight,
                      fmt::format("{} needs {} ({} bytes), the file system has {} free", path, format_bytes(data_bytes),
                                  data_bytes, format_bytes(free)),
                      "Free some space or choose another folder.");
  }
  std::remove(partial_path(path).c_str());  // left by a writer that was killed
  HEADRACE_TRY(File file, File::create_new(partial_path(path)));
  SafetensorsWriter writer(path, std::move(file), data_offset, data_bytes);
  HEADRACE_RETURN_IF_ERROR(writer.file_->write_all(0, std::as_bytes(std::span(text))));
  return writer;
}

Result<void> SafetensorsWriter::append(std::span<const std::byte> data) {
  const auto bytes = static_cast<Bytes>(data.size());
  if (bytes > data_bytes_ - written_) {
    return make_error(ErrorCode::kFailed, fmt::format("{}: {} bytes after {} of {} do not fit the tensors given", path_,
                                                      bytes, written_, data_bytes_));
  }
  HEADRACE_RETURN_IF_ERROR(file_->write_all(data_offset_ + written_, data));
  written_ += bytes;
  return {};
}

Result<void> SafetensorsWriter::finish() {
  if (written_ != data_bytes_) {
    return make_error(ErrorCode::kFailed,
                      fmt::format("{}: only {} of {} bytes of the tensors were written", path_, written_, data_bytes_));
  }
  HEADRACE_RETURN_IF_ERROR(file_->sync());
  if (std::rename(partial_path(path_).c_str(), path_.c_str()) != 0) {
    return make_error(
        ErrorCode::kIo,
        fmt::format("{}: renaming {} into place failed: {}", path_, partial_path(path_), std::strerror(errno)),
        "Some object stores and network mounts cannot rename; write to a local folder and copy.");
  }
  file_.reset();
  return sync_folder(parent_folder(path_));
}

}  // namespace headrace::models
