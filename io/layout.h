// SPDX-License-Identifier: Apache-2.0
// The bytes of a volume file: superblock, record areas, scratch extent, tiles with their trailers. Little-endian,
// encoded and decoded field by field; the decoders reject everything that an encoder cannot have written. Internal to
// io.
//
//   0        superblock        (kSuperblockAreaBytes)
//   512 KiB  its copy          (kSuperblockAreaBytes)
//   1 MiB    record area 0, record area 1, scratch extent, then the tiles: for each stream, slot after slot
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "io/volume_set.h"

namespace headrace::io {

inline constexpr std::uint32_t kLayoutFormat = 1;  // of trailers and records
// Format 1 deals tiles evenly; 2 adds each volume's share of them and a number that no other set of volumes has.
inline constexpr std::uint32_t kSuperblockFormat = 2;
inline constexpr std::uint32_t kMaxShare = 1024;
inline constexpr Bytes kMinAlignment = 4 * kKiB;
inline constexpr Bytes kMaxAlignment = kMiB;
// Room for about 16,000 streams. Fixed, so that the copy is found when the first superblock is damaged.
inline constexpr Bytes kSuperblockAreaBytes = 512 * kKiB;
inline constexpr Bytes kRecordsOffset = 2 * kSuperblockAreaBytes;
inline constexpr Bytes kTrailerBytes = 96;
inline constexpr Bytes kRecordHeaderBytes = 64;

[[nodiscard]] Result<void> validate_run_id(
    std::string_view run_id);  // 1–64 of A–Z a–z 0–9 . _ -, not starting with a dot
// What trailers and records carry to say whose they are. With `set_id` 0 (format 1) it follows from the run id alone.
[[nodiscard]] std::uint64_t run_id_hash(std::string_view run_id, std::uint64_t set_id = 0) noexcept;

// One round of the deal of tiles over volumes with these shares, the volume of each place: always the one that is
// furthest behind its share, so that neighbours lie apart.
[[nodiscard]] std::vector<std::uint32_t> deal_round(const std::vector<std::uint32_t>& shares);

// Where everything lies on each volume of a set; a pure function of its arguments. Immutable.
class VolumeLayout {
 public:
  VolumeLayout() = default;
  // `shares` [volumes] says how many tiles in each round go to a volume; empty means one each. kConfig when the
  // geometry is impossible: sizes ≤ 0, slots other than 1 or 2, shares other than 1 … kMaxShare, sums beyond 2^62.
  static Result<VolumeLayout> make(const VolumeGeometry& geometry, std::uint32_t num_volumes, Bytes alignment,
                                   const std::vector<std::uint32_t>& shares = {});

  struct Place {
    std::uint32_t volume = 0;
    std::int64_t offset = 0;
  };
  [[nodiscard]] bool contains(const TileAddress& address) const noexcept;
  [[nodiscard]] Place place(const TileAddress& address) const;  // of an address it contains
  [[nodiscard]] Bytes payload_bytes(std::uint32_t stream, std::int64_t tile) const;
  [[nodiscard]] Bytes extent_bytes(std::uint32_t stream, std::int64_t tile) const;
  [[nodiscard]] Bytes disk_bytes(std::uint32_t stream, std::int64_t tile) const {
    return extent_bytes(stream, tile) + alignment_;
  }

  [[nodiscard]] Bytes alignment() const noexcept { return alignment_; }
  [[nodiscard]] std::uint32_t num_volumes() const noexcept { return num_volumes_; }
  [[nodiscard]] const VolumeGeometry& geometry() const noexcept { return geometry_; }
  [[nodiscard]] const std::vector<std::uint32_t>& shares() const noexcept { return shares_; }
  [[nodiscard]] Bytes record_extent_bytes() const noexcept { return record_extent_bytes_; }
  [[nodiscard]] std::int64_t record_offset(std::uint64_t sequence) const noexcept;
  [[nodiscard]] std::int64_t scratch_offset() const noexcept { return kRecordsOffset + 2 * record_extent_bytes_; }
  [[nodiscard]] Bytes scratch_bytes(std::uint32_t volume) const { return volumes_[volume].scratch_bytes; }
  [[nodiscard]] std::int64_t tiles_offset(std::uint32_t volume) const {
    return scratch_offset() + scratch_bytes(volume);
  }
  [[nodiscard]] Bytes file_bytes(std::uint32_t volume) const { return volumes_[volume].file_bytes; }

 private:
  struct Volume {
    std::vector<std::int64_t> stream_offset;  // [streams], from the start of the file
    std::vector<std::int64_t> slot_stride;    // [streams], bytes of one slot of the stream on this volume
    Bytes scratch_bytes = 0;
    Bytes file_bytes = 0;
  };
  void deal();
  // Tiles that a volume gets of the first `count` of an endless deal.
  [[nodiscard]] std::int64_t dealt(std::uint32_t volume, std::int64_t count) const noexcept;
  [[nodiscard]] std::int64_t tiles_on(std::uint32_t stream, std::uint32_t volume) const noexcept;
  [[nodiscard]] std::uint32_t volume_of(std::uint32_t stream, std::int64_t tile) const noexcept;
  Result<void> lay_out(std::uint32_t volume);

  VolumeGeometry geometry_;
  Bytes alignment_ = 0;
  std::uint32_t num_volumes_ = 0;
  Bytes record_extent_bytes_ = 0;
  std::vector<Volume> volumes_;
  std::vector<std::uint32_t> shares_;               // [volumes]
  std::vector<std::uint32_t> round_;                // the volume of each place in a round
  std::vector<std::vector<std::uint32_t>> places_;  // [volumes], its places in a round
};

struct Superblock {
  std::string run_id;
  std::uint32_t num_volumes = 0;
  std::uint32_t volume_idx = 0;
  Bytes alignment = 0;
  Bytes file_bytes = 0;
  VolumeGeometry geometry;
  std::uint32_t format = kSuperblockFormat;
  std::uint64_t set_id = 0;                // format 2
  std::vector<std::uint32_t> shares = {};  // [volumes]; format 1: ones
  [[nodiscard]] std::uint64_t run_hash() const noexcept { return run_id_hash(run_id, set_id); }
};
[[nodiscard]] Result<std::vector<std::byte>> encode_superblock(const Superblock& superblock);
[[nodiscard]] Result<Superblock> decode_superblock(std::span<const std::byte> area);

// Everything that a tile says about itself.
struct Trailer {
  std::uint64_t run_hash = 0;
  TileAddress address;
  TileStamp stamp;
  Bytes payload_bytes = 0;
  std::uint64_t payload_hash = 0;
};
void encode_trailer(const Trailer& trailer, std::span<std::byte> block);  // block ≥ kTrailerBytes; the rest is zeroed
[[nodiscard]] Result<Trailer> decode_trailer(std::span<const std::byte> block);
// The first field in which `had` differs: "step version: wanted 7, had 6"; empty when they are equal.
[[nodiscard]] std::string first_difference(const Trailer& wanted, const Trailer& had);

void encode_record(const CommitRecord& record, std::uint64_t run_hash, std::span<std::byte> area);  // area has the room
[[nodiscard]] Result<CommitRecord> decode_record(std::span<const std::byte> area, std::uint64_t run_hash);

}  // namespace headrace::io
