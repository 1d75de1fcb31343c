// SPDX-License-Identifier: Apache-2.0
// Element types and their scalar conversions. These are the reference that every SIMD conversion is compared with.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/bytes.h"

namespace headrace {

enum class DType : std::uint8_t { kFp32, kBf16, kFp16 };

[[nodiscard]] constexpr Bytes dtype_bytes(DType dtype) noexcept { return dtype == DType::kFp32 ? 4 : 2; }
[[nodiscard]] const char* dtype_name(DType dtype) noexcept;  // "fp32", "bf16", "fp16"
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name) noexcept;

struct Bf16 {
  std::uint16_t bits = 0;
};
struct Fp16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] constexpr float to_fp32(Bf16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
// Round to nearest, ties to even; a NaN stays a NaN of the same sign (quieted).
[[nodiscard]] constexpr Bf16 to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x0040U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}
[[nodiscard]] float to_fp32(Fp16 value) noexcept;
[[nodiscard]] Fp16 to_fp16(float value) noexcept;  // round to nearest, ties to even; overflow gives infinity

// The split master (design §2): fp32 bits = bf16 weight `hi` (ties away from zero) + signed 16-bit remainder `lo`.
struct SplitMaster {
  std::uint16_t hi;
  std::int16_t lo;
};
[[nodiscard]] constexpr SplitMaster split_master(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>((bits + 0x8000U) >> 16), static_cast<std::int16_t>(bits & 0xFFFFU)};
}
[[nodiscard]] constexpr float join_master(SplitMaster split) noexcept {
  return std::bit_cast<float>((static_cast<std::uint32_t>(split.hi) << 16) +
                              static_cast<std::uint32_t>(static_cast<std::int32_t>(split.lo)));
}

}  // namespace headrace
