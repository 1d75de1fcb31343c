// SPDX-License-Identifier: Apache-2.0
#include "core/bytes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TEST(Bytes, RoundsUpToAnyAlignment) {
  EXPECT_EQ(round_up(0, 4096), 0);
  EXPECT_EQ(round_up(1, 4096), 4096);
  EXPECT_EQ(round_up(4096, 4096), 4096);
  EXPECT_EQ(round_up(10, 3), 12);
  EXPECT_EQ(ceil_div(0, 7), 0);
  EXPECT_EQ(ceil_div(14, 7), 2);
  EXPECT_EQ(ceil_div(15, 7), 3);
}

TEST(ParseBytes, ReadsUnitsOfBothKinds) {
  const std::vector<std::pair<const char*, Bytes>> cases{
      {"0", 0},
      {"123", 123},
      {"512 B", 512},
      {"160MiB", 160 * kMiB},
      {"1.5GiB", kGiB + 512 * kMiB},
      {"400M", 400 * kMiB},
      {"400m", 400 * kMiB},
      {"2k", 2 * kKiB},
      {"1T", 1024 * kGiB},
      {"2tib", 2048 * kGiB},
      {"500MB", 500'000'000},
      {"1kb", 1000},
      {"3gB", 3'000'000'000},
      {"1TB", 1'000'000'000'000},
      {"2.66 GiB", 2'856'153'252},
      {"0.5", 1},
      {"4611686018427387904", Bytes{1} << 62},
      {"9007199254740993", 9007199254740993},  // not a double
  };
  for (const auto& [text, bytes] : cases) {
    const Result<Bytes> parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.error().to_string();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytes, RefusesEverythingElseAndNamesIt) {
  for (const char* text : {"",
                           "M",
                           "-1",
                           "+1",
                           "1.2.3",
                           "1.",
                           ".5",
                           "1 0",
                           "1MiBs",
                           "1bi",
                           "1Ki",
                           "1e9",
                           "1  MiB",
                           " 1",
                           "1 ",
                           "0x10",
                           "1P",
                           "inf",
                           "nan",
                           "auto",
                           "4611686018427387905",
                           "4194305T",
                           "99999999999999999999",
                           "9e99GiB",
                           "5000000000000000000.5"}) {
    const Result<Bytes> parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.ok()) << text << " became " << *parsed;
    EXPECT_EQ(parsed.error().code, ErrorCode::kConfig);
    EXPECT_NE(parsed.error().message.find(text), std::string::npos) << parsed.error().message;
  }
}

TEST(FormatBytes, KeepsThreeDigitsAndAUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(158 * kMiB), "158 MiB");
  EXPECT_EQ(format_bytes(158 * kMiB + 300 * kKiB), "158 MiB");
  EXPECT_EQ(format_bytes(2'856'153'252), "2.66 GiB");
  EXPECT_EQ(format_bytes(12 * kGiB + 512 * kMiB), "12.5 GiB");
  EXPECT_EQ(format_bytes(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(-3 * kMiB), "-3 MiB");
  EXPECT_EQ(format_bytes(Bytes{1} << 62), "4 EiB");
}

TEST(FormatBytes, ComesBackWithinHalfAPercent) {
  for (Bytes bytes = 1; bytes < (Bytes{1} << 41); bytes = bytes * 3 + 1) {
    const Result<Bytes> back = parse_bytes(format_bytes(bytes));
    ASSERT_TRUE(back.ok()) << format_bytes(bytes);
    EXPECT_NEAR(static_cast<double>(*back), static_cast<double>(bytes), 0.0051 * static_cast<double>(bytes))
        << format_bytes(bytes);
  }
}

TEST(FormatRate, UsesDecimalUnits) {
  EXPECT_EQ(format_rate(1.73e9), "1.73 GB/s");
  EXPECT_EQ(format_rate(999.6e6), "1.00 GB/s");
  EXPECT_EQ(format_rate(12), "12 B/s");
  EXPECT_EQ(format_rate(0), "0 B/s");
  EXPECT_EQ(format_rate(std::numeric_limits<double>::infinity()), "unknown rate");
}

}  // namespace
}  // namespace headrace
