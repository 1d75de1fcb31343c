// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstring>

#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {
namespace {

#include "cpu_adam/vector_avx512-inl.h"

// clang-format off: the loops are written in terms of the vectors
#include "cpu_adam/adamw-inl.h"
#include "cpu_adam/arrive-inl.h"
#include "cpu_adam/table-inl.h"
// clang-format on

}  // namespace

const KernelTable kAvx512Kernels = make_table();

}  // namespace headrace::cpu_adam
