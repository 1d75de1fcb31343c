// SPDX-License-Identifier: Apache-2.0
// Export of a Hugging Face folder.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/file.h"
#include "models/files/convert.h"
#include "models/files/hf_folder.h"
#include "models/files/safetensors_writer.h"

namespace headrace::models {
namespace {

namespace fs = std::filesystem;

// A folder under a temporary name beside the final one; removed unless it was put into place.
class PendingFolder {
 public:
  PendingFolder(std::string path, std::string final_path)
      : path_(std::move(path)), final_path_(std::move(final_path)) {}
  PendingFolder(PendingFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), final_path_(std::move(other.final_path_)) {}
  PendingFolder& operator=(PendingFolder&&) = delete;
  ~PendingFolder() {
    std::error_code ignored;  // nothing more can be done, and the first error is on its way to the caller
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Result<void> put_into_place() {
    HEADRACE_RETURN_IF_ERROR(sync_folder(path_));
    std::error_code fault;
    fs::rename(path_, final_path_, fault);  // over an empty folder too
    if (fault)
      return make_error(ErrorCode::kIo,
                        fmt::format("{}: renaming {} into place failed: {}", final_path_, path_, fault.message()));
    path_.clear();
    return sync_folder(parent_folder(final_path_));
  }

 private:
  std::string path_, final_path_;
};

Result<PendingFolder> begin_folder(const std::string& wanted) {
  std::string folder = wanted;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  std::error_code fault;
  if (path_exists(folder) && !is_folder(folder))
    return make_error(ErrorCode::kPreflight, fmt::format("{} is a file; an export is a folder", folder));
  if (path_exists(folder) && !fs::is_empty(folder, fault)) {
    return make_error(ErrorCode::kPreflight,
                      fmt::format("{} has files already{}{}", folder, fault ? ": " : "", fault ? fault.message() : ""),
                      "Choose another folder, or empty this one.");
  }
  const std::string parent = parent_folder(folder);
  HEADRACE_RETURN_IF_ERROR(create_folders(parent));
  PendingFolder pending(fmt::format("{}.{}.partial", folder, ::getpid()), folder);
  fs::remove_all(pending.path(), fault);  // left by a process of the same number that was killed
  HEADRACE_RETURN_IF_ERROR(create_folders(pending.path()));
  return pending;
}

using TensorSpan = std::span<const runtime::TensorInfo>;

// Consecutive tensors per shard, none of them split.
std::vector<TensorSpan> cut_into_shards(const HfExport& request) {
  std::vector<TensorSpan> shards;
  std::size_t first = 0;
  Bytes filled = 0;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const Bytes bytes = request.tensors[i].elements * dtype_bytes(request.dtype);
    if (i > first && filled + bytes > request.max_shard_bytes) {
      shards.push_back(request.tensors.subspan(first, i - first));
      first = i;
      filled = 0;
    }
    filled += bytes;
  }
  shards.push_back(request.tensors.subspan(first));
  return shards;
}

struct Piece {
  std::vector<float> values;
  std::vector<std::byte> converted;
};

Result<void> write_shard(const std::string& path, TensorSpan tensors, DType dtype, const TensorSource& source,
                         Piece& piece) {
  std::vector<NewTensor> layout;
  for (const runtime::TensorInfo& tensor : tensors) layout.push_back({tensor.name, dtype, tensor.shape});
  HEADRACE_TRY(SafetensorsWriter writer, SafetensorsWriter::create(path, layout));
  for (const runtime::TensorInfo& tensor : tensors) {
    for (std::int64_t done = 0; done < tensor.elements; done += kExportPieceElements) {
      const std::int64_t elements = std::min(kExportPieceElements, tensor.elements - done);
      const std::span<float> values = std::span(piece.values).first(static_cast<std::size_t>(elements));
      HEADRACE_RETURN_IF_ERROR(source(tensor, done, values));
      convert_elements(DType::kFp32, std::as_bytes(values).data(), dtype, piece.converted.data(), elements);
      HEADRACE_RETURN_IF_ERROR(
          writer.append(std::span(piece.converted).first(static_cast<std::size_t>(elements * dtype_bytes(dtype)))));
    }
  }
  return writer.finish();
}

Result<void> write_index(const std::string& path, const std::vector<TensorSpan>& shards,
                         const std::vector<std::string>& names, DType dtype) {
  nlohmann::json map = nlohmann::json::object();
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const runtime::TensorInfo& tensor : shards[i]) {
      map[tensor.name] = names[i];
      elements += tensor.elements;
    }
  }
  const nlohmann::json index = {
      {"metadata", {{"total_size", elements * dtype_bytes(dtype)}, {"total_parameters", elements}}},
      {"weight_map", map}};
  return write_file_atomically(path, index.dump(2) + "\n");
}

}  // namespace

Result<void> export_hf_folder(const HfExport& request, const TensorSource& source) {
  if (request.max_shard_bytes < 1)
    return make_error(ErrorCode::kUsage, fmt::format("a shard of {} bytes holds nothing", request.max_shard_bytes));
  HEADRACE_TRY(PendingFolder folder, begin_folder(request.folder));
  Bytes total = 0;
  for (const runtime::TensorInfo& tensor : request.tensors) total += tensor.elements * dtype_bytes(request.dtype);
  HEADRACE_TRY(const Bytes free, free_bytes(folder.path()));
  if (total > free) {  // the writer checks each shard; this says so before an hour of work
    return make_error(ErrorCode::kPreflight,
                      fmt::format("{} needs {} ({} bytes), the file system has {} free", request.folder,
                                  format_bytes(total), total, format_bytes(free)),
                      "Free some space or choose another folder.");
  }
  const std::vector<TensorSpan> shards = cut_into_shards(request);
  Piece piece{
      .values = std::vector<float>(kExportPieceElements),
      .converted = std::vector<std::byte>(static_cast<std::size_t>(kExportPieceElements * dtype_bytes(request.dtype)))};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    names.push_back(shards.size() == 1 ? "model.safetensors"
                                       : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    HEADRACE_RETURN_IF_ERROR(
        write_shard(join_path(folder.path(), names.back()), shards[i], request.dtype, source, piece));
  }
  if (shards.size() > 1) {
    HEADRACE_RETURN_IF_ERROR(
        write_index(join_path(folder.path(), "model.safetensors.index.json"), shards, names, request.dtype));
  }
  HEADRACE_RETURN_IF_ERROR(write_file_atomically(join_path(folder.path(), "config.json"),
                                                 format_model_config(request.config, request.dtype)));
  return folder.put_into_place();
}

}  // namespace headrace::models
