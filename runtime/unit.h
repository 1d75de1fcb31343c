// SPDX-License-Identifier: Apache-2.0
// What the runtime knows of a model: units (tensors brought in together, in order of use), their flat spaces and the
// bytes that computing them needs. Models fill this in; nothing here knows what a transformer is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/bytes.h"

namespace headrace::runtime {

using UnitId = std::int32_t;
inline constexpr std::int64_t kTensorAlignmentElements =
    64;  // every tensor starts at a multiple: ≥ 128 bytes in 16 bits, 256 in fp32

// How a fresh tensor is filled; element i depends on (seed, tensor name, i) alone.
struct InitRule {
  enum class Kind : std::uint8_t { kZero, kOne, kNormal } kind = Kind::kNormal;
  double deviation = 0.02;
};

struct TensorInfo {
  std::string name;  // the Hugging Face name
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0;  // product of shape
  std::int64_t offset = 0;    // first element in the unit's flat space
  bool frozen = false;
  bool embedding = false;  // a table of token or position vectors, or the head: one row for each, none within the model
  InitRule init;
};

struct UnitInfo {
  std::string name;
  std::vector<TensorInfo> tensors;
  std::int64_t flat_elements = 0;  // end of the last tensor, rounded up to kTensorAlignmentElements
  std::vector<UnitId> uses;        // units that own tensors tied into this one; their weights are needed too and their
                                   // gradients are added to
  bool fused_loss = false;  // the last unit: training needs no forward pass of it, backward gives loss and gradients
  // Per micro-batch of one rank, as fp32 activations on the device:
  Bytes output_bytes = 0;  // boundary activation handed to the next unit (0 for the last one)
  Bytes saved_bytes = 0;   // what forward saves for backward beside its input, under `keep`
  Bytes forward_workspace_bytes = 0;
  Bytes backward_workspace_bytes = 0;  // without the saved activations
  double forward_flops = 0;            // per micro-batch; backward is taken as twice this
};

struct ModelInfo {
  std::string name;
  std::vector<UnitInfo> units;  // in order of the forward pass
  std::int64_t tokens_per_micro_batch = 0;
};

// Lays tensors end to end: fills `offset` and `flat_elements`.
void lay_out(UnitInfo& unit);

// The slice of a flat space that a rank owns: `world_size` equal padded parts (ZeRO).
struct PartitionRange {
  std::int64_t begin = 0, end = 0;   // elements of the flat space, end exclusive, without padding
  std::int64_t padded_elements = 0;  // length every rank stores
};
[[nodiscard]] PartitionRange partition_range(std::int64_t flat_elements, int rank, int world_size);

}  // namespace headrace::runtime
