// SPDX-License-Identifier: Apache-2.0
// The loops that memory bandwidth is measured with: reading, writing and copying a run of memory, with ordinary and
// with non-temporal stores. Internal to runtime/profile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::profile {

// `bytes` is a multiple of 256, addresses of 64.
struct StreamLoops {
  std::uint64_t (*read)(const std::byte* source, std::size_t bytes) noexcept = nullptr;  // some sum over all of it
  void (*write)(std::byte* destination, std::size_t bytes, std::uint64_t word) noexcept = nullptr;
  void (*write_streaming)(std::byte* destination, std::size_t bytes, std::uint64_t word) noexcept = nullptr;
  void (*copy)(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept = nullptr;
  void (*copy_streaming)(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept = nullptr;
};
// The widest that this CPU has. Without AVX2 there are no streaming stores: those members are null.
[[nodiscard]] StreamLoops stream_loops() noexcept;
#if defined(__x86_64__)
[[nodiscard]] StreamLoops stream_loops_avx2() noexcept;
#endif

}  // namespace headrace::profile
