// SPDX-License-Identifier: Apache-2.0
// Training and validation samples from one file of tokens. Sample j is tokens j·T … (j+1)·T: T inputs and the same
// shifted by one as targets. Only the samples asked for are read, so the file may be of any size, and every position
// gives the same sample on every rank and after every restart.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/bytes.h"
#include "core/file.h"
#include "core/result.h"
#include "models/tokenizer/tokenizer.h"

namespace headrace::models {

enum class DataOrder : std::uint8_t { kShuffled, kSequential };
enum class DataPart : std::uint8_t { kTrain, kValidation };

struct TokenDataOptions {
  std::string path;
  std::string tokenizer = "bytes";
  std::int64_t sequence_length = 0;        // T, at least 1
  DataOrder order = DataOrder::kShuffled;  // a permutation by (seed, epoch), or as they stand
  std::uint64_t seed = 1;
  double validation_fraction = 0;  // f of n tokens: the last floor(n·f) are for validation, the others for training
  DataPart part = DataPart::kTrain;
  std::int64_t model_vocab = 0;  // ids must be below; 0 = whatever the tokenizer gives
};

// Immutable after opening; thread-safe. Members that return a Result may block on the disk.
class TokenData {
 public:
  // kConfig errors: missing or empty file, a part shorter than one sample (with both numbers), an unknown tokenizer, a
  // token that the model's vocabulary does not have (with its position; reads the whole file where the tokenizer has
  // such tokens).
  [[nodiscard]] static Result<TokenData> open(const TokenDataOptions& options);

  [[nodiscard]] std::int64_t num_tokens() const noexcept { return tokens_; }    // of this part
  [[nodiscard]] std::int64_t num_samples() const noexcept { return samples_; }  // of one epoch: floor((tokens − 1) / T)
  [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return *tokenizer_; }

  // The sample at a position that counts on over the epochs: epoch = position / num_samples().
  [[nodiscard]] std::int64_t sample_at(std::int64_t position) const noexcept;
  // The T + 1 tokens of sample `index` of this part.
  [[nodiscard]] Result<void> sample(std::int64_t index, std::span<std::int32_t> tokens) const;
  // The samples at positions [position, position + count): `inputs` and `labels` have count · T elements, [count, T].
  [[nodiscard]] Result<void> batch(std::int64_t position, std::int64_t count, std::span<std::int32_t> inputs,
                                   std::span<std::int32_t> labels) const;

 private:
  TokenData(const TokenDataOptions& options, const Tokenizer& tokenizer, File file);
  [[nodiscard]] Result<void> set_range(std::int64_t file_tokens, double validation_fraction, DataPart part);
  [[nodiscard]] Result<void> check_ids(std::span<const std::int32_t> ids, std::int64_t first_token) const;
  [[nodiscard]] Result<void> check_whole_file(std::int64_t file_tokens) const;
  [[nodiscard]] Result<void> read_tokens(std::int64_t first_token, std::span<std::int32_t> tokens) const;

  const Tokenizer* tokenizer_;
  File file_;
  std::int64_t sequence_length_;
  DataOrder order_;
  std::uint64_t seed_;
  std::int64_t vocab_;
  std::int64_t first_token_ = 0, tokens_ = 0, samples_ = 0;
};

}  // namespace headrace::models
