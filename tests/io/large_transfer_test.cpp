// SPDX-License-Identifier: Apache-2.0
// Sizes and offsets around 2 and 4 GiB through the queue: in memory with every byte checked, and through the kernel
// with holes, where one call moves at most 2 GiB − 4 KiB and says so by a short count.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>

#include "io/queue.h"
#include "io/volume_file.h"
#include "io_test_support.h"
#include "test_backends.h"

namespace headrace::io {
namespace {

// Address space of many GiB over a few MiB: the same pages again and again. Their number is no power of two, so that an
// offset or a length cut to 31 or 32 bits meets other bytes.
class FoldedMemory {
 public:
  static constexpr Bytes kPeriod = 3 * kMiB;
  explicit FoldedMemory(Bytes bytes) : bytes_(round_up(bytes, kPeriod)) {
    const UniqueFd file(::memfd_create("folded", MFD_CLOEXEC));
    if (::ftruncate(file.get(), kPeriod) != 0) ADD_FAILURE() << errno_text(errno);
    void* base = ::mmap(nullptr, size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = static_cast<std::byte*>(base);
    for (Bytes at = 0; at < bytes_; at += kPeriod) {
      if (::mmap(base_ + at, kPeriod, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED)
        ADD_FAILURE() << errno_text(errno);
    }
  }
  ~FoldedMemory() { ::munmap(base_, size()); }
  FoldedMemory(const FoldedMemory&) = delete;
  FoldedMemory& operator=(const FoldedMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return base_; }
  [[nodiscard]] std::span<std::byte> period() const { return {base_, static_cast<std::size_t>(kPeriod)}; }

 private:
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(bytes_); }
  Bytes bytes_;
  std::byte* base_ = nullptr;
};

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
}

constexpr Bytes kSizes[] = {2 * kGiB - 4 * kKiB, 2 * kGiB, 2 * kGiB + 4 * kKiB, 4 * kGiB + 4 * kKiB, 5 * kGiB};

class LargeTransfer : public ::testing::TestWithParam<TestBackend> {
 protected:
  void SetUp() override {
    auto made = GetParam().candidate().make();
    if (!made.ok()) GTEST_SKIP() << "refused here: " << made.error().to_string();
    backend_ = std::move(*made);
    auto file = make_nameless_file(folder_.path());
    ASSERT_OK(file);
    file_ = std::move(*file);
  }
  Result<void> move(Queue& queue, IoOperation operation, std::byte* data, Bytes bytes, std::int64_t offset) {
    Move one;
    one.operation = operation;
    one.data = data;
    one.bytes = bytes;
    one.offset = offset;
    std::vector<Move> moves;
    moves.push_back(std::move(one));
    return queue.submit(std::move(moves), {}).wait(TimePoint::max());  // the queue's deadline bounds it
  }
  Queue queue(int fd, Bytes block_bytes) {
    QueueOptions options;
    options.block_bytes = block_bytes;
    options.in_flight_bytes = block_bytes;
    return {std::move(backend_), {{fd, "large", set_direct(fd, true) == 0}}, options};
  }

  TestFolder folder_;
  UniqueFd file_;
  std::unique_ptr<IoBackend> backend_;
};

// One request for everything: the kernel moves 2 GiB − 4 KiB of it and the queue goes on from there.
TEST_P(LargeTransfer, OneRequestOfAnySizeMovesAllOfIt) {
  const FoldedMemory memory(kSizes[4]);
  ASSERT_EQ(::ftruncate(file_.get(), 6 * kGiB), 0);
  Queue queue = this->queue(file_.get(), 8 * kGiB);
  for (const Bytes bytes : kSizes) {
    fill(memory.period(), 1);
    const VolumeCounters before = queue.counters();
    ASSERT_OK(move(queue, IoOperation::kRead, memory.data(), bytes, 4 * kKiB));
    const VolumeCounters after = queue.counters();
    EXPECT_EQ(after.read_bytes - before.read_bytes, bytes);
    const bool is_cut = !GetParam().in_memory && bytes >= 2 * kGiB;
    EXPECT_EQ(after.short_transfers > before.short_transfers, is_cut) << bytes;
    for (const std::byte byte : memory.period()) ASSERT_EQ(byte, std::byte{0}) << "a hole reads as zeros";
  }
}

TEST_P(LargeTransfer, AWriteOfAnySizeIsCountedWhole) {
  if (GetParam().in_memory) return;  // the next test writes to memory and reads it back
  const FoldedMemory memory(kSizes[4]);
  const UniqueFd sink(::open("/dev/null", O_RDWR | O_CLOEXEC));
  Queue queue = this->queue(sink.get(), 8 * kGiB);
  Bytes total = 0;
  for (const Bytes bytes : kSizes) {
    ASSERT_OK(move(queue, IoOperation::kWrite, memory.data(), bytes, 0));
    total += bytes;
    EXPECT_EQ(queue.counters().written_bytes, total);
  }
}

TEST_P(LargeTransfer, BytesWrittenBeyondFourGiBComeBack) {
  if (!GetParam().in_memory) return;  // the contract suite does this with one block on a disk
  const FoldedMemory out(kSizes[4]);
  const FoldedMemory in(kSizes[4]);
  fill(out.period(), 2);
  Queue queue = this->queue(file_.get(), 64 * kMiB);
  for (const Bytes bytes : {kSizes[2], kSizes[4]}) {
    const std::int64_t offset = 3 * kGiB + 4 * kKiB;
    ASSERT_OK(move(queue, IoOperation::kWrite, out.data(), bytes, offset));
    fill(in.period(), 3);
    ASSERT_OK(move(queue, IoOperation::kRead, in.data(), bytes, offset));
    ASSERT_EQ(std::memcmp(in.data(), out.data(), static_cast<std::size_t>(FoldedMemory::kPeriod)), 0) << bytes;
    // One block at the very end, where nothing has been read over it.
    fill(in.period(), 3);
    ASSERT_OK(move(queue, IoOperation::kRead, in.data(), 4096, offset + bytes - 4096));
    EXPECT_EQ(std::memcmp(in.data(), out.data() + (bytes - 4096) % FoldedMemory::kPeriod, 4096), 0) << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LargeTransfer, ::testing::ValuesIn(test_backends()), test_backend_name);

}  // namespace
}  // namespace headrace::io
