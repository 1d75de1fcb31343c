// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "models/model.h"
#include "models/presets.h"

namespace headrace::models {
namespace {

using testing::HasSubstr;

ModelConfig valid_llama() { return preset("llama-1m").value(); }
ModelConfig valid_gpt2() { return preset("gpt2-124m").value(); }

std::string message_of(const ModelConfig& config) {
  const auto result = validate(config);
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.error().code, ErrorCode::kConfig);
  return result.error().message;
}

TEST(ValidateModelConfig, every_extent_must_be_at_least_one) {
  struct Extent {
    std::int64_t ModelConfig::*member;
    const char* name;
  };
  const Extent extents[] = {{&ModelConfig::vocab, "vocab"},       {&ModelConfig::embed, "embed"},
                            {&ModelConfig::layers, "layers"},     {&ModelConfig::heads, "heads"},
                            {&ModelConfig::kv_heads, "kv_heads"}, {&ModelConfig::head_dim, "head_dim"},
                            {&ModelConfig::inner, "inner"},       {&ModelConfig::max_positions, "max_positions"}};
  for (const Extent& extent : extents) {
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-3}, std::int64_t{1} << 40}) {
      ModelConfig config = valid_llama();
      config.*extent.member = value;
      EXPECT_THAT(message_of(config), HasSubstr(std::string(extent.name) + " is " + std::to_string(value)));
    }
  }
}

TEST(ValidateModelConfig, heads_must_share_key_value_heads_evenly) {
  ModelConfig config = valid_llama();
  config.heads = 6;
  config.kv_heads = 4;
  EXPECT_THAT(message_of(config), HasSubstr("6 query heads cannot share 4 key/value heads"));
  config.kv_heads = 12;
  EXPECT_THAT(message_of(config), HasSubstr("6 query heads cannot share 12"));
}

TEST(ValidateModelConfig, rotary_embeddings_need_an_even_head_dim) {
  ModelConfig config = valid_llama();
  config.head_dim = 31;
  EXPECT_THAT(message_of(config), HasSubstr("head_dim is 31"));
}

TEST(ValidateModelConfig, gpt2_needs_heads_that_divide_embed) {
  ModelConfig config = valid_gpt2();
  config.heads = config.kv_heads = 7;
  EXPECT_THAT(message_of(config), HasSubstr("embed 768 over 7 heads"));
  config = valid_gpt2();
  config.kv_heads = 6;
  EXPECT_THAT(message_of(config), HasSubstr("as many key/value heads"));
}

TEST(ValidateModelConfig, an_activation_belongs_to_its_architecture) {
  ModelConfig llama = valid_llama();
  llama.activation = Activation::kGeluTanh;
  EXPECT_THAT(message_of(llama), HasSubstr("silu"));
  ModelConfig gpt2 = valid_gpt2();
  gpt2.activation = Activation::kSilu;
  EXPECT_THAT(message_of(gpt2), HasSubstr("gelu"));
}

TEST(ValidateModelConfig, real_numbers_must_be_positive_and_finite) {
  for (const double value : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    ModelConfig config = valid_llama();
    config.norm_eps = value;
    EXPECT_THAT(message_of(config), HasSubstr("norm_eps"));
    config = valid_llama();
    config.rope_theta = value;
    EXPECT_THAT(message_of(config), HasSubstr("rope_theta"));
    config = valid_llama();
    config.rope_scaling.enabled = true;
    config.rope_scaling.factor = value;
    EXPECT_THAT(message_of(config), HasSubstr("rope_scaling.factor"));
  }
  ModelConfig config = valid_llama();
  config.rope_scaling = {
      .enabled = true, .factor = 8, .low_freq_factor = 4, .high_freq_factor = 4, .original_max_position = 64};
  EXPECT_THAT(message_of(config), HasSubstr("high_freq_factor"));
}

TEST(ValidateModelConfig, sizes_that_overflow_are_refused) {
  ModelConfig config = valid_llama();
  config.layers = 1'000'000'000;
  config.embed = config.inner = 2'000'000'000;
  EXPECT_THAT(message_of(config), HasSubstr("more parameters than can be counted"));
}

TEST(ValidateModelConfig, a_micro_batch_must_fit_the_positions_and_64_bits) {
  EXPECT_TRUE(validate(valid_llama(), 4, 1024).ok());
  EXPECT_THAT(validate(valid_llama(), 4, 1025).error().message, HasSubstr("1025 tokens do not fit its 1024 positions"));
  EXPECT_THAT(validate(valid_llama(), 0, 8).error().message, HasSubstr("micro-batch size is 0"));
  EXPECT_THAT(validate(valid_llama(), 8, -1).error().message, HasSubstr("sequence length is -1"));
  ModelConfig wide = preset("1t").value();
  wide.max_positions = 2'000'000'000;
  EXPECT_THAT(validate(wide, 2'000'000'000, 2'000'000'000).error().message, HasSubstr("can be counted"));
}

TEST(Presets, all_are_valid_and_have_the_parameters_that_their_names_say) {
  struct Size {
    const char* name;
    double least, most;
  };
  const Size sizes[] = {{"llama-1m", 0.95e6, 1.05e6},    {"llama-20m", 15e6, 20e6},
                        {"llama-150m", 148e6, 152e6},    {"llama-1b", 1.0e9, 1.1e9},
                        {"llama-8b", 8.02e9, 8.04e9},    {"llama-70b", 70.5e9, 70.6e9},
                        {"gpt2-124m", 124.4e6, 124.5e6}, {"gpt2-1.5b", 1.55e9, 1.56e9},
                        {"bert-large", 330e6, 340e6},    {"turing-nlg-17b", 17.0e9, 17.5e9},
                        {"gpt3-175b", 174e9, 176e9},     {"500b", 500e9, 510e9},
                        {"1t", 1.0e12, 1.02e12},         {"peer-222m", 222e6, 223e6}};
  EXPECT_EQ(std::size(sizes), presets().size());
  for (const Size& size : sizes) {
    const auto config = preset(size.name);
    ASSERT_TRUE(config.ok()) << size.name;
    EXPECT_TRUE(validate(config.value()).ok()) << size.name;
    const auto parameters = static_cast<double>(parameter_count(config.value()));
    EXPECT_GE(parameters, size.least) << size.name;
    EXPECT_LE(parameters, size.most) << size.name;
  }
}

TEST(Presets, an_unknown_name_lists_the_known_ones) {
  const auto result = preset("llama-2m");
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("llama-2m"));
  EXPECT_THAT(result.error().hint, HasSubstr("llama-20m"));
}

TEST(Presets, the_largest_model_lays_out_without_overflow) {
  const Model model(preset("1t").value(), DType::kBf16, 1, 1024);
  std::int64_t elements = 0;
  for (const auto& unit : model.info().units) {
    EXPECT_GT(unit.flat_elements, 0);
    elements += unit.flat_elements;
  }
  EXPECT_GT(elements, 1'000'000'000'000);
}

}  // namespace
}  // namespace headrace::models
