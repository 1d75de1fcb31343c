// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace headrace {
namespace {

nlohmann::json reference() {
  const char* folder = std::getenv("HEADRACE_REFERENCE");
  const std::string path = std::string(folder == nullptr ? "tests/reference" : folder) + "/rounding.json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path + "; set HEADRACE_REFERENCE");
  return nlohmann::json::parse(file);
}

std::uint32_t hex(const nlohmann::json& value) {
  return static_cast<std::uint32_t>(std::stoul(value.get<std::string>(), nullptr, 16));
}

TEST(Dtype, NamesAndSizesComeBack) {
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
  EXPECT_FALSE(parse_dtype("float"));
  EXPECT_EQ(dtype_bytes(DType::kFp32), 4);
  EXPECT_EQ(dtype_bytes(DType::kBf16), 2);
  EXPECT_EQ(dtype_bytes(DType::kFp16), 2);
}

TEST(Dtype, RoundsEveryReferenceCaseExactly) {
  const nlohmann::json cases = reference().at("cases");
  ASSERT_EQ(cases.size(), 582U);
  int nans = 0;
  for (const nlohmann::json& item : cases) {
    const std::uint32_t bits = hex(item.at("f32"));
    const auto value = std::bit_cast<float>(bits);
    if (item.value("nan", false)) {
      ++nans;
      const std::uint32_t sign = bits >> 31;
      EXPECT_EQ(to_bf16(value).bits & 0x7F80U, 0x7F80U) << item;
      EXPECT_NE(to_bf16(value).bits & 0x7FU, 0U) << item;
      EXPECT_EQ(to_bf16(value).bits >> 15, sign) << item;
      EXPECT_EQ(to_fp16(value).bits & 0x7C00U, 0x7C00U) << item;
      EXPECT_NE(to_fp16(value).bits & 0x3FFU, 0U) << item;
      EXPECT_EQ(to_fp16(value).bits >> 15, sign) << item;
    }
    EXPECT_EQ(to_bf16(value).bits, hex(item.at("bf16"))) << item;  // for a NaN: what the hardware gives
    EXPECT_EQ(to_fp16(value).bits, hex(item.at("fp16"))) << item;
    const SplitMaster split = split_master(value);
    EXPECT_EQ(split.hi, hex(item.at("split").at("hi"))) << item;
    EXPECT_EQ(split.lo, item.at("split").at("lo_int").get<int>()) << item;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(join_master(split)), bits) << item;
  }
  EXPECT_GT(nans, 0);
}

TEST(SplitMaster, TellsApartWhatRoundToNearestEvenWouldMerge) {
  const nlohmann::json pairs = reference().at("split_master").at("rne_collisions");
  ASSERT_GE(pairs.size(), 5U);
  for (const nlohmann::json& pair : pairs) {
    const auto first = std::bit_cast<float>(hex(pair.at("w1")));
    const auto second = std::bit_cast<float>(hex(pair.at("w2")));
    EXPECT_EQ(to_bf16(first).bits, to_bf16(second).bits) << "not a collision: " << pair;
    const SplitMaster a = split_master(first);
    const SplitMaster b = split_master(second);
    EXPECT_FALSE(a.hi == b.hi && a.lo == b.lo) << pair;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(join_master(a)), std::bit_cast<std::uint32_t>(first));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(join_master(b)), std::bit_cast<std::uint32_t>(second));
  }
}

TEST(SplitMaster, BringsBackAStridedSampleOfAllPatterns) {
  constexpr std::uint64_t kStride = 4099;  // prime: all residues of the low half come by
  for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += kStride) {
    const auto bits = static_cast<std::uint32_t>(pattern);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(join_master(split_master(std::bit_cast<float>(bits)))), bits)
        << std::hex << bits;
  }
}

TEST(Fp16, ComesBackFromFp32ForAllPatterns) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Fp16 value{static_cast<std::uint16_t>(bits)};
    const bool nan = (bits & 0x7C00U) == 0x7C00U && (bits & 0x3FFU) != 0;
    ASSERT_EQ(to_fp16(to_fp32(value)).bits, nan ? bits | 0x200U : bits) << std::hex << bits;
  }
}

TEST(Bf16, ComesBackFromFp32ForAllPatterns) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    const bool nan = (bits & 0x7F80U) == 0x7F80U && (bits & 0x7FU) != 0;
    ASSERT_EQ(to_bf16(to_fp32(value)).bits, nan ? bits | 0x40U : bits) << std::hex << bits;
  }
}

// The nearest fp16 of a value between two neighbours is one of them, and the even one at the middle.
TEST(Fp16, TakesTheNearerNeighbourAndTheEvenOneAtTheMiddle) {
  for (std::uint32_t bits = 0; bits < 0x7BFFU; ++bits) {
    const float below = to_fp32(Fp16{static_cast<std::uint16_t>(bits)});
    const float above = to_fp32(Fp16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = below + (above - below) / 2;  // exact: fp32 has 13 more bits
    ASSERT_EQ(to_fp16(middle).bits, bits + (bits & 1U)) << std::hex << bits;
    ASSERT_EQ(to_fp16(std::nextafterf(middle, below)).bits, bits) << std::hex << bits;
    ASSERT_EQ(to_fp16(std::nextafterf(middle, above)).bits, bits + 1) << std::hex << bits;
  }
}

}  // namespace
}  // namespace headrace
