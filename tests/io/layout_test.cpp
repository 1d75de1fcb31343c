// SPDX-License-Identifier: Apache-2.0
#include "io/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "io_test_support.h"

namespace headrace::io {
namespace {

Superblock example_superblock() {
  Superblock superblock{"run-1", 2, 1, 4096, 0, {{stream_of(0, 5, 100'000, 70'000), stream_of(1, 3, 4096, 1, 1)}, 777}};
  superblock.set_id = 0x1122334455667788;
  superblock.shares = {1, 3};
  superblock.file_bytes = VolumeLayout::make(superblock.geometry, 2, 4096, superblock.shares)->file_bytes(1);
  return superblock;
}

Trailer example_trailer() {
  return {0x1234567890ABCDEF, {7, 123'456'789'012, 1}, {42, 3}, 5'000'000'000, 0xFEDCBA0987654321};
}

// Every range of the volumes that means something.
void expect_disjoint(const VolumeLayout& layout, std::uint64_t seed) {
  for (std::uint32_t volume = 0; volume < layout.num_volumes(); ++volume) {
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges{{0, kSuperblockAreaBytes},
                                                              {kSuperblockAreaBytes, kRecordsOffset}};
    for (std::uint64_t i = 0; i < 2; ++i)
      ranges.emplace_back(layout.record_offset(i), layout.record_offset(i) + layout.record_extent_bytes());
    ranges.emplace_back(layout.scratch_offset(), layout.scratch_offset() + layout.scratch_bytes(volume));
    const auto& streams = layout.geometry().streams;
    for (std::uint32_t stream = 0; stream < streams.size(); ++stream) {
      for (std::int64_t tile = 0; tile < streams[stream].tiles; ++tile) {
        for (std::int32_t slot = 0; slot < streams[stream].slots; ++slot) {
          const auto place = layout.place({stream, tile, slot});
          if (place.volume == volume) ranges.emplace_back(place.offset, place.offset + layout.disk_bytes(stream, tile));
        }
      }
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      ASSERT_EQ(ranges[i].first % layout.alignment(), 0) << "seed " << seed;
      ASSERT_LT(ranges[i].first, ranges[i].second) << "seed " << seed;
      if (i > 0) {
        ASSERT_EQ(ranges[i - 1].second, ranges[i].first) << "seed " << seed << " volume " << volume;
      }
    }
    ASSERT_EQ(ranges.back().second, layout.file_bytes(volume)) << "seed " << seed;
  }
}

TEST(VolumeLayout, EachVolumeGetsItsShareOfEveryStreamAndNeighboursLieApart) {
  const std::vector<std::uint32_t> shares{16, 4, 11};
  const VolumeGeometry geometry{{stream_of(0, 310, 8192, 8192), stream_of(1, 62, 4096, 100)}, 0};
  const auto layout = VolumeLayout::make(geometry, 3, 4096, shares);
  ASSERT_OK(layout);
  std::vector<std::int64_t> tiles(3, 0);
  std::int64_t longest = 0;
  std::int64_t in_a_row = 0;
  std::uint32_t last = 9;
  for (std::int64_t tile = 0; tile < 310; ++tile) {
    const std::uint32_t volume = layout->place({0, tile, 0}).volume;
    ++tiles[volume];
    in_a_row = volume == last ? in_a_row + 1 : 1;
    longest = std::max(longest, in_a_row);
    last = volume;
  }
  EXPECT_EQ(tiles, (std::vector<std::int64_t>{160, 40, 110}));
  EXPECT_LE(longest, 2);
  expect_disjoint(*layout, 0);
  EXPECT_FALSE(VolumeLayout::make(geometry, 3, 4096, {1, 1}).ok());
  EXPECT_FALSE(VolumeLayout::make(geometry, 3, 4096, {1, 0, 1}).ok());
  EXPECT_FALSE(VolumeLayout::make(geometry, 3, 4096, {1, 1, kMaxShare + 1}).ok());
}

TEST(VolumeLayout, EqualSharesAreTheDealOfTheFirstFormat) {
  for (const std::uint32_t volumes : {1U, 2U, 3U, 7U}) {
    const VolumeGeometry geometry{{stream_of(0, 50, 8192, 8192), stream_of(1, 23, 4096, 100)}, 0};
    const auto layout = VolumeLayout::make(geometry, volumes, 4096);
    ASSERT_OK(layout);
    for (std::uint32_t stream = 0; stream < 2; ++stream)
      for (std::int64_t tile = 0; tile < geometry.streams[stream].tiles; ++tile)
        EXPECT_EQ(layout->place({stream, tile, 0}).volume, (tile + stream) % volumes);
  }
}

TEST(Superblock, TheFirstFormatIsReadAsAnEvenDealAndWrittenAgainAsItWas) {
  Superblock old = example_superblock();
  old.format = 1;
  old.set_id = 0;
  old.shares.clear();
  old.file_bytes = VolumeLayout::make(old.geometry, 2, 4096)->file_bytes(1);
  const auto bytes = encode_superblock(old);
  ASSERT_OK(bytes);
  EXPECT_EQ((*bytes)[8], std::byte{1});
  const auto read = decode_superblock(*bytes);
  ASSERT_OK(read);
  EXPECT_EQ(read->shares, (std::vector<std::uint32_t>{1, 1}));
  EXPECT_EQ(read->run_hash(), run_id_hash("run-1")) << "its trailers and records stay valid";
  EXPECT_EQ(text_of(encode_superblock(*read)), "ok");
  EXPECT_EQ(*encode_superblock(*read), *bytes);
  EXPECT_NE(example_superblock().run_hash(), read->run_hash());
}

TEST(VolumeLayout, EveryRangeOfARandomGeometryIsUsedOnceWithoutGaps) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    VolumeGeometry geometry;
    geometry.record_payload_bytes = static_cast<Bytes>(random() % 20'000);
    const std::size_t num_streams = random() % 6;
    for (std::uint32_t i = 0; i < num_streams; ++i) {
      const Bytes tile_bytes = 1 + static_cast<Bytes>(random() % 200'000);
      geometry.streams.push_back(stream_of(i, static_cast<std::int64_t>(random() % 20), tile_bytes,
                                           1 + static_cast<Bytes>(random() % static_cast<std::uint64_t>(tile_bytes)),
                                           1 + static_cast<std::int32_t>(random() % 2)));
    }
    const Bytes alignment = Bytes{4096} << (random() % 5);
    std::vector<std::uint32_t> shares(1 + random() % 4);
    for (std::uint32_t& share : shares) share = 1 + static_cast<std::uint32_t>(seed % 2 == 0 ? 0 : random() % 16);
    const auto layout = VolumeLayout::make(geometry, static_cast<std::uint32_t>(shares.size()), alignment, shares);
    ASSERT_OK(layout);
    expect_disjoint(*layout, seed);
  }
}

TEST(VolumeLayout, TilesGoRoundTheVolumesEvenly) {
  const auto layout = VolumeLayout::make({{stream_of(0, 301, 8192, 8192), stream_of(1, 302, 8192, 8192)}, 0}, 3, 4096);
  ASSERT_OK(layout);
  std::array<int, 3> tiles{};
  for (std::uint32_t stream = 0; stream < 2; ++stream) {
    for (std::int64_t tile = 0; tile < 301 + stream; ++tile) ++tiles[layout->place({stream, tile, 0}).volume];
  }
  EXPECT_LE(*std::max_element(tiles.begin(), tiles.end()) - *std::min_element(tiles.begin(), tiles.end()), 1);
}

TEST(VolumeLayout, OffsetsBeyondFourGiBAreExact) {
  const Bytes tile = 8 * kMiB;
  const auto layout = VolumeLayout::make({{stream_of(0, 1'000'000, tile, 5)}, 0}, 1, 4096);
  ASSERT_OK(layout);
  const std::int64_t start = layout->tiles_offset(0);
  EXPECT_EQ(layout->place({0, 999'998, 0}).offset, start + std::int64_t{999'998} * (tile + 4096));
  EXPECT_EQ(layout->place({0, 999'999, 1}).offset, start + (std::int64_t{999'999} * 2) * (tile + 4096) + 8192);
  EXPECT_EQ(layout->file_bytes(0), start + 2 * (std::int64_t{999'999} * (tile + 4096) + 8192));
}

TEST(VolumeLayout, RefusesWhatCannotBe) {
  const auto refuses = [](const VolumeGeometry& geometry, std::uint32_t volumes = 1, Bytes alignment = 4096) {
    const auto layout = VolumeLayout::make(geometry, volumes, alignment);
    return !layout.ok() && layout.error().code == ErrorCode::kConfig;
  };
  EXPECT_TRUE(refuses({{stream_of(1, 1, 10, 10)}, 0})) << "stream at another position";
  EXPECT_TRUE(refuses({{stream_of(0, -1, 10, 10)}, 0}));
  EXPECT_TRUE(refuses({{stream_of(0, 1, 0, 0)}, 0}));
  EXPECT_TRUE(refuses({{stream_of(0, 2, 10, 11)}, 0})) << "last tile larger than the others";
  EXPECT_TRUE(refuses({{stream_of(0, 2, 10, -1)}, 0}));
  EXPECT_TRUE(refuses({{stream_of(0, 1, 10, 10, 0)}, 0}));
  EXPECT_TRUE(refuses({{stream_of(0, 1, 10, 10, 3)}, 0}));
  EXPECT_TRUE(refuses({{stream_of(0, Bytes{1} << 40, Bytes{1} << 40, 1)}, 0})) << "2^80 bytes";
  EXPECT_TRUE(refuses({{stream_of(0, Bytes{1} << 61, 4096, 1)}, 0}));
  EXPECT_TRUE(refuses({{}, -1}));
  EXPECT_TRUE(refuses({{}, 0}, 0));
  EXPECT_TRUE(refuses({{}, 0}, 1, 512));
  EXPECT_TRUE(refuses({{}, 0}, 1, 12'288));
  EXPECT_FALSE(refuses({{stream_of(0, 0, 0, 0)}, 0})) << "a stream of no tiles is fine";
}

TEST(RunId, OnlyNamesThatAreSafeInAFileName) {
  for (const char* good : {"r", "r-20260301-101502", "a.b_c-D9"}) EXPECT_TRUE(validate_run_id(good).ok()) << good;
  for (const std::string& bad : {std::string(), std::string("."), std::string(".x"), std::string("a/b"),
                                 std::string("a b"), std::string(65, 'x')}) {
    EXPECT_FALSE(validate_run_id(bad).ok()) << bad;
  }
}

TEST(SuperblockCodec, ComesBackAsItWas) {
  const Superblock superblock = example_superblock();
  const auto bytes = encode_superblock(superblock);
  ASSERT_OK(bytes);
  const auto back = decode_superblock(*bytes);
  ASSERT_OK(back);
  EXPECT_EQ(back->run_id, "run-1");
  EXPECT_EQ(back->volume_idx, 1U);
  EXPECT_EQ(back->file_bytes, superblock.file_bytes);
  ASSERT_EQ(back->geometry.streams.size(), 2U);
  EXPECT_EQ(back->geometry.streams[0].last_tile_payload_bytes, 70'000);
  EXPECT_EQ(back->geometry.streams[1].slots, 1);
  EXPECT_EQ(back->geometry.record_payload_bytes, 777);
}

TEST(SuperblockCodec, RefusesEveryFlippedBitAndEveryCut) {
  const auto bytes = encode_superblock(example_superblock());
  ASSERT_OK(bytes);
  for (std::size_t bit = 0; bit < bytes->size() * 8; ++bit) {
    auto copy = *bytes;
    copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_superblock(copy).ok()) << "bit " << bit;
  }
  for (std::size_t length = 0; length < bytes->size(); ++length) {
    EXPECT_FALSE(decode_superblock(std::span<const std::byte>(*bytes).first(length)).ok()) << "length " << length;
  }
}

TEST(SuperblockCodec, TooManyStreamsAreAnError) {
  Superblock superblock = example_superblock();
  superblock.geometry.streams.assign(20'000, stream_of(0, 1, 1, 1));
  EXPECT_FALSE(encode_superblock(superblock).ok());
}

TEST(TrailerCodec, ComesBackAsItWas) {
  std::vector<std::byte> block(4096, std::byte{0xEE});
  encode_trailer(example_trailer(), block);
  const auto back = decode_trailer(block);
  ASSERT_OK(back);
  EXPECT_EQ(first_difference(example_trailer(), *back), "");
}

TEST(TrailerCodec, RefusesEveryFlippedBitAndEveryCut) {
  std::vector<std::byte> block(4096);
  encode_trailer(example_trailer(), block);
  for (std::size_t bit = 0; bit < block.size() * 8; ++bit) {
    auto copy = block;
    copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_trailer(copy).ok()) << "bit " << bit;
  }
  for (std::size_t length = 0; length < static_cast<std::size_t>(kTrailerBytes); ++length) {
    EXPECT_FALSE(decode_trailer(std::span<const std::byte>(block).first(length)).ok());
  }
}

TEST(TrailerCodec, SaysWhichFieldDiffers) {
  const Trailer wanted = example_trailer();
  const auto difference = [&](auto change) {
    Trailer had = wanted;
    change(had);
    return first_difference(wanted, had);
  };
  EXPECT_EQ(difference([](Trailer& t) { t.stamp.step_version = 41; }), "step version: wanted 42, had 41");
  EXPECT_EQ(difference([](Trailer& t) { t.stamp.attempt = 4; }), "attempt: wanted 3, had 4");
  EXPECT_EQ(difference([](Trailer& t) { t.address.slot = 0; }), "slot: wanted 1, had 0");
  EXPECT_EQ(difference([](Trailer& t) { t.address.stream = 8; }), "stream: wanted 7, had 8");
  EXPECT_EQ(difference([](Trailer& t) { t.address.tile = 1; }), "tile: wanted 123456789012, had 1");
  EXPECT_EQ(difference([](Trailer& t) { t.payload_bytes = 2; }), "payload bytes: wanted 5000000000, had 2");
  EXPECT_NE(difference([](Trailer& t) { t.payload_hash ^= 1; }).find("XXH3"), std::string::npos);
  EXPECT_NE(difference([](Trailer& t) { t.run_hash ^= 1; }).find("run id"), std::string::npos);
}

TEST(TrailerCodec, NeverWrittenIsSaid) {
  const std::vector<std::byte> zeros(4096);
  EXPECT_NE(text_of(decode_trailer(zeros)).find("never written"), std::string::npos);
}

TEST(RecordCodec, ComesBackAndRefusesEveryFlippedBit) {
  CommitRecord record{99, std::vector<std::byte>(50, std::byte{7})};
  std::vector<std::byte> area(128);
  encode_record(record, 5, area);
  const auto back = decode_record(area, 5);
  ASSERT_OK(back);
  EXPECT_EQ(back->sequence, 99U);
  EXPECT_EQ(back->payload, record.payload);
  EXPECT_FALSE(decode_record(area, 6).ok()) << "another run";
  for (std::size_t bit = 0; bit < (64 + 50) * 8; ++bit) {
    auto copy = area;
    copy[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_record(copy, 5).ok()) << "bit " << bit;
  }
  EXPECT_FALSE(decode_record(std::span<const std::byte>(area).first(113), 5).ok());
}

TEST(Decoders, RandomBytesNeverPass) {
  std::mt19937_64 random(2026);
  std::vector<std::byte> bytes(1024);
  for (int round = 0; round < 2000; ++round) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(decode_superblock(bytes).ok());
    EXPECT_FALSE(decode_trailer(bytes).ok());
    EXPECT_FALSE(decode_record(bytes, random()).ok());
  }
}

}  // namespace
}  // namespace headrace::io
