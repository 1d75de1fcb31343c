// SPDX-License-Identifier: Apache-2.0
// The seam to the kernel: moves aligned blocks between host memory and files. One thread owns an instance.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/bytes.h"
#include "core/result.h"
#include "io/ticket.h"

namespace headrace::io {

enum class IoOperation : std::uint8_t { kRead, kWrite, kFlush };

// One request the kernel sees. `segments` (at most kMaxSegments) stay the caller's until the completion is reaped.
struct IoRequest {
  static constexpr std::size_t kMaxSegments = 4;
  IoOperation operation = IoOperation::kRead;
  int fd = -1;
  std::int64_t offset = 0;
  const iovec* segments = nullptr;
  std::uint32_t num_segments = 0;
  std::uint64_t tag = 0;
};

// The kernel's answer: bytes moved (may be short), or error_number > 0.
struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t bytes = 0;
  int error_number = 0;
};

struct IoCapabilities {
  const char* name = "";
  std::size_t queue_depth = 0;
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  // Takes a prefix of `requests`; returns its length. Fewer than all means "busy": reap, then offer the rest.
  [[nodiscard]] Result<std::size_t> submit(std::span<const IoRequest> requests);
  // Fills `out` with finished requests; waits until `min_count` are ready or `deadline` passes.
  [[nodiscard]] Result<std::size_t> reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline);
  // Makes a reap() that waits in the owner thread return early. The only member that any thread may call.
  virtual void wake() noexcept = 0;
  [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }  // accepted and not yet reaped
  [[nodiscard]] virtual IoCapabilities capabilities() const noexcept = 0;

 protected:
  virtual Result<std::size_t> do_submit(std::span<const IoRequest> requests) = 0;  // checks and counting are done above
  virtual Result<std::size_t> do_reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) = 0;

 private:
  std::size_t in_flight_ = 0;
};

}  // namespace headrace::io
