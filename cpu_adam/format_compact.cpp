// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/format_compact.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {
namespace {

float power_of_two(std::uint32_t exponent_field) noexcept { return std::bit_cast<float>(exponent_field << 23); }

std::int8_t exp_avg_code(float value, std::uint8_t scale) noexcept {
  const double y = static_cast<double>(std::abs(value)) * static_cast<double>(kExpAvgSteps) /
                   static_cast<double>(power_of_two(scale));
  double n = std::min(std::floor(std::sqrt(y)), 127.0);
  if (y > n * n + n + 0.5 && n < 127) ++n;
  return static_cast<std::int8_t>(std::signbit(value) ? -n : n);
}

std::uint8_t exp_avg_sq_code(float value, std::uint8_t scale) noexcept {
  if (value == 0) return 0;
  const double y = std::sqrt(static_cast<double>(value)) * static_cast<double>(kExpAvgSqSteps) /
                   static_cast<double>(power_of_two(scale));
  double n = std::min(std::floor(std::sqrt(y)), 255.0);
  const double next = n + 1;
  if (2 * y * y > n * n * n * n + next * next * next * next && n < 255) n = next;
  return static_cast<std::uint8_t>(std::max(n, static_cast<double>(kLowestExpAvgSqCode)));
}

// Fills `codes` with those of `scale`; true when they stand for the very values.
template <class Code, class Encode, class Decode>
bool encode_block(std::span<const float> values, Code* codes, std::uint8_t scale, const Encode& encode,
                  const Decode& decode) noexcept {
  bool exact = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    codes[i] = encode(values[i], scale);
    exact = exact && decode(codes[i], scale) == values[i];
  }
  return exact;
}

struct ScaleRange {
  std::uint32_t natural, lowest, highest;
};

// The natural scale is the power of two above the largest value. Rounding at the last update may have left the largest
// just above or below the range of the scale that it had then: values of its neighbours are recognised.
template <class Code, class Encode, class Decode>
std::uint8_t narrow_block(std::span<const float> values, Code* codes, ScaleRange range, const Encode& encode,
                          const Decode& decode) noexcept {
  const std::uint32_t natural = std::clamp(range.natural, range.lowest, range.highest);
  for (const std::uint32_t scale : {natural, natural - 1, natural + 1}) {
    if (scale < range.lowest || scale > range.highest) continue;
    if (encode_block(values, codes, static_cast<std::uint8_t>(scale), encode, decode)) {
      return static_cast<std::uint8_t>(scale);
    }
  }
  encode_block(values, codes, static_cast<std::uint8_t>(natural), encode, decode);
  return static_cast<std::uint8_t>(natural);
}

}  // namespace

CompactMaster split_compact(float value) noexcept {
  auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) bits = 0x7FC00000U;
  bits += 0x7FU + ((bits >> 8) & 1U);
  return {static_cast<std::uint16_t>((bits + 0x8000U) >> 16), static_cast<std::int8_t>((bits >> 8) & 0xFFU)};
}

float join_compact(std::uint16_t high, std::int8_t low) noexcept {
  return std::bit_cast<float>((static_cast<std::uint32_t>(high) << 16) +
                              (static_cast<std::uint32_t>(static_cast<std::int32_t>(low)) << 8));
}

float exp_avg_of(std::int8_t code, std::uint8_t scale) noexcept {
  const auto n = static_cast<float>(code);
  return n * std::abs(n) * (power_of_two(scale) * (1.0F / kExpAvgSteps));
}

float exp_avg_sq_of(std::uint8_t code, std::uint8_t scale) noexcept {
  const auto n = static_cast<float>(code);
  const float root = n * n * (power_of_two(scale) * (1.0F / kExpAvgSqSteps));
  return root * root;
}

std::uint8_t narrow_exp_avg(std::span<const float> values, std::int8_t* codes) noexcept {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const std::uint32_t above = (std::bit_cast<std::uint32_t>(largest) >> 23) + 1;
  return narrow_block(values, codes, {above, kLowestExpAvgScale, kExpAvgLimitBits >> 23}, exp_avg_code, exp_avg_of);
}

std::uint8_t narrow_exp_avg_sq(std::span<const float> values, std::uint8_t* codes) noexcept {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, value);
  const std::uint32_t above = (std::bit_cast<std::uint32_t>(std::sqrt(largest)) >> 23) + 1;
  return narrow_block(values, codes, {above, kLowestExpAvgSqScale, kRootLimitBits >> 23}, exp_avg_sq_code,
                      exp_avg_sq_of);
}

}  // namespace headrace::cpu_adam
