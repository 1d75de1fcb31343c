// SPDX-License-Identifier: Apache-2.0
// One value at a time, what the bytes of the compact format mean, and the bytes nearest to a value. For conversions and
// tests; the update has the same arithmetic in its loops (format_compact-inl.h). Internal to cpu_adam.
#pragma once

#include <cstdint>
#include <span>

namespace headrace::cpu_adam {

// The master's upper 24 bits: a bf16 weight by the ties-away rule, and the signed eight bits below it.
struct CompactMaster {
  std::uint16_t high;
  std::int8_t low;
};
[[nodiscard]] CompactMaster split_compact(float value) noexcept;  // nearest, ties to even; NaN: 0x7FC00000
[[nodiscard]] float join_compact(std::uint16_t high, std::int8_t low) noexcept;

[[nodiscard]] float exp_avg_of(std::int8_t code, std::uint8_t scale) noexcept;
[[nodiscard]] float exp_avg_sq_of(std::uint8_t code, std::uint8_t scale) noexcept;

// Codes of at most 64 finite values, nearest in value; returns the scale. Values that a block of codes stands for give
// these values again.
[[nodiscard]] std::uint8_t narrow_exp_avg(std::span<const float> values, std::int8_t* codes) noexcept;
[[nodiscard]] std::uint8_t narrow_exp_avg_sq(std::span<const float> values, std::uint8_t* codes) noexcept;

}  // namespace headrace::cpu_adam
