// SPDX-License-Identifier: Apache-2.0
// Keeps a Queue of io/ busy with tiles, exactly as training does (trailers and checksums included), and measures the
// rate, the latencies and the CPU time. What `headrace profile`, `headrace tune` and perf_io stand on. One owner
// thread.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/host_slab.h"
#include "core/result.h"
#include "io/backends.h"
#include "io/latency.h"
#include "io/queue.h"
#include "io/volume_set.h"
#include "runtime/profile/test_file.h"
#include "runtime/profile/transfer_loop.h"

namespace headrace::profile {

enum class Traffic : std::uint8_t { kRead, kWrite, kMixed };  // mixed: as many bytes read as written
[[nodiscard]] const char* traffic_name(Traffic traffic) noexcept;

struct TransferSetting {
  Bytes block_bytes = kMiB;
  Bytes in_flight_bytes = io::kInFlightPerPath;
  io::IoBackendChoice backend = io::IoBackendChoice::kAuto;
  int threads = io::kIoThreads;            // of the `threads` backend
  std::vector<std::uint32_t> shares = {};  // of tiles, for each path of a run over all; empty: one each in turn
  bool operator==(const TransferSetting&) const = default;
};
// What training uses with so many paths unless the config says otherwise.
[[nodiscard]] TransferSetting default_setting(std::size_t paths);

// Where a sample ends: when the rate is steady and `seconds` have passed, at the latest after twice as long, or when
// `write_bytes` have been written.
struct SampleLimit {
  double seconds = 1;
  Bytes write_bytes = 0;
  bool until_steady = true;  // false: after `seconds`, however it went
};

struct Sample {
  double bytes_per_s = 0;  // both directions together, over the time after the warm-up
  double read_bytes_per_s = 0, write_bytes_per_s = 0;
  double whole_bytes_per_s = 0;     // with warm-up and drain, as fio counts
  double cpu_seconds_per_byte = 0;  // of all threads of this process, checksums included
  bool steady = false;
  double seconds = 0;  // of the whole
  Bytes read_bytes = 0, written_bytes = 0;
  io::LatencyHistogram read_latency, write_latency;  // of requests
  const char* backend = "";
};

// The tiles of some files: a half to be read, a half to be written (less what fio gets).
class TransferRun {
 public:
  // `tile_bytes` with trailer; a multiple of all alignments. `files` outlive this.
  TransferRun(std::span<TestFile> files, Bytes tile_bytes);

  // Writes every tile once, for at most `seconds` (then the files are cut to what was written). Call first.
  [[nodiscard]] Result<void> lay_out(const TransferSetting& setting, double seconds);

  // Bytes of memory that a run at this setting uses.
  [[nodiscard]] Bytes memory_bytes(const TransferSetting& setting) const noexcept;
  // `memory` is aligned to 4096 and the files' alignment, and has memory_bytes(); its contents are written and
  // overwritten. `which` are positions in `files`.
  [[nodiscard]] Result<Sample> run(Traffic traffic, const TransferSetting& setting, const SampleLimit& limit,
                                   std::span<std::byte> memory, std::span<const std::uint32_t> which);

  // Reads everything that was ever written through its checksums, or as much of it as `seconds` allow.
  [[nodiscard]] Result<void> verify(const TransferSetting& setting,
                                    double seconds = std::numeric_limits<double>::infinity());

  // The part of each file that is read, written, and left to others (fio), in bytes from its start.
  struct Range {
    std::int64_t offset = 0;
    Bytes bytes = 0;
  };
  [[nodiscard]] Range read_range(std::uint32_t file) const noexcept;
  [[nodiscard]] Range write_range(std::uint32_t file) const noexcept;
  [[nodiscard]] Range others_range(std::uint32_t file) const noexcept;

  [[nodiscard]] Bytes written_bytes() const noexcept { return written_bytes_; }  // by all runs
  [[nodiscard]] Bytes verified_bytes() const noexcept { return verified_bytes_; }
  [[nodiscard]] Bytes tile_bytes() const noexcept { return tile_bytes_; }
  [[nodiscard]] std::span<const TestFile> files() const noexcept { return files_; }

 private:
  struct Pass;  // transfer_run.cpp: what one run has under way
  [[nodiscard]] std::int64_t tiles_of(std::uint32_t file) const noexcept;
  [[nodiscard]] std::size_t slots_of(const TransferSetting& setting,
                                     std::span<const std::uint32_t> which) const noexcept;
  [[nodiscard]] Result<std::unique_ptr<io::IoBackend>> make_backend(const TransferSetting& setting);
  [[nodiscard]] Result<std::unique_ptr<io::Queue>> make_queue(const TransferSetting& setting);
  [[nodiscard]] TileWork work_on(io::IoOperation operation, std::uint32_t file, std::int64_t tile);
  [[nodiscard]] Result<void> forget_pages(std::uint32_t file) const;

  std::span<TestFile> files_;
  Bytes tile_bytes_;
  Bytes alignment_;
  std::map<std::pair<io::IoBackendChoice, int>, io::BackendCandidate> chosen_;  // by a test with real bytes, once
  std::vector<std::uint32_t> all_;                                              // positions of all files
  std::vector<std::vector<std::uint64_t>> versions_;                            // [files][tiles], 0 = never written
  std::uint64_t next_version_ = 1;
  Bytes written_bytes_ = 0;
  Bytes verified_bytes_ = 0;
};

// Memory for runs: huge pages where the system gives them, or ordinary pages on purpose.
[[nodiscard]] Result<HostSlab> make_io_memory(Bytes bytes, PageKind best_pages);

}  // namespace headrace::profile
