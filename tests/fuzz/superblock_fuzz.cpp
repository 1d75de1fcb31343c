// SPDX-License-Identifier: Apache-2.0
// Any bytes as a superblock: refused, or encoded again to the same bytes and laid out without overlap.
#include <algorithm>

#include "io/layout.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

using namespace headrace;

void check(const std::vector<std::byte>& area) {
  const auto superblock = io::decode_superblock(area);
  if (!superblock.ok()) return;
  const auto again = io::encode_superblock(*superblock);
  fuzz::require(again.ok() && again->size() <= area.size());
  const auto second = io::decode_superblock(*again);
  fuzz::require(second.ok() && second->run_id == superblock->run_id && second->shares == superblock->shares);
  const auto layout =
      io::VolumeLayout::make(superblock->geometry, superblock->num_volumes, superblock->alignment, superblock->shares);
  fuzz::require(layout.ok());
  for (const io::StreamGeometry& stream : superblock->geometry.streams) {
    for (const std::int64_t tile : {std::int64_t{0}, stream.tiles / 2, stream.tiles - 1}) {
      if (!layout->contains({stream.stream, tile, 0})) continue;
      const auto place = layout->place({stream.stream, tile, stream.slots - 1});
      fuzz::require(place.offset >= layout->tiles_offset(place.volume));
      fuzz::require(place.offset + layout->disk_bytes(stream.stream, tile) <= layout->file_bytes(place.volume));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> area = headrace::fuzz::bytes_of(data, size);
  check(area);
  headrace::fuzz::put_hash(area, 16, 24, headrace::fuzz::number_at(area, 12, 4));
  check(area);
  return 0;
}
