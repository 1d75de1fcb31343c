// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

// Smaller: the gradient of the weights is read and written more often (once per block of tokens). Larger: more
// workspace.
constexpr std::int64_t kTokenBlock = 256;
// Vocabularies beyond this take a second product with the weights instead of more workspace (8 MiB of logits).
constexpr std::int64_t kVocabBlock = 8192;
constexpr std::int64_t kRowsPerTask = 16;
constexpr std::int32_t kIgnored = -100;
static_assert(kVocabBlock * static_cast<Bytes>(sizeof(float)) <= Parallel::kScratchBytes);

// What is known of the tokens of a block while the vocabulary goes by.
struct RowStates {
  double sums[kTokenBlock];  // Σ e^(logit - maximum)
  float maxima[kTokenBlock];
  float label_logits[kTokenBlock];
};
constexpr Bytes kRowStatesBytes = round_up(static_cast<Bytes>(sizeof(RowStates)), 64);

struct TokenBlock {
  std::int64_t first, count;
};
struct VocabBlock {
  std::int64_t first, count;
};

class Head {
 public:
  Head(const Parallel& parallel, const HeadCrossEntropy& arguments)
      : parallel_(parallel),
        arguments_(arguments),
        states_(*reinterpret_cast<RowStates*>(arguments.workspace)),
        logits_(reinterpret_cast<float*>(arguments.workspace + kRowStatesBytes)) {}

  HeadCrossEntropyResult run() {
    HeadCrossEntropyResult result;
    const bool has_gradient = arguments_.d_hidden != nullptr || arguments_.d_weights != nullptr;
    for (std::int64_t token = 0; token < arguments_.tokens; token += kTokenBlock) {
      const TokenBlock tokens{token, std::min(kTokenBlock, arguments_.tokens - token)};
      gather_softmax(tokens);
      add_losses(tokens, result);
      if (has_gradient) add_gradients(tokens);
    }
    return result;
  }

 private:
  [[nodiscard]] std::int64_t vocab_blocks() const { return ceil_div(arguments_.vocab, kVocabBlock); }
  [[nodiscard]] VocabBlock vocab_block(std::int64_t index) const {
    const std::int64_t first = index * kVocabBlock;
    return {first, std::min(kVocabBlock, arguments_.vocab - first)};
  }
  [[nodiscard]] MatrixOperand weights_of(const VocabBlock& vocab, bool transposed) const {
    const auto* data = static_cast<const std::byte*>(arguments_.weights) +
                       vocab.first * arguments_.embed * dtype_bytes(arguments_.weights_dtype);
    return {data, arguments_.weights_dtype, arguments_.embed, transposed};
  }
  [[nodiscard]] const float* hidden_of(const TokenBlock& tokens) const {
    return arguments_.hidden + tokens.first * arguments_.embed;
  }
  [[nodiscard]] std::int32_t label_of(const TokenBlock& tokens, std::int64_t row) const {
    return arguments_.labels[tokens.first + row];
  }

  template <class Body>
  void for_rows(const TokenBlock& tokens, Body body) const {
    parallel_.for_each(ceil_div(tokens.count, kRowsPerTask), [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kRowsPerTask, tokens.count);
      for (std::int64_t row = task * kRowsPerTask; row < end; ++row) body(row);
    });
  }

  void make_logits(const TokenBlock& tokens, const VocabBlock& vocab) {
    const MatrixOperand hidden{hidden_of(tokens), DType::kFp32, arguments_.embed, false};
    gemm(parallel_,
         {tokens.count, vocab.count, arguments_.embed, hidden, weights_of(vocab, true), logits_, vocab.count});
  }

  // Leaves the logits of the last block of the vocabulary in place.
  void gather_softmax(const TokenBlock& tokens) {
    std::fill_n(states_.maxima, tokens.count, -std::numeric_limits<float>::infinity());
    std::fill_n(states_.sums, tokens.count, 0.0);
    for (std::int64_t block = 0; block < vocab_blocks(); ++block) {
      const VocabBlock vocab = vocab_block(block);
      make_logits(tokens, vocab);
      for_rows(tokens, [&](std::int64_t row) { gather_row(vocab, row, label_of(tokens, row)); });
    }
  }

  void gather_row(const VocabBlock& vocab, std::int64_t row, std::int32_t label) {
    const float* logits = logits_ + row * vocab.count;
    if (label == kIgnored) return;
    if (label >= vocab.first && label < vocab.first + vocab.count)
      states_.label_logits[row] = logits[label - vocab.first];
    const float before = states_.maxima[row];
    const float maximum = std::max(before, max_array(logits, vocab.count));
    auto* exponentials = reinterpret_cast<float*>(parallel_.scratch().data());
    const double sum = static_cast<double>(exp_minus_sum(logits, maximum, exponentials, vocab.count));
    if (vocab.first > 0) states_.sums[row] *= std::exp(static_cast<double>(before) - static_cast<double>(maximum));
    states_.sums[row] += sum;
    states_.maxima[row] = maximum;
  }

  // In the order of tokens, on the calling thread.
  void add_losses(const TokenBlock& tokens, HeadCrossEntropyResult& result) const {
    for (std::int64_t row = 0; row < tokens.count; ++row) {
      if (label_of(tokens, row) == kIgnored) continue;
      result.loss_sum += static_cast<double>(states_.maxima[row]) - static_cast<double>(states_.label_logits[row]) +
                         std::log(states_.sums[row]);
      ++result.counted;
    }
  }

  // From the last block of the vocabulary, whose logits are still there, to the first.
  void add_gradients(const TokenBlock& tokens) {
    const std::int64_t last = vocab_blocks() - 1;
    for (std::int64_t block = last; block >= 0; --block) {
      const VocabBlock vocab = vocab_block(block);
      if (block != last) make_logits(tokens, vocab);
      for_rows(tokens, [&](std::int64_t row) { logits_to_gradient(vocab, row, label_of(tokens, row)); });
      if (arguments_.d_hidden != nullptr) {
        gemm(parallel_, {tokens.count,
                         arguments_.embed,
                         vocab.count,
                         {logits_, DType::kFp32, vocab.count, false},
                         weights_of(vocab, false),
                         arguments_.d_hidden + tokens.first * arguments_.embed,
                         arguments_.embed,
                         block != last});
      }
      if (arguments_.d_weights != nullptr) {
        gemm(parallel_, {vocab.count,
                         arguments_.embed,
                         tokens.count,
                         {logits_, DType::kFp32, vocab.count, true},
                         {hidden_of(tokens), DType::kFp32, arguments_.embed, false},
                         arguments_.d_weights + vocab.first * arguments_.embed,
                         arguments_.embed,
                         arguments_.accumulate_d_weights || tokens.first > 0});
      }
    }
  }

  // (softmax - one hot) · gradient_scale, in place.
  void logits_to_gradient(const VocabBlock& vocab, std::int64_t row, std::int32_t label) {
    float* logits = logits_ + row * vocab.count;
    if (label == kIgnored) {
      std::fill_n(logits, vocab.count, 0.0F);
      return;
    }
    exp_minus_sum(logits, states_.maxima[row], logits, vocab.count);
    const auto factor = static_cast<float>(static_cast<double>(arguments_.gradient_scale) / states_.sums[row]);
    for (std::int64_t i = 0; i < vocab.count; ++i) logits[i] *= factor;
    if (label >= vocab.first && label < vocab.first + vocab.count)
      logits[label - vocab.first] -= arguments_.gradient_scale;
  }

  const Parallel& parallel_;
  const HeadCrossEntropy& arguments_;
  RowStates& states_;
  float* logits_;
};

}  // namespace

Bytes head_cross_entropy_workspace_bytes(std::int64_t tokens, std::int64_t /*embed*/, std::int64_t vocab) noexcept {
  return kRowStatesBytes +
         std::min(tokens, kTokenBlock) * std::min(vocab, kVocabBlock) * static_cast<Bytes>(sizeof(float));
}

HeadCrossEntropyResult head_cross_entropy(const Parallel& parallel, const HeadCrossEntropy& arguments) {
  for (std::int64_t token = 0; token < arguments.tokens; ++token) {
    const std::int32_t label = arguments.labels[token];
    HEADRACE_CHECK(label == kIgnored || (label >= 0 && label < arguments.vocab),
                   "a label is -100 or inside the vocabulary");
  }
  return Head(parallel, arguments).run();
}

}  // namespace headrace::kernels
