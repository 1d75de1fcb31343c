// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/nvme_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace headrace::runtime {

namespace {

constexpr std::uint32_t kAttemptsPerSession = 2;  // the first and that of tiles stored again

Result<void> same_geometry(const io::VolumeGeometry& had, const io::VolumeGeometry& wanted) {
  const auto mismatch = [](const std::string& what) {
    return make_error(
        ErrorCode::kConfig, "the run's volume was laid out differently: " + what,
        "resume with the offload devices, state format, tile size and model that the run was started with");
  };
  if (had.streams.size() != wanted.streams.size())
    return mismatch(
        fmt::format("it has {} streams, this configuration has {}", had.streams.size(), wanted.streams.size()));
  for (std::size_t i = 0; i < had.streams.size(); ++i) {
    const io::StreamGeometry& a = had.streams[i];
    const io::StreamGeometry& b = wanted.streams[i];
    if (a.tiles != b.tiles || a.tile_payload_bytes != b.tile_payload_bytes ||
        a.last_tile_payload_bytes != b.last_tile_payload_bytes || a.slots != b.slots)
      return mismatch(fmt::format("stream {} has {} tiles of {} bytes in {} slots there, {} of {} bytes in {} here", i,
                                  a.tiles, a.tile_payload_bytes, a.slots, b.tiles, b.tile_payload_bytes, b.slots));
  }
  return {};
}

}  // namespace

NvmeStore::NvmeStore(std::unique_ptr<io::VolumeSet> volumes, ShardGeometry geometry)
    : volumes_(std::move(volumes)), geometry_(std::move(geometry)) {
  committed_.current_slot.assign(static_cast<std::size_t>(geometry_.total_tiles()), false);
}

Result<std::unique_ptr<NvmeStore>> NvmeStore::create(const std::vector<std::string>& paths, const std::string& run_id,
                                                     ShardGeometry geometry, const io::VolumeOptions& options) {
  const io::VolumeGeometry volume_geometry = geometry.volume_geometry(step_record_capacity(geometry.total_tiles()));
  HEADRACE_TRY(auto volumes, io::VolumeSet::create(paths, run_id, volume_geometry, options));
  return std::unique_ptr<NvmeStore>(new NvmeStore(std::move(volumes), std::move(geometry)));
}

Result<std::unique_ptr<NvmeStore>> NvmeStore::open(const std::vector<std::string>& paths, const std::string& run_id,
                                                   ShardGeometry geometry, const io::VolumeOptions& options) {
  HEADRACE_TRY(auto volumes, io::VolumeSet::open(paths, run_id, options));
  HEADRACE_RETURN_IF_ERROR(
      same_geometry(volumes->geometry(), geometry.volume_geometry(step_record_capacity(geometry.total_tiles()))));
  std::unique_ptr<NvmeStore> store(new NvmeStore(std::move(volumes), std::move(geometry)));
  HEADRACE_RETURN_IF_ERROR(store->adopt_newest_record());
  return store;
}

Result<void> NvmeStore::adopt_newest_record() {
  HEADRACE_TRY(const auto records, volumes_->read_records());
  if (records.empty())
    return make_error(ErrorCode::kIo, "no committed step in " + volumes_->describe(),
                      "the run died before its first step was committed; start it again with --resume never");
  HEADRACE_TRY(committed_, decode_step_record(records.front().payload, geometry_.total_tiles()));
  has_version_ = true;
  record_sequence_ = records.front().sequence;
  // A new session writes under a new attempt, so that what a dead one left behind in the other slots never passes as
  // ours.
  attempt_ = committed_.attempt + kAttemptsPerSession;
  attempt_is_recorded_ = false;
  return {};
}

// Before the first tile of a reopened store is written: the next session must count this one even when it dies before
// its first commit. Until then nothing is written, so that readers leave the volumes as they are.
Result<void> NvmeStore::record_attempt() {
  const std::lock_guard lock(attempt_mutex_);
  if (attempt_is_recorded_) return {};
  StepRecord record = committed_;
  record.attempt = attempt_;
  HEADRACE_RETURN_IF_ERROR(volumes_->write_record({record_sequence_ + 1, encode(record)}));
  ++record_sequence_;
  attempt_is_recorded_ = true;
  return {};
}

std::uint64_t NvmeStore::version_of(const TileId& id) const {
  const std::uint32_t stream = geometry_.stream_index(id.unit, id.stream);
  return geometry_.streams()[stream].kind == ShardGeometry::Kind::kFrozen ? 0 : committed_.state_version;
}

Result<std::vector<io::TileTransfer>> NvmeStore::transfers(std::span<const TileMove> moves, std::uint64_t version,
                                                           Access access) {
  const std::lock_guard lock(state_mutex_);
  std::vector<io::TileTransfer> result;
  result.reserve(moves.size());
  for (const TileMove& move : moves) {
    const std::uint32_t stream = geometry_.stream_index(move.id.unit, move.id.stream);
    const ShardGeometry::Stream& info = geometry_.streams()[stream];
    io::TileTransfer transfer;
    transfer.address = {stream, move.id.tile, 0};
    transfer.payload = move.data;
    if (info.kind == ShardGeometry::Kind::kTransient) {
      transfer.stamp = {version, attempt_};
    } else if (access == Access::kReadStored && version != version_of(move.id)) {  // its record is not yet written
      transfer.stamp = {version, attempt_};
      if (info.slots == 2) transfer.address.slot = current_slot(stream, move.id.tile) ^ 1;
    } else if (access == Access::kWrite || access == Access::kWriteAgain) {
      transfer.stamp = {version, attempt_ + (access == Access::kWriteAgain ? 1 : 0)};
      if (info.slots == 2) transfer.address.slot = current_slot(stream, move.id.tile) ^ 1;
    } else {
      if (!has_version_)
        return make_error(ErrorCode::kIo, fmt::format("unit {} tile {}: never stored", move.id.unit, move.id.tile));
      const std::uint64_t have = version_of(move.id);
      if (version != have)
        return make_error(ErrorCode::kIo, fmt::format("unit {} tile {}: version {} asked for, version {} is current",
                                                      move.id.unit, move.id.tile, version, have));
      transfer.stamp = {version, info.kind == ShardGeometry::Kind::kFrozen ? 0 : committed_.state_attempt};
      transfer.address.slot = current_slot(stream, move.id.tile);
    }
    result.push_back(transfer);
  }
  return result;
}

std::int32_t NvmeStore::current_slot(std::uint32_t stream, std::int64_t tile) const {
  return committed_.current_slot[static_cast<std::size_t>(geometry_.tile_index(stream, tile))] ? 1 : 0;
}

Result<io::Ticket> NvmeStore::load(std::span<const TileMove> moves, std::uint64_t version, io::CompletionSink sink) {
  HEADRACE_TRY(const auto list, transfers(moves, version, Access::kRead));
  return volumes_->read(list, sink);
}

Result<io::Ticket> NvmeStore::load_stored(std::span<const TileMove> moves, std::uint64_t version,
                                          io::CompletionSink sink) {
  HEADRACE_TRY(const auto list, transfers(moves, version, Access::kReadStored));
  return volumes_->read(list, sink);
}

Result<io::Ticket> NvmeStore::store(std::span<const TileMove> moves, std::uint64_t version, io::CompletionSink sink) {
  HEADRACE_RETURN_IF_ERROR(record_attempt());
  HEADRACE_TRY(const auto list, transfers(moves, version, Access::kWrite));
  return volumes_->write(list, sink);
}

Result<io::Ticket> NvmeStore::store_again(std::span<const TileMove> moves, std::uint64_t version,
                                          io::CompletionSink sink) {
  HEADRACE_RETURN_IF_ERROR(record_attempt());
  HEADRACE_TRY(const auto list, transfers(moves, version, Access::kWriteAgain));
  stored_again_ = true;
  return volumes_->write(list, sink);
}

Result<void> NvmeStore::commit(std::uint64_t version) {
  const std::lock_guard lock(state_mutex_);
  has_version_ = true;
  committed_.state_version = version;
  committed_.state_attempt = attempt_ + (stored_again_.exchange(false) ? 1 : 0);
  for (std::uint32_t i = 0; i < geometry_.streams().size(); ++i) {
    const ShardGeometry::Stream& stream = geometry_.streams()[i];
    if (stream.kind != ShardGeometry::Kind::kTrained || stream.slots != 2) continue;
    for (std::int64_t tile = 0; tile < stream.tiles; ++tile)
      committed_.current_slot[static_cast<std::size_t>(geometry_.tile_index(i, tile))].flip();
  }
  return {};
}

Result<void> NvmeStore::commit_step(StepRecord record, bool updated) {
  const StepRecord before = committed_;
  const bool had_version = has_version_;
  if (updated) HEADRACE_RETURN_IF_ERROR(commit(record.step));
  record.state_version = committed_.state_version;
  record.state_attempt = committed_.state_attempt;
  record.current_slot = committed_.current_slot;
  record.attempt = attempt_;
  io::CommitRecord on_disk;
  on_disk.sequence = record_sequence_ + 1;
  on_disk.payload = encode(record);
  if (auto written = volumes_->write_record(on_disk); !written.ok()) {
    const std::lock_guard lock(state_mutex_);
    committed_ = before;
    has_version_ = had_version;
    return written;
  }
  ++record_sequence_;
  attempt_is_recorded_ = true;
  const std::lock_guard lock(state_mutex_);
  committed_ = std::move(record);
  return {};
}

}  // namespace headrace::runtime
