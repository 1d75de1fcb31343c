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
[[nodiscard]] Result<std::unique_ptr<IoBackend>> make_threads_backend(std::size_t queue_depth);

// What to tell a user whose kernel answered io_uring_setup with this errno: message and the command that fixes it.
[[nodiscard]] Error uring_refusal(int error_number);

struct BackendCandidate {
  const char* name = "";
  std::function<Result<std::unique_ptr<IoBackend>>()> make;
};
// In order of preference; the one that `choice` names, or all.
[[nodiscard]] std::vector<BackendCandidate> backend_candidates(IoBackendChoice choice);

// Tests replace the candidates of a VolumeSet through this (VolumeOptions::seam).
struct BackendSeam {
  std::vector<BackendCandidate> candidates;
};

// Where the candidates have to prove themselves: a folder on the disk, and how its files will be opened.
struct BackendTrial {
  std::string folder;
  bool direct = false;
  Bytes alignment = 4096;
};
// The first candidate that writes and reads back a few blocks of a temporary file in the folder. Each refusal is logged in
// one line: reason, effect, the command that fixes it. kPreflight with the last refusal when none works.
[[nodiscard]] Result<std::unique_ptr<IoBackend>> choose_backend(std::span<const BackendCandidate> candidates,
                                                                const BackendTrial& trial);

}  // namespace headrace::io
