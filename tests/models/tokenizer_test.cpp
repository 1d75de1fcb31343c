// SPDX-License-Identifier: Apache-2.0
#include "models/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "models/tokenizer/byte_tokenizer.h"

namespace headrace::models {
namespace {

using ::testing::HasSubstr;

TEST(Tokenizer, IsFoundByNameAndAnUnknownNameListsTheKnownOnes) {
  const auto bytes = find_tokenizer("bytes");
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, &byte_tokenizer());
  const auto unknown = find_tokenizer("Bytes");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kConfig);
  EXPECT_THAT(unknown.error().message, HasSubstr("\"Bytes\" is unknown"));
  EXPECT_THAT(unknown.error().hint, HasSubstr("bytes"));
}

TEST(ByteTokenizer, MapsEveryByteToItsValueAndBack) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const auto ids = byte_tokenizer().encode(text);
  ASSERT_EQ(ids.size(), 256U);
  for (std::int32_t i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(byte_tokenizer().decode(ids).value(), text);
  std::array<std::int32_t, 256> stored{};
  byte_tokenizer().from_stored(std::as_bytes(std::span(text)), stored);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), stored.begin()));
  EXPECT_TRUE(byte_tokenizer().encode("").empty());
}

TEST(ByteTokenizer, RefusesIdsThatAreNoBytes) {
  for (const std::int32_t id : {-1, 256}) {
    const auto text = byte_tokenizer().decode(std::array{id});
    ASSERT_FALSE(text.ok());
    EXPECT_THAT(text.error().message, HasSubstr(std::to_string(id)));
  }
}

}  // namespace
}  // namespace headrace::models
