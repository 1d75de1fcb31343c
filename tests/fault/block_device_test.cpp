// SPDX-License-Identifier: Apache-2.0
// Block devices as paths of a volume: what is taken, what is refused and why, and that nothing of an earlier user
// passes as ours. On loop devices, so for root alone.
#include <algorithm>

#include "fault_support.h"
#include "io/block_device.h"
#include "io/layout.h"
#include "io/volume_deal.h"

namespace headrace::fault {
namespace {

using io::text_of;
using io::VolumeSet;

class BlockDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "loop devices need root";
    device_ = std::make_unique<LoopDevice>(make_sparse_file(folder_.path() + "/disk", kBytes));
    if (!device_->valid()) GTEST_SKIP() << "this system gives no loop device: " << io::errno_text(errno);
  }
  [[nodiscard]] std::vector<std::string> paths() const { return {device_->path()}; }
  [[nodiscard]] std::string create_error(io::VolumeOptions options = {}) const {
    const auto set = VolumeSet::create(paths(), "run", Tiles::geometry(), options);
    if (set.ok()) return "ok";
    return std::string(error_code_name(set.error().code)) + ": " + set.error().to_string();
  }
  void put(std::int64_t offset, std::string_view bytes) const {
    const io::UniqueFd disk(::open(device_->path().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(io::write_fully(disk.get(), std::as_bytes(std::span(bytes)), offset), 0);
    ASSERT_EQ(::fsync(disk.get()), 0);
  }
  static std::string error_code_name(ErrorCode code) { return code == ErrorCode::kPreflight ? "preflight" : "other"; }

  static constexpr Bytes kBytes = 48 * kMiB;
  io::TestFolder folder_;
  std::unique_ptr<LoopDevice> device_;
};

TEST_F(BlockDevice, HoldsAVolumeThatIsFoundAgainAndRemoved) {
  const std::string used = use_volume(paths());
  EXPECT_TRUE(contains(used, "direct I/O, 1 volume in " + device_->path())) << used;
  {
    auto set = VolumeSet::open(paths(), "run", {});
    ASSERT_OK(set);
    EXPECT_EQ(Tiles(**set).read(1), "ok");
    EXPECT_EQ((*set)->read_records()->size(), 1U);
    const auto volumes = io::list_volumes(device_->path());
    ASSERT_OK(volumes);
    ASSERT_EQ(volumes->size(), 1U);
    EXPECT_EQ(volumes->front().run_id, "run");
    EXPECT_TRUE(volumes->front().has_record);
    EXPECT_TRUE(volumes->front().locked);
    EXPECT_TRUE(contains(create_error(), "in use")) << create_error();
  }
  EXPECT_TRUE(contains(create_error(), "holds a committed step of run run")) << create_error();
  ASSERT_OK(io::remove_volumes(paths(), "another"));
  EXPECT_EQ(io::list_volumes(device_->path())->size(), 1U) << "only its own run is removed";
  ASSERT_OK(io::remove_volumes(paths(), "run"));
  EXPECT_EQ(io::list_volumes(device_->path())->size(), 0U);
  EXPECT_TRUE(io::is_block_device(device_->path()));
}

TEST_F(BlockDevice, NothingOfAnEarlierRunOfTheSameNamePassesAsOurs) {
  EXPECT_TRUE(contains(use_volume(paths()), "direct I/O"));
  ASSERT_OK(io::remove_volumes(paths(), "run"));
  auto set = VolumeSet::create(paths(), "run", Tiles::geometry(), {});
  ASSERT_OK(set);
  EXPECT_TRUE((*set)->read_records()->empty());
  const std::string text = Tiles(**set).read(1);  // the very bytes, of the same run id, step and attempt, are there
  EXPECT_TRUE(contains(text, "run id hash")) << text;
}

TEST_F(BlockDevice, AFileSystemOrTableOrDataIsRefusedUnlessTold) {
  const std::vector<std::pair<std::int64_t, std::pair<std::string, std::string>>> contents{
      {1080, {"\x53\xEF", "ext4"}},
      {512, {"EFI PART", "partition table (GPT)"}},
      {0, {"XFSB", "XFS"}},
      {65'600, {"_BHRfS_M", "btrfs"}},
      {4086, {"SWAPSPACE2", "swap"}},
      {900'000, {"somebody's bytes", "holds data"}},
      {kBytes - 100, {"a mark at the end", "holds data"}}};
  for (const auto& [offset, what] : contents) {
    put(offset, what.first);
    const std::string error = create_error();
    EXPECT_TRUE(contains(error, "preflight")) << error;
    EXPECT_TRUE(contains(error, what.second)) << error;
    EXPECT_TRUE(contains(error, "overwrite_devices")) << error;
    io::VolumeOptions options;
    options.overwrite_devices = true;
    EXPECT_TRUE(contains(use_volume(paths(), options), "direct I/O")) << what.second;
    ASSERT_OK(io::remove_volumes(paths(), "run"));
    EXPECT_EQ(create_error(), "ok") << "what was ours is free again";
    ASSERT_OK(io::remove_volumes(paths(), "run"));
  }
}

// From now on this process dies of a write at `offset`.
bool die_of_write_at(std::int64_t offset) {
  sock_filter filter[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
                          {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_pwrite64},
                          {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, args) + 3 * sizeof(std::uint64_t)},
                          {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(offset)},
                          {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
                          {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{6, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(BlockDevice, WhatWasOursIsFreeAgainWhereverItsRemovalDied) {
  for (const std::int64_t offset : {Bytes{0}, kMiB, kBytes - kMiB}) {
    EXPECT_TRUE(contains(use_volume(paths()), "direct I/O"));
    put(kBytes - 100, "a tile");  // a volume may reach to the end
    const std::string died = in_child([&] {
      if (!die_of_write_at(offset)) return std::string("cannot be set up here");
      const auto removed = io::remove_volumes(paths(), "run");
      return removed.ok() ? std::string("removed") : removed.error().to_string();
    });
    if (contains(died, "cannot be set up here")) GTEST_SKIP() << "this system forbids the set-up";
    EXPECT_TRUE(contains(died, "killed by signal")) << died;
    // Either it is still that run's, or nobody's.
    ASSERT_OK(io::remove_volumes(paths(), "run"));
    EXPECT_EQ(create_error(), "ok") << "died at " << offset;
    ASSERT_OK(io::remove_volumes(paths(), "run"));
  }
}

TEST_F(BlockDevice, AMountedOneIsRefused) {
  if (!has_program("mkfs.ext4")) GTEST_SKIP() << "mkfs.ext4 is not installed";
  ASSERT_EQ(std::system(("mkfs.ext4 -q " + device_->path()).c_str()), 0);  // NOLINT
  EXPECT_TRUE(contains(create_error(), "holds an ext2, ext3 or ext4 file system")) << create_error();
  const std::string mount = folder_.make_folder("mount");
  if (::mount(device_->path().c_str(), mount.c_str(), "ext4", 0, nullptr) != 0)
    GTEST_SKIP() << "this system mounts nothing: " << io::errno_text(errno);
  io::VolumeOptions options;
  options.overwrite_devices = true;
  const std::string error = create_error(options);
  EXPECT_TRUE(contains(error, "preflight")) << error;
  EXPECT_TRUE(contains(error, "it is mounted")) << error;
  ASSERT_EQ(::umount2(mount.c_str(), 0), 0);
}

TEST_F(BlockDevice, AReadOnlyOrSmallOneIsRefusedWithNumbers) {
  device_.reset();
  device_ = std::make_unique<LoopDevice>(folder_.path() + "/disk", 512, true);
  ASSERT_TRUE(device_->valid());
  const std::string read_only = create_error();
  EXPECT_TRUE(contains(read_only, "preflight")) << read_only;
  EXPECT_TRUE(contains(read_only, "is a read-only device") && contains(read_only, "--setrw")) << read_only;
  device_ = std::make_unique<LoopDevice>(make_sparse_file(folder_.path() + "/small", 3 * kMiB));
  ASSERT_TRUE(device_->valid());
  const std::string small = create_error();
  EXPECT_TRUE(contains(small, "3145728 bytes")) << small;
}

TEST_F(BlockDevice, AFailedStartLeavesItEmpty) {
  const LoopDevice small(make_sparse_file(folder_.path() + "/small", 3 * kMiB));
  ASSERT_TRUE(small.valid());
  const auto set = VolumeSet::create({device_->path(), small.path()}, "run", io::small_geometry(64, kMiB), {});
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(create_error(), "ok");
}

TEST_F(BlockDevice, LargeLogicalBlocksSetTheAlignment) {
  int tried = 0;
  for (const unsigned block : {4096U, 65'536U}) {
    const LoopDevice device(make_sparse_file(folder_.path() + "/blocks" + std::to_string(block), kBytes), block);
    if (!device.valid()) continue;  // kernels before 6.15 stop at the page
    ++tried;
    auto set = VolumeSet::create({device.path()}, "run", Tiles::geometry(), {});
    ASSERT_OK(set);
    EXPECT_EQ((*set)->payload_alignment(), std::max<Bytes>(block, 4096));
    EXPECT_EQ(Tiles(**set).round_trip(1), "ok") << block;
    EXPECT_TRUE(contains((*set)->describe(), "direct I/O")) << (*set)->describe();
  }
  EXPECT_GE(tried, 1);
}

TEST_F(BlockDevice, ADeviceAndAFolderShareTheTiles) {
  io::VolumeOptions options;
  options.shares = {3, 1};
  const std::vector<std::string> both{device_->path(), folder_.make_folder("files")};
  EXPECT_TRUE(contains(use_volume(both, options), "2 volumes")) << "with given shares";
  {
    auto set = VolumeSet::open(both, "run", {});
    ASSERT_OK(set);
    EXPECT_EQ(Tiles(**set).read(1), "ok") << "the deal is the volume's, whatever the options say";
  }
  ASSERT_OK(io::remove_volumes(both, "run"));
  EXPECT_TRUE(contains(use_volume(both), "2 volumes")) << "with measured ones";
}

TEST(MeasuredDeal, SharesFollowTheRatesAndAboutEqualIsEqual) {
  EXPECT_EQ(io::shares_of({2e9, 1.8e9, 1.9e9}), (std::vector<std::uint32_t>{1, 1, 1}));
  EXPECT_EQ(io::shares_of({2e9, 1e9}), (std::vector<std::uint32_t>{16, 8}));
  EXPECT_EQ(io::shares_of({1e6, 3e9}), (std::vector<std::uint32_t>{1, 16})) << "a slow one still has its part";
}

}  // namespace
}  // namespace headrace::fault
