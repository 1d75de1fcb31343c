// SPDX-License-Identifier: Apache-2.0
// The first values of fresh tensors. An element depends on the seed, the tensor's name and its index alone, so tensors
// may be filled tile by tile, on any rank, in any order, with the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/unit.h"

namespace headrace::models {

// Elements [first_element, first_element + out.size()) of the tensor. Thread-safe.
void fill_init(const runtime::InitRule& rule, std::uint64_t seed, std::string_view tensor_name,
               std::int64_t first_element, std::span<float> out);

}  // namespace headrace::models
