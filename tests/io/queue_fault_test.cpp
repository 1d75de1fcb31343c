// SPDX-License-Identifier: Apache-2.0
// A VolumeSet over a real backend that fails on purpose: nothing is lost, doubled, hidden or waited for without end.
#include <gtest/gtest.h>

#include <cerrno>
#include <mutex>
#include <random>
#include <thread>

#include "io/layout.h"
#include "io_test_support.h"
#include "test_backends.h"

namespace headrace::io {
namespace {

using Kind = Fault::Kind;

class QueueFault : public ::testing::TestWithParam<TestBackend> {
 protected:
  void SetUp() override {
    candidate_ = GetParam().candidate();
    if (const std::string refusal = refusal_of(candidate_); !refusal.empty())
      GTEST_SKIP() << "refused here: " << refusal;
    options_.block_bytes = 64 * kKiB;
  }
  void create(std::int64_t tiles = 16, Bytes tile_bytes = 256 * kKiB) {
    const BackendSeam seam{{spoiled_by(candidate_, plan_)}};
    options_.seam = &seam;
    auto made = VolumeSet::create(folder_.paths(), "run", small_geometry(tiles, tile_bytes), options_);
    ASSERT_OK(made);
    set_ = std::move(*made);
    tile_bytes_ = tile_bytes;
    out_ = std::make_unique<Payload>(tile_bytes, set_->payload_alignment());
    in_ = std::make_unique<Payload>(tile_bytes, set_->payload_alignment());
    out_->fill(21);
  }
  Ticket start_write(std::int64_t tile, CompletionSink sink = {}) {
    const TileTransfer transfer{{0, tile, 0}, {1, 0}, out_->data()};
    return set_->write({&transfer, 1}, sink);
  }
  Ticket start_read(std::int64_t tile, CompletionSink sink = {}) {
    const TileTransfer transfer{{0, tile, 0}, {1, 0}, in_->data()};
    return set_->read({&transfer, 1}, sink);
  }
  Result<void> write(std::int64_t tile = 0) { return start_write(tile).wait(soon()); }
  Result<void> read(std::int64_t tile = 0) { return start_read(tile).wait(soon()); }
  // Only the n-th request from now on has the fault.
  void spoil(std::uint64_t n, Fault fault) {
    plan_->arm([=](const IoRequest&, std::uint64_t number) { return number == n ? fault : Fault{}; });
  }
  void spoil_all(Fault fault) {
    plan_->arm([=](const IoRequest&, std::uint64_t) { return fault; });
  }
  void heal() { plan_->arm(nullptr); }
  void expect_whole(std::int64_t tile = 0) {
    heal();
    ASSERT_OK(read(tile));
    EXPECT_TRUE(in_->equals(*out_, tile_bytes_));
  }

  TestFolder folder_;
  VolumeOptions options_;
  BackendCandidate candidate_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  Bytes tile_bytes_ = 0;
  std::unique_ptr<Payload> out_;  // outlive the set
  std::unique_ptr<Payload> in_;
  std::unique_ptr<VolumeSet> set_;
};

TEST_P(QueueFault, AnErrorOfOneRequestFailsItsTicketAndNamesEverything) {
  create();
  for (const int error_number : {EIO, ENOSPC, EFBIG}) {
    spoil(3, {Kind::kError, error_number, 0});
    const auto outcome = write(5);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
    for (const std::string& part :
         {errno_text(error_number), folder_.volume("run"), std::string("stream 0 tile 5 slot 0"),
          std::string("offset "), std::string("wanted "), std::string("got 0")}) {
      EXPECT_NE(outcome.error().message.find(part), std::string::npos) << outcome.error().message;
    }
    heal();
    ASSERT_OK(write(5));
    expect_whole(5);
  }
}

TEST_P(QueueFault, ManyErrorsAreOneErrorWithACount) {
  create();
  spoil_all({Kind::kError, EIO, 0});
  const auto outcome = write();
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("more failures followed"), std::string::npos) << outcome.error().message;
}

TEST_P(QueueFault, InterruptionsAndBusyAnswersAreTriedAgain) {
  create();
  std::mt19937_64 random(77);
  plan_->arm([&](const IoRequest&, std::uint64_t) -> Fault {
    if (random() % 3 == 0) return {Kind::kError, random() % 2 == 0 ? EINTR : EAGAIN, 0};
    if (random() % 5 == 0) return {Kind::kBusy, 0, 0};
    return {};
  });
  for (std::int64_t tile = 0; tile < 8; ++tile) ASSERT_OK(write(tile));
  for (std::int64_t tile = 0; tile < 8; ++tile) ASSERT_OK(read(tile));
  EXPECT_TRUE(in_->equals(*out_, tile_bytes_));
  EXPECT_GT(set_->counters().retries, 0);
}

TEST_P(QueueFault, EndlessInterruptionsAndBusyAnswersEndInAnError) {
  create();
  for (const Fault& fault : {Fault{Kind::kError, EINTR, 0}, Fault{Kind::kError, EAGAIN, 0}, Fault{Kind::kBusy, 0, 0}}) {
    spoil_all(fault);
    const auto outcome = write();
    ASSERT_FALSE(outcome.ok());
    EXPECT_NE(outcome.error().message.find("101 times"), std::string::npos) << outcome.error().message;
  }
  heal();
  ASSERT_OK(write());
  expect_whole();
}

TEST_P(QueueFault, ShortTransfersAreContinued) {
  create();
  std::mt19937_64 random(5);
  plan_->arm([&](const IoRequest&, std::uint64_t) -> Fault {
    return random() % 2 == 0 ? Fault{Kind::kShort, 0, static_cast<std::size_t>(1 + random() % 8) * 4096} : Fault{};
  });
  for (std::int64_t tile = 0; tile < 8; ++tile) ASSERT_OK(write(tile));
  for (std::int64_t tile = 0; tile < 8; ++tile) {
    in_->fill(0);
    ASSERT_OK(read(tile));
    EXPECT_TRUE(in_->equals(*out_, tile_bytes_)) << tile;
  }
  EXPECT_GT(set_->counters().short_transfers, 0);
}

TEST_P(QueueFault, NoProgressTwiceIsAnErrorAndOnceIsNot) {
  create();
  spoil(2, {Kind::kShort, 0, 0});
  ASSERT_OK(write());
  expect_whole();
  spoil_all({Kind::kShort, 0, 0});
  const auto outcome = write();
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("no progress"), std::string::npos) << outcome.error().message;
}

TEST_P(QueueFault, ABufferThatChangesInFlightIsCaught) {
  create();
  spoil(1, {Kind::kFlip, 0, 0});
  ASSERT_OK(write());
  heal();
  EXPECT_NE(text_of(read()).find("payload checksum"), std::string::npos);
}

TEST_P(QueueFault, ABitThatFlipsOnTheWayInIsCaught) {
  create();
  ASSERT_OK(write());
  spoil(1, {Kind::kFlip, 0, 0});
  EXPECT_NE(text_of(read()).find("payload checksum"), std::string::npos);
  expect_whole();
}

TEST_P(QueueFault, RefusedDirectIoMovesTheFileToThePageCacheInModeAuto) {
  create();
  if (set_->describe().find("direct I/O") == std::string::npos)
    GTEST_SKIP() << "no direct I/O here: " << set_->describe();
  for (const int error_number : {EINVAL, EOPNOTSUPP}) {
    if (error_number == EOPNOTSUPP) {
      set_.reset();
      ASSERT_OK(remove_volumes(folder_.paths(), "run"));
      create();
    }
    spoil(2, {Kind::kError, error_number, 0});
    ::testing::internal::CaptureStderr();
    ASSERT_OK(write());
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("page cache"), std::string::npos) << log;
    EXPECT_NE(set_->describe().find("buffered"), std::string::npos) << set_->describe();
    expect_whole();
    spoil(1, {Kind::kError, error_number, 0});
    EXPECT_FALSE(write().ok()) << "buffered and refused again is an error";
  }
}

TEST_P(QueueFault, RefusedDirectIoIsAnErrorInModeDirect) {
  options_.mode = IoMode::kDirect;
  const BackendSeam seam{{spoiled_by(candidate_, plan_)}};
  options_.seam = &seam;
  auto made = VolumeSet::create(folder_.paths(), "run", small_geometry(), options_);
  if (!made.ok() && made.error().code == ErrorCode::kPreflight) GTEST_SKIP() << made.error().to_string();
  ASSERT_OK(made);
  spoil_all({Kind::kError, EINVAL, 0});
  Payload payload(64 * kKiB, (*made)->payload_alignment());
  const TileTransfer transfer{{0, 0, 0}, {1, 0}, payload.data()};
  const auto outcome = (*made)->write({&transfer, 1}).wait(soon());
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().hint.find("headrace.io.mode"), std::string::npos) << outcome.error().to_string();
  EXPECT_NE((*made)->describe().find("direct"), std::string::npos);
}

TEST_P(QueueFault, ASecondWaitAfterATimeoutGetsTheResult) {
  create();
  spoil(1, {Kind::kHold, 0, 0});
  Ticket ticket = start_write(0);
  const auto early = ticket.wait(std::chrono::steady_clock::now());
  ASSERT_FALSE(early.ok());
  EXPECT_NE(early.error().message.find("still in flight"), std::string::npos);
  EXPECT_FALSE(ticket.ready());
  plan_->release();
  ASSERT_OK(ticket.wait(soon()));
  expect_whole();
}

TEST_P(QueueFault, AnotherTicketCompletesWhileOneIsHeld) {
  create();
  spoil(1, {Kind::kHold, 0, 0});
  Ticket held = start_write(0);
  ASSERT_OK(write(1));
  EXPECT_FALSE(held.ready());
  plan_->release();
  ASSERT_OK(held.wait(soon()));
}

TEST_P(QueueFault, AStallIsReportedAndFailsAtTheDeadline) {
  options_.stall_report = std::chrono::milliseconds(20);
  options_.deadline = std::chrono::milliseconds(200);
  create();
  spoil(1, {Kind::kHold, 0, 0});
  ::testing::internal::CaptureStderr();
  const auto outcome = write(3);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("no completion within"), std::string::npos) << outcome.error().message;
  EXPECT_NE(outcome.error().message.find("tile 3"), std::string::npos) << outcome.error().message;
  EXPECT_NE(log.find("no completion for"), std::string::npos) << log;
  EXPECT_NE(log.find(folder_.volume("run")), std::string::npos) << log;
  EXPECT_NE(text_of(write(4)).find("does not answer"), std::string::npos);
  plan_->release();
  // The late completion heals the file; until it is there the file still does not answer.
  Result<void> again = write(4);
  for (const auto end = soon(); !again.ok() && std::chrono::steady_clock::now() < end; again = write(4)) {
  }
  ASSERT_OK(again);
  expect_whole(4);
}

TEST_P(QueueFault, ARequestThatNeverReturnsDoesNotHoldUpTheEnd) {
  options_.stall_report = std::chrono::milliseconds(20);
  options_.deadline = std::chrono::milliseconds(60);
  create();
  spoil(1, {Kind::kHold, 0, 0});
  Ticket ticket = start_write(0);
  while (plan_->count() == 0) std::this_thread::yield();
  ::testing::internal::CaptureStderr();
  set_.reset();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(ticket.wait(soon()).ok());
  EXPECT_NE(log.find("not given back"), std::string::npos) << log;
}

TEST_P(QueueFault, DestructionCancelsWhatIsQueuedAndDrainsWhatIsInFlight) {
  options_.in_flight_bytes = 64 * kKiB;
  create();
  spoil(1, {Kind::kHold, 0, 0});
  std::vector<Ticket> tickets;
  for (std::int64_t tile = 0; tile < 16; ++tile) tickets.push_back(start_write(tile));
  while (plan_->count() == 0) std::this_thread::yield();
  std::thread closer([this] { set_.reset(); });
  // What the kernel has begun is still owed; everything behind it is told at once.
  const auto last = tickets.back().wait(soon());
  EXPECT_NE(text_of(last).find("cancelled"), std::string::npos);
  EXPECT_FALSE(tickets.front().ready());
  plan_->release();
  closer.join();
  int cancelled = 0;
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.ready());
    const auto outcome = ticket.wait(soon());
    if (outcome.ok()) continue;
    EXPECT_NE(outcome.error().message.find("cancelled"), std::string::npos) << outcome.error().message;
    ++cancelled;
  }
  EXPECT_EQ(cancelled, 16) << "the first one was begun, and cannot be whole either";
}

TEST_P(QueueFault, ABrokenBackendFailsEverythingOnce) {
  create();
  ASSERT_OK(write());
  spoil_all({Kind::kBroken, 0, 0});
  EXPECT_NE(text_of(write()).find("broken on purpose"), std::string::npos);
  EXPECT_NE(text_of(read()).find("broken on purpose"), std::string::npos);
}

TEST_P(QueueFault, AfterAFailedFlushNothingIsCommittedAnyMore) {
  options_.durability = Durability::kPower;
  create();
  ASSERT_OK(write());
  ASSERT_OK(set_->write_record({1, {}}));
  plan_->arm([](const IoRequest& request, std::uint64_t) {
    return request.operation == IoOperation::kFlush ? Fault{Kind::kError, EIO, 0} : Fault{};
  });
  EXPECT_NE(text_of(set_->write_record({2, {}})).find("flushing"), std::string::npos);
  heal();  // the kernel has reported the loss and forgotten it
  const std::string refused = text_of(set_->write_record({2, {}}));
  EXPECT_NE(refused.find("after a flush failed"), std::string::npos) << refused;
  EXPECT_EQ(set_->read_records()->front().sequence, 1U);
}

TEST_P(QueueFault, ARecordThatFailedMayOnlyBeWrittenAgainAsItWas) {
  create();
  ASSERT_OK(set_->write_record({1, {std::byte{1}}}));
  spoil_all({Kind::kError, EIO, 0});
  EXPECT_FALSE(set_->write_record({2, {std::byte{2}}}).ok());
  heal();
  // One volume may hold record 2 by now, and the place of record 3 holds the last good one.
  EXPECT_NE(text_of(set_->write_record({2, {std::byte{3}}})).find("was begun and failed"), std::string::npos);
  EXPECT_NE(text_of(set_->write_record({3, {std::byte{3}}})).find("was begun and failed"), std::string::npos);
  ASSERT_OK(set_->write_record({2, {std::byte{2}}}));
  ASSERT_OK(set_->write_record({3, {std::byte{3}}}));
  EXPECT_EQ(set_->read_records()->front().sequence, 3U);
}

// What completes first is noted in order.
struct Order {
  std::mutex mutex;
  std::vector<std::uint64_t> tags;
  static void note(void* context, std::uint64_t tag) noexcept {
    auto* order = static_cast<Order*>(context);
    const std::lock_guard lock(order->mutex);
    order->tags.push_back(tag);
  }
};

TEST_P(QueueFault, ReadsAndWritesBothProgressAndEachKeepsItsOrder) {
  options_.block_bytes = 512 * kKiB;
  options_.in_flight_bytes = 300 * kKiB;  // one request at a time
  create(40, 256 * kKiB);
  for (std::int64_t tile = 0; tile < 20; ++tile) ASSERT_OK(write(tile));
  spoil(1, {Kind::kHold, 0, 0});  // nothing moves before all is queued
  Order order;
  std::vector<Ticket> tickets;
  for (std::uint64_t i = 0; i < 20; ++i)
    tickets.push_back(start_read(static_cast<std::int64_t>(i), {&Order::note, &order, i}));
  for (std::uint64_t i = 0; i < 4; ++i)
    tickets.push_back(start_write(20 + static_cast<std::int64_t>(i), {&Order::note, &order, 100 + i}));
  plan_->release();
  for (Ticket& ticket : tickets) ASSERT_OK(ticket.wait(soon()));
  std::vector<std::uint64_t> reads;
  std::vector<std::uint64_t> writes;
  std::size_t last_write = 0;
  for (std::size_t i = 0; i < order.tags.size(); ++i) {
    (order.tags[i] < 100 ? reads : writes).push_back(order.tags[i]);
    if (order.tags[i] >= 100) last_write = i;
  }
  EXPECT_TRUE(std::is_sorted(reads.begin(), reads.end()));
  EXPECT_TRUE(std::is_sorted(writes.begin(), writes.end()));
  EXPECT_LT(last_write, order.tags.size() - 1) << "the writes waited for all reads";
}

TEST_P(QueueFault, BytesInFlightStayWithinTheirBound) {
  options_.in_flight_bytes = 192 * kKiB;
  create();
  // Holds everything and looks at how much was accepted: what the kernel has can only be what passed here.
  std::atomic<std::int64_t> accepted{0};
  plan_->arm([&](const IoRequest& request, std::uint64_t) -> Fault {
    for (std::uint32_t i = 0; i < request.num_segments; ++i)
      accepted += static_cast<std::int64_t>(request.segments[i].iov_len);
    return {Kind::kHold, 0, 0};
  });
  std::vector<Ticket> tickets;
  for (std::int64_t tile = 0; tile < 8; ++tile) tickets.push_back(start_write(tile));
  while (accepted.load() == 0) std::this_thread::yield();
  EXPECT_FALSE(tickets[0].wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)).ok());
  EXPECT_LE(accepted.load(), 192 * kKiB);
  plan_->release();
  for (Ticket& ticket : tickets) ASSERT_OK(ticket.wait(soon()));
}

TEST_P(QueueFault, ARecordThatCannotBeWrittenIsAnErrorAndTheOlderOneStays) {
  options_.durability = Durability::kPower;
  create();
  ASSERT_OK(set_->write_record({1, std::vector<std::byte>(10)}));
  plan_->arm([](const IoRequest& request, std::uint64_t) -> Fault {
    return request.operation == IoOperation::kWrite ? Fault{Kind::kError, EIO, 0} : Fault{};
  });
  EXPECT_FALSE(set_->write_record({2, std::vector<std::byte>(10)}).ok());
  plan_->arm([](const IoRequest& request, std::uint64_t) -> Fault {
    return request.operation == IoOperation::kFlush ? Fault{Kind::kError, EIO, 0} : Fault{};
  });
  const auto flush = set_->write_record({2, std::vector<std::byte>(10)});
  ASSERT_FALSE(flush.ok());
  EXPECT_NE(flush.error().message.find("flushing"), std::string::npos) << flush.error().message;
  heal();
  const auto records = set_->read_records();
  ASSERT_OK(records);
  ASSERT_EQ(records->size(), 1U);
  EXPECT_EQ(records->front().sequence, 1U);
}

TEST_P(QueueFault, PowerFlushesBeforeAndAfterTheRecord) {
  options_.durability = Durability::kPower;
  create();
  std::mutex mutex;
  std::vector<IoOperation> operations;
  plan_->arm([&](const IoRequest& request, std::uint64_t) -> Fault {
    const std::lock_guard lock(mutex);
    operations.push_back(request.operation);
    return {};
  });
  ASSERT_OK(set_->write_record({1, {}}));
  heal();
  EXPECT_EQ(operations, (std::vector<IoOperation>{IoOperation::kFlush, IoOperation::kWrite, IoOperation::kFlush}));
}

TEST_P(QueueFault, RandomFaultsNeverGiveWrongBytes) {
  create(12, 200 * kKiB);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    plan_->arm([&](const IoRequest&, std::uint64_t) -> Fault {
      switch (random() % 12) {
        case 0: return {Kind::kError, EIO, 0};
        case 1: return {Kind::kError, EINTR, 0};
        case 2: return {Kind::kError, EAGAIN, 0};
        case 3: return {Kind::kShort, 0, static_cast<std::size_t>(random() % 3) * 4096};
        case 4: return {Kind::kFlip, 0, 0};
        case 5: return {Kind::kBusy, 0, 0};
        default: return {};
      }
    });
    for (std::int64_t tile = 0; tile < 12; ++tile) (void)write(tile);  // an error is fine, other bytes are not
    for (std::int64_t tile = 0; tile < 12; ++tile) {
      in_->fill(0);
      if (!read(tile).ok()) continue;
      EXPECT_TRUE(in_->equals(*out_, tile_bytes_)) << "seed " << seed << " tile " << tile;
    }
    heal();
    for (std::int64_t tile = 0; tile < 12; ++tile) ASSERT_OK(write(tile));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QueueFault, ::testing::ValuesIn(test_backends()), test_backend_name);

}  // namespace
}  // namespace headrace::io
