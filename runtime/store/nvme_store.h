// SPDX-License-Identifier: Apache-2.0
// The NVMe tier: tiles with two slots on a VolumeSet. A step writes to the slots that are not current; commit() writes
// the record that makes them current, so that after a kill at any instant the last committed step is found whole.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/volume_set.h"
#include "runtime/store/shard_geometry.h"
#include "runtime/store/step_record.h"
#include "runtime/store/tier_store.h"

namespace headrace::runtime {

// load() and store() from any thread; commit() with no store in flight and no load() of a tile that it makes current.
class NvmeStore final : public TierStore {
 public:
  static Result<std::unique_ptr<NvmeStore>> create(const std::vector<std::string>& paths, const std::string& run_id,
                                                   ShardGeometry geometry, const io::VolumeOptions& options);
  // kIo when no valid record is found; kConfig when the volume's tiles are not those of `geometry`.
  static Result<std::unique_ptr<NvmeStore>> open(const std::vector<std::string>& paths, const std::string& run_id,
                                                 ShardGeometry geometry, const io::VolumeOptions& options);

  [[nodiscard]] Result<io::Ticket> load(std::span<const TileMove> moves, std::uint64_t version,
                                        io::CompletionSink sink) override;
  [[nodiscard]] Result<io::Ticket> store(std::span<const TileMove> moves, std::uint64_t version,
                                         io::CompletionSink sink) override;
  // Loads what store() has written for the step `version`, whether its record is written or not. The tile's write must
  // have completed.
  [[nodiscard]] Result<io::Ticket> load_stored(std::span<const TileMove> moves, std::uint64_t version,
                                               io::CompletionSink sink);
  // Like store(), for a step that stores every one of its tiles a second time: under the next number of attempt, so
  // that nothing of the first time passes for it. The tile's first write must have completed.
  [[nodiscard]] Result<io::Ticket> store_again(std::span<const TileMove> moves, std::uint64_t version,
                                               io::CompletionSink sink);
  // Spill and initial state: flips what was stored without writing a record.
  [[nodiscard]] Result<void> commit(std::uint64_t version) override;
  // The step's record; fills in the slots, state_version and attempts. `updated` says whether tiles were stored.
  [[nodiscard]] Result<void> commit_step(StepRecord record, bool updated);

  [[nodiscard]] const StepRecord& committed() const noexcept { return committed_; }
  [[nodiscard]] const ShardGeometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] std::uint64_t version_of(const TileId& id) const;  // current version of the tile
  [[nodiscard]] io::VolumeSet& volumes() noexcept { return *volumes_; }
  [[nodiscard]] const io::VolumeSet& volumes() const noexcept { return *volumes_; }

 private:
  NvmeStore(std::unique_ptr<io::VolumeSet> volumes, ShardGeometry geometry);
  enum class Access : std::uint8_t { kRead, kReadStored, kWrite, kWriteAgain };
  [[nodiscard]] Result<std::vector<io::TileTransfer>> transfers(std::span<const TileMove> moves, std::uint64_t version,
                                                                Access access);
  [[nodiscard]] std::int32_t current_slot(std::uint32_t stream, std::int64_t tile) const;
  [[nodiscard]] Result<void> adopt_newest_record();
  [[nodiscard]] Result<void> record_attempt();

  std::unique_ptr<io::VolumeSet> volumes_;
  ShardGeometry geometry_;
  mutable std::mutex state_mutex_;  // of what a commit changes while tiles that never change are loaded
  StepRecord committed_;            // current_slot is the truth for load and store
  bool has_version_ = false;        // something was committed
  std::uint64_t record_sequence_ = 0;
  std::uint32_t attempt_ = 0;              // of this session; the number after it is that of tiles stored again
  std::atomic<bool> stored_again_{false};  // in the step that is under way
  std::mutex attempt_mutex_;               // of the next
  bool attempt_is_recorded_ = true;
};

}  // namespace headrace::runtime
