// SPDX-License-Identifier: Apache-2.0
#include "runtime/unit.h"

#include <algorithm>

#include "core/check.h"

namespace headrace::runtime {

void lay_out(UnitInfo& unit) {
  std::int64_t next = 0;
  for (TensorInfo& tensor : unit.tensors) {
    tensor.elements = 1;
    for (const std::int64_t extent : tensor.shape) {
      HEADRACE_CHECK(extent >= 0, "a tensor's shape is not negative");
      HEADRACE_CHECK(!__builtin_mul_overflow(tensor.elements, extent, &tensor.elements),
                     "a tensor's elements fit 64 bits");
    }
    tensor.offset = next;
    HEADRACE_CHECK(!__builtin_add_overflow(next, tensor.elements, &next), "a unit's elements fit 64 bits");
    next = round_up(next, kTensorAlignmentElements);
  }
  unit.flat_elements = next;
}

PartitionRange partition_range(std::int64_t flat_elements, int rank, int world_size) {
  HEADRACE_CHECK(flat_elements >= 0 && world_size > 0 && rank >= 0 && rank < world_size, "rank is one of world_size");
  // Partitions begin at the alignment of tensors, so that vector loads of a slice are as aligned as those of the whole.
  const std::int64_t padded = round_up(ceil_div(flat_elements, world_size), kTensorAlignmentElements);
  PartitionRange range;
  range.begin = std::min(flat_elements, padded * rank);
  range.end = std::min(flat_elements, padded * (rank + 1));
  range.padded_elements = padded;
  return range;
}

}  // namespace headrace::runtime
