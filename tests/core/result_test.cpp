// SPDX-License-Identifier: Apache-2.0
#include "core/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace headrace {
namespace {

TEST(ErrorCodes, MapToTheExitCodesOfTheCommandLine) {
  EXPECT_EQ(exit_code(ErrorCode::kFailed), 1);
  EXPECT_EQ(exit_code(ErrorCode::kUsage), 2);
  EXPECT_EQ(exit_code(ErrorCode::kConfig), 3);
  EXPECT_EQ(exit_code(ErrorCode::kDoesNotFit), 4);
  EXPECT_EQ(exit_code(ErrorCode::kPreflight), 4);
  EXPECT_EQ(exit_code(ErrorCode::kIo), 5);
  EXPECT_EQ(exit_code(ErrorCode::kNumeric), 6);
  EXPECT_EQ(exit_code(ErrorCode::kCommunication), 7);
  EXPECT_EQ(exit_code(ErrorCode::kStopped), 75);
  EXPECT_STREQ(error_code_name(ErrorCode::kDoesNotFit), "does_not_fit");
  EXPECT_STREQ(error_code_name(ErrorCode::kIo), "io");
}

TEST(Error, WritesPositionMessageAndIndentedHint) {
  Error error = make_error(ErrorCode::kConfig, "unknown key \"stpes\"", "did you mean \"steps\"?\nsee config explain");
  EXPECT_EQ(error.to_string(), "unknown key \"stpes\"\n  did you mean \"steps\"?\n  see config explain");
  error.file = "run.json";
  error.line = 14;
  error.column = 5;
  error.hint.clear();
  EXPECT_EQ(error.to_string(), "run.json:14:5: unknown key \"stpes\"");
  error.line = 0;
  EXPECT_EQ(error.to_string(), "run.json: unknown key \"stpes\"");
}

Result<int> halve(int value) {
  if (value % 2 != 0) return make_error(ErrorCode::kNumeric, "odd");
  return value / 2;
}

Result<int> quarter(int value) {
  HEADRACE_TRY(const int half, halve(value));
  HEADRACE_TRY(const int result, halve(half));
  return result;
}

Result<void> must_halve(int value) {
  HEADRACE_RETURN_IF_ERROR(halve(value));
  return {};
}

TEST(Result, CarriesAValueThroughTry) {
  const Result<int> result = quarter(12);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, 3);
  EXPECT_TRUE(must_halve(4).ok());
}

TEST(Result, CarriesTheFirstErrorThroughTry) {
  const Result<int> result = quarter(6);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kNumeric);
  EXPECT_EQ(result.error().message, "odd");
  const Result<void> status = must_halve(5);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "odd");
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(Result, ThrowsWhenTheValueOfAnErrorIsAskedFor) {
  Result<int> result = make_error(ErrorCode::kFailed, "no value");
  EXPECT_THROW(static_cast<void>(result.value()), std::bad_variant_access);
}

}  // namespace
}  // namespace headrace
