// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "runtime/profile/streams.h"

namespace headrace::profile {
namespace {

std::uint64_t read(const std::byte* source, std::size_t bytes) noexcept {
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const auto* const at = reinterpret_cast<const __m256i*>(source + i + 32 * lane);
      sums[lane] = _mm256_xor_si256(sums[lane], _mm256_load_si256(at));
    }
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  alignas(32) std::uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), all);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

template <bool kStreaming>
void put(std::byte* at, __m256i value) noexcept {
  if constexpr (kStreaming) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), value);
  } else {
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), value);
  }
}

template <bool kStreaming>
void write(std::byte* destination, std::size_t bytes, std::uint64_t word) noexcept {
  const __m256i value = _mm256_set1_epi64x(static_cast<long long>(word));
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t lane = 0; lane < 4; ++lane) put<kStreaming>(destination + i + 32 * lane, value);
  }
  if constexpr (kStreaming) _mm_sfence();
}

template <bool kStreaming>
void copy(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const auto* const at = reinterpret_cast<const __m256i*>(source + i + 32 * lane);
      put<kStreaming>(destination + i + 32 * lane, _mm256_load_si256(at));
    }
  }
  if constexpr (kStreaming) _mm_sfence();
}

}  // namespace

StreamLoops stream_loops_avx2() noexcept { return {read, write<false>, write<true>, copy<false>, copy<true>}; }

}  // namespace headrace::profile
