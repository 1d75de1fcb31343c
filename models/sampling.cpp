// SPDX-License-Identifier: Apache-2.0
#include "models/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/random.h"

namespace headrace::models {
namespace {

constexpr std::uint64_t kSamplingStream = 0x73616D706C65;  // "sample": apart from the streams of tensors' first values

// The ids to choose among: all in their order, or the best k (ties go to the lower id).
std::vector<std::int32_t> candidates(std::span<const float> logits, std::int64_t top_k) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = static_cast<std::size_t>(top_k);
  if (kept == 0 || kept >= ids.size()) return ids;
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float left = logits[static_cast<std::size_t>(a)];
                      const float right = logits[static_cast<std::size_t>(b)];
                      return left != right ? left > right : a < b;
                    });
  ids.resize(kept);
  return ids;
}

}  // namespace

Result<void> validate(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return make_error(ErrorCode::kUsage,
                      fmt::format("the temperature is {}; it must be a number of at least 0", options.temperature));
  }
  if (options.top_k < 0)
    return make_error(ErrorCode::kUsage,
                      fmt::format("top-k is {}; it must be at least 1, or 0 for all", options.top_k));
  return {};
}

Result<std::int32_t> sample_token(std::span<const float> logits, const SamplingOptions& options,
                                  std::uint64_t position) {
  HEADRACE_RETURN_IF_ERROR(validate(options));
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float logit) { return std::isnan(logit) || logit == HUGE_VALF; });
  const auto best = std::max_element(logits.begin(), logits.end());
  if (bad != logits.end() || best == logits.end() || std::isinf(*best)) {
    return make_error(ErrorCode::kNumeric,
                      fmt::format("the logits of token {} are not finite; there is nothing to choose", position),
                      "The weights may be damaged: `headrace checkpoint verify` checks them.");
  }
  if (options.temperature == 0 || options.top_k == 1) return static_cast<std::int32_t>(best - logits.begin());
  const std::vector<std::int32_t> ids = candidates(logits, options.top_k);
  std::vector<double> weights(ids.size());
  double total = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const double distance = static_cast<double>(logits[static_cast<std::size_t>(ids[i])]) - static_cast<double>(*best);
    weights[i] = std::exp(distance / options.temperature);
    total += weights[i];
  }
  double left = CounterRng(options.seed, kSamplingStream).uniform(position) * total;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids.front();  // rounding left a hair beyond the sum
}

}  // namespace headrace::models
