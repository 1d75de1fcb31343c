// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint_init.h"

#include <algorithm>

#include "core/hash.h"
#include "core/random.h"

namespace headrace::models {

void fill_init(const runtime::InitRule& rule, std::uint64_t seed, std::string_view tensor_name,
               std::int64_t first_element, std::span<float> out) {
  switch (rule.kind) {
    case runtime::InitRule::Kind::kZero: std::fill(out.begin(), out.end(), 0.0F); return;
    case runtime::InitRule::Kind::kOne: std::fill(out.begin(), out.end(), 1.0F); return;
    case runtime::InitRule::Kind::kNormal: break;
  }
  const CounterRng rng(seed, xxh3_64(std::as_bytes(std::span(tensor_name))));
  rng.fill_normal(out, static_cast<std::uint64_t>(first_element), rule.deviation);
}

}  // namespace headrace::models
