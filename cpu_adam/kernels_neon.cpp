// SPDX-License-Identifier: Apache-2.0
#include <arm_neon.h>

#include <cstring>

#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {
namespace {

#include "cpu_adam/vector_neon-inl.h"

// The blank lines keep the order: each is written in terms of what stands above.
#include "cpu_adam/loop-inl.h"

#include "cpu_adam/adamw-inl.h"
#include "cpu_adam/arrive-inl.h"
#include "cpu_adam/format_random-inl.h"

#include "cpu_adam/format_compact-inl.h"
#include "cpu_adam/format_split_bf16-inl.h"

#include "cpu_adam/table-inl.h"

}  // namespace

const KernelTable kNeonKernels = make_table();

}  // namespace headrace::cpu_adam
