// SPDX-License-Identifier: Apache-2.0
// Models and inputs for tests of the plan compiler.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/compile.h"

namespace headrace::runtime {

inline UnitInfo make_unit(std::string name, std::int64_t elements, Bytes output, Bytes saved, Bytes workspace) {
  UnitInfo unit;
  unit.name = std::move(name);
  if (elements > 0) {
    TensorInfo tensor;
    tensor.name = unit.name + ".weight";
    tensor.shape = {elements};
    unit.tensors.push_back(tensor);
  }
  lay_out(unit);
  unit.output_bytes = output;
  unit.saved_bytes = saved;
  unit.forward_workspace_bytes = workspace;
  unit.backward_workspace_bytes = 2 * workspace;
  return unit;
}

struct TransformerShape {
  int blocks = 4;
  std::int64_t embedding_elements = 20'480, block_elements = 40'960, head_elements = 20'480;
  Bytes boundary = 8'192, saved = 40'960, workspace = 16'384;
  bool tied = false;
};

// Embedding, blocks, and a head with the loss; tied: the head owns only a norm and uses the embedding.
inline ModelInfo make_transformer(const TransformerShape& shape) {
  ModelInfo model;
  model.name = "test";
  model.tokens_per_micro_batch = 64;
  model.units.push_back(make_unit("embedding", shape.embedding_elements, shape.boundary, 0, 0));
  for (int i = 0; i < shape.blocks; ++i)
    model.units.push_back(
        make_unit("layers." + std::to_string(i), shape.block_elements, shape.boundary, shape.saved, shape.workspace));
  UnitInfo head = make_unit("head", shape.tied ? 64 : shape.head_elements, 0, shape.boundary, shape.workspace);
  head.fused_loss = true;
  if (shape.tied) head.uses = {0};
  model.units.push_back(head);
  return model;
}

inline PlanInput make_input(ModelInfo model) {
  PlanInput input;
  input.model = std::move(model);
  input.tile_elements = 8'192;
  input.host_budget = kGiB;
  input.program_bytes = 1'000;
  return input;
}

// The smallest host budget of an input, from the error of a compilation that cannot fit.
inline Bytes smallest_host_budget(PlanInput input) {
  input.host_budget = 0;
  input.device_budget = 0;
  const Result<Plan> plan = compile_plan(input);
  return plan.ok() ? 0 : plan.error().smallest_host_bytes;
}

inline std::string message_of(const Result<void>& result) {
  return result.ok() ? std::string() : result.error().message;
}

}  // namespace headrace::runtime
