// SPDX-License-Identifier: Apache-2.0
// What users of swap files met elsewhere, case by case, over each backend that reaches a disk: docs/storage.md names
// them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <thread>

#include "core/host_slab.h"
#include "io/layout.h"
#include "io_test_support.h"
#include "test_backends.h"

namespace headrace::io {
namespace {

class VolumeCases : public ::testing::TestWithParam<TestBackend> {
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
  // What stands in the file, past the page cache and past the volume set.
  [[nodiscard]] std::vector<std::byte> bytes_of_file(std::int64_t offset, Bytes bytes) const {
    const UniqueFd file(::open(folder_.volume("run").c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    std::vector<std::byte> result(static_cast<std::size_t>(bytes));
    EXPECT_EQ(read_fully(file.get(), result, offset), 0);
    return result;
  }
  static Result<void> write(VolumeSet& set, const TileTransfer& transfer) {
    return set.write({&transfer, 1}).wait(soon());
  }
  static Result<void> read(VolumeSet& set, const TileTransfer& transfer) {
    return set.read({&transfer, 1}).wait(soon());
  }

  TestFolder folder_;
  VolumeOptions options_;
};

TEST_P(VolumeCases, TwoAndThreeQueuedMovesCompleteAsTwoAndThreeWithAllBytes) {
  auto set = create(small_geometry(8, 64 * kKiB));
  ASSERT_NE(set, nullptr);
  for (const std::size_t count : {std::size_t{2}, std::size_t{3}}) {
    std::vector<Payload> out, in;
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < count; ++i) {
      out.emplace_back(64 * kKiB, 4096).fill(10 * count + i);
      in.emplace_back(64 * kKiB, 4096);
    }
    const VolumeCounters before = set->counters();
    for (const bool writes : {true, false}) {
      tickets.clear();
      for (std::size_t i = 0; i < count; ++i) {
        const TileTransfer one{{0, static_cast<std::int64_t>(i), 0}, {count, 0}, (writes ? out : in)[i].data()};
        tickets.push_back(writes ? set->write({&one, 1}) : set->read({&one, 1}));
      }
      for (Ticket& ticket : tickets) ASSERT_OK(ticket.wait(soon()));
    }
    EXPECT_EQ(set->counters().write_requests - before.write_requests, static_cast<std::int64_t>(count));
    EXPECT_EQ(set->counters().read_requests - before.read_requests, static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(in[i].equals(out[i], 64 * kKiB)) << i << " of " << count;
  }
}

// Parts of 1, 1 and 2 blocks, one behind the other in one file; then again in another split, into the start of a
// buffer.
TEST_P(VolumeCases, EachPartLandsAtItsOffsetAndTouchesNoOther) {
  for (const std::vector<Bytes>& blocks : {std::vector<Bytes>{1, 1, 2}, std::vector<Bytes>{2, 1, 1}}) {
    VolumeGeometry geometry{{}, 100};
    for (std::uint32_t i = 0; i < blocks.size(); ++i)
      geometry.streams.push_back(stream_of(i, 1, blocks[i] * 4096, blocks[i] * 4096, 1));
    auto set = create(geometry);
    ASSERT_NE(set, nullptr);
    const auto layout = VolumeLayout::make(geometry, 1, set->payload_alignment());
    ASSERT_OK(layout);
    const Bytes end = layout->file_bytes(0);
    std::vector<std::byte> wanted = bytes_of_file(layout->tiles_offset(0), end - layout->tiles_offset(0));
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      Payload part(blocks[i] * 4096, 4096);
      ASSERT_OK(write(*set, {{i, 0, 0}, {1, 0}, part.fill(i).data()}));
      const std::int64_t at = layout->place({i, 0, 0}).offset - layout->tiles_offset(0);
      const std::vector<std::byte> had = bytes_of_file(layout->tiles_offset(0), end - layout->tiles_offset(0));
      std::copy(part.span().begin(), part.span().end(), wanted.begin() + at);
      const auto trailer = at + blocks[i] * 4096;  // its bytes are the codec's business
      std::copy_n(had.begin() + trailer, 4096, wanted.begin() + trailer);
      EXPECT_EQ(had, wanted) << "after part " << i;
      Payload back(4 * 4096, 4096);
      ASSERT_OK(read(*set, {{i, 0, 0}, {1, 0}, back.data()}));
      EXPECT_TRUE(back.equals(part, blocks[i] * 4096)) << i;
    }
    set.reset();
    ASSERT_OK(remove_volumes(folder_.paths(), "run"));
  }
}

TEST_P(VolumeCases, BuffersOnAnyPagesAndInsideLargerOnesGiveTheSameBytes) {
  auto set = create(small_geometry(4, 256 * kKiB));
  ASSERT_NE(set, nullptr);
  Payload out(256 * kKiB, 4096);
  Payload in(256 * kKiB, 4096);
  for (const PageKind pages : {PageKind::kOrdinary, PageKind::kTransparentHuge, PageKind::kExplicitHuge}) {
    HostSlabOptions options;
    options.best_pages = pages;
    auto slab = HostSlab::allocate(2 * kMiB, options);
    ASSERT_OK(slab);
    for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}, slab->bytes().size() - 256 * kKiB}) {
      std::byte* const inside = slab->bytes().data() + offset;
      out.fill(offset);
      std::copy(out.span().begin(), out.span().end(), inside);
      ASSERT_OK(write(*set, {{0, 0, 0}, {1, 0}, inside}));
      ASSERT_OK(write(*set, {{0, 1, 0}, {1, 0}, out.data()}));
      std::fill_n(inside, 256 * kKiB, std::byte{0});
      ASSERT_OK(read(*set, {{0, 1, 0}, {1, 0}, inside}));
      ASSERT_OK(read(*set, {{0, 0, 0}, {1, 0}, in.data()}));
      EXPECT_TRUE(in.equals(out, 256 * kKiB));
      EXPECT_TRUE(std::equal(out.span().begin(), out.span().end(), inside)) << offset;
    }
  }
}

TEST_P(VolumeCases, AFileThatEndsEarlySaysHowMuchItHad) {
  options_.block_bytes = 8 * kMiB;
  auto set = create(small_geometry(1, 8 * kMiB - 4096));
  ASSERT_NE(set, nullptr);
  Payload payload(8 * kMiB, 4096);
  ASSERT_OK(write(*set, {{0, 0, 1}, {1, 0}, payload.fill(3).data()}));
  const std::int64_t offset = VolumeLayout::make(set->geometry(), 1, 4096)->place({0, 0, 1}).offset;
  std::filesystem::resize_file(folder_.volume("run"), static_cast<std::uintmax_t>(offset + 3 * kMiB));
  const auto outcome = read(*set, {{0, 0, 1}, {1, 0}, payload.data()});
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
  for (const std::string part : {"wanted 8388608 bytes, got 3145728: the file ends there", "offset "})
    EXPECT_NE(outcome.error().message.find(part), std::string::npos) << outcome.error().message;
}

TEST_P(VolumeCases, TwoHundredSessionsLeaveNoDescriptorAndNoLockedMemory) {
  const auto descriptors = [] {
    std::pair<int, int> open_and_deleted{0, 0};
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
      ++open_and_deleted.first;
      if (target.ends_with(" (deleted)")) ++open_and_deleted.second;
    }
    return open_and_deleted;
  };
  const pid_t child = ::fork();
  if (child == 0) {  // with the limit of an ordinary user, and as one where that can be
    const rlimit limit{8 * 1024 * 1024, 8 * 1024 * 1024};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) ::_exit(2);
    if (::geteuid() == 0 &&
        (::chown(folder_.path().c_str(), 65'534, 65'534) != 0 || ::setresuid(65'534, 65'534, 65'534) != 0))
      ::_exit(3);
    Payload payload(64 * kKiB, 4096);
    const auto session = [&](bool is_new) {
      auto set = is_new ? VolumeSet::create(folder_.paths(), "run", small_geometry(), options_)
                        : VolumeSet::open(folder_.paths(), "run", options_);
      return set.ok() && write(**set, {{0, 0, 0}, {1, 0}, payload.data()}).ok();
    };
    const auto life = [&](int sessions) {
      for (int i = 0; i < sessions; ++i)
        if (!session(i == 0)) return false;
      return remove_volumes(folder_.paths(), "run").ok();
    };
    if (!life(1)) ::_exit(4);
    const auto before = descriptors();
    for (int i = 0; i < 20; ++i)
      if (!life(10)) ::_exit(5);
    ::_exit(descriptors() == before ? 0 : 6);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(VolumeCases, BlockingReadsOfTwoThreadsFromTwoSetsAndFromOneAreRight) {
  const std::string other = folder_.make_folder("other");
  auto first = create(small_geometry(2, 4096));
  auto second = VolumeSet::create({other}, "run", small_geometry(2, 4096), options_);
  ASSERT_TRUE(first != nullptr && second.ok());
  Payload out(4096, 4096);
  for (VolumeSet* set : {first.get(), second->get()})
    for (std::int64_t tile = 0; tile < 2; ++tile)
      ASSERT_OK(write(*set, {{0, tile, 0}, {1, 0}, out.fill(static_cast<std::uint64_t>(tile)).data()}));
  const auto reader = [](VolumeSet& set, std::int64_t tile, bool& right) {
    Payload wanted(4096, 4096), in(4096, 4096);
    wanted.fill(static_cast<std::uint64_t>(tile));
    for (int i = 0; i < 50 && right; ++i)
      right = read(set, {{0, tile, 0}, {1, 0}, in.data()}).ok() && in.equals(wanted, 4096);
  };
  for (VolumeSet* const beside : {first.get(), second->get()}) {
    bool right[2] = {true, true};
    std::thread one([&] { reader(*first, 0, right[0]); });
    std::thread two([&] { reader(*beside, 1, right[1]); });
    one.join();
    two.join();
    EXPECT_TRUE(right[0] && right[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, VolumeCases,
                         ::testing::Values(test_backends()[0], test_backends()[1], test_backends()[2]),
                         test_backend_name);

}  // namespace
}  // namespace headrace::io
