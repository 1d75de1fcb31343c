// SPDX-License-Identifier: Apache-2.0
// What must hold of any model: the same bits whatever is kept, however many threads; gradients add over micro-batches;
// every byte that a unit touches is one that it asked for (MemoryModel poisons and guards).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "memory_model.h"
#include "models/model.h"
#include "models/presets.h"

namespace headrace::models {
namespace {

using Keep = MemoryModel::Activations;

struct Shape {
  const char* name;
  ModelConfig config;
  std::int64_t batch, time;
};

void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

ModelConfig small(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocab = 83;
  config.embed = 40;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 4;
  config.head_dim = 10;
  config.inner = 72;
  config.max_positions = 64;
  config.activation = architecture == Architecture::kLlama ? Activation::kSilu : Activation::kGeluTanh;
  return config;
}

ModelConfig llama_with_everything() {
  ModelConfig config = small(Architecture::kLlama);
  config.kv_heads = 2;
  config.head_dim = 16;  // unlike embed / heads
  config.attention_bias = true;
  config.mlp_bias = true;
  config.tied = true;
  config.rope_scaling = {
      .enabled = true, .factor = 4, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 16};
  return config;
}

ModelConfig gpt2(bool tied, Activation activation) {
  ModelConfig config = small(Architecture::kGpt2);
  config.tied = tied;
  config.activation = activation;
  return config;
}

struct Data {
  std::vector<std::int32_t> ids, labels;
  std::int64_t counted = 0;
  [[nodiscard]] MicroBatch micro_batch(float scale) const { return {ids, labels, scale}; }
};

Data random_data(const Shape& shape, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(shape.config.vocab) - 1);
  Data data;
  for (std::int64_t i = 0; i < shape.batch * shape.time; ++i) {
    data.ids.push_back(token(generator));
    const bool masked = generator() % 5 == 0;
    data.labels.push_back(masked ? -100 : token(generator));
    data.counted += masked ? 0 : 1;
  }
  return data;
}

MemoryModel make(const Shape& shape, int threads, DType dtype = DType::kFp32) {
  MemoryModel model(shape.config, dtype, shape.batch, shape.time, threads);
  model.fill_weights(7, 0.15F);
  return model;
}

class ModelProperties : public testing::TestWithParam<Shape> {};

TEST_P(ModelProperties, recomputed_activations_give_the_bits_of_kept_ones) {
  const Data data = random_data(GetParam(), 11);
  MemoryModel model = make(GetParam(), 2);
  const LossSum kept = model.train(data.micro_batch(0.01F), Keep::kKeep, true);
  const auto expected = model.all_gradient_bytes();
  const LossSum recomputed = model.train(data.micro_batch(0.01F), Keep::kRecompute, true);
  EXPECT_EQ(kept.sum, recomputed.sum);
  EXPECT_EQ(kept.counted, data.counted);
  EXPECT_TRUE(expected == model.all_gradient_bytes());
}

TEST_P(ModelProperties, number_of_threads_does_not_change_a_bit) {
  const Data data = random_data(GetParam(), 12);
  MemoryModel one = make(GetParam(), 1);
  MemoryModel two = make(GetParam(), 2);
  const LossSum loss = one.train(data.micro_batch(0.01F), Keep::kKeep, true);
  EXPECT_EQ(loss.sum, two.train(data.micro_batch(0.01F), Keep::kKeep, true).sum);
  EXPECT_TRUE(one.all_gradient_bytes() == two.all_gradient_bytes());
}

TEST_P(ModelProperties, evaluation_gives_the_loss_of_training) {
  const Data data = random_data(GetParam(), 13);
  MemoryModel model = make(GetParam(), 2);
  const LossSum evaluated = model.evaluate(data.micro_batch(1.0F));
  const LossSum trained = model.train(data.micro_batch(1.0F), Keep::kKeep, true);
  EXPECT_EQ(evaluated.counted, trained.counted);
  EXPECT_NEAR(evaluated.sum, trained.sum, 1e-6 * std::abs(trained.sum));
}

TEST_P(ModelProperties, gradients_of_two_micro_batches_add) {
  const Data first = random_data(GetParam(), 14);
  const Data second = random_data(GetParam(), 15);
  MemoryModel model = make(GetParam(), 2);
  (void)model.train(first.micro_batch(0.01F), Keep::kKeep, true);
  std::vector<std::vector<float>> sums;
  for (const auto& unit : model.info().units) {
    for (const auto& tensor : unit.tensors) sums.push_back(model.tensor_gradient(tensor.name));
  }
  (void)model.train(second.micro_batch(0.01F), Keep::kKeep, true);
  std::size_t index = 0;
  for (const auto& unit : model.info().units) {
    for (const auto& tensor : unit.tensors) {
      const auto added = model.tensor_gradient(tensor.name);
      for (std::size_t i = 0; i < added.size(); ++i) sums[index][i] += added[i];
      ++index;
    }
  }
  (void)model.train(first.micro_batch(0.01F), Keep::kKeep, true);
  (void)model.train(second.micro_batch(0.01F), Keep::kRecompute, false);
  index = 0;
  for (const auto& unit : model.info().units) {
    for (const auto& tensor : unit.tensors) {
      const auto accumulated = model.tensor_gradient(tensor.name);
      float largest = 0;
      for (const float value : sums[index]) largest = std::max(largest, std::abs(value));
      for (std::size_t i = 0; i < accumulated.size(); ++i) {
        ASSERT_NEAR(accumulated[i], sums[index][i], 2e-6F * largest + 1e-9F) << tensor.name << '[' << i << ']';
      }
      ++index;
    }
  }
}

TEST_P(ModelProperties, padding_between_tensors_has_a_zero_gradient) {
  const Data data = random_data(GetParam(), 16);
  MemoryModel model = make(GetParam(), 2);
  (void)model.train(data.micro_batch(0.01F), Keep::kKeep, true);
  for (std::size_t unit = 0; unit < model.info().units.size(); ++unit) {
    const runtime::UnitInfo& of = model.info().units[unit];
    std::vector<bool> owned(static_cast<std::size_t>(of.flat_elements));
    for (const auto& tensor : of.tensors) std::fill_n(owned.begin() + tensor.offset, tensor.elements, true);
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (!owned[i]) {
        ASSERT_EQ(model.gradient(unit)[i], 0.0F) << of.name << ' ' << i;
      }
    }
  }
}

TEST_P(ModelProperties, labels_that_are_all_masked_give_no_loss_and_no_gradient) {
  Data data = random_data(GetParam(), 17);
  std::fill(data.labels.begin(), data.labels.end(), -100);
  MemoryModel model = make(GetParam(), 2);
  const LossSum loss = model.train(data.micro_batch(1.0F), Keep::kKeep, true);
  EXPECT_EQ(loss.sum, 0.0);
  EXPECT_EQ(loss.counted, 0);
  for (std::size_t unit = 0; unit < model.info().units.size(); ++unit) {
    for (std::int64_t i = 0; i < model.info().units[unit].flat_elements; ++i) ASSERT_EQ(model.gradient(unit)[i], 0.0F);
  }
}

// The slope of the loss along a random direction of all weights, by central difference and by the gradient.
TEST_P(ModelProperties, gradient_is_the_slope_of_the_loss) {
  const Data data = random_data(GetParam(), 18);
  MemoryModel model = make(GetParam(), 2);
  (void)model.train(data.micro_batch(1.0F), Keep::kKeep, true);
  std::mt19937_64 generator(19);
  std::normal_distribution<double> normal(0.0, 1.0);
  constexpr double kStep = 5e-4;
  double slope = 0;
  std::vector<std::vector<float>> direction(model.info().units.size());
  const auto move = [&](double by) {
    for (std::size_t unit = 0; unit < direction.size(); ++unit) {
      auto* weights = reinterpret_cast<float*>(model.weights(unit));
      for (std::size_t i = 0; i < direction[unit].size(); ++i)
        weights[i] += static_cast<float>(by) * direction[unit][i];
    }
  };
  for (std::size_t unit = 0; unit < direction.size(); ++unit) {
    for (std::int64_t i = 0; i < model.info().units[unit].flat_elements; ++i) {
      direction[unit].push_back(static_cast<float>(normal(generator)));
      slope += static_cast<double>(model.gradient(unit)[i]) * static_cast<double>(direction[unit].back());
    }
  }
  move(kStep);
  const double above = model.evaluate(data.micro_batch(1.0F)).sum;
  move(-2 * kStep);
  const double below = model.evaluate(data.micro_batch(1.0F)).sum;
  EXPECT_NEAR((above - below) / (2 * kStep), slope, 0.01 * std::abs(slope) + 0.05);
}

const Shape kShapes[] = {
    {"llama", small(Architecture::kLlama), 2, 21},
    {"llama_with_everything", llama_with_everything(), 3, 17},
    {"llama_one_token", small(Architecture::kLlama), 1, 1},
    {"gpt2_tied", gpt2(true, Activation::kGeluTanh), 2, 33},
    {"gpt2_untied_erf", gpt2(false, Activation::kGeluErf), 2, 19},
};
INSTANTIATE_TEST_SUITE_P(Shapes, ModelProperties, testing::ValuesIn(kShapes),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Model, thread_count_does_not_change_a_bit_where_kernels_are_cut_into_many_tasks) {
  const Shape shape{"llama-1m", preset("llama-1m").value(), 2, 256};
  const Data data = random_data(shape, 21);
  MemoryModel one = make(shape, 1, DType::kBf16);
  MemoryModel two = make(shape, 2, DType::kBf16);
  EXPECT_EQ(one.train(data.micro_batch(0.01F), Keep::kKeep, true).sum,
            two.train(data.micro_batch(0.01F), Keep::kRecompute, true).sum);
  EXPECT_TRUE(one.all_gradient_bytes() == two.all_gradient_bytes());
}

TEST(Model, a_tied_head_names_the_embedding_and_owns_only_its_norm) {
  const Model model(llama_with_everything(), DType::kBf16, 2, 8);
  const runtime::UnitInfo& head = model.info().units.back();
  EXPECT_EQ(head.uses, std::vector<runtime::UnitId>{0});
  ASSERT_EQ(head.tensors.size(), 1U);
  EXPECT_EQ(head.tensors[0].name, "model.norm.weight");
  EXPECT_TRUE(head.fused_loss);
}

TEST(Model, units_stand_in_order_of_use_and_count_all_parameters) {
  for (const Shape& shape : kShapes) {
    const Model model(shape.config, DType::kBf16, shape.batch, shape.time);
    ASSERT_EQ(model.info().units.size(), static_cast<std::size_t>(shape.config.layers) + 2);
    EXPECT_EQ(model.info().units.front().name, "embedding");
    EXPECT_EQ(model.info().units[1].name, "block.0");
    EXPECT_EQ(model.info().units.back().name, "head");
    std::int64_t elements = 0;
    for (const auto& unit : model.info().units) {
      for (const auto& tensor : unit.tensors) elements += tensor.elements;
    }
    EXPECT_EQ(elements, parameter_count(shape.config)) << shape.name;
  }
}

TEST(ModelDeathTest, a_token_outside_the_vocabulary_stops_the_program_instead_of_reading_elsewhere) {
  const Shape shape = kShapes[0];
  Data data = random_data(shape, 20);
  data.ids[5] = static_cast<std::int32_t>(shape.config.vocab);
  MemoryModel model = make(shape, 1);
  EXPECT_DEATH((void)model.evaluate(data.micro_batch(1.0F)), "one of the vocabulary");
}

}  // namespace
}  // namespace headrace::models
