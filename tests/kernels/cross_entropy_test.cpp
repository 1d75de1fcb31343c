// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cross_entropy.h"

#include <gtest/gtest.h>

#include <oneapi/tbb/global_control.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace headrace::kernels {
namespace {

struct Problem {
  std::int64_t tokens, embed, vocab;
  DType dtype = DType::kFp32;
  float spread = 1.0F;
};

struct Data {
  std::vector<float> hidden;
  std::vector<std::byte> weights;
  std::vector<std::int32_t> labels;
};

Data make(const Problem& problem) {
  std::mt19937 random(static_cast<std::uint32_t>(problem.tokens * 7 + problem.vocab));
  std::normal_distribution<float> normal(0.0F, problem.spread);
  Data data;
  data.hidden.resize(static_cast<std::size_t>(problem.tokens * problem.embed));
  for (float& value : data.hidden) value = normal(random);
  const auto elements = static_cast<std::size_t>(problem.vocab * problem.embed);
  const auto bytes = static_cast<std::size_t>(dtype_bytes(problem.dtype));
  data.weights.resize(elements * bytes);
  for (std::size_t i = 0; i < elements; ++i) {
    const float value = normal(random) * 0.3F;
    const Bf16 bf16 = to_bf16(value);
    const Fp16 fp16 = to_fp16(value);
    const void* from = problem.dtype == DType::kFp32   ? static_cast<const void*>(&value)
                       : problem.dtype == DType::kBf16 ? static_cast<const void*>(&bf16)
                                                       : &fp16;
    std::memcpy(data.weights.data() + i * bytes, from, bytes);
  }
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    data.labels.push_back(
        token % 5 == 3 ? -100 : static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(problem.vocab)));
  }
  data.labels.back() = static_cast<std::int32_t>(problem.vocab - 1);
  return data;
}

struct Results {
  HeadCrossEntropyResult loss;
  std::vector<float> d_hidden, d_weights;
};

constexpr std::byte kGuard{0xA5};

Results run(const Parallel* parallel, const Problem& problem, const Data& data, bool accumulate) {
  Results results;
  results.d_hidden.assign(data.hidden.size(), std::nanf(""));
  results.d_weights.assign(static_cast<std::size_t>(problem.vocab * problem.embed), accumulate ? 0.25F : std::nanf(""));
  const Bytes needed = head_cross_entropy_workspace_bytes(problem.tokens, problem.embed, problem.vocab);
  std::vector<std::byte> workspace(static_cast<std::size_t>(needed) + 128, kGuard);
  std::byte* aligned = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
  HeadCrossEntropy arguments{problem.tokens,
                             problem.embed,
                             problem.vocab,
                             data.hidden.data(),
                             data.weights.data(),
                             problem.dtype,
                             data.labels.data(),
                             0.125F,
                             results.d_hidden.data(),
                             results.d_weights.data(),
                             accumulate,
                             aligned};
  results.loss =
      parallel != nullptr ? head_cross_entropy(*parallel, arguments) : head_cross_entropy_reference(arguments);
  for (std::byte* at = aligned + needed; at < workspace.data() + workspace.size(); ++at)
    EXPECT_EQ(*at, kGuard) << "wrote behind the workspace";
  if (parallel != nullptr) {
    EXPECT_NE(aligned[needed - 1], kGuard) << "the workspace is larger than what is used";
  }
  return results;
}

double worst_error(const char* name, const std::vector<float>& got, const std::vector<float>& exact) {
  double size = 0;
  for (const float value : exact) size = std::max(size, std::fabs(static_cast<double>(value)));
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) / size;
    if (!(error <= worst)) worst = error, where = i;
  }
  std::printf("  %s: worst error %.2g of the largest at element %zu\n", name, worst, where);
  return worst;
}

// Where the CPU multiplies bf16, hidden states that meet bf16 weights are rounded (2^-9 each).
void expect_like_reference(const Problem& problem, bool accumulate, double bound = 5e-6) {
  const bool rounds = gemm_uses_bf16() && problem.dtype == DType::kBf16;
  if (rounds) bound = 2e-2;
  static const Parallel parallel(2);
  std::printf("tokens %lld embed %lld vocab %lld %s\n", static_cast<long long>(problem.tokens),
              static_cast<long long>(problem.embed), static_cast<long long>(problem.vocab), dtype_name(problem.dtype));
  const Data data = make(problem);
  const Results got = run(&parallel, problem, data, accumulate);
  const Results exact = run(nullptr, problem, data, accumulate);
  EXPECT_EQ(got.loss.counted, exact.loss.counted);
  EXPECT_NEAR(got.loss.loss_sum, exact.loss.loss_sum, (rounds ? 1e-2 : 1e-6) * std::fabs(exact.loss.loss_sum));
  EXPECT_LE(worst_error("d_hidden", got.d_hidden, exact.d_hidden), bound);
  EXPECT_LE(worst_error("d_weights", got.d_weights, exact.d_weights), bound);
}

TEST(HeadCrossEntropy, MatchesFp64WithOneBlockOfTheVocabulary) {
  for (const bool accumulate : {false, true}) {
    expect_like_reference({1, 8, 3}, accumulate);
    expect_like_reference({17, 33, 101, DType::kBf16}, accumulate);
    expect_like_reference({300, 16, 517, DType::kFp16}, accumulate);
  }
}

TEST(HeadCrossEntropy, MatchesFp64WithSeveralBlocksOfTheVocabulary) {
  for (const bool accumulate : {false, true}) {
    expect_like_reference({5, 8, 8192, DType::kBf16}, accumulate);
    expect_like_reference({5, 8, 8193, DType::kBf16}, accumulate);
    expect_like_reference({270, 8, 17000, DType::kFp32}, accumulate);
  }
}

// Logits of ±60 carry rounding errors of 60 · 2^-24 and more, which is the relative error of the weights.
TEST(HeadCrossEntropy, LargeLogitsStayFinite) {
  expect_like_reference({20, 64, 9000, DType::kFp32, 5.0F}, false, 5e-5);
}

TEST(HeadCrossEntropy, IgnoredTokensGiveNothing) {
  const Parallel parallel(2);
  const Problem problem{40, 8, 50};
  Data data = make(problem);
  std::fill(data.labels.begin(), data.labels.end(), -100);
  const Results got = run(&parallel, problem, data, false);
  EXPECT_EQ(got.loss.counted, 0);
  EXPECT_EQ(got.loss.loss_sum, 0.0);
  for (const float value : got.d_hidden) EXPECT_EQ(value, 0.0F);
  for (const float value : got.d_weights) EXPECT_EQ(value, 0.0F);
}

TEST(HeadCrossEntropy, ForwardAloneGivesTheSameLoss) {
  const Parallel parallel(2);
  for (const std::int64_t vocab : {100, 9000}) {
    const Problem problem{30, 8, vocab};
    const Data data = make(problem);
    const Results both = run(&parallel, problem, data, false);
    std::vector<std::byte> workspace(static_cast<std::size_t>(head_cross_entropy_workspace_bytes(30, 8, vocab)) + 64);
    std::byte* aligned = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
    const auto forward =
        head_cross_entropy(parallel, {30, 8, vocab, data.hidden.data(), data.weights.data(), DType::kFp32,
                                      data.labels.data(), 1.0F, nullptr, nullptr, false, aligned});
    EXPECT_EQ(forward.loss_sum, both.loss.loss_sum);
    EXPECT_EQ(forward.counted, both.loss.counted);
  }
}

TEST(HeadCrossEntropy, NonFiniteHiddenStatesReachTheLoss) {
  const Parallel parallel(1);
  const Problem problem{4, 8, 20};
  Data data = make(problem);
  data.hidden[0] = std::nanf("");
  EXPECT_TRUE(std::isnan(run(&parallel, problem, data, false).loss.loss_sum));
}

TEST(HeadCrossEntropy, BitsDependOnNeitherThreadsNorRepetition) {
  const tbb::global_control real_threads(tbb::global_control::max_allowed_parallelism, 3);
  const Problem problem{300, 32, 9001, DType::kBf16};
  const Data data = make(problem);
  const Results expected = run(std::make_unique<Parallel>(1).get(), problem, data, true);
  for (const int threads : {1, 2, 3, 3}) {
    const Parallel parallel(threads);
    const Results got = run(&parallel, problem, data, true);
    EXPECT_EQ(expected.loss.loss_sum, got.loss.loss_sum) << threads;
    EXPECT_EQ(expected.d_hidden, got.d_hidden) << threads;
    EXPECT_EQ(expected.d_weights, got.d_weights) << threads;
  }
}

TEST(HeadCrossEntropyReference, GradientsAreTheDifferencesOfTheLoss) {
  const Problem problem{3, 4, 7};
  Data data = make(problem);
  const Results exact = run(nullptr, problem, data, false);
  const auto loss = [&] { return run(nullptr, problem, data, false).loss.loss_sum * 0.125; };
  for (std::size_t i = 0; i < data.hidden.size(); ++i) {
    const float kept = data.hidden[i];
    data.hidden[i] = kept + 0.01F;
    const double above = loss();
    data.hidden[i] = kept - 0.01F;
    const double below = loss();
    data.hidden[i] = kept;
    EXPECT_NEAR(exact.d_hidden[i], (above - below) / 0.02, 1e-4) << i;
  }
  auto* weights = reinterpret_cast<float*>(data.weights.data());
  for (std::size_t i = 0; i < exact.d_weights.size(); ++i) {
    const float kept = weights[i];
    weights[i] = kept + 0.01F;
    const double above = loss();
    weights[i] = kept - 0.01F;
    const double below = loss();
    weights[i] = kept;
    EXPECT_NEAR(exact.d_weights[i], (above - below) / 0.02, 1e-4) << i;
  }
}

TEST(HeadCrossEntropyDeathTest, LabelOutsideTheVocabularyIsADefect) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::int32_t label : {-1, -99, 7}) {
    const Problem problem{3, 4, 7};
    Data data = make(problem);
    data.labels[1] = label;
    const Parallel parallel(1);
    EXPECT_DEATH(static_cast<void>(run(&parallel, problem, data, false)), "inside the vocabulary");
  }
}

}  // namespace
}  // namespace headrace::kernels
