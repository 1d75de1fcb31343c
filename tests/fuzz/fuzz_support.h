// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: bytes in and out, and checksums made right, so that the fuzzer gets behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "core/hash.h"

namespace headrace::fuzz {

inline std::vector<std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  return {begin, begin + size};
}

// Puts the XXH3 of [begin, end) at `at`, where all of that is there.
inline void put_hash(std::vector<std::byte>& bytes, std::size_t at, std::size_t begin, std::size_t end) {
  if (end > bytes.size() || begin > end || at + 8 > bytes.size()) return;
  const std::uint64_t hash = xxh3_64(std::span<const std::byte>(bytes).subspan(begin, end - begin));
  std::memcpy(bytes.data() + at, &hash, sizeof hash);
}

inline std::uint64_t number_at(const std::vector<std::byte>& bytes, std::size_t at, std::size_t width) {
  std::uint64_t value = 0;
  if (at + width <= bytes.size()) std::memcpy(&value, bytes.data() + at, width);
  return value;
}

inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace headrace::fuzz
