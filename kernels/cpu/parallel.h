// SPDX-License-Identifier: Apache-2.0
// The threads that the CPU kernels compute on, and the scratch memory each of them owns. Work is always cut into tasks
// by shape alone, never by the number of threads, so results do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/bytes.h"

namespace headrace::kernels {

// Thread-safe: several lanes may run loops at once.
class Parallel {
 public:
  explicit Parallel(int threads);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  [[nodiscard]] int threads() const noexcept;
  // Calls body(i) for i in [0, tasks) in any order on any of the threads (the caller's included); returns when all are
  // done.
  void for_each(std::int64_t tasks, const std::function<void(std::int64_t)>& body) const;
  // Scratch of the calling thread inside for_each: kScratchBytes, 64-byte aligned, contents undefined; not kept across
  // tasks.
  static constexpr Bytes kScratchBytes = 8 * kMiB;
  [[nodiscard]] std::span<std::byte> scratch() const;
  [[nodiscard]] Bytes scratch_bytes() const noexcept;  // what all threads hold together, for the memory plan

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::kernels
