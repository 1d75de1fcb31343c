// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/random.h"

namespace headrace {
namespace {

TEST(JsonObject, KeepsTheOrderOfItsKeysOnOneLine) {
  JsonObject inner;
  inner.add("compute", 1.5);
  JsonArray list;
  list.add(1).add(2.5).add("x").add_raw(inner.text());
  JsonObject object;
  object.add("step", 12).add("loss", 0.1).add("ok", true).add("name", "a\"b\n").add_null("none");
  object.add_raw("lanes", inner.text()).add_raw("list", list.text()).add("big", std::int64_t{1} << 62);
  EXPECT_EQ(object.text(),
            R"({"step": 12, "loss": 0.1, "ok": true, "name": "a\"b\n", "none": null, "lanes": {"compute": 1.5}, )"
            R"("list": [1, 2.5, "x", {"compute": 1.5}], "big": 4611686018427387904})");
  EXPECT_EQ(JsonObject().text(), "{}");
  EXPECT_EQ(JsonArray().text(), "[]");
}

TEST(JsonText, DoublesComeBackExactly) {
  const std::uint64_t seed = 11;
  const CounterRng rng(seed, 0);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const PhiloxBlock block = rng.block(i);
    const auto value = std::bit_cast<double>((std::uint64_t{block[0]} << 32) | block[1]);
    if (!std::isfinite(value)) continue;
    const std::string text = json_text(value);
    ASSERT_EQ(nlohmann::json::parse(text).get<double>(), value) << text << ", seed " << seed << ", index " << i;
  }
}

TEST(JsonText, WritesNullForWhatJsonCannotSay) {
  EXPECT_EQ(json_text(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(json_text(-std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonText, EscapesAndReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(json_text("tab\t\x01 é"), "\"tab\\t\\u0001 é\"");
  const std::string broken = json_text("a\xFF z");
  EXPECT_TRUE(nlohmann::json::accept(broken)) << broken;
}

}  // namespace
}  // namespace headrace
