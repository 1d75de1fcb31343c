// SPDX-License-Identifier: Apache-2.0
// Adafactor on host memory (Shazeer & Stern 2018, in the form of torch.optim.Adafactor): the second moment of a matrix
// is kept as one number for each row and each column. An element's update depends on the whole tensor, so it takes
// whole tensors: gather one before, or keep tensors below a tile.
//   rho = min(lr, 1/√t); alpha = max(eps2, rms(p))·rho; w = t^beta2_decay; p *= 1 - lr·wd
//   row += w·(mean over columns of g² - row); col += w·(mean over rows of g² - col)
//   V = row·col / max(mean(row), eps1); U = g / max(√V, eps1); p -= alpha / max(1, rms(U)/clip_threshold) · U
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/bytes.h"
#include "core/result.h"
#include "cpu_adam/optimizer.h"

namespace headrace::cpu_adam {

struct AdafactorArrays {
  OptimizerArrays tensor;  // weights and gradient, rows · columns elements, rows end to end; no moments
  std::int64_t rows = 0;   // 1 for a vector
  std::int64_t columns = 0;
  float* row_variance = nullptr;     // [rows] of a matrix; all start at 0
  float* column_variance = nullptr;  // [columns] of a matrix
  float* variance = nullptr;         // [columns] of a vector, in place of the two above
  std::span<std::byte> workspace;    // adafactor_workspace_bytes(), aligned to 64; holds nothing between updates
};

// fp32 numbers of state beside the master: rows + columns of a matrix, the length of a vector.
[[nodiscard]] constexpr std::int64_t adafactor_state_elements(std::int64_t rows, std::int64_t columns,
                                                              bool is_vector) noexcept {
  return is_vector ? columns : rows + columns;
}
// At most a quarter of a byte for each element of a large matrix; four bytes for each of a vector.
[[nodiscard]] Bytes adafactor_workspace_bytes(std::int64_t rows, std::int64_t columns, bool is_vector) noexcept;

// One update over the pool. Everything is checked first: kConfig and kFailed for wrong arguments, kNumeric, with how
// many, when gradient or weights hold values that are not finite, or when the sum of the scaled gradient's squares is
// beyond fp32; then nothing has changed. The same bits on every target and for any number of threads. lr = 0 moves the
// variances and leaves the master's bits.
[[nodiscard]] Result<void> adafactor_update(const ParallelOptimizer& workers, const AdafactorArrays& arrays,
                                            StateFormat format, const OptimizerHyper& hyper);

}  // namespace headrace::cpu_adam
