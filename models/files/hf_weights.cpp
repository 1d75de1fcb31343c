// SPDX-License-Identifier: Apache-2.0
// The weights of a Hugging Face folder.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/file.h"
#include "models/files/hf_folder.h"
#include "models/files/json_text.h"

namespace headrace::models {
namespace {

using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
// Files of a bare backbone (published GPT-2) lack the name of the part that holds it.
constexpr std::array<std::string_view, 2> kBackbonePrefixes = {"transformer.", "model."};
constexpr std::size_t kNamesShown = 5;

std::string_view without_backbone(std::string_view name) {
  for (const std::string_view prefix : kBackbonePrefixes) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

// Buffers that older versions of transformers saved; they follow from the configuration.
bool is_derived_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

std::string some_names(const std::vector<std::string>& names) {
  std::string text = fmt::format(
      "{}",
      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kNamesShown)), ", "));
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  return text;
}

Error no_weights(const std::string& folder) {
  if (!is_folder(folder)) {
    return make_error(ErrorCode::kConfig, path_exists(folder) ? fmt::format("{} is a file; a model is a folder", folder)
                                                              : fmt::format("{}: there is no such folder", folder));
  }
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth",
                            "model.ckpt.index", "tf_model.h5"}) {
    if (path_exists(join_path(folder, other))) {
      return make_error(ErrorCode::kConfig, fmt::format("{} has {} but no {}", folder, other, kSingleFile),
                        "Convert it with transformers: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…)");
    }
  }
  return make_error(ErrorCode::kConfig, fmt::format("{} has neither {} nor {}", folder, kSingleFile, kIndexFile));
}

// weight_map of the index: tensor name → file name, both checked to be plain.
Result<std::map<std::string, std::string>> read_weight_map(const std::string& index_path) {
  HEADRACE_TRY(const json index, read_json_object(index_path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("{}: there is no 'weight_map' with the file of each tensor", index_path));
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return make_error(ErrorCode::kConfig,
                        fmt::format("{}: the file of '{}' is {} instead of the name of a file beside the index",
                                    index_path, tensor, file.dump()));
    }
    out.emplace(tensor, name);
  }
  return out;
}

}  // namespace

Result<HfWeights> HfWeights::open(const std::string& folder) {
  HfWeights weights(folder);
  const std::string single = join_path(folder, kSingleFile);
  const std::string index = join_path(folder, kIndexFile);
  if (path_exists(single)) {
    HEADRACE_TRY(SafetensorsFile file, SafetensorsFile::open(single));
    weights.files_.push_back(std::move(file));
    const std::vector<StoredTensor>& tensors = weights.files_.back().tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      weights.places_.emplace(tensors[i].name, std::pair(std::size_t{0}, i));
  } else if (path_exists(index)) {
    HEADRACE_RETURN_IF_ERROR(weights.open_shards(index));
  } else {
    return no_weights(folder);
  }
  return weights;
}

Result<void> HfWeights::open_shards(const std::string& index_path) {
  HEADRACE_TRY(const auto weight_map, read_weight_map(index_path));
  std::map<std::string, std::size_t> shards;
  for (const auto& [tensor, name] : weight_map) {
    if (shards.contains(name)) continue;
    const std::string path = join_path(folder_, name);
    if (!path_exists(path)) {
      return make_error(ErrorCode::kConfig,
                        fmt::format("{} is missing; {} says that it holds '{}'", path, index_path, tensor),
                        "The download may be incomplete; fetch this file again.");
    }
    HEADRACE_TRY(SafetensorsFile file, SafetensorsFile::open(path));
    shards.emplace(name, files_.size());
    files_.push_back(std::move(file));
  }
  for (const auto& [tensor, name] : weight_map) {
    const std::size_t shard = shards.at(name);
    const StoredTensor* stored = files_[shard].find(tensor);
    if (stored == nullptr) {
      const auto has_it = [&wanted = tensor](const SafetensorsFile& file) { return file.find(wanted) != nullptr; };
      const auto other = std::find_if(files_.begin(), files_.end(), has_it);
      return make_error(ErrorCode::kConfig,
                        fmt::format("{} says that '{}' is in {}, but {}", index_path, tensor, name,
                                    other == files_.end() ? std::string("no shard has it")
                                                          : fmt::format("it is in {}", other->path())));
    }
    places_.emplace(tensor, std::pair(shard, static_cast<std::size_t>(stored - files_[shard].tensors().data())));
  }
  return {};
}

std::optional<HfWeights::Place> HfWeights::locate(std::string_view name) const {
  auto found = places_.find(std::string(name));
  if (found == places_.end()) found = places_.find(std::string(without_backbone(name)));
  if (found == places_.end()) return std::nullopt;
  const auto [file, tensor] = found->second;
  return Place{&files_[file], &files_[file].tensors()[tensor]};
}

Result<void> HfWeights::check(std::span<const runtime::TensorInfo> wanted) const {
  std::vector<std::string> missing;
  std::unordered_set<std::string_view> used;
  bool wants_head = false;
  for (const runtime::TensorInfo& tensor : wanted) {
    wants_head = wants_head || tensor.name == "lm_head.weight";
    const auto place = locate(tensor.name);
    if (!place) {
      missing.push_back(tensor.name);
      continue;
    }
    used.insert(place->tensor->name);
    if (place->tensor->shape != tensor.shape) {
      return make_error(ErrorCode::kConfig,
                        fmt::format("{}: '{}' should have the shape {} but has {}", place->file->path(), tensor.name,
                                    shape_text(tensor.shape), shape_text(place->tensor->shape)),
                        "config.json and the weights must belong to the same model.");
    }
    if (!place->tensor->dtype) {
      return make_error(ErrorCode::kConfig, fmt::format("{}: '{}' is {}; weights must be F32, BF16 or F16",
                                                        place->file->path(), tensor.name, place->tensor->stored_dtype));
    }
  }
  if (!missing.empty()) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("{}: {} of {} tensors are missing: {}", folder_, missing.size(), wanted.size(),
                                  some_names(missing)),
                      "config.json and the weights must belong to the same model.");
  }
  std::vector<std::string> unused;
  for (const auto& [name, place] : places_) {
    if (!used.contains(name) && !is_derived_buffer(name) && (wants_head || name != "lm_head.weight"))
      unused.push_back(name);
  }
  if (!unused.empty()) {
    std::sort(unused.begin(), unused.end());
    return make_error(ErrorCode::kConfig,
                      fmt::format("{}: the model that config.json describes has no use for {} tensors: {}", folder_,
                                  unused.size(), some_names(unused)),
                      "Without them the results would differ from this model's.");
  }
  return {};
}

Result<void> HfWeights::read(std::string_view name, std::int64_t first_element, std::int64_t count, DType dtype,
                             std::byte* out) const {
  const auto place = locate(name);
  if (!place) return make_error(ErrorCode::kConfig, fmt::format("{} has no tensor '{}'", folder_, name));
  return place->file->read_range(*place->tensor, first_element, count, dtype, out);
}

}  // namespace headrace::models
