// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/export_weights.h"

#include <map>
#include <vector>

#include "models/files/hf_folder.h"

namespace headrace::models {

Result<void> export_weights_to(const std::string& folder, const ModelConfig& config, const runtime::ModelInfo& model,
                               DType dtype, runtime::WeightsReader& reader) {
  std::vector<runtime::TensorInfo> tensors;
  std::map<std::string, runtime::UnitId> owners;
  for (std::size_t u = 0; u < model.units.size(); ++u)
    for (const runtime::TensorInfo& tensor : model.units[u].tensors) {
      tensors.push_back(tensor);
      owners[tensor.name] = static_cast<runtime::UnitId>(u);
    }
  HfExport request;
  request.folder = folder;
  request.config = config;
  request.tensors = tensors;
  request.dtype = dtype;
  return export_hf_folder(request, [&](const runtime::TensorInfo& tensor, std::int64_t first, std::span<float> out) {
    return reader.read(owners.at(tensor.name), tensor, first, out);
  });
}

}  // namespace headrace::models
