// SPDX-License-Identifier: Apache-2.0
// What every IoBackend promises, over each implementation, the one that injects faults (here none) included.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <set>
#include <thread>

#include "fault_backend.h"
#include "io/backends.h"
#include "io/volume_file.h"
#include "io_test_support.h"
#include "memory_backend.h"

namespace headrace::io {
namespace {

struct Implementation {
  const char* name;
  std::function<Result<std::unique_ptr<IoBackend>>(std::size_t)> make;
};

Result<std::unique_ptr<IoBackend>> make_memory(std::size_t depth) {
  return std::unique_ptr<IoBackend>(std::make_unique<MemoryBackend>(std::make_shared<MemoryDevice>(), depth));
}

std::vector<Implementation> implementations() {
  const auto faulty = [](const Implementation& inner) {
    return [make = inner.make](std::size_t depth) -> Result<std::unique_ptr<IoBackend>> {
      HEADRACE_TRY(std::unique_ptr<IoBackend> backend, make(depth));
      return std::unique_ptr<IoBackend>(
          std::make_unique<FaultBackend>(std::move(backend), std::make_shared<FaultPlan>()));
    };
  };
  std::vector<Implementation> all{{"uring", make_uring_backend},
                                  {"libaio", make_aio_backend},
                                  {"threads", [](std::size_t depth) { return make_threads_backend(depth); }},
                                  {"memory", make_memory}};
  all.push_back({"faulty_threads", faulty(all[2])});
  all.push_back({"faulty_memory", faulty(all[3])});
  return all;
}

class IoBackendContract : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    auto made = GetParam().make(kDepth);
    if (!made.ok()) GTEST_SKIP() << "refused here: " << made.error().to_string();
    backend_ = std::move(*made);
    auto file = make_nameless_file(folder_.path());
    ASSERT_OK(file);
    file_ = std::move(*file);
    direct_ = set_direct(file_.get(), true) == 0;
  }

  IoRequest request(IoOperation operation, std::int64_t block, std::uint64_t tag) {
    segments_[tag] = {operation == IoOperation::kRead ? in_.data() + block * kBlock : out_.data() + block * kBlock,
                      kBlock};
    return {operation, file_.get(), block * kBlock, &segments_[tag], 1, tag};
  }

  // Submits everything, however often the backend is busy; the completions by tag.
  std::map<std::uint64_t, IoCompletion> run(std::span<const IoRequest> requests) {
    std::map<std::uint64_t, IoCompletion> done;
    std::size_t submitted = 0;
    while (done.size() < requests.size()) {
      auto accepted = backend_->submit(requests.subspan(submitted));
      if (!accepted.ok()) {
        ADD_FAILURE() << accepted.error().to_string();
        break;
      }
      submitted += *accepted;
      EXPECT_EQ(backend_->in_flight(), submitted - done.size());
      std::array<IoCompletion, 5> completions;
      auto count = backend_->reap(completions, 1, soon());
      if (!count.ok() || *count == 0) {
        ADD_FAILURE() << "nothing reaped " << text_of(count);
        break;
      }
      for (std::size_t i = 0; i < *count; ++i) {
        EXPECT_TRUE(done.emplace(completions[i].tag, completions[i]).second)
            << "completed twice: " << completions[i].tag;
      }
    }
    return done;
  }

  static constexpr std::size_t kDepth = 16;
  static constexpr std::int64_t kBlocks = 100;
  static constexpr std::int64_t kBlock = 4096;
  TestFolder folder_;
  UniqueFd file_;
  bool direct_ = false;
  Payload out_{kBlocks * kBlock, 4096};
  Payload in_{kBlocks * kBlock, 4096};
  std::map<std::uint64_t, iovec> segments_;
  std::unique_ptr<IoBackend> backend_;
};

TEST_P(IoBackendContract, WrittenBytesComeBackWhenMoreIsOfferedThanItHolds) {
  out_.fill(11);
  for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
    std::vector<IoRequest> requests;
    for (std::int64_t i = 0; i < kBlocks; ++i)
      requests.push_back(request(operation, i, static_cast<std::uint64_t>(i) + 1000));
    const auto done = run(requests);
    ASSERT_EQ(done.size(), requests.size());
    for (const auto& [tag, completion] : done) {
      EXPECT_EQ(completion.error_number, 0) << tag;
      EXPECT_EQ(completion.bytes, kBlock) << tag;
    }
  }
  EXPECT_TRUE(out_.equals(in_, kBlocks * kBlock));
  EXPECT_EQ(backend_->in_flight(), 0U);
}

TEST_P(IoBackendContract, AcceptsAPrefixUpToItsDepth) {
  std::vector<IoRequest> requests;
  for (std::int64_t i = 0; i < kBlocks; ++i)
    requests.push_back(request(IoOperation::kWrite, i, static_cast<std::uint64_t>(i)));
  const auto accepted = backend_->submit(requests);
  ASSERT_OK(accepted);
  EXPECT_GT(*accepted, 0U);
  EXPECT_LE(*accepted, backend_->capabilities().queue_depth);
  std::set<std::uint64_t> tags;
  while (backend_->in_flight() > 0) {
    std::array<IoCompletion, 64> completions;
    const auto count = backend_->reap(completions, 1, soon());
    ASSERT_OK(count);
    for (std::size_t i = 0; i < *count; ++i) tags.insert(completions[i].tag);
  }
  EXPECT_EQ(tags.size(), *accepted);
  EXPECT_EQ(*tags.rbegin(), *accepted - 1) << "what is accepted is a prefix";
}

TEST_P(IoBackendContract, SeveralSegmentsAreOneRequest) {
  out_.fill(12);
  std::array<iovec, 4> gathered;
  std::array<iovec, 4> scattered;
  for (std::size_t i = 0; i < 4; ++i) {
    gathered[i] = {out_.data() + (3 - i) * 8192, 4096};
    scattered[i] = {in_.data() + (3 - i) * 8192, 4096};
  }
  const IoRequest write{IoOperation::kWrite, file_.get(), 0, gathered.data(), 4, 1};
  const IoRequest read{IoOperation::kRead, file_.get(), 0, scattered.data(), 4, 2};
  EXPECT_EQ(run({&write, 1})[1].bytes, 4 * 4096);
  EXPECT_EQ(run({&read, 1})[2].bytes, 4 * 4096);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::memcmp(out_.data() + i * 8192, in_.data() + i * 8192, 4096), 0) << i;
  }
}

TEST_P(IoBackendContract, AnErrorIsTheRequestsOwnAndTheOthersGoOn) {
  const UniqueFd read_only(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only.valid());
  std::vector<IoRequest> requests{request(IoOperation::kWrite, 0, 1), request(IoOperation::kWrite, 1, 2),
                                  request(IoOperation::kWrite, 2, 3)};
  requests[1].fd = read_only.get();
  auto done = run(requests);
  EXPECT_EQ(done[1].error_number, 0);
  EXPECT_EQ(done[2].error_number, EBADF);
  EXPECT_EQ(done[3].error_number, 0);
}

TEST_P(IoBackendContract, AReadAtTheEndOfTheFileIsShortAndNoError) {
  const std::vector<IoRequest> write{request(IoOperation::kWrite, 0, 1)};
  ASSERT_EQ(run(write)[1].error_number, 0);
  iovec two_blocks{in_.data(), 2 * kBlock};
  const IoRequest read{IoOperation::kRead, file_.get(), 0, &two_blocks, 1, 2};
  const IoCompletion completion = run({&read, 1})[2];
  EXPECT_EQ(completion.error_number, 0);
  EXPECT_EQ(completion.bytes, kBlock);
  const IoRequest behind{IoOperation::kRead, file_.get(), 4 * kBlock, &two_blocks, 1, 3};
  EXPECT_EQ(run({&behind, 1})[3].bytes, 0);
}

TEST_P(IoBackendContract, AFlushCompletes) {
  const IoRequest flush{IoOperation::kFlush, file_.get(), 0, nullptr, 0, 9};
  const auto done = run({&flush, 1});
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done.at(9).error_number, 0);
}

TEST_P(IoBackendContract, ReapWithNothingInFlightReturnsAtTheDeadlineOrAtOnce) {
  std::array<IoCompletion, 4> completions;
  const auto at_once = backend_->reap(completions, 0, soon());
  ASSERT_OK(at_once);
  EXPECT_EQ(*at_once, 0U);
  const auto past = backend_->reap(completions, 1, std::chrono::steady_clock::now());
  ASSERT_OK(past);
  EXPECT_EQ(*past, 0U);
}

TEST_P(IoBackendContract, WakeEndsAReapThatWaits) {
  for (int round = 0; round < 20; ++round) {
    std::thread waker([this] { backend_->wake(); });
    std::array<IoCompletion, 4> completions;
    const auto count = backend_->reap(completions, 1, TimePoint::max());
    waker.join();
    ASSERT_OK(count);
    EXPECT_EQ(*count, 0U);
  }
}

TEST_P(IoBackendContract, AWakeBeforeTheReapIsNotLost) {
  backend_->wake();
  std::array<IoCompletion, 4> completions;
  const auto count = backend_->reap(completions, 1, TimePoint::max());
  ASSERT_OK(count);
  EXPECT_EQ(*count, 0U);
}

TEST_P(IoBackendContract, AnOffsetBeyondFourGiBIsNotCut) {
  out_.fill(13);
  std::array<iovec, 2> segments{iovec{out_.data(), 4096}, iovec{in_.data(), 4096}};
  const std::int64_t offset = (std::int64_t{5} << 30) + 4096;
  const IoRequest write{IoOperation::kWrite, file_.get(), offset, segments.data(), 1, 1};
  ASSERT_EQ(run({&write, 1})[1].bytes, 4096);
  const IoRequest read{IoOperation::kRead, file_.get(), offset, &segments[1], 1, 2};
  ASSERT_EQ(run({&read, 1})[2].bytes, 4096);
  EXPECT_TRUE(out_.equals(in_, 4096));
}

TEST_P(IoBackendContract, ManyAreMadeAndDestroyedOneAfterTheOther) {
  for (int i = 0; i < 200; ++i) ASSERT_OK(GetParam().make(kDepth));
}

INSTANTIATE_TEST_SUITE_P(All, IoBackendContract, ::testing::ValuesIn(implementations()),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace headrace::io
