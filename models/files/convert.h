// SPDX-License-Identifier: Apache-2.0
// Element conversion between the dtypes that weight files and the runtime use, for importing and exporting weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace headrace::models {

// Converts `elements` from one dtype to another: widening is exact, narrowing rounds to nearest even, equal dtypes copy
// bits. No alignment is needed; `from` and `to` must not overlap.
void convert_elements(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, std::int64_t elements);

}  // namespace headrace::models
