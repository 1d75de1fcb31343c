// SPDX-License-Identifier: Apache-2.0
#include "core/host_slab.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/process.h"

namespace headrace {
namespace {

bool instrumented() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return true;
#endif
#endif
  return false;
}

Bytes held() {
  const Result<ProcessMemory> memory = process_memory();
  EXPECT_TRUE(memory.ok());
  return memory->resident + memory->huge_pages;
}

std::int64_t pages_present(const HostSlab& slab) {
  std::vector<unsigned char> present(static_cast<std::size_t>(ceil_div(std::ssize(slab.bytes()), 4096)));
  EXPECT_EQ(mincore(slab.bytes().data(), slab.bytes().size(), present.data()), 0);
  return std::count_if(present.begin(), present.end(), [](unsigned char page) { return (page & 1U) != 0; });
}

class HostSlabOfKind : public ::testing::TestWithParam<PageKind> {};

TEST_P(HostSlabOfKind, IsAlignedZeroedAndWhollyPresent) {
  for (const Bytes bytes : {Bytes{1}, Bytes{4096}, 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 12345}) {
    Result<HostSlab> slab = HostSlab::allocate(bytes, {GetParam(), true});
    ASSERT_TRUE(slab.ok()) << slab.error().to_string();
    EXPECT_EQ(std::ssize(slab->bytes()), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab->bytes().data()) % HostSlab::kAlignment, 0U);
    EXPECT_EQ(pages_present(*slab), ceil_div(bytes, 4096)) << slab->describe();
    EXPECT_TRUE(std::all_of(slab->bytes().begin(), slab->bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_GE(static_cast<int>(slab->page_kind()), static_cast<int>(GetParam())) << "pages better than asked for";
  }
}

TEST_P(HostSlabOfKind, HoldsNoMoreThanItsBytesAndGivesThemBack) {
  if (instrumented()) GTEST_SKIP() << "a sanitizer's own memory is in the sum";
  constexpr Bytes kSize = 67 * kMiB + 4097;
  const Bytes before = held();
  {
    Result<HostSlab> slab = HostSlab::allocate(kSize, {GetParam(), true});
    ASSERT_TRUE(slab.ok()) << slab.error().to_string();
    EXPECT_GE(held() - before, kSize - 2 * kMiB);
    EXPECT_LE(held() - before, kSize + 2 * kMiB) << slab->describe();
  }
  EXPECT_LE(held() - before, 2 * kMiB);
}

std::string kind_name(const ::testing::TestParamInfo<PageKind>& kind) {
  switch (kind.param) {
    case PageKind::kExplicitHuge: return "ExplicitHuge";
    case PageKind::kTransparentHuge: return "TransparentHuge";
    case PageKind::kOrdinary: return "Ordinary";
  }
  return "Unknown";
}
INSTANTIATE_TEST_SUITE_P(Kinds, HostSlabOfKind,
                         ::testing::Values(PageKind::kExplicitHuge, PageKind::kTransparentHuge, PageKind::kOrdinary),
                         kind_name);

TEST(HostSlab, NoBytesAreNoMapping) {
  Result<HostSlab> slab = HostSlab::allocate(0);
  ASSERT_TRUE(slab.ok());
  EXPECT_TRUE(slab->bytes().empty());
  EXPECT_EQ(slab->describe(), "no buffers");
}

TEST(HostSlab, MovesWithoutMovingItsMemory) {
  Result<HostSlab> made = HostSlab::allocate(3 * kMiB);
  ASSERT_TRUE(made.ok());
  std::byte* place = made->bytes().data();
  place[7] = std::byte{42};
  HostSlab first = std::move(made).value();
  HostSlab second;
  second = std::move(first);
  EXPECT_EQ(second.bytes().data(), place);
  EXPECT_EQ(second.bytes()[7], std::byte{42});
}

TEST(HostSlab, SaysWhatWasWantedWhenTheSystemRefuses) {
  constexpr Bytes kTooMuch = Bytes{1} << 60;
  const Result<HostSlab> slab = HostSlab::allocate(kTooMuch);
  ASSERT_FALSE(slab.ok());
  EXPECT_EQ(slab.error().code, ErrorCode::kPreflight);
  EXPECT_NE(slab.error().message.find("1 EiB"), std::string::npos) << slab.error().message;
  EXPECT_NE(slab.error().message.find("Cannot allocate memory"), std::string::npos) << slab.error().message;
  EXPECT_FALSE(slab.error().hint.empty());
}

TEST(HostSlab, TellsOrdinaryPagesAndAskedForLocking) {
  Result<HostSlab> slab = HostSlab::allocate(kMiB, {PageKind::kOrdinary, false});
  ASSERT_TRUE(slab.ok());
  EXPECT_FALSE(slab->locked());
  EXPECT_EQ(slab->describe(), "buffers on ordinary pages, not locked: not asked for");
  Result<HostSlab> small = HostSlab::allocate(kMiB, {PageKind::kTransparentHuge, false});
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->page_kind(), PageKind::kOrdinary);
  EXPECT_NE(small->describe().find("ordinary pages ("), std::string::npos) << small->describe();
}

// In a child, because a lowered limit cannot be raised again. A privileged process locks beyond the limit: then that is
// told.
[[noreturn]] void lock_under_a_small_limit() {
  const rlimit limit{8 * kMiB, 8 * kMiB};
  setrlimit(RLIMIT_MEMLOCK, &limit);
  const Result<HostSlab> slab = HostSlab::allocate(16 * kMiB);
  const std::string line = slab.ok() ? slab->describe() : slab.error().to_string();
  const std::string expected =
      slab.ok() && slab->locked() ? ", locked" : ", not locked: limit 8 MiB; fix: ulimit -l unlimited";
  std::fputs(line.c_str(), stderr);
  std::_Exit(line.ends_with(expected) ? 0 : 1);
}

TEST(HostSlabDeathTest, NamesTheLockLimitAndTheFix) {
  EXPECT_EXIT(lock_under_a_small_limit(), ::testing::ExitedWithCode(0), "buffers on");
}

}  // namespace
}  // namespace headrace
