// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/runtime/config_support.h"

namespace headrace::config {
namespace {

using ::testing::HasSubstr;

// HEADRACE_UPDATE_DOCS=1 writes the page instead of comparing it.
TEST(SettingsPage, IsUpToDate) {
  const char* source = std::getenv("HEADRACE_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "run by ctest";
  const std::string path = std::string(source) + "/docs/settings.md";
  const std::string page = settings_markdown(AllTables().get());
  if (std::getenv("HEADRACE_UPDATE_DOCS") != nullptr) std::ofstream(path, std::ios::binary) << page;
  std::ifstream in(path, std::ios::binary);
  const std::string stored{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  EXPECT_TRUE(stored == page) << "docs/settings.md is out of date: run this test with HEADRACE_UPDATE_DOCS=1";
}

TEST(SettingsPage, HasEveryKeyOnce) {
  const AllTables tables;
  const std::string page = settings_markdown(tables.get());
  for (const FieldTable* table : tables.get()) {
    for (const Field& field : table->fields()) {
      const std::string row = "\n| `" + field.path + "` |";
      const std::size_t at = page.find(row);
      ASSERT_NE(at, std::string::npos) << field.path;
      EXPECT_EQ(page.find(row, at + 1), std::string::npos) << field.path;
    }
  }
}

TEST(Schema, DescribesEveryKeyInItsPlace) {
  const AllTables tables;
  const auto schema = nlohmann::json::parse(settings_schema(tables.get()));
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  for (const FieldTable* table : tables.get()) {
    for (const Field& field : table->fields()) {
      const nlohmann::json* at = &schema;
      std::string path = field.path + ".";
      while (!path.empty()) {
        const std::string part = path.substr(0, path.find('.'));
        path.erase(0, part.size() + 1);
        ASSERT_TRUE((*at)["properties"].contains(part)) << field.path;
        EXPECT_TRUE(at == &schema || (*at)["additionalProperties"] == false) << field.path;
        at = &(*at)["properties"][part];
      }
      EXPECT_TRUE(at->contains("description")) << field.path;
    }
  }
  EXPECT_EQ(schema["properties"]["zero_optimization"]["properties"]["stage"]["maximum"], 3);
  EXPECT_EQ(schema["additionalProperties"], false);
}

TEST(Explain, TakesAKeyASectionAndOverridePaths) {
  const AllTables tables;
  EXPECT_THAT(*explain(tables.get(), "headrace.memory.host"), HasSubstr("a size"));
  EXPECT_EQ(*explain(tables.get(), "memory.host"), *explain(tables.get(), "headrace.memory.host"));
  EXPECT_THAT(*explain(tables.get(), "memory"), HasSubstr("headrace.memory.cache"));
  EXPECT_THAT(*explain(tables.get(), "aio.thread_count"), HasSubstr("same as:   aio.intra_op_parallelism"));
  EXPECT_THAT(*explain(tables.get(), "zero_optimization.overlap_comm"), HasSubstr("accepted, no effect"));
  EXPECT_THAT(*explain(tables.get(), ""), HasSubstr("headrace.steps"));
  const auto unknown = explain(tables.get(), "headrace.stepz");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUsage);
  EXPECT_THAT(unknown.error().hint, HasSubstr("headrace.steps"));
}

}  // namespace
}  // namespace headrace::config
