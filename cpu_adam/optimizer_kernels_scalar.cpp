// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "cpu_adam/optimizer_kernels.h"

namespace headrace::cpu_adam {
namespace {

// Each stands on those above it.
// clang-format off
#include "cpu_adam/vector_scalar-inl.h"

// 1, -1, or 0 for both zeros; a NaN stays one.
inline Vec::F sign(Vec::F x) noexcept { return x > 0 ? 1.0F : (x < 0 ? -1.0F : (x == 0 ? 0.0F : x)); }
// a where it is greater, else b.
inline Vec::F maximum(Vec::F a, Vec::F b) noexcept { return a > b ? a : b; }
inline void add_squares_to(double* sums, Vec::F x) noexcept { *sums += static_cast<double>(x) * static_cast<double>(x); }

#include "cpu_adam/loop-inl.h"
#include "cpu_adam/optimizer_rules-inl.h"
#include "cpu_adam/optimizer-inl.h"
#include "cpu_adam/measure-inl.h"
#include "cpu_adam/whole_tensor-inl.h"
#include "cpu_adam/optimizer_table-inl.h"
// clang-format on

}  // namespace

const OptimizerTable kScalarOptimizers = make_optimizer_table();

}  // namespace headrace::cpu_adam
