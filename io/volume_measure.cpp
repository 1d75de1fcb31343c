// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "io/volume_impl.h"

namespace headrace::io {
namespace {

// A range of each volume that is gone through round and round.
struct Area {
  std::vector<std::int64_t> start;  // [volumes]
  std::vector<Bytes> bytes;         // [volumes]
  std::vector<Bytes> at;            // [volumes], relative to start
};

struct Measurement {
  VolumeSet::Impl& impl;
  std::span<std::byte> memory;
  Bytes chunk = 0;
  std::uint32_t next_volume = 0;

  // Moves that fill or empty one part of the memory once.
  std::vector<Move> moves(IoOperation operation, Area& area, std::span<std::byte> part) {
    std::vector<Move> result;
    for (Bytes at = 0; at + chunk <= static_cast<Bytes>(part.size()); at += chunk) {
      const std::uint32_t volume = next_volume;
      next_volume = (next_volume + 1) % static_cast<std::uint32_t>(impl.fds.size());
      if (area.at[volume] + chunk > area.bytes[volume]) area.at[volume] = 0;
      Move& move = result.emplace_back();
      move.operation = operation;
      move.file = volume;
      move.offset = area.start[volume] + area.at[volume];
      move.data = part.data() + at;
      move.bytes = chunk;
      move.check = MoveCheck::kHash;
      area.at[volume] += chunk;
    }
    return result;
  }

  // Bytes per second with two batches always queued, for about `budget` and at least one round; adds to `bytes_moved`.
  Result<double> run(IoOperation first, Area& first_area, IoOperation second, Area& second_area,
                     std::chrono::nanoseconds budget, Bytes& bytes_moved) {
    const auto half = static_cast<std::size_t>(static_cast<Bytes>(memory.size()) / 2 / chunk * chunk);
    const std::span<std::byte> parts[2] = {memory.first(half), memory.subspan(half, half)};
    const IoOperation operations[2] = {first, second};
    Area* areas[2] = {&first_area, &second_area};
    const TimePoint start = std::chrono::steady_clock::now();
    Ticket tickets[2];
    Result<void> outcome;
    Bytes moved = 0;
    for (int turn = 0; turn < 2 || std::chrono::steady_clock::now() - start < budget; ++turn) {
      const int part = turn % 2;
      if (auto done = tickets[part].wait(TimePoint::max()); !done.ok() && outcome.ok()) outcome = std::move(done);
      if (!outcome.ok()) break;
      tickets[part] = impl.queue->submit(moves(operations[part], *areas[part], parts[part]), {});
      moved += static_cast<Bytes>(half);
    }
    for (Ticket& ticket : tickets) {
      if (auto done = ticket.wait(TimePoint::max()); !done.ok() && outcome.ok()) outcome = std::move(done);
    }
    if (!outcome.ok()) return std::move(outcome).error();
    bytes_moved += moved;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return static_cast<double>(moved) / std::max(seconds, 1e-9);
  }
};

Area scratch_area(const VolumeLayout& layout, Bytes chunk) {
  Area area;
  for (std::uint32_t volume = 0; volume < layout.num_volumes(); ++volume) {
    area.start.push_back(layout.scratch_offset());
    area.bytes.push_back(layout.scratch_bytes(volume) / chunk * chunk);
    area.at.push_back(0);
  }
  return area;
}

// The tiles of each volume when they were written and are many enough, else the scratch extent that was just written.
Area read_area(const VolumeLayout& layout, const Area& scratch, Bytes chunk, bool has_record) {
  Area area = scratch;
  std::fill(area.at.begin(), area.at.end(), 0);
  for (std::uint32_t volume = 0; volume < layout.num_volumes(); ++volume) {
    const Bytes tiles = (layout.file_bytes(volume) - layout.tiles_offset(volume)) / chunk * chunk;
    if (has_record && tiles > area.bytes[volume]) {
      area.start[volume] = layout.tiles_offset(volume);
      area.bytes[volume] = tiles;
    }
  }
  return area;
}

}  // namespace

Result<VolumeSet::Rates> VolumeSet::measure(std::span<std::byte> memory, std::chrono::milliseconds budget) {
  const VolumeLayout& layout = impl_->layout;
  const Bytes alignment = impl_->memory_alignment;
  Bytes chunk = std::min(impl_->options.block_bytes, static_cast<Bytes>(memory.size()) / 2);
  for (std::uint32_t volume = 0; volume < layout.num_volumes(); ++volume)
    chunk = std::min(chunk, layout.scratch_bytes(volume));
  chunk = chunk / alignment * alignment;
  if (chunk <= 0 || reinterpret_cast<std::uintptr_t>(memory.data()) % static_cast<std::uintptr_t>(alignment) != 0) {
    return make_error(ErrorCode::kFailed,
                      fmt::format("measuring needs at least {} bytes aligned to {}, not {} at {}", 2 * alignment,
                                  alignment, memory.size(), fmt::ptr(memory.data())));
  }
  const std::lock_guard lock(impl_->record_mutex);
  HEADRACE_TRY(const std::vector<CommitRecord> records, impl_->read_records());
  Measurement measurement{*impl_, memory, chunk};
  Area scratch = scratch_area(layout, chunk);
  // Blocks that were never written are read without the disk: the whole scratch extent is written before it counts.
  std::fill(memory.begin(), memory.end(), std::byte{0x5A});
  Bytes unused = 0;
  Bytes largest = 0;
  for (const Bytes bytes : scratch.bytes) largest = std::max(largest, bytes);
  const Bytes round = static_cast<Bytes>(memory.size()) / 2 / chunk * chunk * 2;
  for (Bytes written = 0; written < largest * layout.num_volumes(); written += round) {
    HEADRACE_RETURN_IF_ERROR(measurement.run(IoOperation::kWrite, scratch, IoOperation::kWrite, scratch,
                                             std::chrono::nanoseconds(0), unused));
  }
  Area tiles = read_area(layout, scratch, chunk, !records.empty());
  const auto third = std::chrono::nanoseconds(budget) / 3;
  Rates rates;
  Bytes moved = 0;
  const double cpu_before = impl_->queue->counters().cpu_seconds;
  HEADRACE_TRY(rates.write_bytes_per_s,
               measurement.run(IoOperation::kWrite, scratch, IoOperation::kWrite, scratch, third, moved));
  HEADRACE_TRY(rates.read_bytes_per_s,
               measurement.run(IoOperation::kRead, tiles, IoOperation::kRead, tiles, third, moved));
  HEADRACE_TRY(rates.mixed_bytes_per_s,
               measurement.run(IoOperation::kRead, tiles, IoOperation::kWrite, scratch, third, moved));
  rates.cpu_seconds_per_byte = (impl_->queue->counters().cpu_seconds - cpu_before) / static_cast<double>(moved);
  return rates;
}

}  // namespace headrace::io
