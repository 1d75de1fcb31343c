// SPDX-License-Identifier: Apache-2.0
// How gemm() cuts a product into tasks, and the choice between its two paths. Internal; tests use it to run the bf16
// path on CPUs where gemm() would not choose it.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

enum class GemmPath : std::uint8_t { kFp32, kBf16 };

// One task makes `rows` × `columns` of c; k is cut at multiples of `depth`, added in order within the task.
struct GemmBlocks {
  std::int64_t rows, columns, depth;
};
// A function of shape and dtypes alone: the bits of a result depend on it.
[[nodiscard]] GemmBlocks gemm_blocks(const GemmArguments& arguments, GemmPath path) noexcept;

[[nodiscard]] GemmPath gemm_path(const GemmArguments& arguments) noexcept;
void gemm_on_path(const Parallel& parallel, const GemmArguments& arguments, GemmPath path);

[[nodiscard]] bool cpu_has_bf16_product() noexcept;

}  // namespace headrace::kernels
