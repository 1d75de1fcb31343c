// SPDX-License-Identifier: Apache-2.0
#include "models/data/token_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/models/files_support.h"

namespace headrace::models {
namespace {

using test::TempFolder;
using test::write_whole;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string counting_text(std::size_t length) {
  std::string text(length, '\0');
  for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>((i * 7 + i / 256) & 0xFFU);
  return text;
}

class TokenDataTest : public ::testing::Test {
 protected:
  TokenDataOptions options(const std::string& text, std::int64_t sequence_length) {
    TokenDataOptions out;
    out.path = folder_ / "text.txt";
    write_whole(out.path, text);
    out.sequence_length = sequence_length;
    return out;
  }
  static std::string fault(const TokenDataOptions& options) {
    const auto data = TokenData::open(options);
    if (data.ok()) return "opened without a fault";
    EXPECT_EQ(data.error().code, ErrorCode::kConfig);
    return data.error().message;
  }
  TempFolder folder_;
};

TEST_F(TokenDataTest, SampleIsTheRunOfTokensFromItsIndexTimesTheStride) {
  const std::string text = counting_text(1000);
  const auto data = TokenData::open(options(text, 16));
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->num_tokens(), 1000);
  EXPECT_EQ(data->num_samples(), 62);  // floor(999 / 16)
  std::vector<std::int32_t> tokens(17);
  for (std::int64_t j = 0; j < data->num_samples(); ++j) {
    ASSERT_TRUE(data->sample(j, tokens).ok());
    for (std::int64_t i = 0; i <= 16; ++i) {
      ASSERT_EQ(tokens[static_cast<std::size_t>(i)],
                static_cast<unsigned char>(text[static_cast<std::size_t>(j * 16 + i)]))
          << j << " " << i;
    }
  }
}

TEST_F(TokenDataTest, CountsSamplesAtTheEdges) {
  for (const auto& [tokens, samples] :
       std::vector<std::pair<std::size_t, std::int64_t>>{{9, 1}, {16, 1}, {17, 2}, {24, 2}, {25, 3}}) {
    const auto data = TokenData::open(options(counting_text(tokens), 8));
    ASSERT_TRUE(data.ok());
    EXPECT_EQ(data->num_samples(), samples) << tokens;
  }
}

TEST_F(TokenDataTest, SplitsTheLastTokensOffForValidation) {
  const std::string text = counting_text(1003);
  TokenDataOptions opened = options(text, 10);
  opened.validation_fraction = 0.1;
  opened.order = DataOrder::kSequential;
  const auto train = TokenData::open(opened);
  opened.part = DataPart::kValidation;
  const auto validation = TokenData::open(opened);
  ASSERT_TRUE(train.ok() && validation.ok());
  EXPECT_EQ(validation->num_tokens(), 100);
  EXPECT_EQ(train->num_tokens(), 903);
  EXPECT_EQ(validation->num_samples(), 9);
  std::vector<std::int32_t> tokens(11);
  ASSERT_TRUE(validation->sample(0, tokens).ok());
  EXPECT_EQ(tokens[0], static_cast<unsigned char>(text[903]));
  ASSERT_TRUE(train->sample(train->num_samples() - 1, tokens).ok());
  EXPECT_EQ(tokens[10], static_cast<unsigned char>(text[900]));
}

TEST_F(TokenDataTest, TakesEachSampleOncePerEpochInAnotherOrder) {
  TokenDataOptions opened = options(counting_text(1000), 7);
  opened.seed = std::random_device{}();
  SCOPED_TRACE(opened.seed);
  const auto data = TokenData::open(opened);
  ASSERT_TRUE(data.ok());
  const std::int64_t samples = data->num_samples();
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < samples; ++i) order.push_back(data->sample_at(epoch * samples + i));
    orders.insert(order);
    std::sort(order.begin(), order.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
  }
  EXPECT_EQ(orders.size(), 4U);
  opened.seed += 1;
  const auto other = TokenData::open(opened);
  std::int64_t different = 0;
  for (std::int64_t i = 0; i < samples; ++i) different += other->sample_at(i) != data->sample_at(i) ? 1 : 0;
  EXPECT_GT(different, samples / 2);
  opened.order = DataOrder::kSequential;
  const auto sequential = TokenData::open(opened);
  for (std::int64_t i = 0; i < 3 * samples; ++i) ASSERT_EQ(sequential->sample_at(i), i % samples);
}

TEST_F(TokenDataTest, BatchContinuesOverEpochsAndShiftsLabelsByOne) {
  TokenDataOptions opened = options(counting_text(100), 9);  // 11 samples
  const auto data = TokenData::open(opened);
  ASSERT_TRUE(data.ok());
  ASSERT_EQ(data->num_samples(), 11);
  std::vector<std::int32_t> inputs(25 * 9), labels(25 * 9), tokens(10);
  ASSERT_TRUE(data->batch(7, 25, inputs, labels).ok());  // from epoch 0 into epoch 2
  for (std::int64_t i = 0; i < 25; ++i) {
    ASSERT_TRUE(data->sample(data->sample_at(7 + i), tokens).ok());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end() - 1, inputs.begin() + i * 9));
    EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), labels.begin() + i * 9));
  }
  // Cut into other batches (micro-batches, ranks) it is the same data.
  std::vector<std::int32_t> part_inputs(25 * 9), part_labels(25 * 9);
  for (std::int64_t i = 0; i < 25; i += 5) {
    const auto range = [&](std::vector<std::int32_t>& all) {
      return std::span(all).subspan(static_cast<std::size_t>(i * 9), 45);
    };
    ASSERT_TRUE(data->batch(7 + i, 5, range(part_inputs), range(part_labels)).ok());
  }
  EXPECT_EQ(part_inputs, inputs);
  EXPECT_EQ(part_labels, labels);
}

TEST_F(TokenDataTest, SaysWhatIsWrongWithTheFile) {
  EXPECT_THAT(fault(options("", 4)), HasSubstr("is empty"));
  EXPECT_THAT(fault(options("abcdefgh", 8)), AllOf(HasSubstr("has 8 tokens"), HasSubstr("sequence length 8 needs 9")));
  TokenDataOptions missing = options("abcdefgh", 4);
  missing.path = folder_ / "none.txt";
  EXPECT_THAT(fault(missing), AllOf(HasSubstr("none.txt"), HasSubstr("no such file")));
  missing.path = folder_.path();
  EXPECT_THAT(fault(missing), HasSubstr("is a directory"));
}

TEST_F(TokenDataTest, SaysWhatIsWrongWithTheOptions) {
  TokenDataOptions opened = options(counting_text(100), 0);
  EXPECT_THAT(fault(opened), HasSubstr("sequence length is 0"));
  opened.sequence_length = 8;
  opened.tokenizer = "words";
  EXPECT_THAT(fault(opened), HasSubstr("\"words\" is unknown"));
  opened.tokenizer = "bytes";
  for (const double fraction : {-0.1, 1.0, std::nan("")}) {
    opened.validation_fraction = fraction;
    EXPECT_THAT(fault(opened), HasSubstr("validation fraction"));
  }
  opened.validation_fraction = 0.05;
  opened.part = DataPart::kValidation;
  EXPECT_THAT(fault(opened),
              AllOf(HasSubstr("validation part has 5 tokens (of 100 in the file)"), HasSubstr("needs 9")));
  opened.validation_fraction = 0.95;
  opened.part = DataPart::kTrain;
  EXPECT_THAT(fault(opened), HasSubstr("training part has 5 tokens"));
  opened.validation_fraction = 0;
  opened.part = DataPart::kValidation;
  EXPECT_THAT(fault(opened), HasSubstr("validation part has 0 tokens"));
}

TEST_F(TokenDataTest, RefusesTokensThatTheModelHasNoRowFor) {
  std::string text(200'000, 'a');
  text[150'001] = '\x80';
  TokenDataOptions opened = options(text, 64);
  opened.model_vocab = 128;
  EXPECT_THAT(fault(opened), AllOf(HasSubstr("token 150001 has the id 128"), HasSubstr("vocabulary has 128")));
  opened.model_vocab = 129;
  ASSERT_TRUE(TokenData::open(opened).ok());
  opened.model_vocab = 1000;  // larger than the tokenizer's
  ASSERT_TRUE(TokenData::open(opened).ok());
  // A file that changes later is caught at the batch.
  opened.model_vocab = 128;
  text[150'001] = 'a';
  write_whole(opened.path, text);
  const auto data = TokenData::open(opened);
  ASSERT_TRUE(data.ok());
  text[64 * 3 + 5] = '\xFF';
  write_whole(opened.path, text);
  std::vector<std::int32_t> tokens(65);
  const auto sample = data->sample(3, tokens);
  ASSERT_FALSE(sample.ok());
  EXPECT_THAT(sample.error().message, HasSubstr("token 197 has the id 255"));
}

TEST_F(TokenDataTest, AFileThatShrinksIsAnError) {
  const TokenDataOptions opened = options(counting_text(1000), 8);
  const auto data = TokenData::open(opened);
  ASSERT_TRUE(data.ok());
  std::filesystem::resize_file(opened.path, 500);
  std::vector<std::int32_t> tokens(9);
  EXPECT_TRUE(data->sample(0, tokens).ok());
  EXPECT_EQ(data->sample(100, tokens).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace headrace::models
