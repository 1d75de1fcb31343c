// SPDX-License-Identifier: Apache-2.0
#include "core/process.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "core/file.h"
#include "temporary_folder.h"

namespace headrace {
namespace {

TEST(ProcessMemory, FollowsWhatIsTouched) {
  constexpr std::size_t kSize = 32U << 20;
  const Result<ProcessMemory> before = process_memory();
  ASSERT_TRUE(before.ok());
  void* block = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kSize);
  const Result<ProcessMemory> during = process_memory();
  munmap(block, kSize);
  const Result<ProcessMemory> after = process_memory();
  ASSERT_TRUE(during.ok() && after.ok());
  EXPECT_GE(during->resident - before->resident, 31 * kMiB);
  EXPECT_LE(after->resident - before->resident, 1 * kMiB);
  EXPECT_GE(after->peak_resident, during->resident - kMiB);
  EXPECT_GE(during->peak_resident, during->resident);

  if (!reset_peak_memory()) GTEST_SKIP() << "the kernel does not reset the peak";
  const Result<ProcessMemory> reset = process_memory();
  ASSERT_TRUE(reset.ok());
  EXPECT_LT(reset->peak_resident, during->resident - 16 * kMiB);
}

TEST(ProcessIo, CountsBytesThatReachStorage) {
  const TemporaryFolder folder;
  const Result<ProcessIo> before = process_io();
  if (!before.ok()) GTEST_SKIP() << before.error().to_string();
  Result<File> file = File::create_new(folder.path("data"));
  ASSERT_TRUE(file.ok());
  const std::string data(std::size_t{1} << 20, 'x');
  ASSERT_TRUE(file->write_all(0, std::as_bytes(std::span(data))).ok());
  ASSERT_TRUE(file->sync().ok());
  const Result<ProcessIo> after = process_io();
  ASSERT_TRUE(after.ok());
  EXPECT_GE(after->write_bytes, before->write_bytes);
  EXPECT_GE(after->read_bytes, before->read_bytes);
}

TEST(CpuSeconds, GrowWithTheWorkOfTheThreadThatAsks) {
  const double process_before = process_cpu_seconds();
  const double here_before = thread_cpu_seconds();
  double other = 0;
  std::thread([&other] {
    const double start = thread_cpu_seconds();
    volatile double sum = 0;
    while (thread_cpu_seconds() - start < 0.02) sum = sum + 1;
    other = thread_cpu_seconds() - start;
  }).join();
  EXPECT_GE(other, 0.02);
  EXPECT_GE(process_cpu_seconds() - process_before, 0.019);
  EXPECT_GE(thread_cpu_seconds(), here_before);
}

TEST(ThreadName, IsSetAndCutToWhatTheKernelKeeps) {
  std::thread([] {
    std::array<char, 16> name{};
    set_thread_name("nvme_read");
    ASSERT_EQ(pthread_getname_np(pthread_self(), name.data(), name.size()), 0);
    EXPECT_STREQ(name.data(), "nvme_read");
    set_thread_name("a name that is far too long");
    ASSERT_EQ(pthread_getname_np(pthread_self(), name.data(), name.size()), 0);
    EXPECT_STREQ(name.data(), "a name that is ");
  }).join();
}

TEST(Malloc, GivesLargeBlocksBackOnceLimited) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has its own allocator";
#endif
  limit_malloc_arenas();
  const Result<ProcessMemory> before = process_memory();
  ASSERT_TRUE(before.ok());
  for (int round = 0; round < 3; ++round) {  // freed blocks would raise a threshold that is not fixed
    const std::string block(std::size_t{24} << 20, 'x');
    EXPECT_EQ(block.back(), 'x');
  }
  const Result<ProcessMemory> after = process_memory();
  ASSERT_TRUE(after.ok());
  EXPECT_LE(after->resident - before->resident, 2 * kMiB);
}

TEST(LockHolder, NamesTheProcessThatHoldsTheLock) {
  const TemporaryFolder folder;
  const std::string path = folder.path("lock");
  const Result<File> file = File::open_append(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(lock_holder(file->fd()), "another process") << "nobody holds it";
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<File> own = File::open_append(path);
    const char locked = own.ok() && ::flock(own->fd(), LOCK_EX) == 0 ? 1 : 0;
    [[maybe_unused]] const ssize_t written = ::write(pipe[1], &locked, 1);
    ::pause();
    ::_exit(0);
  }
  char locked = 0;
  EXPECT_EQ(::read(pipe[0], &locked, 1), 1);
  EXPECT_EQ(locked, 1);
  const std::string holder = lock_holder(file->fd());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
  // A file system of several layers may show its locks under another number than its files.
  EXPECT_TRUE(holder == "another process" || holder.find(std::to_string(child)) != std::string::npos) << holder;
  EXPECT_TRUE(holder == "another process" || holder.find("process_test") != std::string::npos) << holder;
}

}  // namespace
}  // namespace headrace
