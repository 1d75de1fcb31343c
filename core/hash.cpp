// SPDX-License-Identifier: Apache-2.0
#include "core/hash.h"

#include "core/check.h"
#include "core/hash_target.h"
#include "core/topology.h"

namespace headrace {
namespace {

const hash_detail::HashTarget& target() noexcept {
#if defined(__x86_64__)
  static const hash_detail::HashTarget& chosen =
      cpu_features().avx2 ? hash_detail::kAvx2Target : hash_detail::kBaselineTarget;
  return chosen;
#else
  return hash_detail::kBaselineTarget;
#endif
}

}  // namespace

std::uint64_t xxh3_64(std::span<const std::byte> data, std::uint64_t seed) noexcept {
  return target().digest_once(data.data(), data.size(), seed);
}

Xxh3Stream::Xxh3Stream(std::uint64_t seed) noexcept {
  HEADRACE_CHECK(target().state_bytes <= sizeof state_ && target().state_alignment <= alignof(Xxh3Stream),
                 "the xxHash state has grown");
  target().reset(state_, seed);
}

void Xxh3Stream::update(std::span<const std::byte> data) noexcept { target().update(state_, data.data(), data.size()); }

std::uint64_t Xxh3Stream::digest() const noexcept { return target().digest(state_); }

}  // namespace headrace
