// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "core/log.h"
#include "io/backends.h"
#include "io/posix.h"

namespace headrace::io {
namespace {

constexpr std::size_t kTrialBlocks = 4;

std::string memory_lock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(static_cast<Bytes>(limit.rlim_cur));
}

std::string number_in(const char* file) {
  std::ifstream setting(file);
  std::string value;
  return setting >> value ? value : "unknown";
}

bool uring_is_switched_off() {
  std::ifstream setting("/proc/sys/kernel/io_uring_disabled");
  int value = 0;
  return static_cast<bool>(setting >> value) && value != 0;
}

// Submits the requests through the backend and waits for each to move `bytes`.
Result<void> move_all(IoBackend& backend, std::span<const IoRequest> requests, Bytes bytes) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::size_t submitted = 0;
  std::size_t finished = 0;
  std::optional<Error> first_error;
  while (finished < requests.size()) {
    if (!first_error && submitted < requests.size()) {
      HEADRACE_TRY(const std::size_t accepted, backend.submit(requests.subspan(submitted)));
      submitted += accepted;
    }
    std::array<IoCompletion, kTrialBlocks> completions;
    HEADRACE_TRY(const std::size_t count, backend.reap(completions, 1, deadline));
    for (std::size_t i = 0; i < count; ++i) {
      const IoCompletion& completion = completions[i];
      if (!first_error && completion.error_number != 0) {
        first_error = make_error(ErrorCode::kIo, "a trial request failed: " + errno_text(completion.error_number));
      } else if (!first_error && completion.bytes != bytes) {
        first_error =
            make_error(ErrorCode::kIo, fmt::format("a trial request moved {} of {} bytes", completion.bytes, bytes));
      }
    }
    finished += count;
    if (first_error && backend.in_flight() == 0) return *first_error;
    if (count == 0 && std::chrono::steady_clock::now() >= deadline) {
      return make_error(ErrorCode::kIo, "a trial request has not completed within 20 s");
    }
  }
  if (first_error) return *first_error;
  return {};
}

// Memory of one trial. Kept apart, so that it can outlive a backend that still has a request in flight.
struct TrialMemory {
  AlignedMemory written;
  AlignedMemory read;
  std::array<iovec, 2 * kTrialBlocks> segments{};
};

Result<void> move_and_compare(IoBackend& backend, const BackendTrial& trial, TrialMemory& memory) {
  const Bytes block = 2 * trial.alignment;
  const auto total = static_cast<std::size_t>(block) * kTrialBlocks;
  for (std::size_t i = 0; i < total; ++i) memory.written.get()[i] = static_cast<std::byte>(i * 131 + i / 4096 + 7);
  for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
    if (trial.read_only && operation == IoOperation::kWrite) continue;
    std::byte* base = operation == IoOperation::kWrite ? memory.written.get() : memory.read.get();
    std::array<IoRequest, kTrialBlocks> requests;
    for (std::size_t i = 0; i < kTrialBlocks; ++i) {
      iovec* segments = &memory.segments[2 * i];
      std::byte* start = base + i * static_cast<std::size_t>(block);
      segments[0] = {start, static_cast<std::size_t>(block / 2)};
      segments[1] = {start + block / 2, static_cast<std::size_t>(block / 2)};
      requests[i] = {operation, trial.fd, trial.offset + static_cast<std::int64_t>(i) * block, segments, 2, i};
    }
    HEADRACE_RETURN_IF_ERROR(move_all(backend, requests, block));
  }
  if (!trial.read_only && std::memcmp(memory.written.get(), memory.read.get(), total) != 0) {
    return make_error(ErrorCode::kIo, "the bytes of a trial came back different");
  }
  return {};
}

Result<void> try_backend(std::unique_ptr<IoBackend>& backend, const BackendCandidate& candidate,
                         const BackendTrial& trial) {
  if (candidate.needs_direct && !trial.direct)
    return make_error(ErrorCode::kIo, "its requests would block: it is asynchronous with direct I/O only",
                      "name a folder whose file system has direct I/O");
  const Bytes block = 2 * trial.alignment;
  TrialMemory memory{allocate_aligned(block * kTrialBlocks, trial.alignment),
                     allocate_aligned(block * kTrialBlocks, trial.alignment),
                     {}};
  if (!memory.written || !memory.read) return make_error(ErrorCode::kIo, "no memory for a trial");
  auto outcome = move_and_compare(*backend, trial, memory);
  if (backend->in_flight() > 0) {
    // The kernel may still use this memory and nothing can take it back: it stays allocated, with the backend.
    (void)memory.written.release();
    (void)memory.read.release();
    (void)backend.release();
  }
  return outcome;
}

}  // namespace

#if !HEADRACE_HAS_URING
Result<std::unique_ptr<IoBackend>> make_uring_backend(std::size_t) {
  return make_error(ErrorCode::kPreflight, "this program was built without io_uring",
                    "install liburing-dev and build with -DHEADRACE_WITH_URING=ON");
}
#endif

Error uring_refusal(int error_number) {
  std::string fix;
  if (error_number == EPERM && uring_is_switched_off()) {
    fix = "sysctl -w kernel.io_uring_disabled=0";
  } else if (error_number == EPERM || error_number == EACCES) {
    fix = "start the container with --security-opt seccomp=unconfined, or with a profile that allows io_uring_setup";
  } else if (error_number == ENOSYS) {
    fix = "boot a kernel of at least 5.11 that has CONFIG_IO_URING=y";
  } else if (error_number == ENOMEM) {
    fix = fmt::format("ulimit -l unlimited (the limit of locked memory is {})", memory_lock_limit());
  } else {
    fix = "set headrace.io.backend to \"threads\"";
  }
  return make_error(ErrorCode::kPreflight, "io_uring_setup: " + errno_text(error_number), std::move(fix));
}

std::string aio_limit_text() {
  return fmt::format("fs.aio-nr is {} of fs.aio-max-nr {}", number_in("/proc/sys/fs/aio-nr"),
                     number_in("/proc/sys/fs/aio-max-nr"));
}

Error aio_refusal(int error_number) {
  std::string what = "io_setup: " + errno_text(error_number);
  std::string fix = "set headrace.io.backend to \"threads\"";
  if (error_number == EAGAIN) {
    what += ", " + aio_limit_text();
    fix = "sysctl -w fs.aio-max-nr=1048576";
  } else if (error_number == EPERM || error_number == EACCES) {
    fix = "start the container with a seccomp profile that allows io_setup";
  } else if (error_number == ENOSYS) {
    fix = "boot a kernel that has CONFIG_AIO=y";
  }
  return make_error(ErrorCode::kPreflight, std::move(what), std::move(fix));
}

std::vector<BackendCandidate> backend_candidates(IoBackendChoice choice, int threads) {
  const bool any = choice == IoBackendChoice::kAuto;
  std::vector<BackendCandidate> candidates;
  // When this program was built without it, only who asks for it hears of it.
  if (choice == IoBackendChoice::kUring || (any && HEADRACE_HAS_URING != 0)) {
    candidates.push_back({"io_uring", [] { return make_uring_backend(kQueueDepth); }});
  }
  if (choice == IoBackendChoice::kLibaio || any) {
    candidates.push_back({"libaio", [] { return make_aio_backend(kQueueDepth); }, any, "at about the same speed"});
  }
  if (choice == IoBackendChoice::kThreads || any) {
    candidates.push_back({"threads", [threads] { return make_threads_backend(kQueueDepth, threads); }, false,
                          "at more CPU time per byte and with fewer requests in flight"});
  }
  return candidates;
}

Result<std::unique_ptr<IoBackend>> choose_backend(std::span<const BackendCandidate> candidates,
                                                  std::span<const BackendTrial> trials) {
  Error last = make_error(ErrorCode::kPreflight, "no I/O backend to choose from");
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    auto backend = candidates[i].make();
    std::optional<Error> refusal;
    std::string where = trials.front().folder;
    if (!backend.ok()) refusal = std::move(backend).error();
    for (std::size_t j = 0; j < trials.size() && !refusal; ++j) {
      where = trials[j].folder;
      if (auto outcome = try_backend(*backend, candidates[i], trials[j]); !outcome.ok())
        refusal = std::move(outcome).error();
    }
    if (!refusal) return backend;
    const bool has_next = i + 1 < candidates.size();
    if (has_next) {
      log_warn(fmt::format("{} is refused in {} ({}): trying {} instead{}{}; to fix: {}", candidates[i].name, where,
                           refusal->message, candidates[i + 1].name, *candidates[i + 1].effect == 0 ? "" : ", ",
                           candidates[i + 1].effect,
                           refusal->hint.empty() ? "headrace doctor shows what works here" : refusal->hint));
    }
    last =
        make_error(ErrorCode::kPreflight,
                   fmt::format("{} is refused in {}: {}", candidates[i].name, where, refusal->message), refusal->hint);
  }
  return last;
}

}  // namespace headrace::io
