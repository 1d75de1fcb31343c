// SPDX-License-Identifier: Apache-2.0
// Whatever stands in the file, the reader answers with a config or with an error that a person can use.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/config_support.h"

namespace headrace::config {
namespace {

std::vector<std::string> seeds() {
  std::vector<std::string> texts = {std::string(kMinimal)};
  const char* source = std::getenv("HEADRACE_SOURCE_DIR");
  for (const char* name : {"llama-20m", "llama-1b", "nanogpt-char"}) {
    std::ifstream in(std::string(source == nullptr ? "." : source) + "/examples/" + name + ".json", std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return texts;
}

void mutate(std::string& text, std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "\\",
                                                   "\\u",
                                                   "\\ud800",
                                                   "//",
                                                   "/*",
                                                   "*/",
                                                   "#",
                                                   "\n",
                                                   "\r",
                                                   "\t",
                                                   "null",
                                                   "true",
                                                   "NaN",
                                                   "1e400",
                                                   "-1",
                                                   "0",
                                                   "\"auto\"",
                                                   "9223372036854775808",
                                                   "\xEF\xBB\xBF",
                                                   "\xFF",
                                                   "é",
                                                   "\"a\":",
                                                   "\"headrace\":{",
                                                   "\"160MiB\"",
                                                   std::string(1, '\0'),
                                                   "1e-400"};
  const auto at = [&](std::size_t size) { return std::uniform_int_distribution<std::size_t>(0, size)(random); };
  switch (at(4)) {
    case 0:
      if (!text.empty()) text[at(text.size() - 1)] = static_cast<char>(at(255));
      break;
    case 1: text.erase(at(text.size()), at(20)); break;
    case 2: text.insert(at(text.size()), kPieces[at(kPieces.size() - 1)]); break;
    case 3: text.insert(at(text.size()), text.substr(at(text.size()), at(40))); break;
    default: text.resize(at(text.size())); break;
  }
}

TEST(Mutations, NeverCrashTheReaderAndAlwaysSayWhere) {
  const std::vector<std::string> texts = seeds();
  const std::uint64_t seed = 20260301;
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = texts[static_cast<std::size_t>(round) % texts.size()];
    const int changes = 1 + round % 4;
    for (int i = 0; i < changes; ++i) mutate(text, random);
    const auto loaded = read(text);
    accepted += loaded.ok() ? 1 : 0;
    if (loaded.ok()) continue;
    const Error& error = loaded.error();
    ASSERT_EQ(error.code, ErrorCode::kConfig) << "seed " << seed << " round " << round;
    ASSERT_FALSE(error.message.empty()) << "seed " << seed << " round " << round;
    ASSERT_EQ(error.file, "run.json") << error.message << " seed " << seed << " round " << round;
    const auto quoted = parse_json(json_quote(error.message), "message");
    ASSERT_TRUE(quoted.ok()) << error.message << ": seed " << seed << " round " << round;
  }
  EXPECT_GT(accepted, 50);  // mutations inside comments and text
  EXPECT_LT(accepted, 3000);
}

TEST(Mutations, OfOverridesNeverCrash) {
  const std::uint64_t seed = 20260302;
  std::mt19937_64 random(seed);
  const std::vector<std::string> arguments = {"memory.host=160MiB", "optimizer.params.betas=[0.9, 0.95]", "steps=12",
                                              R"(zero_optimization.offload_param={"device": "nvme", "nvme_path": "x"})",
                                              "model.preset=llama-20m"};
  for (int round = 0; round < 1500; ++round) {
    std::string argument = arguments[static_cast<std::size_t>(round) % arguments.size()];
    for (int i = 0; i <= round % 3; ++i) mutate(argument, random);
    const auto loaded = read(kMinimal, {argument});
    if (loaded.ok()) continue;
    ASSERT_TRUE(loaded.error().code == ErrorCode::kConfig || loaded.error().code == ErrorCode::kUsage)
        << "seed " << seed << " round " << round;
    ASSERT_NE(loaded.error().message.find(argument.substr(0, argument.find('\0'))), std::string::npos)
        << loaded.error().message;
  }
}

}  // namespace
}  // namespace headrace::config
