// SPDX-License-Identifier: Apache-2.0
// Hugging Face model folders: config.json to ModelConfig and back, weights in one or several safetensors files read by
// element ranges, and export with memory bounded by one piece. Llama and GPT-2; what we cannot compute exactly is
// refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/result.h"
#include "models/files/safetensors.h"
#include "models/model.h"
#include "runtime/unit.h"

namespace headrace::models {

// config.json in either spelling (rope_parameters, or rope_theta with rope_scaling). kConfig error with key and value
// for anything that would compute something else: another model_type, rope type, activation, sliding windows,
// quantisation. Dropout probabilities are not read: we train without.
[[nodiscard]] Result<ModelConfig> read_model_config(const std::string& folder);
// The same from the text of a config.json; `path` is for messages.
[[nodiscard]] Result<ModelConfig> parse_model_config(std::string_view text, const std::string& path);
// A config.json that transformers 4 and 5 read alike.
[[nodiscard]] std::string format_model_config(const ModelConfig& config, DType weights_dtype);

// The weights of a folder. Immutable after opening; thread-safe. Holds headers only.
class HfWeights {
 public:
  // model.safetensors, else the shards of model.safetensors.index.json. kConfig error that names a missing shard, a
  // tensor that is not in the shard that the index gives, or what the folder has instead.
  [[nodiscard]] static Result<HfWeights> open(const std::string& folder);

  // Compares with what a model wants: kConfig error that names missing tensors, wrong shapes (expected and had), dtypes
  // that weights cannot have, and tensors that the model has no use for. Names may lack the leading `transformer.` or
  // `model.`. Ignored: GPT-2's attn.bias and attn.masked_bias, rotary_emb.inv_freq, and lm_head.weight where `wanted`
  // has none (tied).
  [[nodiscard]] Result<void> check(std::span<const runtime::TensorInfo> wanted) const;

  // Elements [first_element, first_element + count) of the tensor that a model calls `name`, converted to `dtype`, into
  // `out` (count · dtype_bytes(dtype) bytes). May block on the disk.
  [[nodiscard]] Result<void> read(std::string_view name, std::int64_t first_element, std::int64_t count, DType dtype,
                                  std::byte* out) const;

  [[nodiscard]] bool contains(std::string_view name) const { return locate(name).has_value(); }
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const noexcept { return files_; }

 private:
  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  explicit HfWeights(std::string folder) : folder_(std::move(folder)) {}
  [[nodiscard]] Result<void> open_shards(const std::string& index_path);
  [[nodiscard]] std::optional<Place> locate(std::string_view name) const;

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>>
      places_;  // stored name → file, index of its tensor
};

// Fills `out` with elements of `tensor` from `first_element` on, as fp32. Called with ascending ranges, tensor after
// tensor.
using TensorSource =
    std::function<Result<void>(const runtime::TensorInfo& tensor, std::int64_t first_element, std::span<float> out)>;

struct HfExport {
  std::string folder;  // made; must be missing or empty
  ModelConfig config;
  std::span<const runtime::TensorInfo> tensors;  // in the order in which they are written
  DType dtype = DType::kFp32;                    // of the file; fp32 values are rounded to nearest even
  Bytes max_shard_bytes = 5'000'000'000;         // as transformers splits; one tensor is never split
};

// Writes config.json, model.safetensors or shards with their index. The folder gets its name when everything is on the
// disk, so a failed export leaves none. Memory: kExportPieceElements floats. kConfig: the folder has files already;
// kPreflight: not enough free space. May block on the disk.
[[nodiscard]] Result<void> export_hf_folder(const HfExport& request, const TensorSource& source);

inline constexpr std::int64_t kExportPieceElements =
    256 * 1024;  // smaller: more calls of the source; larger: more memory

}  // namespace headrace::models
