// SPDX-License-Identifier: Apache-2.0
// What every TierStore keeps: a tile comes back at the version it was stored with and at no other, whatever its length,
// and every accepted call ends its sink exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/store/host_store.h"
#include "runtime/store/nvme_store.h"
#include "tests/core/temporary_folder.h"
#include "tests/runtime/store_support.h"

namespace headrace::runtime {
namespace {

struct StoreKind {
  const char* name;
  bool nvme;
  std::int32_t slots;  // of a trained tile
  io::IoBackendChoice backend;
};

class TierStoreContract : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    if (!GetParam().nvme) return make_host_store();
    io::VolumeOptions options;
    options.backend = GetParam().backend;
    auto created =
        NvmeStore::create({folder_.path()}, "contract", ShardGeometry::of_state(input_, GetParam().slots), options);
    ASSERT_TRUE(created.ok()) << text_of(created);
    store_ = std::move(created).value();
  }

  void make_host_store() {
    auto host = std::make_unique<HostStore>(input_.model.units.size());
    home_ = payloads_of(input_, tiles_of(input_, true));
    for (const TilePayload& payload : home_) host->add(payload.id(), payload.data(), payload.bytes());
    store_ = std::move(host);
  }

  void store_and_commit(std::uint64_t version) {
    const Result<void> stored = store_version(input_, *store_, version);
    ASSERT_TRUE(stored.ok()) << text_of(stored);
    ASSERT_TRUE(store_->commit(version).ok());
  }

  PlanInput input_ = make_store_input();
  TemporaryFolder folder_;
  std::vector<TilePayload> home_;  // the memory that a HostStore keeps its tiles in
  std::unique_ptr<TierStore> store_;
};

// Counts the calls of its sinks by tag.
struct SinkCounter {
  std::array<std::atomic<int>, 4> calls{};
  io::CompletionSink sink(std::uint64_t tag) {
    return {[](void* context, std::uint64_t which) noexcept {
              static_cast<SinkCounter*>(context)->calls[which].fetch_add(1);
            },
            this, tag};
  }
};

void expect_refusal(const Result<io::Ticket>& result, const TileId& id) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kIo);
  const std::string name = "unit " + std::to_string(id.unit) + " tile " + std::to_string(id.tile);
  EXPECT_NE(result.error().message.find(name), std::string::npos) << result.error().message;
}

TEST_P(TierStoreContract, ATileThatWasNeverStoredIsRefusedAtOnceAndNamed) {
  for (const TileId& id : tiles_of(input_, true))
    for (const std::uint64_t version : {0, 1}) {
      const TilePayload payload(input_, id);
      const TileMove move = payload.move();
      SinkCounter sinks;
      expect_refusal(store_->load({&move, 1}, version, sinks.sink(0)), id);
      EXPECT_EQ(sinks.calls[0], 0);
    }
}

TEST_P(TierStoreContract, AVersionThatIsNotCurrentIsRefusedAtOnceAndNamed) {
  store_and_commit(0);
  store_and_commit(4);
  for (const TileId& id : tiles_of(input_, true))
    for (const std::uint64_t version : {3, 5}) {
      const TilePayload payload(input_, id);
      const TileMove move = payload.move();
      SinkCounter sinks;
      expect_refusal(store_->load({&move, 1}, version, sinks.sink(0)), id);
      EXPECT_EQ(sinks.calls[0], 0);
    }
}

TEST_P(TierStoreContract, OneRefusedTileRefusesTheWholeLoad) {
  store_and_commit(0);
  store_and_commit(1);
  // The frozen unit is at version 0 for ever; a load of it at the step's version is a defect of the caller.
  const TileId trained{0, StateStream::kWeights, 0}, frozen{3, StateStream::kWeights, 1};
  const TilePayload first(input_, trained), second(input_, frozen);
  const TileMove moves[] = {first.move(), second.move()};
  SinkCounter sinks;
  expect_refusal(store_->load(moves, 1, sinks.sink(0)), frozen);
  EXPECT_EQ(sinks.calls[0], 0);
}

TEST_P(TierStoreContract, TilesOfEveryLengthComeBackByteForByte) {
  store_and_commit(0);
  EXPECT_EQ(check_version(input_, *store_, 0), "ok");
  // And all of a version with one call.
  std::vector<TilePayload> payloads = payloads_of(input_, tiles_of(input_, true));
  const Result<void> loaded = wait_for(store_->load(moves_of(payloads), 0, {}));
  ASSERT_TRUE(loaded.ok()) << text_of(loaded);
  for (const TilePayload& payload : payloads)
    EXPECT_TRUE(payload.holds(0)) << "unit " << payload.id().unit << " tile " << payload.id().tile;
}

TEST_P(TierStoreContract, BeforeTheCommitATileOfTwoSlotsKeepsTheOldVersionAndOneOfOneSlotNeverPassesAsIt) {
  store_and_commit(0);
  store_and_commit(1);
  const Result<void> stored = store_version(input_, *store_, 2);
  ASSERT_TRUE(stored.ok()) << text_of(stored);
  if (GetParam().slots == 2) {
    EXPECT_EQ(check_version(input_, *store_, 1), "ok");
    return;
  }
  for (const TileId& id : tiles_of(input_, false)) {
    TilePayload payload(input_, id);
    const TileMove move = payload.move();
    const Result<void> loaded = wait_for(store_->load({&move, 1}, 1, {}));
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::kIo);
  }
}

TEST_P(TierStoreContract, ACommitMakesTheNewVersionCurrentAndRefusesTheOldOne) {
  store_and_commit(0);
  for (const std::uint64_t version : {1, 2, 3, 7}) {  // both slots in turn; skipped steps leave gaps
    store_and_commit(version);
    EXPECT_EQ(check_version(input_, *store_, version), "ok");
    const TileId id{2, StateStream::kOptimizer, 2};
    const TilePayload payload(input_, id);
    const TileMove move = payload.move();
    expect_refusal(store_->load({&move, 1}, version - 1, {}), id);
  }
}

TEST_P(TierStoreContract, EveryAcceptedCallNotifiesItsSinkExactlyOnce) {
  store_and_commit(0);
  SinkCounter sinks;
  std::vector<TilePayload> payloads = payloads_of(input_, tiles_of(input_, false));
  for (TilePayload& payload : payloads) payload.fill(1);
  ASSERT_TRUE(wait_for(store_->store(moves_of(payloads), 1, sinks.sink(1))).ok());
  ASSERT_TRUE(store_->commit(1).ok());
  ASSERT_TRUE(wait_for(store_->load(moves_of(payloads), 1, sinks.sink(2))).ok());
  EXPECT_EQ(sinks.calls[1], 1);
  EXPECT_EQ(sinks.calls[2], 1);
  EXPECT_EQ(sinks.calls[0], 0);
}

TEST_P(TierStoreContract, CallsWithoutMovesAreDoneAtOnce) {
  SinkCounter sinks;
  auto stored = store_->store({}, 0, sinks.sink(0));
  ASSERT_TRUE(stored.ok());
  EXPECT_TRUE(stored->ready());
  auto loaded = store_->load({}, 9, sinks.sink(1));
  ASSERT_TRUE(loaded.ok());
  EXPECT_TRUE(loaded->ready());
  EXPECT_EQ(sinks.calls[0], 1);
  EXPECT_EQ(sinks.calls[1], 1);
}

TEST_P(TierStoreContract, TwoThreadsMoveDistinctTilesAtOnce) {
  store_and_commit(0);
  const std::vector<TileId> tiles = tiles_of(input_, false);
  std::array<std::string, 2> faults;
  const auto work = [&](std::size_t half) {
    for (std::uint64_t round = 0; round < 8; ++round)
      for (std::size_t i = half; i < tiles.size(); i += 2) {
        TilePayload payload(input_, tiles[i]);
        const TileMove move = payload.move();
        const Result<void> loaded = wait_for(store_->load({&move, 1}, 0, {}));
        if (!loaded.ok()) faults[half] = text_of(loaded);
        if (!payload.holds(0)) faults[half] = "other bytes came back";
      }
    for (std::size_t i = half; i < tiles.size(); i += 2) {
      TilePayload payload(input_, tiles[i]);
      const TileMove move = payload.fill(1).move();
      const Result<void> stored = wait_for(store_->store({&move, 1}, 1, {}));
      if (!stored.ok()) faults[half] = text_of(stored);
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(faults[0], "");
  EXPECT_EQ(faults[1], "");
  ASSERT_TRUE(store_->commit(1).ok());
  EXPECT_EQ(check_version(input_, *store_, 1), "ok");
}

INSTANTIATE_TEST_SUITE_P(All, TierStoreContract,
                         testing::Values(StoreKind{"Host", false, 1, io::IoBackendChoice::kAuto},
                                         StoreKind{"NvmeTwoSlots", true, 2, io::IoBackendChoice::kAuto},
                                         StoreKind{"NvmeTwoSlotsThreads", true, 2, io::IoBackendChoice::kThreads},
                                         StoreKind{"NvmeTwoSlotsLibaio", true, 2, io::IoBackendChoice::kLibaio},
                                         StoreKind{"NvmeOneSlot", true, 1, io::IoBackendChoice::kAuto}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace headrace::runtime
