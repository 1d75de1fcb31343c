// SPDX-License-Identifier: Apache-2.0
// What a VolumeSet holds, and the looks into volume files that its free functions share. Internal to io.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/layout.h"
#include "io/posix.h"
#include "io/queue.h"
#include "io/volume_file.h"
#include "io/volume_set.h"

namespace headrace::io {

struct VolumeSet::Impl {
  std::string run_id;
  std::uint64_t run_hash = 0;
  VolumeLayout layout;
  VolumeOptions options;
  Bytes memory_alignment = kMinAlignment;
  std::vector<std::string> folders;  // [volumes], like the next three
  std::vector<FolderProbe> probes;
  std::vector<std::string> paths;
  std::vector<UniqueFd> fds;
  std::mutex
      record_mutex;  // one record is written or read at a time; held across its I/O, which nothing else waits for
  std::optional<Error> flush_failure;  // like the next guarded by record_mutex; after one nothing is committed any more
  std::optional<CommitRecord> begun;   // a record whose write failed: only it may be written next
  std::unique_ptr<Queue> queue;

  ~Impl();
  [[nodiscard]] Ticket move_tiles(IoOperation operation, std::span<const TileTransfer> transfers, CompletionSink sink);
  [[nodiscard]] Result<void> run(std::vector<Move> moves);  // submits and waits; the queue's deadline bounds it
  [[nodiscard]] Result<void> flush_all();
  [[nodiscard]] Result<void> check_record(const CommitRecord& record) const;
  // Newest first, at most two. The caller holds record_mutex.
  [[nodiscard]] Result<std::vector<CommitRecord>> read_records();
};

// What one file holds, read without its lock. A device without a volume has no run id.
[[nodiscard]] Result<VolumeInfo> inspect_volume(const std::string& path, const std::string& run_id);

}  // namespace headrace::io
