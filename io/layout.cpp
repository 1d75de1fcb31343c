// SPDX-License-Identifier: Apache-2.0
#include "io/layout.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <fmt/format.h>

#include "core/check.h"
#include "core/hash.h"

namespace headrace::io {
namespace {

constexpr Bytes kMaxBytes = Bytes{1} << 62;
constexpr Bytes kMaxPayloadBytes = Bytes{1} << 40;
constexpr std::int64_t kMaxTiles = std::int64_t{1} << 40;

Error impossible(std::string message) {
  return make_error(ErrorCode::kConfig, "the geometry of the volumes is impossible: " + std::move(message));
}

Result<void> check_stream(const StreamGeometry& stream, std::size_t position) {
  if (stream.stream != position) {
    return impossible(fmt::format("stream {} stands at position {}", stream.stream, position));
  }
  if (stream.slots != 1 && stream.slots != 2) {
    return impossible(fmt::format("stream {} has {} slots; 1 and 2 are possible", position, stream.slots));
  }
  if (stream.tiles < 0 || stream.tiles > kMaxTiles) {
    return impossible(fmt::format("stream {} has {} tiles", position, stream.tiles));
  }
  const bool sizes_fit = stream.last_tile_payload_bytes > 0 &&
                         stream.last_tile_payload_bytes <= stream.tile_payload_bytes &&
                         stream.tile_payload_bytes <= kMaxPayloadBytes;
  if (stream.tiles > 0 && !sizes_fit) {
    return impossible(fmt::format("stream {} has tiles of {} bytes and a last one of {} bytes", position,
                                  stream.tile_payload_bytes, stream.last_tile_payload_bytes));
  }
  return {};
}

}  // namespace

Result<void> validate_run_id(std::string_view run_id) {
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (run_id.empty() || run_id.size() > 64 || run_id.front() == '.' ||
      !std::all_of(run_id.begin(), run_id.end(), allowed)) {
    return make_error(ErrorCode::kConfig, fmt::format("\"{}\" cannot name a run", run_id),
                      "use 1 to 64 of the characters A-Z a-z 0-9 . _ - and no dot at the start");
  }
  return {};
}

std::uint64_t run_id_hash(std::string_view run_id, std::uint64_t set_id) noexcept {
  const std::uint64_t hash = xxh3_64(std::as_bytes(std::span(run_id)));
  if (set_id == 0) return hash;
  const std::uint64_t both[2] = {hash, set_id};
  return xxh3_64(std::as_bytes(std::span(both)));
}

Result<VolumeLayout> VolumeLayout::make(const VolumeGeometry& geometry, std::uint32_t num_volumes, Bytes alignment,
                                        const std::vector<std::uint32_t>& shares) {
  if (num_volumes == 0 || num_volumes > 4096) return impossible(fmt::format("{} volumes", num_volumes));
  if (alignment < kMinAlignment || alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    return impossible(fmt::format("an alignment of {} bytes", alignment));
  }
  if (geometry.record_payload_bytes < 0 || geometry.record_payload_bytes > kMaxPayloadBytes) {
    return impossible(fmt::format("records of {} bytes", geometry.record_payload_bytes));
  }
  for (std::size_t i = 0; i < geometry.streams.size(); ++i)
    HEADRACE_RETURN_IF_ERROR(check_stream(geometry.streams[i], i));
  if (!shares.empty() && shares.size() != num_volumes)
    return impossible(fmt::format("{} shares for {} volumes", shares.size(), num_volumes));
  for (const std::uint32_t share : shares)
    if (share == 0 || share > kMaxShare) return impossible(fmt::format("a share of {}", share));
  VolumeLayout layout;
  layout.shares_ = shares.empty() ? std::vector<std::uint32_t>(num_volumes, 1) : shares;
  layout.geometry_ = geometry;
  layout.alignment_ = alignment;
  layout.num_volumes_ = num_volumes;
  layout.record_extent_bytes_ = round_up(kRecordHeaderBytes + geometry.record_payload_bytes, alignment);
  layout.volumes_.resize(num_volumes);
  layout.deal();
  for (std::uint32_t volume = 0; volume < num_volumes; ++volume) HEADRACE_RETURN_IF_ERROR(layout.lay_out(volume));
  return layout;
}

std::vector<std::uint32_t> deal_round(const std::vector<std::uint32_t>& shares) {
  const std::int64_t total = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::vector<std::int64_t> credit(shares.size(), 0);
  std::vector<std::uint32_t> round;
  for (std::int64_t place = 0; place < total; ++place) {
    for (std::size_t volume = 0; volume < shares.size(); ++volume) credit[volume] += shares[volume];
    const auto next = std::max_element(credit.begin(), credit.end()) - credit.begin();
    credit[static_cast<std::size_t>(next)] -= total;
    round.push_back(static_cast<std::uint32_t>(next));
  }
  return round;
}

void VolumeLayout::deal() {
  round_ = deal_round(shares_);
  places_.resize(num_volumes_);
  for (std::uint32_t place = 0; place < round_.size(); ++place) places_[round_[place]].push_back(place);
}

std::int64_t VolumeLayout::dealt(std::uint32_t volume, std::int64_t count) const noexcept {
  const auto round = static_cast<std::int64_t>(round_.size());
  const std::vector<std::uint32_t>& places = places_[volume];
  const auto rest = std::lower_bound(places.begin(), places.end(), static_cast<std::uint32_t>(count % round));
  return count / round * static_cast<std::int64_t>(places.size()) + (rest - places.begin());
}

// Each stream starts one place further, so that many streams of one tile are spread as well.
std::uint32_t VolumeLayout::volume_of(std::uint32_t stream, std::int64_t tile) const noexcept {
  return round_[static_cast<std::size_t>((tile + stream) % static_cast<std::int64_t>(round_.size()))];
}

std::int64_t VolumeLayout::tiles_on(std::uint32_t stream, std::uint32_t volume) const noexcept {
  return dealt(volume, stream + geometry_.streams[stream].tiles) - dealt(volume, stream);
}

Result<void> VolumeLayout::lay_out(std::uint32_t volume) {
  Volume& result = volumes_[volume];
  const std::size_t num_streams = geometry_.streams.size();
  result.slot_stride.resize(num_streams);
  result.stream_offset.resize(num_streams);
  std::int64_t tile_area = 0;
  for (std::uint32_t stream = 0; stream < num_streams; ++stream) {
    const StreamGeometry& shape = geometry_.streams[stream];
    const std::int64_t tiles = tiles_on(stream, volume);
    std::int64_t stride = 0;
    if (tiles > 0) {
      const bool holds_last = volume_of(stream, shape.tiles - 1) == volume;
      if (__builtin_mul_overflow(tiles - 1, disk_bytes(stream, 0), &stride)) return impossible("more than 2^62 bytes");
      stride += disk_bytes(stream, holds_last ? shape.tiles - 1 : 0);
    }
    result.slot_stride[stream] = stride;
    result.stream_offset[stream] = tile_area;
    if (stride > kMaxBytes / 4 || tile_area > kMaxBytes / 2) return impossible("more than 2^62 bytes");
    tile_area += stride * shape.slots;
  }
  // An eighth of the tiles, so that small volumes stay small; 64 MiB is enough to measure a disk. Backends are tried
  // there.
  result.scratch_bytes = round_up(std::clamp(tile_area / 8, std::max(kMiB, 8 * alignment_), 64 * kMiB), alignment_);
  const std::int64_t tiles_start = scratch_offset() + result.scratch_bytes;
  for (std::int64_t& offset : result.stream_offset) offset += tiles_start;
  result.file_bytes = tiles_start + tile_area;
  return {};
}

bool VolumeLayout::contains(const TileAddress& address) const noexcept {
  if (address.stream >= geometry_.streams.size()) return false;
  const StreamGeometry& shape = geometry_.streams[address.stream];
  return address.tile >= 0 && address.tile < shape.tiles && address.slot >= 0 && address.slot < shape.slots;
}

VolumeLayout::Place VolumeLayout::place(const TileAddress& address) const {
  HEADRACE_CHECK(contains(address), "a tile address lies within the geometry");
  const std::uint32_t volume = volume_of(address.stream, address.tile);
  const Volume& on = volumes_[volume];
  // Tiles of the stream before it on this volume.
  const std::int64_t position = dealt(volume, address.stream + address.tile) - dealt(volume, address.stream);
  return {volume, on.stream_offset[address.stream] + address.slot * on.slot_stride[address.stream] +
                      position * disk_bytes(address.stream, 0)};
}

Bytes VolumeLayout::payload_bytes(std::uint32_t stream, std::int64_t tile) const {
  HEADRACE_CHECK(contains({stream, tile, 0}), "a tile address lies within the geometry");
  const StreamGeometry& shape = geometry_.streams[stream];
  return tile + 1 == shape.tiles ? shape.last_tile_payload_bytes : shape.tile_payload_bytes;
}

Bytes VolumeLayout::extent_bytes(std::uint32_t stream, std::int64_t tile) const {
  return round_up(payload_bytes(stream, tile), alignment_);
}

std::int64_t VolumeLayout::record_offset(std::uint64_t sequence) const noexcept {
  return kRecordsOffset + static_cast<std::int64_t>(sequence % 2) * record_extent_bytes_;
}

}  // namespace headrace::io
