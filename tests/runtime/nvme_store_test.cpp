// SPDX-License-Identifier: Apache-2.0
// What is special to NVMe: sessions. A reopened store goes on from the last committed record, and nothing that a dead
// session left behind passes as current.
#include "runtime/store/nvme_store.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <iterator>

#include "tests/core/temporary_folder.h"
#include "tests/io/fault_backend.h"
#include "tests/runtime/store_support.h"

namespace headrace::runtime {
namespace {

class NvmeStoreSessions : public testing::Test {
 protected:
  [[nodiscard]] ShardGeometry geometry(std::int32_t slots = 2) const { return ShardGeometry::of_state(input_, slots); }
  [[nodiscard]] std::unique_ptr<NvmeStore> create(std::int32_t slots = 2) {
    auto store = NvmeStore::create(paths_, "run", geometry(slots), {});
    EXPECT_TRUE(store.ok()) << text_of(store);
    return store.ok() ? std::move(store).value() : nullptr;
  }
  [[nodiscard]] std::unique_ptr<NvmeStore> reopen(std::int32_t slots = 2) {
    auto store = NvmeStore::open(paths_, "run", geometry(slots), {});
    EXPECT_TRUE(store.ok()) << text_of(store);
    return store.ok() ? std::move(store).value() : nullptr;
  }
  // One step as the engine makes it: tiles, then the record.
  void step(NvmeStore& store, std::uint64_t number) {
    const Result<void> stored = store_version(input_, store, number);
    ASSERT_TRUE(stored.ok()) << text_of(stored);
    StepRecord record = store.committed();
    record.step = number;
    record.metrics_row = R"({"step":)" + std::to_string(number) + "}";
    const Result<void> committed = store.commit_step(record, true);
    ASSERT_TRUE(committed.ok()) << text_of(committed);
  }

  PlanInput input_ = make_store_input();
  TemporaryFolder folder_;
  std::vector<std::string> paths_{folder_.path()};
};

TEST_F(NvmeStoreSessions, AReopenedStoreFindsTheLastCommittedRecordAndItsTiles) {
  {
    const auto store = create();
    step(*store, 0);
    step(*store, 1);
    StepRecord record = store->committed();
    ASSERT_TRUE(store_version(input_, *store, 2).ok());
    record.step = 2;
    record.optimizer_step = 2;
    record.samples_consumed = 64;
    record.skipped_steps = 5;
    record.skipped_in_a_row = 1;
    record.loss_scale = 32768;
    record.loss_scale_good_steps = 17;
    record.loss_scale_hysteresis = 2;
    record.metrics_row = R"({"step":2,"loss":4.25})";
    ASSERT_TRUE(store->commit_step(record, true).ok());
  }
  const auto store = reopen();
  const StepRecord& found = store->committed();
  EXPECT_EQ(found.step, 2U);
  EXPECT_EQ(found.optimizer_step, 2U);
  EXPECT_EQ(found.samples_consumed, 64U);
  EXPECT_EQ(found.skipped_steps, 5U);
  EXPECT_EQ(found.skipped_in_a_row, 1U);
  EXPECT_EQ(found.loss_scale, 32768);
  EXPECT_EQ(found.loss_scale_good_steps, 17U);
  EXPECT_EQ(found.loss_scale_hysteresis, 2U);
  EXPECT_EQ(found.metrics_row, R"({"step":2,"loss":4.25})");
  EXPECT_EQ(found.state_version, 2U);
  EXPECT_EQ(check_version(input_, *store, 2), "ok");
}

TEST_F(NvmeStoreSessions, WithoutACommittedStepThereIsNothingToOpen) {
  {
    const auto store = create();
    ASSERT_TRUE(store_version(input_, *store, 0).ok());
  }
  const auto opened = NvmeStore::open(paths_, "run", geometry(), {});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kIo);
}

TEST_F(NvmeStoreSessions, WhatADeadSessionDidNotCommitNeverPassesAsCurrent) {
  {
    const auto store = create();
    step(*store, 0);
    step(*store, 1);
    ASSERT_TRUE(store_version(input_, *store, 2).ok());  // and dies
  }
  {
    const auto store = reopen();
    EXPECT_EQ(check_version(input_, *store, 1), "ok");
    ASSERT_TRUE(store_version(input_, *store, 2).ok());  // the redo dies too
  }
  const auto store = reopen();
  EXPECT_EQ(store->committed().step, 1U);
  EXPECT_EQ(check_version(input_, *store, 1), "ok");
  // A step that forgets one tile must not find what the dead sessions wrote for the same step.
  const TileId forgotten{2, StateStream::kWeights, 1};
  for (const TileId& id : tiles_of(input_, false)) {
    if (id.unit == forgotten.unit && id.stream == forgotten.stream && id.tile == forgotten.tile) continue;
    TilePayload payload(input_, id);
    const TileMove move = payload.fill(2).move();
    ASSERT_TRUE(wait_for(store->store({&move, 1}, 2, {})).ok());
  }
  StepRecord record = store->committed();
  record.step = 2;
  ASSERT_TRUE(store->commit_step(record, true).ok());
  const TilePayload payload(input_, forgotten);
  const TileMove move = payload.move();
  const Result<void> loaded = wait_for(store->load({&move, 1}, 2, {}));
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kIo);
}

TEST_F(NvmeStoreSessions, ARedoneStepIsCurrentUnderItsNewAttempt) {
  {
    const auto store = create();
    step(*store, 0);
    step(*store, 1);
    ASSERT_TRUE(store_version(input_, *store, 2).ok());
  }
  {
    const auto store = reopen();
    step(*store, 2);
    EXPECT_EQ(check_version(input_, *store, 2), "ok");
    EXPECT_GT(store->committed().state_attempt, 0U);
  }
  const auto store = reopen();
  EXPECT_EQ(check_version(input_, *store, 2), "ok");
  step(*store, 3);
  EXPECT_EQ(check_version(input_, *store, 3), "ok");
}

TEST_F(NvmeStoreSessions, TilesStoredAgainInAStepCountAndWhatWasStoredFirstNeverPassesForThem) {
  const auto store_again = [&](NvmeStore& store, std::uint64_t version, const TileId* forgotten) {
    for (const TileId& id : tiles_of(input_, false)) {
      if (forgotten != nullptr && id.unit == forgotten->unit && id.stream == forgotten->stream &&
          id.tile == forgotten->tile)
        continue;
      TilePayload payload(input_, id);
      const TileMove move = payload.fill(version).move();
      ASSERT_TRUE(wait_for(store.store_again({&move, 1}, version, {})).ok());
    }
  };
  const auto commit = [](NvmeStore& store, std::uint64_t number) {
    StepRecord record = store.committed();
    record.step = number;
    return store.commit_step(record, true);
  };
  {
    const auto store = create();
    step(*store, 0);
    ASSERT_TRUE(store_version(input_, *store, 1).ok());  // on an assumption that does not hold
    EXPECT_EQ(check_version(input_, *store, 0), "ok");   // the old state is what the second time starts from
    store_again(*store, 1, nullptr);
    ASSERT_TRUE(commit(*store, 1).ok());
    EXPECT_EQ(store->committed().state_attempt, store->committed().attempt + 1);
    EXPECT_EQ(check_version(input_, *store, 1), "ok");
    step(*store, 2);  // the next step has the first number again
    EXPECT_EQ(store->committed().state_attempt, store->committed().attempt);
    ASSERT_TRUE(store_version(input_, *store, 3).ok());
    store_again(*store, 3, nullptr);  // and dies before its record
  }
  const auto store = reopen();
  EXPECT_EQ(check_version(input_, *store, 2), "ok");
  const TileId forgotten{2, StateStream::kWeights, 1};
  ASSERT_TRUE(store_version(input_, *store, 3).ok());
  store_again(*store, 3, &forgotten);
  ASSERT_TRUE(commit(*store, 3).ok());
  const TilePayload payload(input_, forgotten);
  const TileMove move = payload.move();
  EXPECT_FALSE(wait_for(store->load({&move, 1}, 3, {})).ok());
}

TEST_F(NvmeStoreSessions, ASkippedStepCommitsARecordAndNoTiles) {
  {
    const auto store = create();
    step(*store, 0);
    step(*store, 1);
    const std::vector<bool> slots = store->committed().current_slot;
    StepRecord record = store->committed();
    record.step = 2;
    record.skipped_steps = 1;
    ASSERT_TRUE(store->commit_step(record, false).ok());
    EXPECT_EQ(store->committed().current_slot, slots);
    EXPECT_EQ(store->committed().state_version, 1U);
    EXPECT_EQ(check_version(input_, *store, 1), "ok");
  }
  {
    const auto store = reopen();
    EXPECT_EQ(store->committed().step, 2U);
    EXPECT_EQ(store->committed().skipped_steps, 1U);
    EXPECT_EQ(check_version(input_, *store, 1), "ok");
    step(*store, 3);
    EXPECT_EQ(check_version(input_, *store, 3), "ok");
  }
  EXPECT_EQ(check_version(input_, *reopen(), 3), "ok");
}

TEST_F(NvmeStoreSessions, ACommitWhoseRecordCannotBeWrittenLeavesTheStateAsItWas) {
  const auto plan = std::make_shared<io::FaultPlan>();
  const io::BackendSeam seam = io::fault_seam(io::IoBackendChoice::kThreads, plan);
  io::VolumeOptions options;
  options.seam = &seam;
  auto created = NvmeStore::create(paths_, "run", geometry(), options);
  ASSERT_TRUE(created.ok()) << text_of(created);
  NvmeStore& store = **created;
  step(store, 0);
  const std::vector<bool> slots = store.committed().current_slot;
  ASSERT_TRUE(store_version(input_, store, 1).ok());
  plan->arm([](const io::IoRequest& request, std::uint64_t) {
    return request.operation == io::IoOperation::kWrite ? io::Fault{io::Fault::Kind::kError, ENOSPC, 0} : io::Fault{};
  });
  StepRecord record = store.committed();
  record.step = 1;
  const Result<void> failed = store.commit_step(record, true);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_EQ(store.committed().step, 0U);
  EXPECT_EQ(store.committed().current_slot, slots);
  EXPECT_EQ(check_version(input_, store, 0), "ok");
  plan->arm({});
  ASSERT_TRUE(store.commit_step(record, true).ok());
  EXPECT_EQ(check_version(input_, store, 1), "ok");
}

TEST_F(NvmeStoreSessions, ASessionThatOnlyReadsLeavesTheVolumeAsItWas) {
  {
    const auto store = create();
    step(*store, 0);
    step(*store, 1);
  }
  const std::string file = folder_.path("headrace-run.volume");
  const auto contents = [&] {
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const std::string before = contents();
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(check_version(input_, *reopen(), 1), "ok");
  EXPECT_TRUE(contents() == before);
}

TEST_F(NvmeStoreSessions, WithOneSlotAReopenedStoreHasTheCommittedVersion) {
  {
    const auto store = create(1);
    step(*store, 0);
    step(*store, 1);
    step(*store, 2);
    EXPECT_EQ(check_version(input_, *store, 2), "ok");
  }
  {
    const auto store = reopen(1);
    EXPECT_EQ(check_version(input_, *store, 2), "ok");
    const TileId id{0, StateStream::kWeights, 0};
    TilePayload payload(input_, id);
    const TileMove move = payload.fill(3).move();
    ASSERT_TRUE(wait_for(store->store({&move, 1}, 3, {})).ok());  // dies in the middle of a step
  }
  const auto store = reopen(1);
  EXPECT_NE(check_version(input_, *store, 2), "ok");  // one slot cannot go back; it says so
}

TEST_F(NvmeStoreSessions, AVolumeOfAnotherGeometryIsRefusedWithBothNumbers) {
  { step(*create(), 0); }
  const auto one_slot = NvmeStore::open(paths_, "run", geometry(1), {});
  ASSERT_FALSE(one_slot.ok());
  EXPECT_EQ(one_slot.error().code, ErrorCode::kConfig);
  EXPECT_NE(one_slot.error().message.find("in 2 slots"), std::string::npos) << one_slot.error().message;

  PlanInput other = input_;
  other.tile_elements = 8192;
  const auto tiles = NvmeStore::open(paths_, "run", ShardGeometry::of_state(other, 2), {});
  ASSERT_FALSE(tiles.ok());
  EXPECT_EQ(tiles.error().code, ErrorCode::kConfig);

  other = input_;
  other.optimizer_home = Home::kHost;
  const auto streams = NvmeStore::open(paths_, "run", ShardGeometry::of_state(other, 2), {});
  ASSERT_FALSE(streams.ok());
  EXPECT_EQ(streams.error().code, ErrorCode::kConfig);

  other = input_;
  other.state_format = cpu_adam::StateFormat::kFp32;
  const auto format = NvmeStore::open(paths_, "run", ShardGeometry::of_state(other, 2), {});
  ASSERT_FALSE(format.ok());
  EXPECT_EQ(format.error().code, ErrorCode::kConfig);

  EXPECT_EQ(check_version(input_, *reopen(), 0), "ok");
}

TEST_F(NvmeStoreSessions, SeveralVolumesHoldOneShard) {
  paths_ = {folder_.path("a"), folder_.path("b"), folder_.path("c")};
  for (const std::string& path : paths_) std::filesystem::create_directory(path);
  {
    const auto store = create();
    for (const std::uint64_t number : {0, 1, 2}) step(*store, number);
    EXPECT_EQ(store->volumes().files().size(), 3U);
  }
  const auto store = reopen();
  EXPECT_EQ(store->committed().step, 2U);
  EXPECT_EQ(check_version(input_, *store, 2), "ok");
}

TEST_F(NvmeStoreSessions, AFrozenUnitStaysAtVersionZeroInEverySession) {
  {
    const auto store = create();
    for (const std::uint64_t number : {0, 1, 2}) step(*store, number);
    EXPECT_EQ(store->version_of({3, StateStream::kWeights, 0}), 0U);
    EXPECT_EQ(store->version_of({0, StateStream::kWeights, 0}), 2U);
  }
  const auto store = reopen();
  step(*store, 3);
  EXPECT_EQ(store->version_of({3, StateStream::kWeights, 0}), 0U);
  EXPECT_EQ(check_version(input_, *store, 3), "ok");
}

}  // namespace
}  // namespace headrace::runtime
