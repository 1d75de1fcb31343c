// SPDX-License-Identifier: Apache-2.0
// Making, opening, listing and removing volumes: what is refused, and what is left behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "io/backends.h"
#include "io/layout.h"
#include "io/volume_file.h"
#include "io_test_support.h"

namespace headrace::io {
namespace {

class VolumeAdmin : public ::testing::Test {
 protected:
  Result<std::unique_ptr<VolumeSet>> create(const std::string& run_id = "run",
                                            const VolumeGeometry& geometry = small_geometry()) {
    return VolumeSet::create(folder_.paths(), run_id, geometry, options_);
  }
  Result<std::unique_ptr<VolumeSet>> open(const std::string& run_id = "run") {
    return VolumeSet::open(folder_.paths(), run_id, options_, std::chrono::milliseconds(0));
  }
  template <class T>
  static void expect_error(const Result<T>& result, ErrorCode code, const std::vector<std::string>& parts) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().to_string();
    for (const std::string& part : parts) {
      EXPECT_NE(result.error().to_string().find(part), std::string::npos)
          << "\"" << part << "\" in: " << result.error().to_string();
    }
  }
  void overwrite(std::int64_t offset, Bytes bytes, std::byte value = std::byte{0xAA}) const {
    const UniqueFd file(::open(folder_.volume("run").c_str(), O_RDWR));
    ASSERT_EQ(write_fully(file.get(), std::vector<std::byte>(static_cast<std::size_t>(bytes), value), offset), 0);
    ASSERT_EQ(::fsync(file.get()), 0);
  }
  [[nodiscard]] bool exists(const std::string& run_id = "run") const {
    return std::filesystem::exists(folder_.volume(run_id));
  }
  static std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  }

  TestFolder folder_;
  VolumeOptions options_;
};

TEST_F(VolumeAdmin, BlocksAreRealAndTheFileHasItsWholeLength) {
  ASSERT_OK(create());
  struct stat status {};
  ASSERT_EQ(::stat(folder_.volume("run").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, VolumeLayout::make(small_geometry(), 1, 4096)->file_bytes(0));
  EXPECT_GE(status.st_blocks * 512, status.st_size);
}

TEST_F(VolumeAdmin, PathsThatCannotBeUsedAreRefusedBeforeAnythingIsMade) {
  const std::vector<std::pair<std::string, std::string>> paths{
      {folder_.path() + "/missing", "No such file"},
      {"/proc/self/exe", "is a file, neither a folder nor a block device"},
      {"/proc", "/proc"}};
  for (const auto& [path, reason] : paths) {
    expect_error(VolumeSet::create({folder_.path(), path}, "run", small_geometry(), options_), ErrorCode::kPreflight,
                 {path, reason});
    EXPECT_FALSE(exists());
  }
  expect_error(VolumeSet::create({}, "run", small_geometry(), options_), ErrorCode::kPreflight, {"no path"});
}

TEST_F(VolumeAdmin, TheSamePathTwiceIsRefused) {
  expect_error(VolumeSet::create({folder_.path(), folder_.path() + "/."}, "run", small_geometry(), options_),
               ErrorCode::kPreflight, {"same folder"});
  std::filesystem::create_symlink(std::filesystem::absolute(folder_.path()), folder_.path() + "/link");
  expect_error(VolumeSet::create({folder_.path(), folder_.path() + "/link"}, "run", small_geometry(), options_),
               ErrorCode::kPreflight, {"same folder"});
}

TEST_F(VolumeAdmin, PathsAreCheckedWithoutATrace) {
  EXPECT_TRUE(check_paths({folder_.path()}, options_).ok());
  expect_error(check_paths({folder_.path() + "/missing"}, options_), ErrorCode::kPreflight, {"mkdir -p"});
  expect_error(check_paths({folder_.path(), folder_.path() + "/."}, options_), ErrorCode::kPreflight, {"same folder"});
  expect_error(check_paths({"/proc"}, options_), ErrorCode::kPreflight, {"making a file in /proc"});
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(VolumeAdmin, TooLittleSpaceNamesPathWantedAndFree) {
  expect_error(create("run", small_geometry(1'000'000, kGiB)), ErrorCode::kPreflight, {folder_.path(), "need", "free"});
  EXPECT_FALSE(exists());
}

TEST_F(VolumeAdmin, BadNamesGeometriesAndOptionsAreRefused) {
  expect_error(create("../x"), ErrorCode::kConfig, {"../x"});
  expect_error(create("run", {{stream_of(0, 1, 10, 20)}, 0}), ErrorCode::kConfig, {"stream 0"});
  options_.block_bytes = 0;
  expect_error(create(), ErrorCode::kConfig, {"block_bytes 0"});
  EXPECT_FALSE(exists());
}

TEST_F(VolumeAdmin, AGeometryComesBack) {
  ASSERT_OK(create("run", {{stream_of(0, 3, 5000, 77, 1), stream_of(1, 0, 0, 0)}, 321}));
  const auto set = open();
  ASSERT_OK(set);
  const VolumeGeometry& geometry = (*set)->geometry();
  ASSERT_EQ(geometry.streams.size(), 2U);
  EXPECT_EQ(geometry.streams[0].last_tile_payload_bytes, 77);
  EXPECT_EQ(geometry.streams[0].slots, 1);
  EXPECT_EQ(geometry.record_payload_bytes, 321);
  EXPECT_EQ((*set)->payload_extent_bytes(0, 0), 8192);
  EXPECT_EQ((*set)->payload_extent_bytes(0, 2), 4096);
}

TEST_F(VolumeAdmin, AMissingVolumeIsRefused) {
  expect_error(open("nothing"), ErrorCode::kPreflight, {folder_.volume("nothing"), "No such file"});
}

TEST_F(VolumeAdmin, OneDamagedSuperblockIsReplacedByItsCopyAndTwoAreRefused) {
  ASSERT_OK(create());
  overwrite(100, 50);
  ::testing::internal::CaptureStderr();
  const bool opened = open().ok();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(opened);
  EXPECT_NE(log.find("its copy is used"), std::string::npos) << log;
  overwrite(kSuperblockAreaBytes + 100, 50);
  expect_error(open(), ErrorCode::kIo, {folder_.volume("run"), "superblock"});
}

TEST_F(VolumeAdmin, ATruncatedFileIsRefused) {
  ASSERT_OK(create());
  const auto bytes = std::filesystem::file_size(folder_.volume("run"));
  std::filesystem::resize_file(folder_.volume("run"), bytes - 4096);
  expect_error(open(), ErrorCode::kIo, {"truncated", std::to_string(bytes), std::to_string(bytes - 4096)});
  std::filesystem::resize_file(folder_.volume("run"), 0);
  expect_error(open(), ErrorCode::kIo, {"superblock"});
}

TEST_F(VolumeAdmin, AFileThatIsCutAfterOpeningSaysHowMuchWasRead) {
  auto set = create("run", small_geometry(1, 8 * kMiB));
  ASSERT_OK(set);
  Payload payload(8 * kMiB, (*set)->payload_alignment());
  const TileTransfer transfer{{0, 0, 1}, {1, 0}, payload.data()};
  ASSERT_OK((*set)->write({&transfer, 1}).wait(soon()));
  const std::int64_t offset = VolumeLayout::make((*set)->geometry(), 1, 4096)->place({0, 0, 1}).offset;
  std::filesystem::resize_file(folder_.volume("run"), static_cast<std::uintmax_t>(offset + 3 * kMiB));
  options_.block_bytes = 4 * kMiB;
  expect_error((*set)->read({&transfer, 1}).wait(soon()), ErrorCode::kIo, {"the file ends there", "got"});
}

TEST_F(VolumeAdmin, AnotherRunsFileUnderThisNameIsRefused) {
  ASSERT_OK(create("other"));
  std::filesystem::rename(folder_.volume("other"), folder_.volume("run"));
  expect_error(open(), ErrorCode::kIo, {"run id: wanted run, had other"});
}

TEST_F(VolumeAdmin, OtherNumbersAndMixesOfPathsAreRefused) {
  const std::string a = folder_.make_folder("a");
  const std::string b = folder_.make_folder("b");
  const std::string c = folder_.make_folder("c");
  ASSERT_OK(VolumeSet::create({a, b}, "run", small_geometry(), options_));
  expect_error(VolumeSet::open({a}, "run", options_), ErrorCode::kIo, {"wanted 2 paths, had 1"});
  std::filesystem::copy_file(a + "/headrace-run.volume", c + "/headrace-run.volume");
  expect_error(VolumeSet::open({a, c}, "run", options_), ErrorCode::kIo, {"twice"});
  ASSERT_OK(VolumeSet::create({c}, "run2", small_geometry(), options_));
  expect_error(VolumeSet::open({a, b, c}, "run2", options_, std::chrono::milliseconds(0)), ErrorCode::kPreflight,
               {"No such file"});
}

TEST_F(VolumeAdmin, TwoRunsOnOnePathHaveTheirOwnFiles) {
  auto first = create("one");
  auto second = create("two");
  ASSERT_OK(first);
  ASSERT_OK(second);
  Payload payload(64 * kKiB, 4096);
  Payload back(64 * kKiB, 4096);
  const TileTransfer write_one{{0, 0, 0}, {1, 0}, payload.fill(1).data()};
  ASSERT_OK((*first)->write({&write_one, 1}).wait(soon()));
  const TileTransfer write_two{{0, 0, 0}, {1, 0}, payload.fill(2).data()};
  ASSERT_OK((*second)->write({&write_two, 1}).wait(soon()));
  const TileTransfer read_one{{0, 0, 0}, {1, 0}, back.data()};
  ASSERT_OK((*first)->read({&read_one, 1}).wait(soon()));
  EXPECT_TRUE(back.equals(payload.fill(1), 64 * kKiB));
}

TEST_F(VolumeAdmin, OneRunOpenedTwiceIsRefused) {
  auto set = create();
  ASSERT_OK(set);
  expect_error(open(), ErrorCode::kPreflight, {"is in use"});
  expect_error(create(), ErrorCode::kPreflight, {"is in use"});
  expect_error(remove_volumes(folder_.paths(), "run"), ErrorCode::kPreflight, {"is in use"});
  set->reset();
  ASSERT_OK(open());
}

TEST_F(VolumeAdmin, ACommittedRunIsNotMadeAnewAndALeftOverOneIs) {
  {
    auto set = create();
    ASSERT_OK(set);
  }
  ASSERT_OK(create("run", small_geometry(9)));
  {
    auto set = open();
    ASSERT_OK(set);
    EXPECT_EQ((*set)->geometry().streams[0].tiles, 9);
    ASSERT_OK((*set)->write_record({1, {}}));
  }
  expect_error(create(), ErrorCode::kPreflight, {"committed"});
  ASSERT_OK(open());
}

TEST_F(VolumeAdmin, AFailureOnTheSecondPathRemovesTheFirstFile) {
  const std::string other = folder_.make_folder("other");
  auto holder = VolumeSet::create({other}, "run", small_geometry(), options_);
  ASSERT_OK(holder);
  EXPECT_FALSE(VolumeSet::create({folder_.path(), other}, "run", small_geometry(), options_).ok());
  EXPECT_FALSE(exists());
  EXPECT_TRUE(std::filesystem::exists(other + "/headrace-run.volume"));
}

TEST_F(VolumeAdmin, ListsWhatIsThere) {
  ASSERT_OK(create("empty"));
  auto held = create("held");
  ASSERT_OK(held);
  ASSERT_OK((*held)->write_record({1, {}}));
  std::filesystem::create_directory(folder_.path() + "/headrace-folder");
  const UniqueFd half(::open(folder_.volume("half").c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_EQ(::ftruncate(half.get(), 3 * kMiB), 0);
  const UniqueFd strange(::open(folder_.volume("strange").c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_EQ(write_fully(strange.get(), std::vector<std::byte>(2 * kMiB, std::byte{1}), 0), 0);
  const auto volumes = list_volumes(folder_.path());
  ASSERT_OK(volumes);
  ASSERT_EQ(volumes->size(), 4U);
  const auto check = [&](std::size_t i, const std::string& run_id, bool has_record, bool locked) {
    EXPECT_EQ((*volumes)[i].run_id, run_id);
    EXPECT_EQ((*volumes)[i].has_record, has_record) << run_id;
    EXPECT_EQ((*volumes)[i].locked, locked) << run_id;
  };
  check(0, "empty", false, false);
  check(1, "half", false, false);
  check(2, "held", true, true);
  check(3, "strange", true, false);  // nobody can say, so it is never removed
  EXPECT_GE((*volumes)[0].bytes, 2 * kMiB);
  EXPECT_FALSE(list_volumes(folder_.path() + "/missing").ok());
}

// Power goes while the first superblock is written: its copy, and so every record, comes later.
TEST_F(VolumeAdmin, AStartThatTearsItsSuperblockLeavesNothingThatCounts) {
  {
    const UniqueFd file(::open(folder_.volume("run").c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(::ftruncate(file.get(), 4 * kMiB), 0);
    const std::vector<std::byte> torn(100, std::byte{7});
    ASSERT_EQ(write_fully(file.get(), torn, 0), 0);
  }
  EXPECT_FALSE(list_volumes(folder_.path())->front().has_record);
  ASSERT_OK(create());
}

TEST_F(VolumeAdmin, RemovesAllFilesOfARunAndOnlyThose) {
  const std::string a = folder_.make_folder("a");
  const std::string b = folder_.make_folder("b");
  ASSERT_OK(VolumeSet::create({a, b}, "run", small_geometry(), options_));
  ASSERT_OK(VolumeSet::create({a}, "other", small_geometry(), options_));
  ASSERT_OK(remove_volumes({a, b}, "run"));
  EXPECT_FALSE(std::filesystem::exists(a + "/headrace-run.volume"));
  EXPECT_FALSE(std::filesystem::exists(b + "/headrace-run.volume"));
  EXPECT_TRUE(std::filesystem::exists(a + "/headrace-other.volume"));
  ASSERT_OK(remove_volumes({a, b}, "run"));
}

TEST_F(VolumeAdmin, ManyOpeningsLeakNoDescriptor) {
  ASSERT_OK(create());
  ASSERT_OK(open());
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) ASSERT_OK(open());
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(VolumeAdmin, WithoutDirectIoAutoSaysSoAndDirectRefuses) {
  struct statfs status {};
  if (::statfs("/dev/shm", &status) != 0 || status.f_type != 0x01021994) GTEST_SKIP() << "/dev/shm is no tmpfs";
  const TestFolder memory("/dev/shm");
  ::testing::internal::CaptureStderr();
  auto set = VolumeSet::create(memory.paths(), "run", small_geometry(), options_);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(set);
  EXPECT_NE(log.find("direct I/O is not used"), std::string::npos) << log;
  EXPECT_NE((*set)->describe().find("buffered I/O"), std::string::npos);
  Payload out(64 * kKiB, 4096);
  Payload in(64 * kKiB, 4096);
  const TileTransfer write{{0, 1, 0}, {1, 0}, out.fill(1).data()};
  const TileTransfer read{{0, 1, 0}, {1, 0}, in.data()};
  ASSERT_OK((*set)->write({&write, 1}).wait(soon()));
  ASSERT_OK((*set)->read({&read, 1}).wait(soon()));
  EXPECT_TRUE(in.equals(out, 64 * kKiB));
  options_.mode = IoMode::kDirect;
  expect_error(VolumeSet::create(memory.paths(), "second", small_geometry(), options_), ErrorCode::kPreflight,
               {"direct I/O is not possible", "headrace.io.mode"});
  EXPECT_FALSE(std::filesystem::exists(memory.volume("second")));
}

TEST_F(VolumeAdmin, ModeBufferedAndBothBackendsReadEachOthersFiles) {
  options_.mode = IoMode::kBuffered;
  options_.backend = IoBackendChoice::kThreads;
  auto set = create();
  ASSERT_OK(set);
  Payload out(64 * kKiB, 4096);
  Payload in(64 * kKiB, 4096);
  const TileTransfer write{{0, 1, 0}, {1, 0}, out.fill(1).data()};
  const TileTransfer read{{0, 1, 0}, {1, 0}, in.data()};
  ASSERT_OK((*set)->write({&write, 1}).wait(soon()));
  set->reset();
  options_ = {};
  auto direct = open();
  ASSERT_OK(direct);
  ASSERT_OK((*direct)->read({&read, 1}).wait(soon()));
  EXPECT_TRUE(in.equals(out, 64 * kKiB));
}

TEST(FolderProbe, TellsTheAlignmentOfDirectIo) {
  const TestFolder folder;
  FolderProbe probe;
  ASSERT_OK(probe_writing(folder.path(), probe));
  EXPECT_GE(probe.alignment, 4096);
  EXPECT_NE(probe.direct, !probe.why_buffered.empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace headrace::io
