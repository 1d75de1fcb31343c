// SPDX-License-Identifier: Apache-2.0
// Choosing the next token from logits: the best one, or one at random by temperature among the best k.
#pragma once

#include <cstdint>
#include <span>

#include "core/result.h"

namespace headrace::models {

struct SamplingOptions {
  double temperature = 0;  // 0 = the best token (the lowest id of equals); larger = more random
  std::int64_t top_k = 0;  // choose among the k best only; 0 = all
  std::uint64_t seed = 1;
};

[[nodiscard]] Result<void> validate(const SamplingOptions& options);  // kUsage error that names the value

// Token number `position` of a text: the same logits, options and position give the same token. kNumeric error when a
// logit is NaN or all are minus infinity. Thread-safe.
[[nodiscard]] Result<std::int32_t> sample_token(std::span<const float> logits, const SamplingOptions& options,
                                                std::uint64_t position);

}  // namespace headrace::models
