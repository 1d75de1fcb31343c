// SPDX-License-Identifier: Apache-2.0
// The runs that measure: they move what they say, within what they may write, and see every byte that changed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/profile/storage.h"
#include "runtime/profile/transfer_run.h"

namespace headrace::profile {
namespace {

using ::testing::HasSubstr;

// On the disk of the build folder; gone at the end.
class TransferRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::current_path() / "profile-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder(const char* name) {
    std::filesystem::create_directories(folder_ + "/" + name);
    return folder_ + "/" + name;
  }
  void make(std::vector<std::string> paths) {
    auto files = make_test_files(paths, 17 * kMiB);
    ASSERT_TRUE(files.ok()) << files.error().to_string();
    files_ = std::move(*files);
    run_ = std::make_unique<TransferRun>(files_, 512 * kKiB);
    const auto laid_out = run_->lay_out(setting_, 60);
    ASSERT_TRUE(laid_out.ok()) << laid_out.error().to_string();
    auto memory = make_io_memory(run_->memory_bytes(setting_), PageKind::kTransparentHuge);
    ASSERT_TRUE(memory.ok());
    memory_ = std::move(*memory);
  }
  Result<Sample> run(Traffic traffic, const SampleLimit& limit, std::vector<std::uint32_t> which = {0}) {
    return run_->run(traffic, setting_, limit, memory_.bytes(), which);
  }

  // What the disk holds of the part that is written.
  std::vector<char> written_part(std::uint32_t file) {
    const auto range = run_->write_range(file);
    std::vector<char> bytes(static_cast<std::size_t>(range.bytes));
    const io::UniqueFd fd(::open(name_for_others(files_[file]).c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), range.offset), range.bytes);
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    return bytes;
  }

  TransferSetting setting_{128 * kKiB, kMiB, io::IoBackendChoice::kThreads};
  std::string folder_;
  std::vector<TestFile> files_;
  std::unique_ptr<TransferRun> run_;
  HostSlab memory_;
};

TEST_F(TransferRunTest, LeavesNoNameBehindWhileItRuns) {
  make({folder("a")});
  EXPECT_TRUE(std::filesystem::is_empty(folder("a")));
}

TEST_F(TransferRunTest, MovesWhatItSaysAndMixesEvenly) {
  make({folder("a"), folder("b")});
  for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite, Traffic::kMixed}) {
    const auto sample = run(traffic, {0.05, 8 * kMiB, false}, {0, 1});
    ASSERT_TRUE(sample.ok()) << sample.error().to_string();
    EXPECT_EQ(sample->read_bytes > 0, traffic != Traffic::kWrite);
    EXPECT_EQ(sample->written_bytes > 0, traffic != Traffic::kRead);
    EXPECT_GT(sample->bytes_per_s, 0);
    EXPECT_GT(sample->whole_bytes_per_s, 0);
    EXPECT_LE(sample->written_bytes, 8 * kMiB);
    EXPECT_STREQ(sample->backend, "threads");
    if (traffic == Traffic::kMixed) {
      EXPECT_LE(std::abs(sample->read_bytes - sample->written_bytes), run_->tile_bytes());
    }
  }
  const auto verified = run_->verify(setting_);
  EXPECT_TRUE(verified.ok()) << verified.error().to_string();
  EXPECT_GE(run_->verified_bytes(), run_->read_range(0).bytes + run_->write_range(0).bytes);
}

TEST_F(TransferRunTest, ReadsAndWritesEveryFileWhenMixed) {
  make({folder("a"), folder("b")});
  const auto a = written_part(0), b = written_part(1);
  ASSERT_TRUE(run(Traffic::kMixed, {30, 4 * kMiB, false}, {0, 1}).ok());
  EXPECT_TRUE(written_part(0) != a);
  EXPECT_TRUE(written_part(1) != b);
}

TEST_F(TransferRunTest, PathsGetTheirSharesOfTheTiles) {
  make({folder("a"), folder("b")});
  const Bytes tile = run_->tile_bytes();
  setting_.shares = {1, 3};
  const auto changed = [&](const std::vector<char>& before, const std::vector<char>& after) {
    int count = 0;
    for (std::size_t at = 0; at < before.size(); at += static_cast<std::size_t>(tile))
      count += std::equal(&before[at], &before[at] + tile, &after[at]) ? 0 : 1;
    return count;
  };
  const auto a = written_part(0), b = written_part(1);
  ASSERT_TRUE(run(Traffic::kWrite, {30, 4 * tile, false}, {0, 1}).ok());
  EXPECT_EQ(changed(a, written_part(0)), 1);
  EXPECT_EQ(changed(b, written_part(1)), 3);
}

TEST_F(TransferRunTest, NoTileIsWrittenTwiceAtATime) {
  setting_.in_flight_bytes = 64 * kMiB;  // more than there are tiles to write
  make({folder("a"), folder("b")});
  for (const std::vector<std::uint32_t>& which : {std::vector<std::uint32_t>{0}, {1}, {0, 1}}) {
    ASSERT_TRUE(run(Traffic::kWrite, {30, 64 * kMiB, false}, which).ok());
    ASSERT_TRUE(run(Traffic::kMixed, {30, 16 * kMiB, false}, which).ok());
  }
  const auto verified = run_->verify(setting_);
  EXPECT_TRUE(verified.ok()) << verified.error().to_string();
}

TEST_F(TransferRunTest, NeverWritesMoreThanItMay) {
  make({folder("a")});
  const Bytes before = run_->written_bytes();
  const auto sample = run(Traffic::kWrite, {30, 2 * kMiB, true});
  ASSERT_TRUE(sample.ok());
  EXPECT_EQ(run_->written_bytes() - before, 2 * kMiB);
  EXPECT_EQ(sample->written_bytes, 2 * kMiB);
}

TEST_F(TransferRunTest, RangesDoNotOverlapAndEndInsideTheFile) {
  make({folder("a")});
  const auto read = run_->read_range(0), write = run_->write_range(0), others = run_->others_range(0);
  EXPECT_EQ(read.offset, 0);
  EXPECT_EQ(write.offset, read.bytes);
  EXPECT_EQ(others.offset, write.offset + write.bytes);
  EXPECT_LE(others.offset + others.bytes, files_[0].bytes);
  for (const auto& range : {read, write, others}) EXPECT_GT(range.bytes, 0);
}

TEST_F(TransferRunTest, OneChangedByteIsSeen) {
  make({folder("a")});
  const std::string name = name_for_others(files_[0]);
  const int fd = ::open(name.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const std::int64_t at = run_->tile_bytes() + 12'345;  // in the second tile
  char byte = 0;
  ASSERT_EQ(::pread(fd, &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
  ASSERT_EQ(::fsync(fd), 0);
  ::close(fd);
  const auto sample = run(Traffic::kRead, {0.2, 0, false});
  ASSERT_FALSE(sample.ok());
  EXPECT_EQ(sample.error().code, ErrorCode::kIo);
  EXPECT_THAT(sample.error().message, HasSubstr("tile 1"));
}

TEST_F(TransferRunTest, EachUnusablePathHasItsOwnMessage) {
  const auto message = [](const std::vector<std::string>& paths, Bytes bytes = 16 * kMiB) {
    const auto files = make_test_files(paths, bytes);
    return files.ok() ? std::string("accepted") : files.error().to_string();
  };
  EXPECT_THAT(message({folder_ + "/none"}), HasSubstr("does not exist"));
  const std::string file = folder("a") + "/file";
  ::close(::open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_THAT(message({file}), HasSubstr("never writes into files that are there"));
  EXPECT_THAT(message({folder("a"), folder("b") + "/../a"}), HasSubstr("are the same folder"));
  EXPECT_THAT(message({folder("a")}, 1'000'000 * kGiB), HasSubstr("too little space"));
  EXPECT_THAT(message({"/dev/null"}), HasSubstr("neither a folder nor on a disk"));
  if (std::filesystem::exists("/dev/shm")) {
    EXPECT_THAT(message({"/dev/shm"}), HasSubstr("tmpfs"));
  }
}

TEST_F(TransferRunTest, EachPathNeedsItsPartOfWhatMayBeWritten) {
  StorageOptions options;
  options.max_write = 3 * kLeastWrite - 1;
  Progress progress({}, 1);
  const auto refused = measure_storage({folder("a"), folder("b"), folder("c")}, options, progress);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUsage);
}

TEST_F(TransferRunTest, TheWholeMeasurementStaysWithinMaxWrite) {
  StorageOptions options;
  options.quick = true;
  options.max_write = kLeastWrite;
  options.with_fio = false;
  Progress progress({}, 1);
  const auto report = measure_storage({folder("a")}, options, progress);
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_LE(report->written_bytes, options.max_write);
  EXPECT_GT(report->verified_bytes, 0);
  ASSERT_EQ(report->results.size(), 1U);
  const StorageResult& result = report->results[0];
  EXPECT_GT(result.read.median(), 0);
  EXPECT_GT(result.write.median(), 0);
  EXPECT_GT(result.mixed.median(), 0);
  EXPECT_GT(result.read_latency_seconds, 0);
  options.max_write = kLeastWrite - 1;
  const auto refused = measure_storage({folder("a")}, options, progress);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUsage);
}

}  // namespace
}  // namespace headrace::profile
