// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/step_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headrace::runtime {
namespace {

constexpr std::int64_t kTiles = 21;  // not a whole number of bytes

StepRecord sample_record() {
  StepRecord record;
  record.step = 1;
  record.optimizer_step = 0x1122334455667788;
  record.samples_consumed = 3;
  record.skipped_steps = 4;
  record.skipped_in_a_row = 5;
  record.state_version = std::numeric_limits<std::uint64_t>::max();
  record.state_attempt = std::numeric_limits<std::uint32_t>::max();
  record.attempt = 7;
  record.loss_scale = std::ldexp(1.0, -20);
  record.loss_scale_good_steps = 8;
  record.loss_scale_hysteresis = 9;
  record.metrics_row = "{\"step\":1,\"loss\":null}\xC3\xA9";
  for (std::int64_t i = 0; i < kTiles; ++i) record.current_slot.push_back(i % 3 == 0);
  return record;
}

void expect_equal(const StepRecord& a, const StepRecord& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.optimizer_step, b.optimizer_step);
  EXPECT_EQ(a.samples_consumed, b.samples_consumed);
  EXPECT_EQ(a.skipped_steps, b.skipped_steps);
  EXPECT_EQ(a.skipped_in_a_row, b.skipped_in_a_row);
  EXPECT_EQ(a.state_version, b.state_version);
  EXPECT_EQ(a.state_attempt, b.state_attempt);
  EXPECT_EQ(a.attempt, b.attempt);
  EXPECT_EQ(a.loss_scale, b.loss_scale);
  EXPECT_EQ(a.loss_scale_good_steps, b.loss_scale_good_steps);
  EXPECT_EQ(a.loss_scale_hysteresis, b.loss_scale_hysteresis);
  EXPECT_EQ(a.metrics_row, b.metrics_row);
  EXPECT_EQ(a.current_slot, b.current_slot);
}

TEST(StepRecord, ComesBackFieldByField) {
  const StepRecord record = sample_record();
  const auto decoded = decode_step_record(encode(record), kTiles);
  ASSERT_TRUE(decoded.ok()) << decoded.error().to_string();
  expect_equal(*decoded, record);
}

TEST(StepRecord, ComesBackForEveryRemainderOfTilesIncludingNone) {
  for (std::int64_t tiles = 0; tiles <= 17; ++tiles) {
    StepRecord record;
    for (std::int64_t i = 0; i < tiles; ++i) record.current_slot.push_back(i % 2 == 0);
    const auto decoded = decode_step_record(encode(record), tiles);
    ASSERT_TRUE(decoded.ok()) << tiles << ": " << decoded.error().to_string();
    expect_equal(*decoded, record);
  }
}

TEST(StepRecord, TheCapacityIsExactlyThatOfTheLargestRecord) {
  for (const std::int64_t tiles : {0, 1, 8, 9, 100'000}) {
    StepRecord record;
    record.metrics_row.assign(static_cast<std::size_t>(kMaxMetricsRowBytes), 'x');
    record.current_slot.assign(static_cast<std::size_t>(tiles), true);
    const std::vector<std::byte> bytes = encode(record);
    EXPECT_EQ(static_cast<Bytes>(bytes.size()), step_record_capacity(tiles)) << tiles;
    const auto decoded = decode_step_record(bytes, tiles);
    ASSERT_TRUE(decoded.ok()) << tiles;
    expect_equal(*decoded, record);
  }
}

TEST(StepRecord, EveryTruncationAndEveryExtensionIsAnError) {
  const std::vector<std::byte> whole = encode(sample_record());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    const auto decoded = decode_step_record(cut, kTiles);
    ASSERT_FALSE(decoded.ok()) << length << " of " << whole.size() << " bytes";
    EXPECT_EQ(decoded.error().code, ErrorCode::kIo);
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_step_record(longer, kTiles).ok());
}

TEST(StepRecord, AnotherNumberOfTilesIsAnErrorThatNamesBoth) {
  const auto decoded = decode_step_record(encode(sample_record()), kTiles + 1);  // as many bytes of bitmap
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::kIo);
  EXPECT_NE(decoded.error().message.find("21"), std::string::npos);
  EXPECT_NE(decoded.error().message.find("22"), std::string::npos);
}

// The payload's checksum is io's; here a damaged byte must end in an error or in a value, whatever it is.
TEST(StepRecord, EveryDamagedByteDecodesToAnErrorOrAValueThatEncodesAgain) {
  const std::vector<std::byte> whole = encode(sample_record());
  std::size_t errors = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const unsigned flip : {0x01U, 0x80U, 0xFFU}) {
      std::vector<std::byte> damaged = whole;
      damaged[i] ^= static_cast<std::byte>(flip);
      const auto decoded = decode_step_record(damaged, kTiles);
      if (!decoded.ok()) {
        EXPECT_EQ(decoded.error().code, ErrorCode::kIo);
        ++errors;
      } else {
        EXPECT_EQ(decoded->current_slot.size(), static_cast<std::size_t>(kTiles));
        EXPECT_EQ(encode(*decoded).size(), whole.size());
      }
    }
  }
  EXPECT_GE(errors, 3U * 8U);  // every byte of the format word at least
}

TEST(StepRecord, LengthsThatWouldOverflowAreErrors) {
  const std::vector<std::byte> whole = encode(sample_record());
  constexpr std::size_t kTilesAt = 12 * 8, kRowAt = 13 * 8;
  for (const std::size_t at : {kTilesAt, kRowAt}) {
    std::vector<std::byte> damaged = whole;
    std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(at), 8, std::byte{0xFF});
    EXPECT_FALSE(decode_step_record(damaged, kTiles).ok()) << "byte " << at;
  }
}

}  // namespace
}  // namespace headrace::runtime
