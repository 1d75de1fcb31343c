// SPDX-License-Identifier: Apache-2.0
// The loss of the head as its definition says, in fp64 and one token at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

struct Softmax {
  std::vector<double> weights;
  double log_sum = 0;
};

// weights = logits in, softmax out.
void to_softmax(Softmax& softmax) {
  const double maximum = *std::max_element(softmax.weights.begin(), softmax.weights.end());
  double sum = 0;
  for (const double logit : softmax.weights) sum += std::exp(logit - maximum);
  softmax.log_sum = maximum + std::log(sum);
  for (double& weight : softmax.weights) weight = std::exp(weight - softmax.log_sum);
}

}  // namespace

HeadCrossEntropyResult head_cross_entropy_reference(const HeadCrossEntropy& arguments) {
  const auto embed = static_cast<std::size_t>(arguments.embed);
  const auto vocab = static_cast<std::size_t>(arguments.vocab);
  std::vector<float> weights(vocab * embed);
  widen_array(arguments.weights_dtype, arguments.weights, weights.data(), static_cast<std::int64_t>(weights.size()));
  std::vector<double> d_weights(arguments.d_weights != nullptr ? weights.size() : 0);
  if (arguments.accumulate_d_weights) std::copy_n(arguments.d_weights, d_weights.size(), d_weights.begin());
  HeadCrossEntropyResult result;
  Softmax softmax{std::vector<double>(vocab)};
  for (std::size_t token = 0; token < static_cast<std::size_t>(arguments.tokens); ++token) {
    const float* hidden = arguments.hidden + token * embed;
    std::vector<double> d_hidden(embed);
    if (arguments.labels[token] != -100) {
      const auto label = static_cast<std::size_t>(arguments.labels[token]);
      for (std::size_t word = 0; word < vocab; ++word) {
        softmax.weights[word] = 0;
        for (std::size_t e = 0; e < embed; ++e) {
          softmax.weights[word] += static_cast<double>(hidden[e]) * static_cast<double>(weights[word * embed + e]);
        }
      }
      const double label_logit = softmax.weights[label];
      to_softmax(softmax);
      result.loss_sum += softmax.log_sum - label_logit;
      ++result.counted;
      for (std::size_t word = 0; word < vocab; ++word) {
        const double d_logit =
            (softmax.weights[word] - (word == label ? 1.0 : 0.0)) * static_cast<double>(arguments.gradient_scale);
        for (std::size_t e = 0; e < embed; ++e) {
          d_hidden[e] += d_logit * static_cast<double>(weights[word * embed + e]);
          if (!d_weights.empty()) d_weights[word * embed + e] += d_logit * static_cast<double>(hidden[e]);
        }
      }
    }
    if (arguments.d_hidden != nullptr) {
      for (std::size_t e = 0; e < embed; ++e) arguments.d_hidden[token * embed + e] = static_cast<float>(d_hidden[e]);
    }
  }
  for (std::size_t i = 0; i < d_weights.size(); ++i) arguments.d_weights[i] = static_cast<float>(d_weights[i]);
  return result;
}

}  // namespace headrace::kernels
