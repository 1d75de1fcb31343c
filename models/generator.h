// SPDX-License-Identifier: Apache-2.0
// Next-token logits of a model whose weights fit in memory, over a window of the last tokens. For `generate` and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"
#include "core/result.h"
#include "models/model.h"

namespace headrace::models {

// One owner thread.
class Generator {
 public:
  // Fills a unit's flat space in the weights' dtype.
  using UnitSource = std::function<Result<void>(runtime::UnitId, std::byte* out)>;
  static Result<std::unique_ptr<Generator>> from_weights(const ModelConfig& config, DType weights_dtype,
                                                         const UnitSource& source);
  static Result<std::unique_ptr<Generator>> from_folder(const std::string& folder);  // Hugging Face
  ~Generator();

  // Logits [vocab] of the token that follows `ids` (at least one; the last max_positions of them are looked at). Valid
  // until the next call. kConfig for an id beyond the vocabulary.
  [[nodiscard]] Result<std::span<const float>> next_logits(std::span<const std::int32_t> ids);
  [[nodiscard]] const ModelConfig& config() const noexcept;

 private:
  struct Impl;
  explicit Generator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::models
