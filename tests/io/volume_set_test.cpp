// SPDX-License-Identifier: Apache-2.0
// Tiles and records of a VolumeSet on a real disk, over each backend.
#include "io/volume_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "io/backends.h"
#include "io/layout.h"
#include "io_test_support.h"
#include "test_backends.h"

namespace headrace::io {
namespace {

class VolumeSetTest : public ::testing::TestWithParam<TestBackend> {
 protected:
  void SetUp() override {
    options_.backend = GetParam().choice;
    if (const std::string refusal = refusal_of(GetParam().candidate()); !refusal.empty())
      GTEST_SKIP() << "refused here: " << refusal;
  }
  std::unique_ptr<VolumeSet> create(const VolumeGeometry& geometry) {
    auto made = VolumeSet::create(folder_.paths(), "run", geometry, options_);
    EXPECT_TRUE(made.ok()) << text_of(made);
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::unique_ptr<VolumeSet> reopen() {
    auto opened = VolumeSet::open(folder_.paths(), "run", options_);
    EXPECT_TRUE(opened.ok()) << text_of(opened);
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  static Result<void> move(Ticket ticket) { return ticket.wait(soon()); }
  static Result<void> write(VolumeSet& set, const TileTransfer& transfer) { return move(set.write({&transfer, 1})); }
  static Result<void> read(VolumeSet& set, const TileTransfer& transfer) { return move(set.read({&transfer, 1})); }
  // The start of a tile in the only file of a set of one stream.
  static std::int64_t offset_of(const VolumeSet& set, std::int64_t tile, std::int32_t slot) {
    return VolumeLayout::make(set.geometry(), 1, set.payload_alignment())->place({0, tile, slot}).offset;
  }
  void flip_bit(std::int64_t offset) const {
    const UniqueFd file(::open(folder_.volume("run").c_str(), O_RDWR));
    std::byte byte{};
    ASSERT_EQ(read_fully(file.get(), {&byte, 1}, offset), 0);
    byte ^= std::byte{16};
    ASSERT_EQ(write_fully(file.get(), {&byte, 1}, offset), 0);
    ASSERT_EQ(::fsync(file.get()), 0);
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  TestFolder folder_;
  VolumeOptions options_;
};

TEST_P(VolumeSetTest, OddSizesComeBackExactlyThroughBlocksOfAllKinds) {
  const std::vector<Bytes> sizes{1, 511, 512, 513, 4095, 4096, 4097, kMiB - 1, kMiB, kMiB + 1, 8 * kMiB + 1000};
  VolumeGeometry geometry{{}, 100};
  for (std::uint32_t i = 0; i < sizes.size(); ++i) geometry.streams.push_back(stream_of(i, 1, sizes[i], sizes[i]));
  for (const Bytes block_bytes : {Bytes{1}, 64 * kKiB, 4 * kMiB, 64 * kMiB}) {
    if (block_bytes == 1 && GetParam().choice != IoBackendChoice::kUring)
      continue;  // thousands of requests once is enough
    options_.block_bytes = block_bytes;
    TestFolder folder;
    auto set = VolumeSet::create(folder.paths(), "run", geometry, options_);
    ASSERT_OK(set);
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      const Bytes extent = (*set)->payload_extent_bytes(i, 0);
      EXPECT_EQ(extent % (*set)->payload_alignment(), 0);
      EXPECT_GE(extent, sizes[i]);
      Payload out(extent, (*set)->payload_alignment());
      Payload in(extent, (*set)->payload_alignment());
      ASSERT_OK(write(**set, {{i, 0, 1}, {i + 1, 2}, out.fill(i).data()}));
      ASSERT_OK(read(**set, {{i, 0, 1}, {i + 1, 2}, in.data()}));
      EXPECT_TRUE(in.equals(out, sizes[i])) << sizes[i] << " bytes in blocks of " << block_bytes;
    }
  }
}

TEST_P(VolumeSetTest, ATileOfOneBlockIsOneRequestAndCountersAreExact) {
  auto set = create(small_geometry(8, 64 * kKiB));
  ASSERT_NE(set, nullptr);
  Payload payload(64 * kKiB, set->payload_alignment());
  for (std::int64_t tile = 0; tile < 8; ++tile) ASSERT_OK(write(*set, {{0, tile, 0}, {1, 0}, payload.fill(7).data()}));
  ASSERT_OK(read(*set, {{0, 3, 0}, {1, 0}, payload.data()}));
  const VolumeCounters counters = set->counters();
  EXPECT_EQ(counters.write_requests, 8);
  EXPECT_EQ(counters.written_bytes, 8 * set->disk_bytes(0, 0));
  EXPECT_EQ(counters.read_requests, 1);
  EXPECT_EQ(counters.read_bytes, set->disk_bytes(0, 3));
  EXPECT_EQ(counters.short_transfers, 0);
  EXPECT_GT(counters.write_busy_seconds, 0);
  EXPECT_GT(counters.cpu_seconds, 0);
}

TEST_P(VolumeSetTest, ManyTilesOnThreePathsAndTwoSlotsSurviveACloseInAnyOrderOfPaths) {
  std::vector<std::string> paths{folder_.make_folder("a"), folder_.make_folder("b"), folder_.make_folder("c")};
  const VolumeGeometry geometry{{stream_of(0, 50, 20'000, 3), stream_of(1, 31, 70'000, 70'000, 1)}, 200};
  auto set = VolumeSet::create(paths, "run", geometry, options_);
  ASSERT_OK(set);
  EXPECT_EQ((*set)->files().size(), 3U);
  const Bytes extent = (*set)->payload_extent_bytes(1, 0);
  std::vector<Payload> payloads;
  std::vector<TileTransfer> transfers;
  for (std::uint32_t stream = 0; stream < 2; ++stream) {
    for (std::int32_t slot = 0; slot < geometry.streams[stream].slots; ++slot) {
      for (std::int64_t tile = 0; tile < geometry.streams[stream].tiles; ++tile) {
        payloads.emplace_back(extent, (*set)->payload_alignment());
        payloads.back().fill(payloads.size());
        transfers.push_back({{stream, tile, slot},
                             {static_cast<std::uint64_t>(tile) + 1, static_cast<std::uint32_t>(slot)},
                             payloads.back().data()});
      }
    }
  }
  ASSERT_OK(move((*set)->write(transfers)));
  set->reset();
  std::rotate(paths.begin(), paths.begin() + 1, paths.end());
  auto again = VolumeSet::open(paths, "run", options_);
  ASSERT_OK(again);
  std::vector<Payload> back;
  for (TileTransfer& transfer : transfers) {
    back.emplace_back(extent, (*again)->payload_alignment());
    transfer.payload = back.back().data();
  }
  ASSERT_OK(move((*again)->read(transfers)));
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const auto& shape = geometry.streams[transfers[i].address.stream];
    const Bytes bytes =
        transfers[i].address.tile + 1 == shape.tiles ? shape.last_tile_payload_bytes : shape.tile_payload_bytes;
    EXPECT_TRUE(back[i].equals(payloads[i], bytes)) << i;
  }
}

TEST_P(VolumeSetTest, AWrongStampIsAnErrorThatNamesTheField) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  Payload payload(64 * kKiB, set->payload_alignment());
  ASSERT_OK(write(*set, {{0, 2, 1}, {7, 1}, payload.fill(1).data()}));
  const auto version = read(*set, {{0, 2, 1}, {8, 1}, payload.data()});
  ASSERT_FALSE(version.ok());
  EXPECT_EQ(version.error().code, ErrorCode::kIo);
  for (const std::string& part : {std::string("step version: wanted 8, had 7"), std::string("stream 0 tile 2 slot 1"),
                                  folder_.volume("run"), fmt::format("offset {}", offset_of(*set, 2, 1))}) {
    EXPECT_NE(version.error().message.find(part), std::string::npos) << version.error().message;
  }
  EXPECT_NE(text_of(read(*set, {{0, 2, 1}, {7, 2}, payload.data()})).find("attempt: wanted 2, had 1"),
            std::string::npos);
  EXPECT_NE(text_of(read(*set, {{0, 2, 0}, {7, 1}, payload.data()})).find("never written"), std::string::npos);
  EXPECT_TRUE(read(*set, {{0, 2, 1}, {7, 1}, payload.data()}).ok()) << "the set goes on after an error";
}

TEST_P(VolumeSetTest, AFlippedBitOfPayloadOrTrailerIsAnErrorAndPaddingIsNot) {
  auto set = create(small_geometry(4, 50'000));
  ASSERT_NE(set, nullptr);
  const std::int64_t offset = offset_of(*set, 1, 0);
  Payload payload(set->payload_extent_bytes(0, 1), set->payload_alignment());
  ASSERT_OK(write(*set, {{0, 1, 0}, {1, 0}, payload.fill(1).data()}));
  const TileTransfer again{{0, 1, 0}, {1, 0}, payload.data()};
  flip_bit(offset + 49'999);
  EXPECT_NE(text_of(read(*set, again)).find("payload checksum"), std::string::npos);
  flip_bit(offset + 49'999);
  ASSERT_OK(read(*set, again));
  flip_bit(offset + 50'001);  // padding is not checksummed
  ASSERT_OK(read(*set, again));
  flip_bit(offset + set->payload_extent_bytes(0, 1) + 50);
  EXPECT_NE(text_of(read(*set, again)).find("trailer checksum"), std::string::npos);
}

TEST_P(VolumeSetTest, ATornWriteIsAnError) {
  auto set = create(small_geometry(2, 64 * kKiB));
  ASSERT_NE(set, nullptr);
  Payload old_bytes(64 * kKiB, set->payload_alignment());
  Payload new_bytes(64 * kKiB, set->payload_alignment());
  ASSERT_OK(write(*set, {{0, 0, 0}, {1, 0}, old_bytes.fill(1).data()}));
  const std::int64_t offset = offset_of(*set, 0, 0);
  ASSERT_OK(write(*set, {{0, 0, 0}, {2, 0}, new_bytes.fill(2).data()}));
  // The first half of the old write over the new one: what a machine that stops leaves behind.
  const UniqueFd file(::open(folder_.volume("run").c_str(), O_RDWR));
  ASSERT_EQ(write_fully(file.get(), old_bytes.span().first(32 * 1024), offset), 0);
  ASSERT_EQ(::fsync(file.get()), 0);
  EXPECT_NE(text_of(read(*set, {{0, 0, 0}, {2, 0}, old_bytes.data()})).find("payload checksum"), std::string::npos);
}

TEST_P(VolumeSetTest, TheFirstErrorOfABatchWinsAndTheOthersAreCounted) {
  auto set = create(small_geometry(4, 4096));
  ASSERT_NE(set, nullptr);
  Payload payload(4 * 4096, set->payload_alignment());
  std::vector<TileTransfer> transfers;
  for (std::int64_t tile = 0; tile < 4; ++tile)
    transfers.push_back({{0, tile, 0}, {1, 0}, payload.data() + tile * 4096});
  const auto outcome = move(set->read(transfers));
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("never written"), std::string::npos) << outcome.error().message;
}

TEST_P(VolumeSetTest, NothingToMoveIsDoneAtOnceAndStillNotifies) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  std::uint64_t told = 0;
  Ticket ticket = set->read(
      {}, {[](void* context, std::uint64_t tag) noexcept { *static_cast<std::uint64_t*>(context) = tag; }, &told, 77});
  EXPECT_TRUE(ticket.ready());
  EXPECT_EQ(told, 77U);
  ASSERT_OK(ticket.wait(soon()));
  Ticket quiet = set->write({});
  EXPECT_TRUE(quiet.ready());
}

TEST_P(VolumeSetTest, TheSinkIsToldBeforeTheTicketIsReady) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  Payload payload(64 * kKiB, set->payload_alignment());
  std::atomic<std::uint64_t> told{0};
  const CompletionSink sink{
      [](void* context, std::uint64_t tag) noexcept { static_cast<std::atomic<std::uint64_t>*>(context)->store(tag); },
      &told, 5};
  const TileTransfer transfer{{0, 0, 0}, {1, 0}, payload.fill(3).data()};
  Ticket ticket = set->write({&transfer, 1}, sink);
  ASSERT_OK(ticket.wait(soon()));
  EXPECT_EQ(told.load(), 5U);
  ASSERT_OK(ticket.wait(soon()));
}

TEST_P(VolumeSetTest, AddressesAndBuffersThatCannotBeAreErrors) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  Payload payload(128 * kKiB, set->payload_alignment());
  for (const TileAddress& address : {TileAddress{1, 0, 0}, TileAddress{0, 4, 0}, TileAddress{0, -1, 0},
                                     TileAddress{0, 0, 2}, TileAddress{0, 0, -1}}) {
    EXPECT_FALSE(write(*set, {address, {1, 0}, payload.data()}).ok());
  }
  EXPECT_FALSE(write(*set, {{0, 0, 0}, {1, 0}, payload.data() + 512}).ok());
  EXPECT_FALSE(write(*set, {{0, 0, 0}, {1, 0}, nullptr}).ok());
}

TEST_P(VolumeSetTest, RecordsAlternateAndTheLastTwoComeBackNewestFirst) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  const auto none = set->read_records();
  ASSERT_OK(none);
  EXPECT_TRUE(none->empty());
  for (std::uint64_t sequence = 1; sequence <= 5; ++sequence) {
    ASSERT_OK(set->write_record({sequence, std::vector<std::byte>(sequence * 100, static_cast<std::byte>(sequence))}));
    const auto records = set->read_records();
    ASSERT_OK(records);
    ASSERT_EQ(records->size(), std::min<std::size_t>(sequence, 2));
    EXPECT_EQ(records->front().sequence, sequence);
    EXPECT_EQ(records->front().payload.size(), sequence * 100);
    if (sequence > 1) {
      EXPECT_EQ(records->back().sequence, sequence - 1);
    }
  }
  EXPECT_FALSE(set->write_record({6, std::vector<std::byte>(1001)}).ok());
  set.reset();
  const auto kept = reopen()->read_records();
  ASSERT_OK(kept);
  EXPECT_EQ(kept->front().sequence, 5U);
}

TEST_P(VolumeSetTest, ATornRecordIsPassedOverForTheOlderOne) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  const auto layout = VolumeLayout::make(set->geometry(), 1, set->payload_alignment());
  ASSERT_OK(set->write_record({1, std::vector<std::byte>(900, std::byte{1})}));
  ASSERT_OK(set->write_record({2, std::vector<std::byte>(900, std::byte{2})}));
  flip_bit(layout->record_offset(2) + 500);
  const auto records = set->read_records();
  ASSERT_OK(records);
  ASSERT_EQ(records->size(), 1U);
  EXPECT_EQ(records->front().sequence, 1U);
}

TEST_P(VolumeSetTest, AnyVolumeProvesARecord) {
  const std::vector<std::string> paths{folder_.make_folder("a"), folder_.make_folder("b")};
  options_.durability = Durability::kPower;
  auto set = VolumeSet::create(paths, "run", small_geometry(), options_);
  ASSERT_OK(set);
  ASSERT_OK((*set)->write_record({8, std::vector<std::byte>(10, std::byte{8})}));
  const UniqueFd file(::open((*set)->files()[0].c_str(), O_RDWR));
  const std::vector<std::byte> zeros(64 * 1024);
  ASSERT_EQ(write_fully(file.get(), zeros, kRecordsOffset), 0);
  ASSERT_EQ(::fsync(file.get()), 0);
  const auto records = (*set)->read_records();
  ASSERT_OK(records);
  ASSERT_EQ(records->size(), 1U);
  EXPECT_EQ(records->front().sequence, 8U);
}

TEST_P(VolumeSetTest, TwoThreadsUseOneSetAtOnce) {
  auto set = create(small_geometry(64, 16 * kKiB));
  ASSERT_NE(set, nullptr);
  const auto work = [&](std::int64_t first) {
    Payload out(16 * kKiB, set->payload_alignment());
    Payload in(16 * kKiB, set->payload_alignment());
    for (std::int64_t tile = first; tile < first + 32; ++tile) {
      const auto wrote = write(*set, {{0, tile, 0}, {1, 0}, out.fill(static_cast<std::uint64_t>(tile)).data()});
      const auto got = read(*set, {{0, tile, 0}, {1, 0}, in.data()});
      if (!wrote.ok() || !got.ok() || !in.equals(out, 16 * kKiB))
        ADD_FAILURE() << tile << text_of(wrote) << text_of(got);
    }
  };
  std::thread other(work, 32);
  work(0);
  other.join();
}

TEST_P(VolumeSetTest, ADeviceThatIsThrottledAndSlowMovesTheSameBytes) {
  options_.throttle_bytes_per_s = 40 * kMiB;
  options_.delay_us = 2000;
  auto set = create(small_geometry(16, 64 * kKiB));
  ASSERT_NE(set, nullptr);
  Payload out(64 * kKiB, set->payload_alignment());
  Payload in(64 * kKiB, set->payload_alignment());
  out.fill(4);
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t tile = 0; tile < 16; ++tile) ASSERT_OK(write(*set, {{0, tile, 0}, {1, 0}, out.data()}));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // A lower bound cannot fail on a slow machine: 15 transfers after the first wait for 68 KiB each.
  EXPECT_GE(seconds, 15.0 * 68 / 1024 / 40);
  ASSERT_OK(read(*set, {{0, 15, 0}, {1, 0}, in.data()}));
  EXPECT_TRUE(in.equals(out, 64 * kKiB));
}

TEST_P(VolumeSetTest, MeasureGivesRatesAndLeavesTilesAlone) {
  auto set = create(small_geometry(8, 64 * kKiB));
  ASSERT_NE(set, nullptr);
  Payload memory(2 * kMiB, set->payload_alignment());
  Payload tile(64 * kKiB, set->payload_alignment());
  for (std::int64_t i = 0; i < 8; ++i) ASSERT_OK(write(*set, {{0, i, 0}, {1, 0}, tile.fill(9).data()}));
  const auto rates = set->measure(memory.span(), std::chrono::milliseconds(30));
  ASSERT_OK(rates);
  EXPECT_GT(rates->read_bytes_per_s, 0);
  EXPECT_GT(rates->write_bytes_per_s, 0);
  EXPECT_GT(rates->mixed_bytes_per_s, 0);
  EXPECT_GT(rates->cpu_seconds_per_byte, 0);
  for (std::int64_t i = 0; i < 8; ++i) ASSERT_OK(read(*set, {{0, i, 0}, {1, 0}, tile.data()}));
  EXPECT_FALSE(set->measure(memory.span().first(4096), std::chrono::milliseconds(1)).ok());
}

TEST_P(VolumeSetTest, DescribesWhatIsInUse) {
  auto set = create(small_geometry());
  ASSERT_NE(set, nullptr);
  const std::string text = set->describe();
  EXPECT_NE(text.find(GetParam().reported), std::string::npos) << text;
  EXPECT_NE(text.find("1 volume in " + folder_.path()), std::string::npos) << text;
}

std::vector<TestBackend> on_disk() {  // these tests also look into the file from outside
  std::vector<TestBackend> backends = test_backends();
  std::erase_if(backends, [](const TestBackend& backend) { return backend.in_memory; });
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Backends, VolumeSetTest, ::testing::ValuesIn(on_disk()), test_backend_name);

}  // namespace
}  // namespace headrace::io
