// SPDX-License-Identifier: Apache-2.0
// XXH3-64, the checksum of everything stored. The same value on every machine; runs on AVX2 where the CPU has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

[[nodiscard]] std::uint64_t xxh3_64(std::span<const std::byte> data, std::uint64_t seed = 0) noexcept;

// The same over pieces: digest() equals xxh3_64 of all updates end to end. One owner thread.
class Xxh3Stream {
 public:
  explicit Xxh3Stream(std::uint64_t seed = 0) noexcept;
  void update(std::span<const std::byte> data) noexcept;
  [[nodiscard]] std::uint64_t digest() const noexcept;  // may be followed by more updates

 private:
  static constexpr std::size_t kStateBytes = 576;
  alignas(64) std::byte state_[kStateBytes];
};

}  // namespace headrace
