// SPDX-License-Identifier: Apache-2.0
// AdamW with bf16 moments, included once per SIMD target after format_random-inl.h. The master is that of the split
// format; the step is taken with the moments before they are rounded. A bf16 is the upper half of an fp32 pattern, so
// adding 16 random bits and cutting the lower half rounds up with just the probability that keeps the mean.

struct WideState {
  Vec::F p, m, v;
};

// One vector, not yet stored.
template <GradientKind kGradient>
inline WideState split_bf16_vector(const AdamWSpan& s, std::int64_t i, const AdamWConstants& c,
                                   Vec::Nans& nans) noexcept {
  WideState x;
  x.p = load_master<WeightKind::kSplit>(s, i);
  x.m = Vec::load_bf16(static_cast<const std::uint16_t*>(s.exp_avg) + i);
  x.v = Vec::load_bf16(static_cast<const std::uint16_t*>(s.exp_avg_sq) + i);
  advance_moments(load_gradient<kGradient>(s.gradient, i), c, x.m, x.v);
  if (c.moves) {
    x.p = step_master(x.p, x.m, Vec::sqrt(x.v), c);
    Vec::note_nans(nans, x.p, x.p);  // a NaN in a moment shows in the master
  } else {
    Vec::note_nans(nans, x.m, x.v);
  }
  return x;
}

// A NaN of any payload could be carried over the sign bit by the random bits.
__attribute__((noinline, cold)) inline void make_nans_canonical(WideState& x, bool moves) noexcept {
  x.m = Vec::canonical_nan(x.m);
  x.v = Vec::canonical_nan(x.v);
  if (moves) x.p = Vec::canonical_nan(x.p);
}

template <GradientKind kGradient>
inline void split_bf16_pair(const AdamWSpan& s, std::int64_t i, const AdamWConstants& c,
                            const RoundingBits& rounding) noexcept {
  Vec::Nans nans = {};
  WideState x = split_bf16_vector<kGradient>(s, i, c, nans);
  WideState y = split_bf16_vector<kGradient>(s, i + Vec::kLanes, c, nans);
  if (__builtin_expect(Vec::any(nans), 0)) {
    make_nans_canonical(x, c.moves);
    make_nans_canonical(y, c.moves);
  }
  if (c.moves) store_masters<WeightKind::kSplit>(s, i, x.p, y.p);
  const std::uint32_t index = s.first_index + static_cast<std::uint32_t>(i);
  const Vec::U x_random = rounding.at(index);
  const Vec::U y_random = rounding.at(index + Vec::kLanes);
  Vec::store_high_halves(static_cast<std::uint16_t*>(s.exp_avg) + i,
                         Vec::add(Vec::bits_of(x.m), bits_for_exp_avg(x_random)),
                         Vec::add(Vec::bits_of(y.m), bits_for_exp_avg(y_random)));
  Vec::store_high_halves(static_cast<std::uint16_t*>(s.exp_avg_sq) + i,
                         Vec::add(Vec::bits_of(x.v), bits_for_exp_avg_sq(x_random)),
                         Vec::add(Vec::bits_of(y.v), bits_for_exp_avg_sq(y_random)));
}

// Fewer elements than a pair of vectors has: through a padded copy, so that nothing beyond the arrays is touched.
template <GradientKind kGradient>
void split_bf16_tail(const AdamWSpan& s, std::int64_t begin, const AdamWConstants& c,
                     const RoundingBits& rounding) noexcept {
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr std::int64_t kGradientBytes = kGradient == GradientKind::kFp32 ? 4 : 2;
  alignas(64) std::uint16_t planes[4][kPair] = {};
  alignas(64) float gradient[kPair] = {};
  void* const arrays[4] = {s.weights, s.remainder, s.exp_avg, s.exp_avg_sq};
  for (int j = 0; j < 4; ++j) std::memcpy(planes[j], static_cast<std::uint16_t*>(arrays[j]) + begin, rest * 2);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * kGradientBytes,
              rest * static_cast<std::size_t>(kGradientBytes));
  AdamWSpan local = s;
  local.weights = planes[0];
  local.remainder = planes[1];
  local.exp_avg = planes[2];
  local.exp_avg_sq = planes[3];
  local.gradient = gradient;
  local.elements = kPair;
  local.first_index = s.first_index + static_cast<std::uint32_t>(begin);
  split_bf16_pair<kGradient>(local, 0, c, rounding);
  for (int j = 0; j < 4; ++j) std::memcpy(static_cast<std::uint16_t*>(arrays[j]) + begin, planes[j], rest * 2);
}

template <GradientKind kGradient>
void split_bf16_span(const AdamWSpan& span, const AdamWScalars& scalars) noexcept {
  const AdamWSpan s = span;  // a copy: stores through the arrays cannot change it, so pointers stay in registers
  const AdamWConstants c(scalars);
  const RoundingBits rounding(scalars);
  std::int64_t i = 0;
  for (; i + kBlockElements <= s.elements; i += kBlockElements) {
    const std::int64_t ahead = i + kPrefetchElements;
    prefetch_elements<kGradient == GradientKind::kFp32 ? 4 : 2>(s.gradient, ahead);
    prefetch_elements<2>(s.weights, ahead);
    prefetch_elements<2>(s.remainder, ahead);
    prefetch_elements<2>(s.exp_avg, ahead);
    prefetch_elements<2>(s.exp_avg_sq, ahead);
#pragma GCC unroll 2
    for (int j = 0; j < kBlockElements; j += kPair) split_bf16_pair<kGradient>(s, i + j, c, rounding);
  }
  for (; i + kPair <= s.elements; i += kPair) split_bf16_pair<kGradient>(s, i, c, rounding);
  if (i < s.elements) split_bf16_tail<kGradient>(s, i, c, rounding);
}
