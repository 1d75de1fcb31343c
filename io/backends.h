// SPDX-License-Identifier: Apache-2.0
// The IoBackends that exist and the choice between them by a test with real bytes. Internal to io and its tests.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "io/io_backend.h"
#include "io/volume_set.h"

namespace headrace::io {

// Requests one backend holds at a time. Fewer limits small requests on fast disks; more only costs memory, because the
// bytes in flight are bounded elsewhere.
inline constexpr std::size_t kQueueDepth = 256;

// The error's hint is the command that lifts the refusal.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_uring_backend(std::size_t queue_depth);
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_aio_backend(std::size_t queue_depth);
// One blocking system call.
[[nodiscard]] IoCompletion execute_request(const IoRequest& request) noexcept;
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_threads_backend(std::size_t queue_depth,
                                                                      int threads = kIoThreads);

// What to tell a user whose kernel answered io_uring_setup with this errno: message and the command that fixes it.
[[nodiscard]] Error uring_refusal(int error_number);
[[nodiscard]] Error aio_refusal(int error_number);  // the same for io_setup
[[nodiscard]] std::string aio_limit_text();         // "fs.aio-nr is 65536 of fs.aio-max-nr 65536"

struct BackendCandidate {
  const char* name = "";
  std::function<Result<std::unique_ptr<IoBackend>>()> make;
  bool needs_direct = false;  // refused where a file goes through the page cache
  const char* effect = "";    // of using it in place of the one before
};
// In order of preference; the one that `choice` names, or all.
[[nodiscard]] std::vector<BackendCandidate> backend_candidates(IoBackendChoice choice, int threads = kIoThreads);

// Tests replace the candidates of a VolumeSet through this (VolumeOptions::seam).
struct BackendSeam {
  std::vector<BackendCandidate> candidates;
};

// Where the candidates have to prove themselves: an open file on the disk, and where 8 × alignment bytes of it may be
// overwritten.
struct BackendTrial {
  int fd = -1;
  std::int64_t offset = 0;
  Bytes alignment = 4096;
  std::string folder;  // for the error
  bool direct = true;
  bool read_only = false;  // the range is only read
};
// The first candidate that writes a few blocks of each trial's range and reads them back. Each refusal is logged in one
// line: reason, effect, the command that fixes it. kPreflight with the last refusal when none works.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> choose_backend(std::span<const BackendCandidate> candidates,
                                                                std::span<const BackendTrial> trials);

}  // namespace headrace::io
