// SPDX-License-Identifier: Apache-2.0
// Values of every key of every table: types, ranges, and what is said about wrong ones.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/config/field.h"
#include "tests/runtime/config_support.h"

namespace headrace::config {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kNoSmallest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kNoLargest = std::numeric_limits<std::int64_t>::max();

std::vector<const Field*> all_fields(const AllTables& tables) {
  std::vector<const Field*> fields;
  for (const FieldTable* table : tables.get()) {
    for (const Field& field : table->fields()) {
      if (field.alias_of.empty()) fields.push_back(&field);
    }
  }
  return fields;
}

Result<FieldValue> check(const Field& field, const std::string& json_text) {
  std::vector<std::string> notes;
  const auto json = parse_json(json_text, "f");
  if (!json.ok()) return json.error();
  return check_value(field, *json, notes);
}

void expect_taken(const Field& field, const std::string& json) {
  const auto value = check(field, json);
  EXPECT_TRUE(value.ok()) << field.path << " = " << json << ": " << (value.ok() ? "" : value.error().message);
}

void expect_refused(const Field& field, const std::string& json) {
  const auto value = check(field, json);
  ASSERT_FALSE(value.ok()) << field.path << " = " << json;
  EXPECT_EQ(value.error().code, ErrorCode::kConfig);
  EXPECT_THAT(value.error().message, HasSubstr("\"" + field.path + "\" is ")) << json;
  EXPECT_THAT(value.error().message, HasSubstr("it takes ")) << json;
  EXPECT_FALSE(value.error().hint.empty()) << field.path;
}

TEST(Fields, EveryKeyHasWordsAndAValidDefault) {
  const AllTables tables;
  for (const Field* field : all_fields(tables)) {
    EXPECT_FALSE(field->doc.empty()) << field->path;
    EXPECT_TRUE(field->use == FieldUse::kUsed || !field->reason.empty()) << field->path;
    EXPECT_TRUE(field->use != FieldUse::kUsed || field->setter)
        << field->path << " is said to be used and goes nowhere";
    const auto value = default_value(*field);
    EXPECT_TRUE(value.ok()) << field->path << ": " << (value.ok() ? "" : value.error().message);
  }
}

TEST(Fields, IntegersEndAtTheirRange) {
  const AllTables tables;
  int tested = 0;
  for (const Field* field : all_fields(tables)) {
    if (field->type != FieldType::kInteger && field->type != FieldType::kBytes) continue;
    ++tested;
    ASSERT_NE(field->smallest, kNoSmallest) << field->path << " has no smallest value";
    expect_refused(*field, fmt::format("{}", field->smallest - 1));
    expect_taken(*field, fmt::format("{}", field->smallest));
    expect_taken(*field, fmt::format("{}", field->largest));
    if (field->largest != kNoLargest) expect_refused(*field, fmt::format("{}", field->largest + 1));
    expect_refused(*field, "9223372036854775808");
    for (const char* json : {"NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1.5", "1e-3", "true", "false",
                             "\"many\"", "\"\"", "[1]", "{}"}) {
      expect_refused(*field, json);
    }
    if (!field->allows_null) expect_refused(*field, "null");
    if (field->type == FieldType::kInteger) expect_refused(*field, "\"12\"");
  }
  EXPECT_GT(tested, 40);
}

TEST(Fields, NumbersEndAtTheirRange) {
  const AllTables tables;
  int tested = 0;
  for (const Field* field : all_fields(tables)) {
    if (field->type != FieldType::kNumber) continue;
    ++tested;
    ASSERT_TRUE(std::isfinite(field->minimum)) << field->path << " has no minimum";
    const double low = std::nextafter(field->minimum, -1e308);
    expect_refused(*field, low == 0 ? "-1e-300" : fmt::format("{}", std::abs(low) < 1e-300 ? -1e-300 : low));
    (field->above_minimum ? expect_refused : expect_taken)(*field, fmt::format("{}", field->minimum));
    if (std::isfinite(field->maximum)) {
      (field->below_maximum ? expect_refused : expect_taken)(*field, fmt::format("{}", field->maximum));
      expect_refused(*field, fmt::format("{}", std::nextafter(field->maximum, 1e308)));
    }
    for (const char* json : {"NaN", "Infinity", "-Infinity", "1e400", "-1e400", "true", "false", "\"0.5\"", "\"many\"",
                             "\"\"", "[1]", "{}"}) {
      expect_refused(*field, json);
    }
    if (!field->allows_null) expect_refused(*field, "null");
  }
  EXPECT_GE(tested, 10);
}

TEST(Fields, OtherTypesTakeOnlyTheirOwn) {
  const AllTables tables;
  for (const Field* field : all_fields(tables)) {
    switch (field->type) {
      case FieldType::kBool:
        expect_taken(*field, "true");
        for (const char* json : {"1", "0", "\"yes\"", "[]", "{}"}) expect_refused(*field, json);
        if (!field->text_booleans) expect_refused(*field, "\"true\"");
        break;
      case FieldType::kText:
      case FieldType::kTexts:
        expect_taken(*field, "\"x\"");
        for (const char* json : {"1", "true", "\"\"", "[]", "[\"\"]", "[1]", "{}"}) expect_refused(*field, json);
        break;
      case FieldType::kChoice:
        for (const std::string& word : field->choices) expect_taken(*field, "\"" + word + "\"");
        for (const char* json : {"1", "true", "\"\"", "\"nonsense\"", "[]", "{}"}) expect_refused(*field, json);
        break;
      case FieldType::kNumbers:
        for (const char* json : {"0.9", "[]", "[0.9]", "[0.9, 0.9, 0.9]", "[0.9, 1]", "[-0.1, 0.9]", "[0.9, \"0.9\"]",
                                 "[true, 0.9]", "[NaN, 0.9]"}) {
          expect_refused(*field, json);
        }
        break;
      default: break;
    }
  }
}

TEST(Fields, IntegersMayBeWrittenAsDeepSpeedsConfigsDo) {
  Field field;
  field.path = "x";
  field.type = FieldType::kInteger;
  const auto value = [&](const char* json) {
    const auto checked = check(field, json);
    return checked.ok() ? std::get<std::int64_t>(*checked) : -1;
  };
  EXPECT_EQ(value("1e9"), 1'000'000'000);
  EXPECT_EQ(value("5e8"), 500'000'000);
  EXPECT_EQ(value("1.5E3"), 1500);
  EXPECT_EQ(value("12.0"), 12);
  EXPECT_EQ(value("1200e-2"), 12);
  EXPECT_EQ(value("0e5"), 0);
  EXPECT_EQ(value("0.000"), 0);
  EXPECT_EQ(value("9223372036854775807"), kNoLargest);  // a double would round it up
  EXPECT_EQ(value("-9223372036854775808"), kNoSmallest);
  EXPECT_EQ(value("9007199254740993"), 9007199254740993);
  for (const char* json : {"1e19", "1e99999999999999999999", "12.5", "1e-1", "9223372036854775808"})
    EXPECT_FALSE(check(field, json).ok()) << json;
}

TEST(Fields, SizesTakeUnitsAndPlainNumbers) {
  Field field;
  field.path = "x";
  field.type = FieldType::kBytes;
  const auto value = [&](const char* json) { return std::get<std::int64_t>(*check(field, json)); };
  EXPECT_EQ(value("\"160MiB\""), 160 * kMiB);
  EXPECT_EQ(value("\"400M\""), 400 * kMiB);
  EXPECT_EQ(value("\"500MB\""), 500'000'000);
  EXPECT_EQ(value("4096"), 4096);
  EXPECT_EQ(value("1e6"), 1'000'000);
  for (const char* json : {"\"lots\"", "\"1XiB\"", "\"-1MiB\"", "\"\"", "\"1e400\""})
    EXPECT_FALSE(check(field, json).ok()) << json;
}

TEST(Fields, AutoIsTakenWhereThePlanResolvesItAndNowhereElse) {
  const AllTables tables;
  for (const Field* field : all_fields(tables)) {
    if (field->type == FieldType::kText || field->type == FieldType::kTexts) continue;
    EXPECT_EQ(check(*field, "\"auto\"").ok(), field->allows_auto) << field->path;
  }
  const auto loaded = read(kMinimal, {"optimizer.params.lr=auto"});
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().message, HasSubstr("\"optimizer.params.lr\" cannot be \"auto\""));
  EXPECT_THAT(loaded.error().hint, HasSubstr("headrace.memory.host"));
  EXPECT_THAT(loaded.error().hint, HasSubstr("headrace.schedule.group_size"));
}

TEST(Fields, LongValuesAreShortenedBetweenCharacters) {
  Field field;
  field.path = "x";
  std::string text;
  for (int i = 0; i < 100; ++i) text += "é";
  const auto checked = check(field, "\"" + text + "\"");
  ASSERT_FALSE(checked.ok());
  EXPECT_LT(checked.error().message.size(), 200U);
  EXPECT_TRUE(parse_json(json_quote(checked.error().message), "f").ok()) << "the message is no longer UTF-8";
}

TEST(Fields, AnEarlyUpdateThatCouldNotBeTakenBackIsRefused) {
  const auto taken = read(kMinimal, {"schedule.update=in_backward", "slots=1", "gradient_clipping=0"});
  ASSERT_TRUE(taken.ok()) << taken.error().to_string();
  EXPECT_EQ(taken->config.run.schedule.update, Auto<UpdatePolicy>(UpdatePolicy::kInBackward));
  const auto refused = read(kMinimal, {"schedule.update=in_backward", "slots=1", "gradient_clipping=0.5"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("gradients are clipped to 0.5"));
  EXPECT_THAT(refused.error().hint, HasSubstr("\"slots\": 2"));
  EXPECT_TRUE(read(kMinimal, {"schedule.update=in_backward", "gradient_clipping=0.5"}).ok());
}

}  // namespace
}  // namespace headrace::config
