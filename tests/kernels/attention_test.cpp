// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <oneapi/tbb/global_control.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace headrace::kernels {
namespace {

using Values = std::vector<float>;

// Every matrix has a gap of 7 elements between its rows; gaps hold kGap and must keep it.
constexpr float kGap = -12345.0F;

struct Problem {
  AttentionShape shape;
  Values q, k, v, d_out;

  Problem(std::int64_t batch, std::int64_t time, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
          float spread = 1.0F) {
    const std::int64_t q_stride = heads * head_dim + 7;
    const std::int64_t k_stride = kv_heads * head_dim + 7;
    shape = {batch,    time,     heads,    kv_heads, head_dim, 1.0F / std::sqrt(static_cast<float>(head_dim)),
             q_stride, k_stride, k_stride, q_stride};
    std::mt19937 random(static_cast<std::uint32_t>(time * 1000 + heads * 10 + head_dim));
    std::normal_distribution<float> normal(0.0F, spread);
    const auto fill = [&](Values& values, std::int64_t stride) {
      values.assign(static_cast<std::size_t>(batch * time * stride), kGap);
      for (std::int64_t row = 0; row < batch * time; ++row) {
        for (std::int64_t i = 0; i < stride - 7; ++i)
          values[static_cast<std::size_t>(row * stride + i)] = normal(random);
      }
    };
    fill(q, q_stride);
    fill(k, k_stride);
    fill(v, k_stride);
    fill(d_out, q_stride);
  }
  [[nodiscard]] std::size_t rows_of_heads() const {
    return static_cast<std::size_t>(shape.batch * shape.heads * shape.time);
  }
};

struct Results {
  Values out, log_sum_exp, d_q, d_k, d_v;
};

Results blank(const Problem& problem) {
  return {Values(problem.q.size(), kGap), Values(problem.rows_of_heads(), kGap), Values(problem.q.size(), kGap),
          Values(problem.k.size(), kGap), Values(problem.v.size(), kGap)};
}

Results run(const Parallel& parallel, const Problem& problem) {
  Results results = blank(problem);
  Values delta(problem.rows_of_heads());
  attention_forward(parallel, problem.shape, problem.q.data(), problem.k.data(), problem.v.data(), results.out.data(),
                    results.log_sum_exp.data());
  attention_backward(parallel, problem.shape, problem.q.data(), problem.k.data(), problem.v.data(), results.out.data(),
                     results.log_sum_exp.data(), problem.d_out.data(), results.d_q.data(), results.d_k.data(),
                     results.d_v.data(), delta.data());
  return results;
}

Results run_reference(const Problem& problem) {
  Results results = blank(problem);
  attention_forward_reference(problem.shape, problem.q.data(), problem.k.data(), problem.v.data(), results.out.data(),
                              results.log_sum_exp.data());
  attention_backward_reference(problem.shape, problem.q.data(), problem.k.data(), problem.v.data(),
                               problem.d_out.data(), results.d_q.data(), results.d_k.data(), results.d_v.data());
  return results;
}

// Largest error relative to the root mean square of the exact values (or to 0.1 of the inputs' size, where all of them
// are zero, as the gradients of a single token are); prints where. Gaps must be equal.
double worst_error(const char* name, const Values& got, const Values& exact, const std::string& what) {
  double square = 0;
  double count = 0;
  for (const float value : exact) {
    if (value != kGap) square += static_cast<double>(value) * static_cast<double>(value), ++count;
  }
  const double size = std::max(std::sqrt(square / std::max(count, 1.0)), 0.1);
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (exact[i] == kGap) {
      EXPECT_EQ(got[i], kGap) << name << " wrote between rows at " << i << ", " << what;
      continue;
    }
    const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(exact[i])) / size;
    if (!(error <= worst)) worst = error, where = i;
  }
  std::printf("  %s: worst error %.2g of the RMS at element %zu\n", name, worst, where);
  return worst;
}

void expect_like_reference(const Parallel& parallel, const Problem& problem, double bound) {
  const AttentionShape& s = problem.shape;
  const std::string what = "batch " + std::to_string(s.batch) + " time " + std::to_string(s.time) + " heads " +
                           std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " head_dim " +
                           std::to_string(s.head_dim);
  std::printf("%s\n", what.c_str());
  const Results got = run(parallel, problem);
  const Results exact = run_reference(problem);
  EXPECT_LE(worst_error("out", got.out, exact.out, what), bound) << what;
  EXPECT_LE(worst_error("log_sum_exp", got.log_sum_exp, exact.log_sum_exp, what), bound) << what;
  EXPECT_LE(worst_error("d_q", got.d_q, exact.d_q, what), bound) << what;
  EXPECT_LE(worst_error("d_k", got.d_k, exact.d_k, what), bound) << what;
  EXPECT_LE(worst_error("d_v", got.d_v, exact.d_v, what), bound) << what;
}

TEST(Attention, MatchesFp64ForAllLengthsAcrossBlockEdges) {
  const Parallel parallel(2);
  for (const std::int64_t time : {1, 2, 17, 63, 64, 65, 127, 128, 129, 256, 257, 300}) {
    expect_like_reference(parallel, Problem(1, time, 2, 2, 16), 1e-5);
  }
}

TEST(Attention, MatchesFp64ForAllHeadSizesAndGroups) {
  const Parallel parallel(2);
  for (const std::int64_t head_dim : {8, 24, 64, 80, 128, 256})
    expect_like_reference(parallel, Problem(1, 70, 2, 1, head_dim), 1e-5);
  expect_like_reference(parallel, Problem(2, 135, 6, 3, 32), 1e-5);
  expect_like_reference(parallel, Problem(3, 66, 4, 1, 8), 1e-5);
}

// Scores up to about ±300: the running maximum moves over hundreds and most weights are zero. Scores of that size have
// rounding errors of 300 · 2^-24 and more, which is the relative error of the weights.
TEST(Attention, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  const Parallel parallel(2);
  expect_like_reference(parallel, Problem(1, 600, 1, 1, 16, 8.0F), 5e-4);
}

TEST(Attention, NonFiniteInputReachesTheOutput) {
  const Parallel parallel(1);
  Problem problem(1, 10, 1, 1, 8);
  problem.k[static_cast<std::size_t>(4 * problem.shape.k_stride)] = std::nanf("");
  const Results got = run(parallel, problem);
  EXPECT_TRUE(std::isfinite(got.out[static_cast<std::size_t>(3 * problem.shape.out_stride)]));
  EXPECT_TRUE(std::isnan(got.out[static_cast<std::size_t>(4 * problem.shape.out_stride)]));
  EXPECT_TRUE(std::isnan(got.d_q[static_cast<std::size_t>(9 * problem.shape.q_stride)]));
}

double loss_of(const Problem& problem) {
  Values out(problem.q.size());
  Values log_sum_exp(problem.rows_of_heads());
  attention_forward_reference(problem.shape, problem.q.data(), problem.k.data(), problem.v.data(), out.data(),
                              log_sum_exp.data());
  double loss = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (problem.d_out[i] != kGap) loss += static_cast<double>(out[i]) * static_cast<double>(problem.d_out[i]);
  }
  return loss;
}

TEST(AttentionReference, GradientsAreTheDifferencesOfTheLoss) {
  Problem problem(2, 5, 4, 2, 3);
  const Results exact = run_reference(problem);
  const auto check = [&](Values& input, const Values& gradient, const char* name) {
    for (std::size_t i = 0; i < input.size(); i += 3) {
      if (input[i] == kGap) continue;
      const float kept = input[i];
      input[i] = kept + 0.01F;
      const double above = loss_of(problem);
      input[i] = kept - 0.01F;
      const double below = loss_of(problem);
      input[i] = kept;
      EXPECT_NEAR(gradient[i], (above - below) / 0.02, 2e-3) << name << " " << i;
    }
  };
  check(problem.q, exact.d_q, "d_q");
  check(problem.k, exact.d_k, "d_k");
  check(problem.v, exact.d_v, "d_v");
}

TEST(Attention, BitsDependOnNeitherThreadsNorRepetition) {
  const tbb::global_control real_threads(tbb::global_control::max_allowed_parallelism, 3);
  const Problem problem(2, 200, 4, 2, 24);
  const Results expected = run(Parallel(1), problem);
  for (const int threads : {1, 2, 3, 3}) {
    const Results got = run(Parallel(threads), problem);
    EXPECT_EQ(expected.out, got.out) << threads;
    EXPECT_EQ(expected.log_sum_exp, got.log_sum_exp) << threads;
    EXPECT_EQ(expected.d_q, got.d_q) << threads;
    EXPECT_EQ(expected.d_k, got.d_k) << threads;
    EXPECT_EQ(expected.d_v, got.d_v) << threads;
  }
}

}  // namespace
}  // namespace headrace::kernels
