// SPDX-License-Identifier: Apache-2.0
// A training task made to break narrow optimizer states: words that are rare by three orders of magnitude and share
// their blocks with frequent ones, one feature whose gradients are outliers, spikes of the learning rate. The formats
// must end where fp32 ends; the naive 8-bit state that is compared must not, or the task would show nothing.
#include <algorithm>

#include <gtest/gtest.h>

#include "format_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

constexpr int kWords = 256;
constexpr int kFeatures = 24;  // a row is no multiple of a block
constexpr int kBatch = 32;
constexpr int kSteps = 800;
constexpr int kHeldOut = 2000;
constexpr std::int64_t kParameters = std::int64_t{2} * kWords * kFeatures;
constexpr float kOutlier = 30.0F;

// Pairs of words: the first by Zipf's law, the second one of four that follow it.
class Pairs {
 public:
  explicit Pairs(std::uint64_t seed) : random_(seed) {
    double sum = 0;
    for (int w = 0; w < kWords; ++w) cumulative_.push_back(sum += 1.0 / std::pow(w + 1.0, 1.2));
    for (int w = 0; w < 4 * kWords; ++w) next_.push_back(static_cast<int>(random_.below(kWords)));
  }
  std::pair<int, int> draw() {
    const double at = random_.uniform(0, cumulative_.back());
    const auto word = std::upper_bound(cumulative_.begin(), cumulative_.end(), at) - cumulative_.begin();
    const std::int64_t first = std::min<std::int64_t>(word, kWords - 1);
    const double which = random_.uniform(0, 1);
    const std::int64_t choice = which < 0.6 ? 0 : (which < 0.8 ? 1 : (which < 0.95 ? 2 : 3));
    return {static_cast<int>(first), next_[static_cast<std::size_t>(4 * first + choice)]};
  }

 private:
  Random random_;
  std::vector<double> cumulative_;
  std::vector<int> next_;
};

// logits of y = sum over f of scale_f · in[x][f] · out[y][f]. Returns the loss, adds gradients where wanted.
class Model {
 public:
  double loss(const std::vector<float>& p, std::pair<int, int> pair, float* gradient) {
    const float* in = &p[static_cast<std::size_t>(pair.first * kFeatures)];
    const float* out = &p[static_cast<std::size_t>(kWords * kFeatures)];
    float scaled[kFeatures];
    for (int f = 0; f < kFeatures; ++f) scaled[f] = in[f] * (f == 0 ? kOutlier : 1.0F);
    float largest = -INFINITY;
    for (int y = 0; y < kWords; ++y) {
      float sum = 0;
      for (int f = 0; f < kFeatures; ++f) sum += scaled[f] * out[y * kFeatures + f];
      logits_[y] = sum;
      largest = std::max(largest, sum);
    }
    double total = 0;
    for (const float logit : logits_) total += std::exp(static_cast<double>(logit - largest));
    const double result = std::log(total) + static_cast<double>(largest - logits_[pair.second]);
    if (gradient == nullptr) return result;
    float back[kFeatures] = {};
    for (int y = 0; y < kWords; ++y) {
      const double probability = std::exp(static_cast<double>(logits_[y] - largest)) / total;
      const auto d = static_cast<float>((probability - (y == pair.second ? 1 : 0)) / kBatch);
      float* at = gradient + (kWords + y) * kFeatures;
      for (int f = 0; f < kFeatures; ++f) {
        at[f] += d * scaled[f];
        back[f] += d * out[y * kFeatures + f];
      }
    }
    for (int f = 0; f < kFeatures; ++f) gradient[pair.first * kFeatures + f] += back[f] * (f == 0 ? kOutlier : 1.0F);
    return result;
  }

 private:
  float logits_[kWords] = {};
};

// 8 bits the obvious way: moments linear within a block, rounded to nearest; the master stays fp32.
void round_linearly(std::vector<float>& moment, float steps) {
  for (std::size_t begin = 0; begin < moment.size(); begin += 64) {
    const std::size_t end = std::min(begin + 64, moment.size());
    float largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(moment[i]));
    for (std::size_t i = begin; largest > 0 && i < end; ++i) {
      moment[i] = std::round(moment[i] / largest * steps) / steps * largest;
    }
  }
}

struct Recipe {
  const char* name;
  StateFormat format;
  bool linear_bytes;
};

double final_loss(const Recipe& recipe, std::uint64_t seed) {
  Pairs pairs(seed);
  Model model;
  FormatState state(recipe.format, kParameters, 0);
  Wide start(kParameters);
  Random random(seed + 1000);
  for (float& p : start.master) p = 0.1F * random.weight();
  state.narrow(start);
  std::vector<float> weights(static_cast<std::size_t>(kParameters));
  const auto read_weights = [&] {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = to_fp32(Bf16{state.weights[static_cast<std::int64_t>(i)]});
    }
  };
  Gradient gradient(DType::kFp32, kParameters, 0);
  AdamWHyper hyper;
  hyper.beta2 = 0.99;
  hyper.rounding_seed = seed;
  for (int t = 1; t <= kSteps; ++t) {
    read_weights();
    for (std::int64_t i = 0; i < kParameters; ++i) gradient.wide[i] = 0;
    for (int b = 0; b < kBatch; ++b) model.loss(weights, pairs.draw(), gradient.wide.data());
    hyper.optimizer_step = t;
    hyper.lr = (t % 97 == 0 ? 10 : 1) * 0.01;
    adamw_update(state.arrays(gradient), recipe.format, hyper, best_target());
    if (!recipe.linear_bytes) continue;
    Wide wide = state.widen();
    round_linearly(wide.exp_avg, 127);
    round_linearly(wide.exp_avg_sq, 255);
    state.narrow(wide);
  }
  read_weights();
  double sum = 0;
  for (int i = 0; i < kHeldOut; ++i) sum += model.loss(weights, pairs.draw(), nullptr);
  return sum / kHeldOut;
}

TEST(AdamWFormatStress, rare_words_outliers_and_spikes_end_where_fp32_ends) {
  for (const std::uint64_t seed : {1ULL, 2ULL, 3ULL}) {
    const double exact = final_loss({"fp32", StateFormat::kFp32, false}, seed);
    const double split_bf16 = final_loss({"split_bf16", StateFormat::kSplitBf16, false}, seed);
    const double compact = final_loss({"compact", StateFormat::kCompact, false}, seed);
    const double naive = final_loss({"linear 8-bit moments", StateFormat::kFp32, true}, seed);
    std::printf("[ LOSS     ] seed %d: fp32 %.4f, split_bf16 %.4f, compact %.4f, linear 8-bit moments %.4f\n",
                static_cast<int>(seed), exact, split_bf16, compact, naive);
    EXPECT_LE(split_bf16, 1.02 * exact) << "seed " << seed;
    EXPECT_LE(compact, 1.02 * exact) << "seed " << seed;
    EXPECT_FALSE(naive <= 1.1 * exact) << "the task does not separate a naive format, seed " << seed;
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
