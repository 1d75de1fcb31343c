// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {
namespace {

#include "cpu_adam/vector_scalar-inl.h"

// clang-format off: the loops are written in terms of the vectors
#include "cpu_adam/adamw-inl.h"
#include "cpu_adam/arrive-inl.h"
#include "cpu_adam/table-inl.h"
// clang-format on

}  // namespace

const KernelTable kScalarKernels = make_table();

}  // namespace headrace::cpu_adam
