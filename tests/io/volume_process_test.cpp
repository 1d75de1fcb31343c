// SPDX-License-Identifier: Apache-2.0
// Volumes and processes: locks of others, deaths in mid-write, limits, full disks. Children are forked before this
// process has a thread and speak through pipes, so that nothing waits for a clock.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <random>

#include "io/layout.h"
#include "io_test_support.h"

namespace headrace::io {
namespace {

// A forked child that runs `body` and exits with what it returns.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) {
    EXPECT_EQ(::pipe2(pipe_, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(pipe_[0]);
      ::_exit(body(pipe_[1]));
    }
    ::close(pipe_[1]);
  }
  ~Child() {
    if (pid_ > 0) stop();
    ::close(pipe_[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // The next byte that the child wrote; -1 when it is gone.
  int next() {
    unsigned char byte = 0;
    return ::read(pipe_[0], &byte, 1) == 1 ? byte : -1;
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  // The exit status, or minus the signal.
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  void stop() {
    kill();
    wait();
  }
  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

void say(int pipe, unsigned char byte) { [[maybe_unused]] const ssize_t written = ::write(pipe, &byte, 1); }

VolumeOptions threads_options() {
  VolumeOptions options;
  options.backend = IoBackendChoice::kThreads;
  return options;
}

class VolumeProcess : public ::testing::Test {
 protected:
  TestFolder folder_;
};

TEST_F(VolumeProcess, AVolumeOfALiveProcessIsRefusedAndFreeWhenItDies) {
  Child child([&](int pipe) {
    auto set = VolumeSet::create(folder_.paths(), "run", small_geometry(), {});
    say(pipe, set.ok() ? 1 : 2);
    ::pause();
    return 0;
  });
  ASSERT_EQ(child.next(), 1);
  const auto refused = VolumeSet::open(folder_.paths(), "run", {}, std::chrono::milliseconds(0));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPreflight);
  EXPECT_NE(refused.error().message.find(" is in use by "), std::string::npos) << refused.error().message;
  EXPECT_TRUE(list_volumes(folder_.path())->front().locked);
  child.kill();
  child.wait();
  const auto set = VolumeSet::open(folder_.paths(), "run", {});
  ASSERT_OK(set);
  EXPECT_TRUE(list_volumes(folder_.path())->front().locked);
}

TEST_F(VolumeProcess, OpeningWaitsForTheHolderWithALineOfText) {
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  Child child([&](int pipe) {
    auto set = VolumeSet::create(folder_.paths(), "run", small_geometry(), {});
    say(pipe, set.ok() ? 1 : 2);
    char byte = 0;
    [[maybe_unused]] const ssize_t got = ::read(go[0], &byte, 1);
    ::usleep(50'000);  // long enough that the other one usually meets the lock; it passes either way
    return 0;
  });
  ASSERT_EQ(child.next(), 1);
  ::testing::internal::CaptureStderr();
  say(go[1], 1);
  const auto set = VolumeSet::open(folder_.paths(), "run", {}, std::chrono::seconds(60));
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(set);
  EXPECT_NE(log.find("waiting for it"), std::string::npos) << log;
  ::close(go[0]);
  ::close(go[1]);
}

// Writes steps without end: every tile with version t in slot t % 2, then record t; says each committed step.
int write_steps(const std::vector<std::string>& paths, const VolumeOptions& options, int pipe) {
  constexpr std::int64_t kTiles = 6;
  auto set = VolumeSet::create(paths, "run", {{stream_of(0, kTiles, 100'000, 100'000)}, 64}, options);
  if (!set.ok()) return 3;
  const Bytes extent = (*set)->payload_extent_bytes(0, 0);
  Payload payload(extent * kTiles, (*set)->payload_alignment());
  for (std::uint64_t step = 1;; ++step) {
    std::vector<TileTransfer> transfers;
    payload.fill(step);
    for (std::int64_t tile = 0; tile < kTiles; ++tile) {
      transfers.push_back({{0, tile, static_cast<std::int32_t>(step % 2)}, {step, 0}, payload.data() + tile * extent});
    }
    if (!(*set)->write(transfers).wait(soon()).ok()) return 4;
    if (!(*set)->write_record({step, {std::byte{1}}}).ok()) return 5;
    say(pipe, static_cast<unsigned char>(step % 251));
  }
}

void expect_last_committed_step(const std::vector<std::string>& paths, std::uint64_t at_least, std::uint64_t seed) {
  auto set = VolumeSet::open(paths, "run", {});
  ASSERT_OK(set);
  const auto records = (*set)->read_records();
  ASSERT_OK(records);
  ASSERT_FALSE(records->empty()) << "seed " << seed;
  const std::uint64_t step = records->front().sequence;
  EXPECT_GE(step, at_least) << "seed " << seed << ": a committed step was lost";
  const Bytes extent = (*set)->payload_extent_bytes(0, 0);
  Payload wanted(extent * 6, (*set)->payload_alignment());
  Payload had(extent * 6, (*set)->payload_alignment());
  wanted.fill(step);
  for (std::int64_t tile = 0; tile < 6; ++tile) {
    const TileTransfer transfer{{0, tile, static_cast<std::int32_t>(step % 2)}, {step, 0}, had.data() + tile * extent};
    ASSERT_OK((*set)->read({&transfer, 1}).wait(soon()));
    EXPECT_EQ(std::memcmp(had.data() + tile * extent, wanted.data() + tile * extent, 100'000), 0) << "seed " << seed;
  }
}

TEST_F(VolumeProcess, AfterAKillTheLastCommittedStepIsWhole) {
  const std::vector<std::string> paths{folder_.make_folder("a"), folder_.make_folder("b")};
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    std::mt19937_64 random(seed);
    VolumeOptions options;
    constexpr IoBackendChoice kChoices[] = {IoBackendChoice::kAuto, IoBackendChoice::kLibaio,
                                            IoBackendChoice::kThreads};
    options.backend = kChoices[seed % 3];
    Child child([&](int pipe) { return write_steps(paths, options, pipe); });
    const std::uint64_t steps = 1 + random() % 8;
    for (std::uint64_t step = 1; step <= steps; ++step)
      ASSERT_EQ(child.next(), static_cast<int>(step)) << "seed " << seed;
    for (std::uint64_t spins = random() % 300'000; spins > 0; --spins) asm volatile("");
    child.kill();
    EXPECT_EQ(child.wait(), -SIGKILL);
    expect_last_committed_step(paths, steps, seed);
    ASSERT_OK(remove_volumes(paths, "run"));
  }
}

TEST_F(VolumeProcess, AFileSizeLimitIsAnErrorAndNotASignal) {
  Child child([&](int pipe) {
    const rlimit limit{3 * 1024 * 1024, 3 * 1024 * 1024};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 9;
    const auto set = VolumeSet::create(folder_.paths(), "run", small_geometry(64, kMiB), {});
    say(pipe, !set.ok() && set.error().code == ErrorCode::kPreflight ? 1 : 2);
    say(pipe, !set.ok() && set.error().to_string().find("ulimit -f") != std::string::npos ? 1 : 2);
    return std::filesystem::exists(folder_.volume("run")) ? 8 : 0;
  });
  EXPECT_EQ(child.next(), 1);
  EXPECT_EQ(child.next(), 1);
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(VolumeProcess, ALimitThatComesLaterFailsTheTransferWithTheSystemsWord) {
  for (const IoBackendChoice backend : {IoBackendChoice::kAuto, IoBackendChoice::kLibaio, IoBackendChoice::kThreads}) {
    Child child([&](int pipe) {
      VolumeOptions options;
      options.backend = backend;
      auto set = VolumeSet::create(folder_.paths(), "run", small_geometry(4, kMiB), options);
      const rlimit limit{2 * 1024 * 1024, 2 * 1024 * 1024};
      if (!set.ok() || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 9;
      Payload payload(kMiB, (*set)->payload_alignment());
      const TileTransfer transfer{{0, 3, 1}, {1, 0}, payload.data()};
      const auto outcome = (*set)->write({&transfer, 1}).wait(soon());
      say(pipe, !outcome.ok() && outcome.error().message.find("File too large") != std::string::npos ? 1 : 2);
      return 0;
    });
    EXPECT_EQ(child.next(), 1);
    EXPECT_EQ(child.wait(), 0);
    ASSERT_OK(remove_volumes(folder_.paths(), "run"));
  }
}

// Fills the disk beside the volume of "run", then opens and uses that volume: its blocks are its own.
bool goes_on_when_full(const std::string& mount) {
  const UniqueFd filler(::open((mount + "/filler").c_str(), O_CREAT | O_RDWR, 0600));
  const std::vector<std::byte> bytes(64 * 1024, std::byte{1});
  std::int64_t offset = 0;
  while (write_fully(filler.get(), bytes, offset) == 0) offset += 64 * 1024;
  for (std::size_t i = 0; i < 16 && write_fully(filler.get(), std::span(bytes).first(4096), offset) == 0; ++i)
    offset += 4096;
  auto set = VolumeSet::open({mount}, "run", {});
  if (!set.ok()) return false;
  Payload payload(kMiB, (*set)->payload_alignment());
  const TileTransfer transfer{{0, 3, 1}, {1, 0}, payload.fill(1).data()};
  return (*set)->write({&transfer, 1}).wait(soon()).ok() && (*set)->write_record({1, {}}).ok() &&
         (*set)->read({&transfer, 1}).wait(soon()).ok();
}

TEST_F(VolumeProcess, AFullDiskIsRefusedWithWantedAndFreeBytesAndLeavesNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  const std::string mount = std::filesystem::absolute(folder_.make_folder("mount"));
  Child child([&](int pipe) {
    // In its own mount namespace: nothing is left mounted whatever happens.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=16m") != 0) {
      say(pipe, 0);
      return 0;
    }
    const auto set = VolumeSet::create({mount}, "run", small_geometry(64, kMiB), {});
    const std::string text = text_of(set);
    const bool named = text.find(mount) != std::string::npos && text.find("free") != std::string::npos &&
                       text.find("MiB") != std::string::npos;
    say(pipe, !set.ok() && set.error().code == ErrorCode::kPreflight && named ? 1 : 2);
    say(pipe, std::filesystem::is_empty(mount) ? 1 : 2);
    say(pipe, VolumeSet::create({mount}, "run", small_geometry(4, kMiB), {}).ok() ? 1 : 2);
    say(pipe, goes_on_when_full(mount) ? 1 : 2);
    return 0;
  });
  const int first = child.next();
  if (first == 0) GTEST_SKIP() << "this container may not mount";
  EXPECT_EQ(first, 1);
  EXPECT_EQ(child.next(), 1) << "something was left";
  EXPECT_EQ(child.next(), 1) << "a smaller one does not fit either";
  EXPECT_EQ(child.next(), 1) << "a volume cannot be used any more when the rest of its disk is full";
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(VolumeProcess, AnUnwritablePathIsRefusedWithTheUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user is needed";
  const std::string path = std::filesystem::absolute(folder_.make_folder("mine"));
  Child child([&](int pipe) {
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
    if (::setresuid(65'534, 65'534, 65'534) != 0) return 9;
    const auto set = VolumeSet::create({path}, "run", small_geometry(), {});
    const std::string text = text_of(set);
    say(pipe, !set.ok() && set.error().code == ErrorCode::kPreflight && text.find("user 65534") != std::string::npos &&
                      text.find("Permission denied") != std::string::npos
                  ? 1
                  : 2);
    return 0;
  });
  EXPECT_EQ(child.next(), 1);
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(VolumeProcess, AVolumeLargerThanFourGiBWorksAtItsEnd) {
  // A sparse copy stands for the large disk: the file is cut to its length without blocks.
  const VolumeGeometry geometry{{stream_of(0, 5, kGiB, 12'345)}, 64};
  const auto layout = VolumeLayout::make(geometry, 1, 4096);
  ASSERT_OK(layout);
  const Superblock superblock{"run", 1, 0, 4096, layout->file_bytes(0), geometry, 1, 0, {}};  // the first format
  const auto bytes = encode_superblock(superblock);
  ASSERT_OK(bytes);
  {
    const UniqueFd file(::open(folder_.volume("run").c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(::ftruncate(file.get(), superblock.file_bytes), 0);
    ASSERT_EQ(write_fully(file.get(), *bytes, 0), 0);
  }
  auto set = VolumeSet::open(folder_.paths(), "run", threads_options());
  ASSERT_OK(set);
  Payload out(16 * kKiB, 4096);
  Payload in(16 * kKiB, 4096);
  const TileTransfer write{{0, 4, 1}, {1, 0}, out.fill(3).data()};
  const TileTransfer read{{0, 4, 1}, {1, 0}, in.data()};
  ASSERT_GT(layout->place({0, 4, 1}).offset, 8 * kGiB);
  ASSERT_OK((*set)->write({&write, 1}).wait(soon()));
  ASSERT_OK((*set)->read({&read, 1}).wait(soon()));
  EXPECT_TRUE(in.equals(out, 12'345));
}

std::int64_t bytes_read_by_this_process() {
  std::ifstream io("/proc/self/io");
  std::string name;
  std::int64_t value = 0;
  while (io >> name >> value)
    if (name == "rchar:") return value;
  return 0;
}

TEST_F(VolumeProcess, OpeningAHundredGiBReadsTheSuperblockAndNothingElse) {
  const VolumeGeometry geometry{{stream_of(0, 12'800, 4 * kMiB, 12'345)}, 64 * kKiB};
  const auto layout = VolumeLayout::make(geometry, 1, 4096);
  ASSERT_OK(layout);
  ASSERT_GT(layout->file_bytes(0), 100 * kGiB);
  const Superblock superblock{"run", 1, 0, 4096, layout->file_bytes(0), geometry, 1, 0, {}};
  const auto encoded = encode_superblock(superblock);
  ASSERT_OK(encoded);
  {
    const UniqueFd file(::open(folder_.volume("run").c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(::ftruncate(file.get(), superblock.file_bytes), 0);
    ASSERT_EQ(write_fully(file.get(), *encoded, 0), 0);
  }
  const std::int64_t before = bytes_read_by_this_process();
  const auto start = std::chrono::steady_clock::now();
  auto set = VolumeSet::open(folder_.paths(), "run", {});
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  ASSERT_OK(set);
  std::printf("opened %lld GiB in %.1f ms\n", static_cast<long long>(superblock.file_bytes / kGiB), ms);
  EXPECT_LT(bytes_read_by_this_process() - before, kMiB);
  EXPECT_EQ((*set)->counters().read_requests + (*set)->counters().write_requests, 0);
}

}  // namespace
}  // namespace headrace::io
