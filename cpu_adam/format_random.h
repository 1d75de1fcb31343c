// SPDX-License-Identifier: Apache-2.0
// The random bits of stochastic rounding: a function of seed, step, stream and element, so that the same bits come for
// any thread count, tile, target or restart. Internal to cpu_adam and its tests; no source of randomness for others.
#pragma once

#include <array>
#include <cstdint>

namespace headrace::cpu_adam {

using RoundingKey = std::array<std::uint32_t, 2>;

// For the 2^32 elements around `element` that share its upper 32 bits. Philox, so that neither steps nor streams nor
// seeds that are neighbours have anything in common.
[[nodiscard]] RoundingKey rounding_key(std::uint64_t seed, std::int64_t step, std::uint32_t stream,
                                       std::int64_t element) noexcept;
// The bits of the element whose lower 32 bits are `index`: for a fixed key a permutation of all 32-bit numbers. The
// loops compute the same in their vectors (format_random-inl.h).
[[nodiscard]] std::uint32_t rounding_bits(RoundingKey key, std::uint32_t index) noexcept;

}  // namespace headrace::cpu_adam
