// SPDX-License-Identifier: Apache-2.0
// Greedy continuation of the reference models against generate.json, made by transformers.
#include "models/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/models/files_support.h"

namespace headrace::models {
namespace {

using Json = nlohmann::json;
using test::read_whole;
using test::reference;

std::unique_ptr<Generator> open_generator(const std::string& model) {
  auto generator = Generator::from_folder(reference("models/" + model));
  EXPECT_TRUE(generator.ok()) << model << ": " << generator.error().to_string();
  return generator.ok() ? std::move(generator).value() : nullptr;
}

class GreedyGenerator : public testing::TestWithParam<const char*> {};

TEST_P(GreedyGenerator, ContinuesAsTheReferenceDoesWithItsBestFiveLogits) {
  const std::string model = GetParam();
  const Json expected = Json::parse(read_whole(reference("models/" + model + "/generate.json")));
  const auto generator = open_generator(model);
  ASSERT_NE(generator, nullptr);
  auto ids = expected["prompt"].get<std::vector<std::int32_t>>();
  const auto wanted = expected["new_tokens"].get<std::vector<std::int32_t>>();
  ASSERT_EQ(wanted.size(), 16U);
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    SCOPED_TRACE("token " + std::to_string(step));
    const auto logits = generator->next_logits(ids);
    ASSERT_TRUE(logits.ok()) << logits.error().to_string();
    ASSERT_EQ(static_cast<std::int64_t>(logits->size()), generator->config().vocab);
    for (const Json& pair : expected["top5_fp64"][step])
      EXPECT_NEAR((*logits)[pair[0].get<std::size_t>()], pair[1].get<double>(), 1e-4) << "id " << pair[0];
    const auto best = std::max_element(logits->begin(), logits->end()) - logits->begin();
    ASSERT_EQ(best, wanted[step]);
    ids.push_back(static_cast<std::int32_t>(best));
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, GreedyGenerator, testing::Values("llama_tiny", "llama_tied_rope3", "gpt2_tiny"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Generator, LooksAtTheLastTokensOfATextLongerThanTheModelsPositions) {
  const auto generator = open_generator("gpt2_tiny");
  ASSERT_NE(generator, nullptr);
  const auto window = static_cast<std::size_t>(generator->config().max_positions);
  std::vector<std::int32_t> text(window + 5);
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(generator->config().vocab));
  const auto whole = generator->next_logits(text);
  ASSERT_TRUE(whole.ok());
  const std::vector<float> from_whole(whole->begin(), whole->end());
  const auto last = generator->next_logits(std::span<const std::int32_t>(text).last(window));
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(from_whole, std::vector<float>(last->begin(), last->end()));
}

// Lengths on both sides of the doubled windows: the padding behind the text must not show.
TEST(Generator, GivesTheSameLogitsWhateverItLookedAtBefore) {
  const auto warm = open_generator("llama_tiny");
  ASSERT_NE(warm, nullptr);
  std::vector<std::int32_t> text(40);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::int32_t>(i * 11 % 97);
  for (const std::size_t length : {40U, 1U, 33U, 32U, 31U}) {
    const auto prefix = std::span<const std::int32_t>(text).first(length);
    const auto fresh = open_generator("llama_tiny");
    ASSERT_NE(fresh, nullptr);
    const auto a = warm->next_logits(prefix);
    const auto b = fresh->next_logits(prefix);
    ASSERT_TRUE(a.ok() && b.ok());
    for (std::size_t i = 0; i < a->size(); ++i)
      ASSERT_NEAR((*a)[i], (*b)[i], 1e-6) << "length " << length << " logit " << i;
  }
}

TEST(Generator, RefusesATokenBeyondTheVocabulary) {
  const auto generator = open_generator("gpt2_tiny");
  ASSERT_NE(generator, nullptr);
  for (const std::int32_t id : {-1, static_cast<std::int32_t>(generator->config().vocab)}) {
    const std::vector<std::int32_t> text{0, id};
    const auto logits = generator->next_logits(text);
    ASSERT_FALSE(logits.ok());
    EXPECT_EQ(logits.error().code, ErrorCode::kConfig);
    EXPECT_NE(logits.error().message.find(std::to_string(id)), std::string::npos);
  }
}

TEST(Generator, TakesWeightsFromASourceAndPassesItsErrorOn) {
  const auto config = open_generator("gpt2_tiny")->config();
  const auto failed =
      Generator::from_weights(config, DType::kBf16, [](runtime::UnitId unit, std::byte*) -> Result<void> {
        if (unit == 1) return make_error(ErrorCode::kIo, "planted");
        return {};
      });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "planted");
}

TEST(Generator, AFolderWithoutAModelIsAnError) {
  const test::TempFolder folder;
  EXPECT_FALSE(Generator::from_folder(folder.path()).ok());
}

}  // namespace
}  // namespace headrace::models
