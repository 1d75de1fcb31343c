// SPDX-License-Identifier: Apache-2.0
// Muon on host memory (Keller Jordan 2024): the momentum of a matrix is brought near the nearest orthogonal matrix by
// Newton-Schulz steps, and that is the update. Needs whole matrices, and a matrix product that the caller hands in.
//   M = mu·M + (1-mu)·g; u = nesterov ? (1-mu)·g + mu·M : M; O = newton_schulz(u); p *= 1 - lr·wd; p -= lr·scale·O
//   newton_schulz(u): X = u / (|u| + eps), transposed if it has more rows than columns;
//                     each step: A = X·Xᵀ; X = (a·I + b·A + c·A·A)·X; transposed back
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/bytes.h"
#include "core/result.h"
#include "cpu_adam/optimizer.h"

namespace headrace::cpu_adam {

// c [m,n] = a [m,k] · b [k,n], fp32, rows end to end; with b_transposed b is stored as [n,k]. c overlaps neither.
struct MatrixProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
  bool b_transposed = false;
};
// Returns when c is complete. Muon's bits are those of this function: one whose result does not depend on the number of
// threads gives an update that does not either.
using MatrixProductFn = std::function<void(const MatrixProduct&)>;

struct MuonArrays {
  OptimizerArrays tensor;  // rows · columns elements, rows end to end; moments[0] is the momentum buffer
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::span<std::byte> workspace;  // muon_workspace_bytes(), aligned to 64; holds nothing between updates
};

// Two copies of the matrix and two squares of its shorter side, in fp32.
[[nodiscard]] Bytes muon_workspace_bytes(std::int64_t rows, std::int64_t columns) noexcept;
// What lr is multiplied by for a matrix of this shape.
[[nodiscard]] double muon_scale_of(MuonScale scale, std::int64_t rows, std::int64_t columns) noexcept;

// One update; all but the products runs on the pool. Everything is checked first: kConfig and kFailed for wrong
// arguments, kNumeric, with how many, when gradient or momentum hold values that are not finite, which would spoil the
// whole matrix; then nothing has changed. lr = 0 moves the momentum and leaves the master's bits.
[[nodiscard]] Result<void> muon_update(const ParallelOptimizer& workers, const MuonArrays& arrays, StateFormat format,
                                       const OptimizerHyper& hyper, const MatrixProductFn& multiply);

}  // namespace headrace::cpu_adam
