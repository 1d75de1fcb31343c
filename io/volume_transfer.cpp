// SPDX-License-Identifier: Apache-2.0
// The data path of a VolumeSet: tiles and commit records as moves of the queue.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/log.h"
#include "io/volume_impl.h"

namespace headrace::io {

Ticket VolumeSet::Impl::move_tiles(IoOperation operation, std::span<const TileTransfer> transfers,
                                   CompletionSink sink) {
  if (operation == IoOperation::kWrite && options.read_only)
    return finished_ticket(make_error(ErrorCode::kFailed, "the volumes of run " + run_id + " are open for reading"),
                           sink);
  std::vector<Move> moves;
  moves.reserve(transfers.size());
  for (const TileTransfer& transfer : transfers) {
    const TileAddress& address = transfer.address;
    if (!layout.contains(address)) {
      return finished_ticket(
          make_error(ErrorCode::kFailed, fmt::format("there is no stream {} tile {} slot {} in run {}", address.stream,
                                                     address.tile, address.slot, run_id)),
          sink);
    }
    if (transfer.payload == nullptr ||
        reinterpret_cast<std::uintptr_t>(transfer.payload) % static_cast<std::uintptr_t>(memory_alignment) != 0) {
      return finished_ticket(
          make_error(ErrorCode::kFailed,
                     fmt::format("the payload of stream {} tile {} lies at {}, which is not aligned to {}",
                                 address.stream, address.tile, fmt::ptr(transfer.payload), memory_alignment)),
          sink);
    }
    const VolumeLayout::Place place = layout.place(address);
    Move& move = moves.emplace_back();
    move.operation = operation;
    move.file = place.volume;
    move.offset = place.offset;
    move.data = transfer.payload;
    move.bytes = layout.extent_bytes(address.stream, address.tile);
    move.check = MoveCheck::kTrailer;
    move.trailer = {run_hash, address, transfer.stamp, layout.payload_bytes(address.stream, address.tile), 0};
  }
  return queue->submit(std::move(moves), sink);
}

Result<void> VolumeSet::Impl::run(std::vector<Move> moves) {
  // The queue ends every ticket: what the kernel holds beyond options.deadline fails.
  return queue->submit(std::move(moves), {}).wait(TimePoint::max());
}

Result<void> VolumeSet::Impl::flush_all() {
  std::vector<Move> moves(fds.size());
  for (std::uint32_t i = 0; i < moves.size(); ++i) {
    moves[i].operation = IoOperation::kFlush;
    moves[i].file = i;
  }
  auto flushed = run(std::move(moves));
  // The kernel reports a lost write once and then forgets it: a second flush that succeeds would prove nothing.
  if (!flushed.ok()) flush_failure = flushed.error();
  return flushed;
}

Result<void> VolumeSet::Impl::check_record(const CommitRecord& record) const {
  if (options.read_only)
    return make_error(ErrorCode::kFailed, "the volumes of run " + run_id + " are open for reading");
  if (static_cast<Bytes>(record.payload.size()) > layout.geometry().record_payload_bytes) {
    return make_error(ErrorCode::kFailed,
                      fmt::format("a record of {} bytes does not fit the {} bytes that the volumes were made with",
                                  record.payload.size(), layout.geometry().record_payload_bytes));
  }
  constexpr const char* kAgain =
      "end this process and run the same command again: it goes on after the last committed step";
  if (flush_failure)
    return make_error(ErrorCode::kIo, "nothing is committed after a flush failed: " + flush_failure->message, kAgain);
  if (begun && (begun->sequence != record.sequence || begun->payload != record.payload)) {
    // The other place holds the last good record, and one volume may have this one already.
    return make_error(ErrorCode::kIo,
                      fmt::format("commit record {} was begun and failed; record {} with other content cannot follow",
                                  begun->sequence, record.sequence),
                      kAgain);
  }
  return {};
}

Result<void> VolumeSet::write_record(const CommitRecord& record) {
  const VolumeLayout& layout = impl_->layout;
  const std::lock_guard lock(impl_->record_mutex);
  HEADRACE_RETURN_IF_ERROR(impl_->check_record(record));
  const Bytes extent = layout.record_extent_bytes();
  const std::shared_ptr<std::byte> area(allocate_aligned(extent, impl_->memory_alignment).release(), FreeDeleter{});
  if (area == nullptr) return make_error(ErrorCode::kFailed, fmt::format("no memory for a record of {} bytes", extent));
  encode_record(record, impl_->run_hash, {area.get(), static_cast<std::size_t>(extent)});
  const bool power = impl_->options.durability == Durability::kPower;
  if (power) HEADRACE_RETURN_IF_ERROR(impl_->flush_all());
  std::vector<Move> moves(impl_->fds.size());
  for (std::uint32_t i = 0; i < moves.size(); ++i) {
    moves[i].operation = IoOperation::kWrite;
    moves[i].file = i;
    moves[i].offset = layout.record_offset(record.sequence);
    moves[i].data = area.get();
    moves[i].bytes = extent;
    moves[i].keep_alive = area;
  }
  impl_->begun = record;
  HEADRACE_RETURN_IF_ERROR(impl_->run(std::move(moves)));
  if (power) HEADRACE_RETURN_IF_ERROR(impl_->flush_all());
  impl_->begun.reset();
  return {};
}

Result<std::vector<CommitRecord>> VolumeSet::read_records() {
  const std::lock_guard lock(impl_->record_mutex);
  return impl_->read_records();
}

Result<std::vector<CommitRecord>> VolumeSet::Impl::read_records() {
  const Bytes extent = layout.record_extent_bytes();
  std::vector<CommitRecord> records;
  std::optional<Error> unreadable;
  for (std::uint32_t volume = 0; volume < fds.size(); ++volume) {
    for (const std::uint64_t place : {std::uint64_t{0}, std::uint64_t{1}}) {
      const std::shared_ptr<std::byte> area(allocate_aligned(extent, memory_alignment).release(), FreeDeleter{});
      if (area == nullptr)
        return make_error(ErrorCode::kFailed, fmt::format("no memory for a record of {} bytes", extent));
      std::vector<Move> moves(1);
      moves[0].file = volume;
      moves[0].offset = layout.record_offset(place);
      moves[0].data = area.get();
      moves[0].bytes = extent;
      moves[0].keep_alive = area;
      if (auto read = run(std::move(moves)); !read.ok()) {
        log_warn(fmt::format("a commit record cannot be read: {}", read.error().message));
        if (!unreadable) unreadable = std::move(read).error();
        continue;
      }
      auto record = decode_record({area.get(), static_cast<std::size_t>(extent)}, run_hash);
      if (!record.ok())
        continue;  // never written, or torn by a death in mid-write: the other place or volume has the last step
      const auto same = std::find_if(records.begin(), records.end(),
                                     [&](const CommitRecord& r) { return r.sequence == record->sequence; });
      if (same == records.end()) {
        records.push_back(std::move(*record));
      } else if (same->payload != record->payload) {
        return make_error(ErrorCode::kIo, fmt::format("{}: commit record {} differs from the one on another volume",
                                                      paths[volume], same->sequence));
      }
    }
  }
  if (records.empty() && unreadable) return *unreadable;
  std::sort(records.begin(), records.end(),
            [](const CommitRecord& a, const CommitRecord& b) { return a.sequence > b.sequence; });
  if (records.size() > 2) records.resize(2);
  return records;
}

}  // namespace headrace::io
