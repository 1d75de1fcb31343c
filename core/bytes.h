// SPDX-License-Identifier: Apache-2.0
// Sizes: byte counts, rounding to alignments, and the texts users read and write ("400M", "1GiB").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace headrace {

using Bytes = std::int64_t;  // signed, so that differences of sizes are sizes; never negative at an interface

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

// Smallest multiple of `alignment` (> 0, any number) that is ≥ value (≥ 0).
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t alignment) noexcept {
  return (value + alignment - 1) / alignment * alignment;
}
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) noexcept {
  return (value + divisor - 1) / divisor;
}

// "160MiB", "1.5GiB", "400M" (K, M, G, T mean powers of 1024; KB, MB, GB, TB powers of 1000), "123", case-insensitive.
// kConfig error for anything else, negative, or beyond 2^62.
[[nodiscard]] Result<Bytes> parse_bytes(std::string_view text);
[[nodiscard]] std::string format_bytes(Bytes bytes);             // "2.66 GiB", "158 MiB", "512 B"
[[nodiscard]] std::string format_rate(double bytes_per_second);  // "1.73 GB/s" (10^9)

}  // namespace headrace
