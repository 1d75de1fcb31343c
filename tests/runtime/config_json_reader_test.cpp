// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace headrace::config {
namespace {

using ::testing::HasSubstr;

Error error_of(std::string_view text) {
  const Result<JsonValue> result = parse_json(text, "run.json");
  EXPECT_FALSE(result.ok()) << text;
  return result.ok() ? Error{} : result.error();
}

void expect_position(std::string_view text, int line, int column, const std::string& message) {
  const Error error = error_of(text);
  EXPECT_EQ(error.code, ErrorCode::kConfig);
  EXPECT_EQ(error.file, "run.json");
  EXPECT_EQ(error.line, line) << text;
  EXPECT_EQ(error.column, column) << text;
  EXPECT_THAT(error.message, HasSubstr(message)) << text;
}

TEST(JsonReader, ReadsEveryKindOfValue) {
  const auto json = parse_json(R"({"a": null, "b": [true, false, -1.5e+3], "c": {"d": "x"}, "e": []})", "f");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(to_json_text(*json), R"({"a":null,"b":[true,false,-1.5e+3],"c":{"d":"x"},"e":[]})");
}

TEST(JsonReader, TakesCommentsTrailingCommasAndByteOrderMark) {
  const auto json =
      parse_json("\xEF\xBB\xBF// one\n# two\n{ /* three\n */ \"a\" /**/ : 1, // x\n \"b\": [1, 2,], }\n# end", "f");
  ASSERT_TRUE(json.ok()) << json.error().to_string();
  EXPECT_EQ(to_json_text(*json), R"({"a":1,"b":[1,2]})");
  EXPECT_EQ(json->find("b")->position.line, 5);
  EXPECT_EQ(json->find("b")->position.column, 2);
}

TEST(JsonReader, DecodesEscapesAndSurrogatePairs) {
  const auto json = parse_json(R"(["\"\\\/\b\f\n\r\t", "\u00e9\u20AC\ud83d\ude00", "é€😀"])", "f");
  ASSERT_TRUE(json.ok()) << json.error().to_string();
  EXPECT_EQ(json->elements[0].text, "\"\\/\b\f\n\r\t");
  EXPECT_EQ(json->elements[1].text, "é€😀");
  EXPECT_EQ(json->elements[1].text, json->elements[2].text);
}

TEST(JsonReader, CountsLinesAndCodePoints) {
  expect_position("{\n\t\t\"a\": x}", 2, 8, "\"x\" is not a JSON value");
  expect_position("{\r\n  \"a\": x}", 2, 8, "is not a JSON value");
  expect_position("{\r  \"a\": x}", 2, 8, "is not a JSON value");
  expect_position("{\n\r\n\n  \"a\": x}", 4, 8, "is not a JSON value");
  expect_position("{\"é€😀\": x}", 1, 9, "is not a JSON value");
  expect_position("\xEF\xBB\xBF{\"a\": x}", 1, 7, "is not a JSON value");
  expect_position("/* é\n é */ x", 2, 7, "is not a JSON value");
}

TEST(JsonReader, NamesBothPlacesOfADuplicateKey) {
  expect_position("{\n  \"steps\": 1,\n  \"b\": {\"steps\": 2},\n  \"steps\": 3\n}", 4, 3,
                  "duplicate key \"steps\": it already stands at 2:3");
  EXPECT_TRUE(parse_json(R"({"a": {"x": 1}, "b": {"x": 1}})", "f").ok());
  expect_position(R"({"a": 1, "\u0061": 2})", 1, 10, "duplicate key \"a\"");
}

TEST(JsonReader, RefusesWhatIsNotJson) {
  expect_position("", 1, 1, "empty");
  expect_position("  // only\n", 2, 1, "empty");
  expect_position("{", 1, 1, "never closed");
  expect_position("{\"a\": 1", 1, 1, "never closed");
  expect_position("{\"a\": 1,", 1, 1, "never closed");
  expect_position("{\"a\": [1, 2", 1, 7, "list is never closed");
  expect_position("{\"a\" 1}", 1, 6, "expected ':'");
  expect_position("{\"a\": 1 \"b\": 2}", 1, 9, "expected ','");
  expect_position("{a: 1}", 1, 2, "double quotes");
  expect_position("{'a': 1}", 1, 2, "double quotes");
  expect_position("{\"a\": 'b'}", 1, 7, "double quotes");
  expect_position("{,}", 1, 2, "expected a key");
  expect_position("{\"a\": 1,,}", 1, 9, "two commas");
  expect_position("{\"a\": \"b\n\"}", 1, 7, "not closed");
  expect_position("{} x", 1, 4, "after the end");
  expect_position("/* a", 1, 1, "never closed");
  expect_position("/", 1, 1, "expected a value");
  expect_position("{\"a\": \"\\x\"}", 1, 8, "unknown escape");
  expect_position("{\"a\": \"\\u12g4\"}", 1, 8, "four hexadecimal");
  expect_position("{\"a\": \"\\ud800x\"}", 1, 8, "surrogate");
  expect_position("{\"a\": \"\\udc00\"}", 1, 8, "surrogate");
  expect_position("{\"a\": \"\\u0000\"}", 1, 8, "zero byte");
  expect_position("{\"a\": \"\x01\"}", 1, 8, "byte 0x01");
  expect_position("{\"a\": \"b\xC0\x80\"}", 1, 9, "not valid UTF-8");
  expect_position("{\"a\": \"\xED\xA0\x80\"}", 1, 8, "not valid UTF-8");
  expect_position("\xFF\xFE{\x00", 1, 1, "UTF-16");
  expect_position(std::string_view("{\0}", 3), 1, 2, "byte 0x00");
}

TEST(JsonReader, RefusesNumbersThatJsonDoesNotHave) {
  for (const char* number :
       {"+1", ".5", "1.", "01", "-", "0x10", "1e", "1e+", "1_000", "--1", "1.2.3", "160MiB", "1e5e5"}) {
    expect_position(std::string("{\"a\": ").append(number).append("}"), 1, 7, "is not a JSON number");
  }
  for (const char* number :
       {"0", "-0", "10", "1.5", "1e9", "5E8", "1e+3", "1e-3", "0.001", "1e400", "NaN", "-Infinity"}) {
    const auto json = parse_json(std::string("[").append(number).append("]"), "f");
    ASSERT_TRUE(json.ok()) << number;
    EXPECT_EQ(json->elements[0].text, number);
  }
}

TEST(JsonReader, SuggestsTheRightWord) {
  EXPECT_EQ(error_of("{\"a\": True}").hint, "write true");
  EXPECT_EQ(error_of("{\"a\": None}").hint, "write null, or leave the key out");
}

TEST(JsonReader, LimitsTheDepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth + 1), "f").ok());
  EXPECT_THAT(error_of(nested(kMaxJsonDepth + 2)).message, HasSubstr("levels deep"));
  EXPECT_THAT(error_of(std::string(1'000'000, '[')).message, HasSubstr("levels deep"));
}

}  // namespace
}  // namespace headrace::config
