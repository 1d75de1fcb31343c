// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/format_random.h"

#include "core/random.h"
#include "cpu_adam/kernels.h"

namespace headrace::cpu_adam {

RoundingKey rounding_key(std::uint64_t seed, std::int64_t step, std::uint32_t stream, std::int64_t element) noexcept {
  const auto wide_step = static_cast<std::uint64_t>(step);
  const PhiloxBlock block =
      philox4x32({static_cast<std::uint32_t>(wide_step), static_cast<std::uint32_t>(wide_step >> 32), stream,
                  static_cast<std::uint32_t>(static_cast<std::uint64_t>(element) >> 32)},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {block[0], block[1]};
}

std::uint32_t rounding_bits(RoundingKey key, std::uint32_t index) noexcept {
  std::uint32_t x = index ^ key[0];
  x ^= x >> 16;
  x = x * kRoundingMultiplier0 + key[1];
  x ^= x >> 15;
  x *= kRoundingMultiplier1;
  return x ^ (x >> 16);
}

}  // namespace headrace::cpu_adam
