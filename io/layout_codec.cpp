// SPDX-License-Identifier: Apache-2.0
// Encoders and decoders of superblock, trailer and record.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/check.h"
#include "core/hash.h"
#include "io/layout.h"

namespace headrace::io {
namespace {

constexpr std::uint64_t kSuperblockMagic = 0x314B4C4253565248;  // "HRVSBLK1" as bytes on disk
constexpr std::uint64_t kTrailerMagic = 0x314C494154565248;     // "HRVTAIL1"
constexpr std::uint64_t kRecordMagic = 0x3144434552565248;      // "HRVRECD1"

// Superblock: magic 8, format 4, total bytes 4, checksum 8 of everything behind it.
constexpr std::size_t kSuperblockHeaderBytes = 24;
constexpr std::size_t kSuperblockFixedBytes = kSuperblockHeaderBytes + 4 + 64 + 4 + 4 + 8 + 8 + 8 + 4;
constexpr std::size_t kStreamBytes = 4 + 4 + 8 + 8 + 8;
constexpr std::size_t kSetIdBytes = 8;  // format 2, then a share of 4 bytes for each volume

class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}
  void u32(std::uint32_t value) { put(value, 4); }
  void u64(std::uint64_t value) { put(value, 8); }
  void i64(std::int64_t value) { put(static_cast<std::uint64_t>(value), 8); }
  void text(std::string_view value, std::size_t width) {
    HEADRACE_CHECK(value.size() <= width && at_ + width <= out_.size(), "a field fits");
    std::memcpy(out_.data() + at_, value.data(), value.size());
    at_ += width;
  }
  [[nodiscard]] std::size_t at() const noexcept { return at_; }

 private:
  void put(std::uint64_t value, std::size_t width) {
    HEADRACE_CHECK(at_ + width <= out_.size(), "a field fits");
    for (std::size_t i = 0; i < width; ++i) out_[at_++] = static_cast<std::byte>(value >> (8 * i));
  }
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

// Reads beyond the end give zeros; the callers compare sizes before.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  std::uint32_t u32() { return static_cast<std::uint32_t>(get(4)); }
  std::uint64_t u64() { return get(8); }
  std::int64_t i64() { return static_cast<std::int64_t>(get(8)); }
  std::string text(std::size_t width) {
    std::string value;
    for (std::size_t i = 0; i < width; ++i) value.push_back(static_cast<char>(get(1)));
    return value;
  }

 private:
  std::uint64_t get(std::size_t width) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i, ++at_) {
      if (at_ < in_.size()) value |= static_cast<std::uint64_t>(in_[at_]) << (8 * i);
    }
    return value;
  }
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
};

Error wrong(std::string message) { return make_error(ErrorCode::kIo, std::move(message)); }

Error wrong_number(const char* field, std::uint64_t wanted, std::uint64_t had) {
  return wrong(fmt::format("{}: wanted {:#x}, had {:#x}", field, wanted, had));
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

Result<void> check_magic(std::span<const std::byte> bytes, std::uint64_t magic, const char* what,
                         std::uint32_t newest = kLayoutFormat) {
  Reader reader(bytes);
  const std::uint64_t had = reader.u64();
  if (had == magic) {
    const std::uint32_t format = reader.u32();
    if (format >= 1 && format <= newest) return {};
    return wrong(fmt::format("{} format: wanted {} or older, had {}", what, newest, format));
  }
  if (all_zero(bytes)) return wrong(fmt::format("{} magic: wanted {:#x}, had zeros (never written)", what, magic));
  return wrong(fmt::format("{} magic: wanted {:#x}, had {:#x}", what, magic, had));
}

}  // namespace

Result<std::vector<std::byte>> encode_superblock(const Superblock& superblock) {
  const std::size_t dealing =
      superblock.format == 1 ? 0 : kSetIdBytes + 4 * static_cast<std::size_t>(superblock.num_volumes);
  HEADRACE_CHECK(superblock.format == 1 || superblock.shares.size() == superblock.num_volumes,
                 "each volume has its share");
  const std::size_t total = kSuperblockFixedBytes + superblock.geometry.streams.size() * kStreamBytes + dealing;
  if (total > static_cast<std::size_t>(kSuperblockAreaBytes)) {
    return make_error(
        ErrorCode::kConfig,
        fmt::format("{} streams are more than one volume describes ({} at most)", superblock.geometry.streams.size(),
                    (kSuperblockAreaBytes - kSuperblockFixedBytes - dealing) / kStreamBytes));
  }
  std::vector<std::byte> bytes(total);
  Writer body(std::span<std::byte>(bytes).subspan(kSuperblockHeaderBytes));
  body.u32(static_cast<std::uint32_t>(superblock.run_id.size()));
  body.text(superblock.run_id, 64);
  body.u32(superblock.num_volumes);
  body.u32(superblock.volume_idx);
  body.i64(superblock.alignment);
  body.i64(superblock.file_bytes);
  body.i64(superblock.geometry.record_payload_bytes);
  body.u32(static_cast<std::uint32_t>(superblock.geometry.streams.size()));
  for (const StreamGeometry& stream : superblock.geometry.streams) {
    body.u32(stream.stream);
    body.u32(static_cast<std::uint32_t>(stream.slots));
    body.i64(stream.tiles);
    body.i64(stream.tile_payload_bytes);
    body.i64(stream.last_tile_payload_bytes);
  }
  if (superblock.format > 1) {
    body.u64(superblock.set_id);
    for (const std::uint32_t share : superblock.shares) body.u32(share);
  }
  Writer header(bytes);
  header.u64(kSuperblockMagic);
  header.u32(superblock.format);
  header.u32(static_cast<std::uint32_t>(total));
  header.u64(xxh3_64(std::span<const std::byte>(bytes).subspan(kSuperblockHeaderBytes)));
  return bytes;
}

Result<Superblock> decode_superblock(std::span<const std::byte> area) {
  if (area.size() < kSuperblockFixedBytes) return wrong("the superblock is cut off");
  HEADRACE_RETURN_IF_ERROR(check_magic(area, kSuperblockMagic, "superblock", kSuperblockFormat));
  Reader header(area.subspan(8));
  Superblock result;
  result.format = header.u32();
  const std::size_t total = header.u32();
  const std::uint64_t checksum = header.u64();
  if (total < kSuperblockFixedBytes || total > area.size()) {
    return wrong(fmt::format("superblock size: had {} bytes", total));
  }
  const auto body = area.subspan(kSuperblockHeaderBytes, total - kSuperblockHeaderBytes);
  if (xxh3_64(body) != checksum) return wrong_number("superblock checksum", checksum, xxh3_64(body));
  Reader reader(body);
  const std::size_t run_id_bytes = reader.u32();
  result.run_id = reader.text(64);
  if (run_id_bytes > 64) return wrong(fmt::format("superblock run id: had {} bytes", run_id_bytes));
  result.run_id.resize(run_id_bytes);
  HEADRACE_RETURN_IF_ERROR(validate_run_id(result.run_id));
  result.num_volumes = reader.u32();
  result.volume_idx = reader.u32();
  result.alignment = reader.i64();
  result.file_bytes = reader.i64();
  result.geometry.record_payload_bytes = reader.i64();
  const std::size_t num_streams = reader.u32();
  const std::size_t dealing = result.format == 1 ? 0 : kSetIdBytes + 4 * static_cast<std::size_t>(result.num_volumes);
  if (total != kSuperblockFixedBytes + num_streams * kStreamBytes + dealing) {
    return wrong(fmt::format("superblock streams: {} in {} bytes", num_streams, total));
  }
  for (std::size_t i = 0; i < num_streams; ++i) {
    StreamGeometry stream;
    stream.stream = reader.u32();
    stream.slots = static_cast<std::int32_t>(reader.u32());
    stream.tiles = reader.i64();
    stream.tile_payload_bytes = reader.i64();
    stream.last_tile_payload_bytes = reader.i64();
    result.geometry.streams.push_back(stream);
  }
  if (result.format > 1) {
    result.set_id = reader.u64();
    for (std::uint32_t i = 0; i < result.num_volumes; ++i) result.shares.push_back(reader.u32());
  }
  HEADRACE_TRY(const VolumeLayout layout,
               VolumeLayout::make(result.geometry, result.num_volumes, result.alignment, result.shares));
  result.shares = layout.shares();
  if (result.volume_idx >= result.num_volumes) {
    return wrong(fmt::format("superblock volume: {} of {}", result.volume_idx, result.num_volumes));
  }
  if (layout.file_bytes(result.volume_idx) != result.file_bytes) {
    return wrong(fmt::format("superblock file size: wanted {}, had {}", layout.file_bytes(result.volume_idx),
                             result.file_bytes));
  }
  return result;
}

void encode_trailer(const Trailer& trailer, std::span<std::byte> block) {
  std::fill(block.begin(), block.end(), std::byte{0});
  Writer writer(block);
  writer.u64(kTrailerMagic);
  writer.u32(kLayoutFormat);
  writer.u32(trailer.address.stream);
  writer.u64(trailer.run_hash);
  writer.i64(trailer.address.tile);
  writer.i64(trailer.address.slot);
  writer.u64(trailer.stamp.step_version);
  writer.u64(trailer.stamp.attempt);
  writer.i64(trailer.payload_bytes);
  writer.u64(trailer.payload_hash);
  writer.u64(xxh3_64(std::span<const std::byte>(block).first(writer.at())));
}

Result<Trailer> decode_trailer(std::span<const std::byte> block) {
  if (block.size() < static_cast<std::size_t>(kTrailerBytes)) return wrong("the trailer is cut off");
  HEADRACE_RETURN_IF_ERROR(check_magic(block, kTrailerMagic, "trailer"));
  Reader reader(block.subspan(12));
  Trailer trailer;
  trailer.address.stream = reader.u32();
  trailer.run_hash = reader.u64();
  trailer.address.tile = reader.i64();
  const std::int64_t slot = reader.i64();
  trailer.stamp.step_version = reader.u64();
  const std::uint64_t attempt = reader.u64();
  trailer.payload_bytes = reader.i64();
  trailer.payload_hash = reader.u64();
  const std::uint64_t checksum = reader.u64();
  const std::uint64_t computed = xxh3_64(block.first(72));
  if (checksum != computed) return wrong_number("trailer checksum", checksum, computed);
  if (slot < 0 || slot > 1 || attempt > 0xFFFFFFFFU || trailer.address.tile < 0 || trailer.payload_bytes <= 0) {
    return wrong("the trailer holds an impossible address or size");
  }
  if (!all_zero(block.subspan(80))) return wrong("trailer padding: wanted zeros");
  trailer.address.slot = static_cast<std::int32_t>(slot);
  trailer.stamp.attempt = static_cast<std::uint32_t>(attempt);
  return trailer;
}

std::string first_difference(const Trailer& wanted, const Trailer& had) {
  const auto differs = [](const char* field, auto want, auto have) {
    return fmt::format("{}: wanted {}, had {}", field, want, have);
  };
  if (wanted.run_hash != had.run_hash) return differs("run id hash", wanted.run_hash, had.run_hash);
  if (wanted.address.stream != had.address.stream) return differs("stream", wanted.address.stream, had.address.stream);
  if (wanted.address.tile != had.address.tile) return differs("tile", wanted.address.tile, had.address.tile);
  if (wanted.address.slot != had.address.slot) return differs("slot", wanted.address.slot, had.address.slot);
  if (wanted.stamp.step_version != had.stamp.step_version) {
    return differs("step version", wanted.stamp.step_version, had.stamp.step_version);
  }
  if (wanted.stamp.attempt != had.stamp.attempt) return differs("attempt", wanted.stamp.attempt, had.stamp.attempt);
  if (wanted.payload_bytes != had.payload_bytes)
    return differs("payload bytes", wanted.payload_bytes, had.payload_bytes);
  if (wanted.payload_hash != had.payload_hash) {
    return fmt::format("payload checksum (XXH3): wanted {:#018x}, had {:#018x}", had.payload_hash, wanted.payload_hash);
  }
  return {};
}

void encode_record(const CommitRecord& record, std::uint64_t run_hash, std::span<std::byte> area) {
  HEADRACE_CHECK(record.payload.size() + kRecordHeaderBytes <= area.size(), "a record fits its area");
  std::fill(area.begin(), area.end(), std::byte{0});
  Writer writer(area.first(kRecordHeaderBytes));
  writer.u64(kRecordMagic);
  writer.u32(kLayoutFormat);
  writer.u32(0);
  writer.u64(run_hash);
  writer.u64(record.sequence);
  writer.u64(record.payload.size());
  writer.u64(xxh3_64(std::span<const std::byte>(record.payload)));
  writer.u64(xxh3_64(std::span<const std::byte>(area).first(writer.at())));
  std::copy(record.payload.begin(), record.payload.end(), area.begin() + kRecordHeaderBytes);
}

Result<CommitRecord> decode_record(std::span<const std::byte> area, std::uint64_t run_hash) {
  if (area.size() < static_cast<std::size_t>(kRecordHeaderBytes)) return wrong("the record is cut off");
  HEADRACE_RETURN_IF_ERROR(check_magic(area, kRecordMagic, "record"));
  Reader reader(area.subspan(12));
  const std::uint32_t reserved = reader.u32();
  const std::uint64_t had_run = reader.u64();
  CommitRecord record;
  record.sequence = reader.u64();
  const std::uint64_t payload_bytes = reader.u64();
  const std::uint64_t payload_hash = reader.u64();
  const std::uint64_t checksum = reader.u64();
  if (checksum != xxh3_64(area.first(48))) return wrong_number("record checksum", checksum, xxh3_64(area.first(48)));
  if (had_run != run_hash) return wrong_number("record run id hash", run_hash, had_run);
  const auto room = area.subspan(kRecordHeaderBytes);
  if (reserved != 0 || reader.u64() != 0 || payload_bytes > room.size())
    return wrong(fmt::format("record size: had {} bytes", payload_bytes));
  const auto payload = room.first(payload_bytes);
  if (xxh3_64(payload) != payload_hash) return wrong_number("record payload checksum", payload_hash, xxh3_64(payload));
  record.payload.assign(payload.begin(), payload.end());
  return record;
}

}  // namespace headrace::io
