// SPDX-License-Identifier: Apache-2.0
// Forward and backward of the small reference models against values made by transformers in fp32 and by an independent
// computation in fp64 (tests/reference/models/README.md states the tolerances).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "memory_model.h"
#include "models/model.h"

namespace headrace::models {
namespace {

using Json = nlohmann::json;
using Keep = MemoryModel::Activations;

Json read_json(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

struct Inputs {
  std::vector<std::int32_t> ids, labels;
  std::int64_t batch = 0, time = 0;
  [[nodiscard]] std::int64_t counted() const {
    return std::count_if(labels.begin(), labels.end(), [](int l) { return l != -100; });
  }
  [[nodiscard]] MicroBatch micro_batch() const { return {ids, labels, 1.0F / static_cast<float>(counted())}; }
};

Inputs read_inputs(const std::string& model, const std::string& labels) {
  const std::string file = reference_path("models/" + model + "/inputs.safetensors");
  Inputs inputs;
  inputs.ids = read_ints(file, "input_ids");
  inputs.labels = read_ints(file, labels);
  inputs.batch = read_shape(file, "input_ids")[0];
  inputs.time = read_shape(file, "input_ids")[1];
  return inputs;
}

struct Worst {
  double error = 0;
  std::size_t index = 0;
};
Worst worst_difference(const std::vector<float>& got, const std::vector<float>& want) {
  Worst worst;
  EXPECT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(error <= worst.error)) worst = {error, i};
  }
  return worst;
}

void expect_gradients(const MemoryModel& model, const std::string& expected, const Json& norms) {
  double square_sum = 0;
  for (const runtime::UnitInfo& unit : model.info().units) {
    for (const runtime::TensorInfo& tensor : unit.tensors) {
      const std::vector<float> want = read_floats(expected, "grad." + tensor.name);
      const std::vector<float> got = model.tensor_gradient(tensor.name);
      const double largest = norms["grads"][tensor.name]["max_abs"].get<double>();
      const Worst worst = worst_difference(got, want);
      EXPECT_LE(worst.error, 1e-4 * largest + 2e-8)
          << tensor.name << '[' << worst.index << "], largest value " << largest;
      for (const float g : got) square_sum += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  const double want_norm = norms["grad_norm_fp64"].get<double>();
  EXPECT_NEAR(std::sqrt(square_sum), want_norm, 5e-6 * want_norm);
}

struct GoldenCase {
  const char* folder;
  const char* labels;
  const char* expected;
  bool has_logits;
};

class ModelGolden : public testing::TestWithParam<GoldenCase> {};

TEST_P(ModelGolden, loss_logits_and_every_gradient_match_the_reference) {
  const GoldenCase& golden = GetParam();
  const std::string folder = reference_path(std::string("models/") + golden.folder);
  const Inputs inputs = read_inputs(golden.folder, golden.labels);
  const Json expected = read_json(folder + "/expected.json")["cases"][golden.labels];
  const std::string file = folder + "/" + golden.expected;
  MemoryModel model = MemoryModel::load(golden.folder, DType::kFp32, inputs.batch, inputs.time, 2);

  if (golden.has_logits) {
    const Worst worst = worst_difference(model.logits(inputs.micro_batch()), read_floats(file, "logits"));
    EXPECT_LE(worst.error, 1e-4) << "logit " << worst.index;
  }
  const auto tokens = expected["tokens"].get<std::int64_t>();
  const double want = expected["loss_fp64"].get<double>();
  const LossSum evaluated = model.evaluate(inputs.micro_batch());
  EXPECT_EQ(evaluated.counted, tokens);
  EXPECT_NEAR(evaluated.sum / static_cast<double>(tokens), want, 5e-6);
  const LossSum trained = model.train(inputs.micro_batch(), Keep::kKeep, true);
  EXPECT_EQ(trained.counted, tokens);
  EXPECT_NEAR(trained.sum / static_cast<double>(tokens), want, 5e-6);
  expect_gradients(model, file, expected);
}

INSTANTIATE_TEST_SUITE_P(Reference, ModelGolden,
                         testing::Values(GoldenCase{"llama_tiny", "labels", "expected.safetensors", true},
                                         GoldenCase{"llama_tied_rope3", "labels", "expected.safetensors", true},
                                         GoldenCase{"llama_tied_rope3", "labels_masked", "expected_masked.safetensors",
                                                    false},
                                         GoldenCase{"gpt2_tiny", "labels", "expected.safetensors", true}),
                         [](const auto& test) { return std::string(test.param.folder) + "_" + test.param.labels; });

struct HalfCase {
  const char* folder;
  DType dtype;
};
class ModelHalfWeights : public testing::TestWithParam<HalfCase> {};

TEST_P(ModelHalfWeights, logits_and_loss_match_weights_widened_to_fp32) {
  const HalfCase& half = GetParam();
  const std::string folder = reference_path(std::string("models/") + half.folder);
  const Inputs inputs = read_inputs(half.folder, "labels");
  const Json expected = read_json(folder + "/expected.json");
  MemoryModel model = MemoryModel::load(half.folder, half.dtype, inputs.batch, inputs.time, 2);
  // Where the CPU multiplies in bf16, activations that meet bf16 weights are rounded to 8 bits of precision.
  const bool rounded = half.dtype == DType::kBf16 && kernels::gemm_uses_bf16();
  const Worst worst =
      worst_difference(model.logits(inputs.micro_batch()), read_floats(folder + "/expected.safetensors", "logits"));
  EXPECT_LE(worst.error, rounded ? 0.15 : 1e-4) << "logit " << worst.index;
  const LossSum loss = model.train(inputs.micro_batch(), Keep::kKeep, true);
  EXPECT_NEAR(loss.sum / static_cast<double>(loss.counted), expected["loss_fp64"].get<double>(), rounded ? 0.02 : 5e-6);
  double square_sum = 0;
  for (const runtime::UnitInfo& unit : model.info().units) {
    for (const runtime::TensorInfo& tensor : unit.tensors) {
      for (const float g : model.tensor_gradient(tensor.name))
        square_sum += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  const double want_norm = expected["grad_norm_fp64"].get<double>();
  EXPECT_NEAR(std::sqrt(square_sum), want_norm, (rounded ? 0.02 : 5e-6) * want_norm);
}

INSTANTIATE_TEST_SUITE_P(Reference, ModelHalfWeights,
                         testing::Values(HalfCase{"llama_tiny_bf16", DType::kBf16},
                                         HalfCase{"gpt2_tiny_hubstyle_f16", DType::kFp16}),
                         [](const auto& test) { return std::string(test.param.folder); });

class ModelGenerate : public testing::TestWithParam<const char*> {};

TEST_P(ModelGenerate, greedy_continuation_is_the_reference) {
  const std::string name = GetParam();
  const Json reference = read_json(reference_path("models/" + name + "/generate.json"));
  auto tokens = reference["prompt"].get<std::vector<std::int32_t>>();
  const auto expected = reference["new_tokens"].get<std::vector<std::int32_t>>();
  const auto time = static_cast<std::int64_t>(tokens.size() + expected.size());
  MemoryModel model = MemoryModel::load(name, DType::kFp32, 1, time, 2);
  const auto vocab = model.model().config().vocab;
  std::vector<std::int32_t> produced;
  for (std::size_t step = 0; step < expected.size(); ++step) {
    std::vector<std::int32_t> padded = tokens;
    padded.resize(static_cast<std::size_t>(time), 0);  // later tokens cannot reach earlier ones
    const std::vector<float> logits = model.logits({padded, {}, 1.0F});
    const auto row = logits.begin() + (static_cast<std::int64_t>(tokens.size()) - 1) * vocab;
    const auto best = static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
    produced.push_back(best);
    tokens.push_back(best);
  }
  EXPECT_EQ(produced, expected);
}

INSTANTIATE_TEST_SUITE_P(Reference, ModelGenerate, testing::Values("llama_tiny", "llama_tied_rope3", "gpt2_tiny"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace headrace::models
