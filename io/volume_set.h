// SPDX-License-Identifier: Apache-2.0
// The tiles of one shard on one or several paths: one preallocated file per path, tiles striped over them, two slots
// per tile, a trailer behind each payload, and commit records. This is what runtime/store builds the NVMe tier on. It
// knows bytes, versions and slots; which version is current is the caller's decision (see CommitRecord).
//
// Threads: every member may be called from any thread unless it says otherwise. One owner thread does all I/O.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "io/ticket.h"

namespace headrace::io {

// One stream of tiles (one state stream of one unit). Tile i has `tile_payload_bytes` of payload, the last one
// `last_tile_payload_bytes`; on disk each payload is padded to the block alignment and followed by one trailer block.
struct StreamGeometry {
  std::uint32_t stream = 0;  // index of the stream, equal to its position in VolumeGeometry::streams
  std::int64_t tiles = 0;
  Bytes tile_payload_bytes = 0;
  Bytes last_tile_payload_bytes = 0;
  std::int32_t slots = 2;  // 1 for frozen weights and for gradient spill
};

struct VolumeGeometry {
  std::vector<StreamGeometry> streams;
  Bytes record_payload_bytes = 0;  // capacity of one commit record's payload
};

struct TileAddress {
  std::uint32_t stream = 0;
  std::int64_t tile = 0;
  std::int32_t slot = 0;
};

// What a trailer says beside its address and checksum. A read fails unless the trailer says exactly this.
struct TileStamp {
  std::uint64_t step_version = 0;
  std::uint32_t attempt = 0;
};

// `payload` is aligned to payload_alignment() and has room for payload_extent_bytes(stream, tile); it stays the
// caller's and must outlive the completion. Bytes between the payload and its extent are written as they are and are
// not checksummed.
struct TileTransfer {
  TileAddress address;
  TileStamp stamp;
  std::byte* payload = nullptr;
};

enum class IoMode : std::uint8_t { kAuto, kDirect, kBuffered };  // direct never falls back; auto says when it does
enum class IoBackendChoice : std::uint8_t { kAuto, kUring, kLibaio, kThreads };
enum class Durability : std::uint8_t { kProcess, kPower };
// How tiles are dealt over several paths: by the bandwidth measured when the volumes are made, or one each in turn.
enum class Striping : std::uint8_t { kMeasured, kEqual };

struct BackendSeam;

// In flight unless said otherwise, for each path: what keeps a fast drive busy. More lies longer in buffers that no
// cache holds, and reading gets slower.
inline constexpr Bytes kInFlightPerPath = 8 * kMiB;
inline constexpr int kIoThreads = 4;  // of the `threads` backend, unless said otherwise

struct VolumeOptions {
  IoMode mode = IoMode::kAuto;
  IoBackendChoice backend = IoBackendChoice::kAuto;
  int threads = kIoThreads;  // of the `threads` backend
  Bytes block_bytes = kMiB;  // largest single request; with smaller ones the CPU time grows
  Bytes in_flight_bytes =
      0;  // accepted by the kernel and not yet completed, over all paths; 0: kInFlightPerPath × paths
  Durability durability = Durability::kProcess;
  std::chrono::milliseconds stall_report{10'000};  // "no completion for 10 s on …"
  std::chrono::milliseconds deadline{120'000};     // then the transfer fails
  std::int64_t throttle_bytes_per_s = 0;           // 0 = none; tests and `debug.throttle`
  std::int64_t delay_us = 0;                       // extra latency per request, for tests
  Striping striping = Striping::kMeasured;         // of create(); a volume keeps the deal that it was made with
  std::vector<std::uint32_t> shares;               // of create(): tiles of each round per path, instead of measuring
  bool overwrite_devices = false;     // of create(): take a block device although it holds a file system or other data
  bool read_only = false;             // of open(): nothing is written, readers share the lock, writes are refused
  const BackendSeam* seam = nullptr;  // tests: other backends to choose from (io/backends.h); used during the call
};

struct VolumeCounters {
  std::int64_t read_bytes = 0;  // payload + padding + trailer bytes moved, as the device saw them
  std::int64_t written_bytes = 0;
  std::int64_t read_requests = 0;
  std::int64_t write_requests = 0;
  std::int64_t short_transfers = 0;
  std::int64_t retries = 0;
  double read_busy_seconds = 0;  // wall time with at least one read in flight
  double write_busy_seconds = 0;
  double cpu_seconds = 0;  // CPU time of the I/O thread
};

// Opaque to io: the payload's meaning lives in runtime/store. `sequence` grows by one with each record.
struct CommitRecord {
  std::uint64_t sequence = 0;
  std::vector<std::byte> payload;
};

class VolumeSet {
 public:
  struct Impl;  // io/volume_impl.h, for io's own files

  // A path is a folder, where the file of run `run_id` is `headrace-<run_id>.volume`, or a block device, which holds
  // one volume and nothing else. create() fails with kPreflight (path missing, neither folder nor device, not writable,
  // mounted, holding data, not enough space: path, wanted and free bytes; the same path twice) before it writes
  // anything, preallocates real blocks, and takes the lock. open() fails with kPreflight when another process holds the
  // run (waits `lock_deadline` with a line of text first) and with kIo when a volume is truncated, has another geometry
  // or format, or a damaged superblock. A file of the same run without a committed record is what a dead process left:
  // it is removed, with a line of text.
  static Result<std::unique_ptr<VolumeSet>> create(const std::vector<std::string>& paths, const std::string& run_id,
                                                   const VolumeGeometry& geometry, const VolumeOptions& options);
  static Result<std::unique_ptr<VolumeSet>> open(const std::vector<std::string>& paths, const std::string& run_id,
                                                 const VolumeOptions& options,
                                                 std::chrono::milliseconds lock_deadline = std::chrono::seconds(30));
  ~VolumeSet();  // drains, then closes; never removes a file
  VolumeSet(const VolumeSet&) = delete;
  VolumeSet& operator=(const VolumeSet&) = delete;

  [[nodiscard]] const VolumeGeometry& geometry() const noexcept;
  [[nodiscard]] Bytes payload_alignment() const noexcept;  // of memory and extents, ≥ 4096
  [[nodiscard]] Bytes payload_extent_bytes(std::uint32_t stream,
                                           std::int64_t tile) const;              // payload padded to the alignment
  [[nodiscard]] Bytes disk_bytes(std::uint32_t stream, std::int64_t tile) const;  // extent + trailer block

  // Start a batch of tile moves that completes as one. A read verifies length, trailer (magic, format, run, address,
  // stamp) and XXH3 of each payload; the first failure is the ticket's error (kIo; file, offset, stream, tile, wanted,
  // had). When everything is done `sink.notify(context, tag)` is called on the I/O thread (it must only post), then the
  // ticket is ready.
  [[nodiscard]] Ticket read(std::span<const TileTransfer> transfers, CompletionSink sink = {});
  [[nodiscard]] Ticket write(std::span<const TileTransfer> transfers, CompletionSink sink = {});

  // Writes the record to every volume, alternating between two places by `sequence`, after flushing all volumes when
  // durability is kPower (and flushes again). Call only when every data write that the record stands for has completed.
  // Blocks.
  [[nodiscard]] Result<void> write_record(const CommitRecord& record);
  // The valid records found on all volumes, newest first, at most two; empty when none was ever written.
  [[nodiscard]] Result<std::vector<CommitRecord>> read_records();

  [[nodiscard]] VolumeCounters counters() const;
  [[nodiscard]] std::string describe() const;  // "io_uring, direct I/O, 1 volume in ./scratch": what is really in use
  [[nodiscard]] std::vector<std::string> files() const;

  // Measures this volume set alone with the given payload memory (aligned, at least two blocks): writes to a scratch
  // extent reserved for it (never to a tile), reads tiles when a record says that they were written and the scratch
  // extent otherwise (blocks that were never written are read without the disk). For `bound_ratio`. Blocks for about
  // `budget`.
  struct Rates {
    double read_bytes_per_s = 0, write_bytes_per_s = 0, mixed_bytes_per_s = 0;
    double cpu_seconds_per_byte = 0;  // CPU time of the I/O thread per byte moved, checksums included
  };
  [[nodiscard]] Result<Rates> measure(std::span<std::byte> memory, std::chrono::milliseconds budget);

 private:
  explicit VolumeSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What lies under a path: every headrace volume with its run id, bytes, and whether it holds a committed record (a
// volume with one is never removed or reused by another run). Does not take locks; `locked` says whether a process
// holds it now.
struct VolumeInfo {
  std::string file;
  std::string run_id;
  Bytes bytes = 0;
  bool has_record = false;
  bool locked = false;
};
[[nodiscard]] Result<std::vector<VolumeInfo>> list_volumes(const std::string& path);
// Whether volumes could be made on these paths, before anything else is done: they are there, folders or block devices,
// each once, may be written to, and do not lie in memory (tmpfs; mode kBuffered takes that). Leaves nothing behind.
// kPreflight with what to do.
[[nodiscard]] Result<void> check_paths(const std::vector<std::string>& paths, const VolumeOptions& options);
// The folders among some paths, for a further volume set of the same process: a block device holds one volume.
// kPreflight when there is none.
[[nodiscard]] Result<std::vector<std::string>> folders_among(const std::vector<std::string>& paths);
// Removes the files of a run; a block device is cleared instead; refuses (kPreflight) while a process holds it.
[[nodiscard]] Result<void> remove_volumes(const std::vector<std::string>& paths, const std::string& run_id);

}  // namespace headrace::io
