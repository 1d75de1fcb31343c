// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/hash_target.h"
#include "core/random.h"
#include "core/topology.h"

namespace headrace {
namespace {

// The buffer of xxHash's own sanity check (xsum_sanity_check.c).
std::vector<std::byte> sanity_buffer(std::size_t bytes) {
  std::vector<std::byte> buffer(bytes);
  std::uint64_t generator = 2654435761U;
  for (std::byte& value : buffer) {
    value = static_cast<std::byte>(generator >> 56);
    generator *= 11400714785074694797ULL;
  }
  return buffer;
}

std::vector<std::byte> random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> data(bytes);
  const CounterRng rng(seed, 1);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(rng.bits(i) & 0xFFU);
  return data;
}

struct Vector {
  std::size_t bytes;
  std::uint64_t seed;
  std::uint64_t hash;
};

TEST(Xxh3, GivesThePublishedValues) {
  const std::vector<std::byte> buffer = sanity_buffer(2367);
  constexpr std::uint64_t kSeed = 0x9E3779B185EBCA8DULL;
  for (const Vector& vector :
       std::vector<Vector>{{0, 0, 0x2D06800538D394C2ULL},    {0, kSeed, 0xA8A6B918B2F0364AULL},
                           {1, 0, 0xC44BDFF4074EECDBULL},    {1, kSeed, 0x032BE332DD766EF8ULL},
                           {6, 0, 0x27B56A84CD2D7325ULL},    {6, kSeed, 0x84589C116AB59AB9ULL},
                           {12, 0, 0xA713DAF0DFBB77E7ULL},   {12, kSeed, 0xE7303E1B2336DE0EULL},
                           {24, 0, 0xA3FE70BF9D3510EBULL},   {24, kSeed, 0x850E80FC35BDD690ULL},
                           {48, 0, 0x397DA259ECBA1F11ULL},   {48, kSeed, 0xADC2CBAA44ACC616ULL},
                           {80, 0, 0xBCDEFBBB2C47C90AULL},   {80, kSeed, 0xC6DD0CB699532E73ULL},
                           {195, 0, 0xCD94217EE362EC3AULL},  {195, kSeed, 0xBA68003D370CB3D9ULL},
                           {403, 0, 0xCDEB804D65C6DEA4ULL},  {403, kSeed, 0x6259F6ECFD6443FDULL},
                           {512, 0, 0x617E49599013CB6BULL},  {512, kSeed, 0x3CE457DE14C27708ULL},
                           {2048, 0, 0xDD59E2C3A5F038E0ULL}, {2048, kSeed, 0x66F81670669ABABCULL},
                           {2367, 0, 0xCB37AEB9E5D361EDULL}, {2367, kSeed, 0xD2DB3415B942B42AULL}}) {
    EXPECT_EQ(xxh3_64(std::span(buffer).first(vector.bytes), vector.seed), vector.hash)
        << vector.bytes << " bytes, seed " << vector.seed;
  }
}

TEST(Xxh3Stream, EqualsOneCallHoweverItIsCut) {
  const std::uint64_t seed = 20260301;
  const std::vector<std::byte> data = random_bytes(300'000, seed);
  const CounterRng cuts(seed, 2);
  for (const std::size_t bytes : {0UL, 1UL, 63UL, 64UL, 240UL, 241UL, 256UL, 1024UL, 4096UL, 65'537UL, 300'000UL}) {
    const auto whole = std::span(data).first(bytes);
    Xxh3Stream stream(7);
    std::size_t done = 0;
    for (std::uint64_t i = 0; done < bytes; ++i) {
      const std::size_t part = std::min<std::size_t>(bytes - done, cuts.bits(i) % 5000);
      stream.update(whole.subspan(done, part));
      done += part;
    }
    EXPECT_EQ(stream.digest(), xxh3_64(whole, 7)) << bytes << " bytes, random seed " << seed;
  }
}

TEST(Xxh3Stream, MayBeAskedOnTheWay) {
  const std::vector<std::byte> data = random_bytes(3000, 1);
  Xxh3Stream stream;
  stream.update(std::span(data).first(1000));
  EXPECT_EQ(stream.digest(), xxh3_64(std::span(data).first(1000)));
  stream.update(std::span(data).subspan(1000));
  EXPECT_EQ(stream.digest(), xxh3_64(data));
}

TEST(Xxh3, SeesEveryFlippedBit) {
  std::vector<std::byte> data = random_bytes(4096, 3);
  const std::uint64_t sound = xxh3_64(data);
  for (std::size_t bit = 0; bit < data.size() * 8; bit += 101) {
    data[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(xxh3_64(data), sound) << "bit " << bit;
    data[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

#if defined(__x86_64__)
TEST(HashTargets, AgreeOnEveryLength) {
  if (!cpu_features().avx2) GTEST_SKIP() << "this CPU has no AVX2";
  const std::vector<std::byte> data = random_bytes(20'000, 5);
  const auto& one = hash_detail::kBaselineTarget;
  const auto& other = hash_detail::kAvx2Target;
  EXPECT_EQ(one.state_bytes, other.state_bytes);
  for (std::size_t bytes = 0; bytes <= data.size(); bytes += bytes < 1100 ? 1 : 1237) {
    ASSERT_EQ(one.digest_once(data.data(), bytes, 9), other.digest_once(data.data(), bytes, 9)) << bytes;
  }
}
#endif

}  // namespace
}  // namespace headrace
