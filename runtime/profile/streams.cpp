// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/streams.h"

#include <cstring>

#include "core/topology.h"

namespace headrace::profile {
namespace {

std::uint64_t word_at(const std::byte* at) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t read(const std::byte* source, std::size_t bytes) noexcept {
  std::uint64_t sums[4] = {};
  for (std::size_t i = 0; i < bytes; i += 32) {
    for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] ^= word_at(source + i + 8 * lane);
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

void write(std::byte* destination, std::size_t bytes, std::uint64_t word) noexcept {
  for (std::size_t i = 0; i < bytes; i += 8) std::memcpy(destination + i, &word, sizeof word);
}

void copy(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = word_at(source + i);
    std::memcpy(destination + i, &word, sizeof word);
  }
}

}  // namespace

StreamLoops stream_loops() noexcept {
#if defined(__x86_64__)
  if (cpu_features().avx2) return stream_loops_avx2();
#endif
  return {read, write, nullptr, copy, nullptr};
}

}  // namespace headrace::profile
