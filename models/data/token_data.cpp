// SPDX-License-Identifier: Apache-2.0
#include "models/data/token_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "models/files/input_file.h"

namespace headrace::models {
namespace {

// Tokens read at a time by the check of a whole file; smaller means more system calls, larger more memory.
constexpr std::int64_t kCheckedTokens = 64 * 1024;

const char* part_name(DataPart part) { return part == DataPart::kTrain ? "training" : "validation"; }

}  // namespace

TokenData::TokenData(const TokenDataOptions& options, const Tokenizer& tokenizer, File file)
    : tokenizer_(&tokenizer),
      file_(std::move(file)),
      sequence_length_(options.sequence_length),
      order_(options.order),
      seed_(options.seed),
      vocab_(options.model_vocab == 0 ? tokenizer.vocab : options.model_vocab) {}

Result<TokenData> TokenData::open(const TokenDataOptions& options) {
  HEADRACE_TRY(const Tokenizer* tokenizer, find_tokenizer(options.tokenizer));
  if (options.sequence_length < 1) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("the sequence length is {}; it must be at least 1", options.sequence_length));
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    return make_error(
        ErrorCode::kConfig,
        fmt::format("the validation fraction is {}; it must be at least 0 and below 1", options.validation_fraction));
  }
  HEADRACE_TRY(File file, open_input(options.path));
  HEADRACE_TRY(const Bytes bytes, file.size());
  if (bytes == 0)
    return make_error(ErrorCode::kConfig, fmt::format("{} is empty; there is nothing to train on", options.path));
  if (bytes % tokenizer->stored_token_bytes != 0) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("{} has {} bytes, no multiple of the {} bytes of one token of \"{}\"", options.path,
                                  bytes, tokenizer->stored_token_bytes, tokenizer->name));
  }
  const std::int64_t file_tokens = bytes / tokenizer->stored_token_bytes;
  TokenData data(options, *tokenizer, std::move(file));
  HEADRACE_RETURN_IF_ERROR(data.set_range(file_tokens, options.validation_fraction, options.part));
  if (data.vocab_ < tokenizer->vocab) HEADRACE_RETURN_IF_ERROR(data.check_whole_file(file_tokens));
  return data;
}

Result<void> TokenData::set_range(std::int64_t file_tokens, double validation_fraction, DataPart part) {
  const auto validation = static_cast<std::int64_t>(std::floor(static_cast<double>(file_tokens) * validation_fraction));
  first_token_ = part == DataPart::kTrain ? 0 : file_tokens - validation;
  tokens_ = part == DataPart::kTrain ? file_tokens - validation : validation;
  samples_ = tokens_ > 0 ? (tokens_ - 1) / sequence_length_ : 0;
  if (samples_ > 0) return {};
  const std::string whole = validation_fraction > 0 ? fmt::format(" (of {} in the file)", file_tokens) : std::string();
  return make_error(ErrorCode::kConfig,
                    fmt::format("{}: the {} part has {} tokens{}; one sample of sequence length {} needs {}",
                                file_.path(), part_name(part), tokens_, whole, sequence_length_, sequence_length_ + 1),
                    "Use a longer text, a shorter sequence length, or another validation fraction.");
}

Result<void> TokenData::check_ids(std::span<const std::int32_t> ids, std::int64_t first_token) const {
  const auto beyond = std::find_if(ids.begin(), ids.end(), [this](std::int32_t id) { return id < 0 || id >= vocab_; });
  if (beyond == ids.end()) return {};
  return make_error(ErrorCode::kConfig,
                    fmt::format("{}: token {} has the id {}; the model's vocabulary has {}", file_.path(),
                                first_token + (beyond - ids.begin()), *beyond, vocab_),
                    fmt::format("The tokenizer \"{}\" needs a vocabulary of {}.", tokenizer_->name, tokenizer_->vocab));
}

Result<void> TokenData::read_tokens(std::int64_t first_token, std::span<std::int32_t> tokens) const {
  std::vector<std::byte> stored(tokens.size() * static_cast<std::size_t>(tokenizer_->stored_token_bytes));
  HEADRACE_RETURN_IF_ERROR(file_.read_exact(first_token * tokenizer_->stored_token_bytes, stored));
  tokenizer_->from_stored(stored, tokens);
  return check_ids(tokens, first_token);
}

Result<void> TokenData::check_whole_file(std::int64_t file_tokens) const {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kCheckedTokens, file_tokens)));
  for (std::int64_t done = 0; done < file_tokens; done += kCheckedTokens) {
    const std::int64_t tokens = std::min(kCheckedTokens, file_tokens - done);
    HEADRACE_RETURN_IF_ERROR(read_tokens(done, std::span(ids).first(static_cast<std::size_t>(tokens))));
  }
  return {};
}

std::int64_t TokenData::sample_at(std::int64_t position) const noexcept {
  HEADRACE_CHECK(position >= 0, "positions count from 0");
  const std::int64_t within = position % samples_;
  if (order_ == DataOrder::kSequential) return within;
  return Permutation(samples_, seed_, static_cast<std::uint64_t>(position / samples_)).at(within);
}

Result<void> TokenData::sample(std::int64_t index, std::span<std::int32_t> tokens) const {
  HEADRACE_CHECK(index >= 0 && index < samples_ && static_cast<std::int64_t>(tokens.size()) == sequence_length_ + 1,
                 "a sample of this part");
  return read_tokens(first_token_ + index * sequence_length_, tokens);
}

Result<void> TokenData::batch(std::int64_t position, std::int64_t count, std::span<std::int32_t> inputs,
                              std::span<std::int32_t> labels) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  HEADRACE_CHECK(inputs.size() == static_cast<std::size_t>(count) * length && labels.size() == inputs.size(),
                 "buffers of count · T elements");
  std::vector<std::int32_t> tokens(length + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    HEADRACE_RETURN_IF_ERROR(sample(sample_at(position + i), tokens));
    const std::size_t row = static_cast<std::size_t>(i) * length;
    std::copy(tokens.begin(), tokens.end() - 1, inputs.begin() + static_cast<std::ptrdiff_t>(row));
    std::copy(tokens.begin() + 1, tokens.end(), labels.begin() + static_cast<std::ptrdiff_t>(row));
  }
  return {};
}

}  // namespace headrace::models
