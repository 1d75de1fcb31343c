// SPDX-License-Identifier: Apache-2.0
// Updates whole tensors with the optimizers that need them (Adafactor, Muon), and hands Muon its matrix product. Used
// by StateUpdater.
#pragma once

#include <cstddef>
#include <memory>

#include "core/bytes.h"
#include "core/result.h"
#include "cpu_adam/optimizer.h"
#include "kernels/cpu/parallel.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {

// One tensor within its unit's only tile.
struct WholeTensor {
  const TensorInfo* info = nullptr;
  TensorState state;
  cpu_adam::OptimizerArrays arrays;  // weights, master or remainder, gradient of the tensor; moments[0] = its exp_avg
};

// One thread at a time: the workspace is one.
class WholeTensorUpdater {
 public:
  // `products` computes Muon's and must outlive this; null for Adafactor.
  WholeTensorUpdater(Bytes workspace_bytes, const kernels::Parallel* products);

  // kNumeric, and nothing has changed, when a value is not finite or a norm is beyond fp32.
  [[nodiscard]] Result<void> update(const cpu_adam::ParallelOptimizer& workers, const WholeTensor& tensor,
                                    cpu_adam::StateFormat format, const cpu_adam::OptimizerHyper& hyper) const;

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::unique_ptr<std::byte, Free> workspace_;
  Bytes workspace_bytes_ = 0;
  const kernels::Parallel* products_ = nullptr;
};

}  // namespace headrace::runtime
