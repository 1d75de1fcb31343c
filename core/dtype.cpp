// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

namespace headrace {

const char* dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFp32: return "fp32";
    case DType::kBf16: return "bf16";
    case DType::kFp16: return "fp16";
  }
  return "unknown";
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

float to_fp32(Fp16 value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0x1FU) {  // infinity, or a NaN that is quieted as the hardware does
    const std::uint32_t payload = mantissa == 0 ? 0U : (mantissa << 13) | 0x00400000U;
    return std::bit_cast<float>(sign | 0x7F800000U | payload);
  }
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24 is exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

Fp16 to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const auto with_sign = [sign](std::uint32_t rest) { return Fp16{static_cast<std::uint16_t>(sign | rest)}; };
  if (magnitude > 0x7F800000U) return with_sign(0x7E00U | ((magnitude >> 13) & 0x3FFU));
  if (magnitude >= 0x477FF000U) return with_sign(0x7C00U);  // 65520 and above round to infinity
  if (magnitude < 0x38800000U) {                            // below 2^-14: a multiple of 2^-24
    // Adding 0.5 makes the last place 2^-24; that this is a single addition in fp32 does the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U);
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return with_sign((magnitude - 0x38000000U + 0x0FFFU + odd) >> 13);
}

}  // namespace headrace
