// SPDX-License-Identifier: Apache-2.0
// AdamW with bf16 moments, included once per SIMD target after format_random-inl.h. The master is that of the split
// format; the step is taken with the moments before they are rounded. A bf16 is the upper half of an fp32 pattern, so
// adding 16 random bits and cutting the lower half rounds up with just the probability that keeps the mean. All arrays
// but the gradient are of 16 bits: two vectors take the elements at even and at odd places.

struct WideState {
  Vec::F p, m, v;
};

// A NaN of any payload could be carried over the sign bit by the random bits.
template <bool kMoves>
inline void make_nans_canonical(WideState& x) noexcept {
  x.m = Vec::canonical_nan(x.m);
  x.v = Vec::canonical_nan(x.v);
  if constexpr (kMoves) x.p = Vec::canonical_nan(x.p);
}

template <bool kMoves>
inline void advance(WideState& x, Vec::F gradient, const AdamWConstants& c, Vec::Nans& nans) noexcept {
  advance_moments(gradient, c, x.m, x.v);
  if constexpr (kMoves) {
    x.p = step_master(x.p, x.m, Vec::sqrt(x.v), c);
    Vec::note_nans(nans, x.p, x.p);  // a NaN in a moment shows in the master
  } else {
    Vec::note_nans(nans, x.m, x.v);
  }
}

template <GradientKind kGradient>
inline void load_gradient_alternating(const void* gradient, std::int64_t i, Vec::F& even, Vec::F& odd) noexcept {
  if constexpr (kGradient == GradientKind::kBf16) {
    Vec::load_bf16_alternating(static_cast<const std::uint16_t*>(gradient) + i, even, odd);
  } else {
    Vec::alternate(load_gradient<kGradient>(gradient, i), load_gradient<kGradient>(gradient, i + Vec::kLanes), even,
                   odd);
  }
}

// Passed by value to what is not inlined: stores through the arrays cannot change it, so it stays in registers.
struct SplitBf16Loop {
  AdamWSpan s;
  AdamWConstants c;
  RoundingBits rounding;
};

template <GradientKind kGradient, bool kMoves>
__attribute__((always_inline)) inline void split_bf16_pair(const SplitBf16Loop& loop, std::int64_t i,
                                                           Vec::U index) noexcept {
  const AdamWSpan& s = loop.s;
  auto* const weights = static_cast<std::uint16_t*>(s.weights) + i;
  auto* const remainder = static_cast<std::int16_t*>(s.remainder) + i;
  auto* const exp_avg = static_cast<std::uint16_t*>(s.exp_avg) + i;
  auto* const exp_avg_sq = static_cast<std::uint16_t*>(s.exp_avg_sq) + i;
  WideState x, y;
  Vec::F x_gradient, y_gradient;
  load_gradient_alternating<kGradient>(s.gradient, i, x_gradient, y_gradient);
  Vec::load_bf16_alternating(exp_avg, x.m, y.m);
  Vec::load_bf16_alternating(exp_avg_sq, x.v, y.v);
  Vec::load_split_alternating(weights, remainder, x.p, y.p);
  Vec::Nans nans = {};
  advance<kMoves>(x, x_gradient, loop.c, nans);
  advance<kMoves>(y, y_gradient, loop.c, nans);
  if (__builtin_expect(Vec::any(nans), 0)) {
    make_nans_canonical<kMoves>(x);
    make_nans_canonical<kMoves>(y);
  }
  if constexpr (kMoves) {
    const Vec::U half = Vec::set_bits(0x8000);
    Vec::store_low_halves_alternating(remainder, Vec::bits_of(x.p), Vec::bits_of(y.p));
    Vec::store_high_halves_alternating(weights, Vec::add(Vec::bits_of(x.p), half), Vec::add(Vec::bits_of(y.p), half));
  }
  const Vec::U x_random = loop.rounding.at(index);
  const Vec::U y_random = loop.rounding.at(Vec::add(index, Vec::set_bits(1)));
  Vec::store_high_halves_alternating(exp_avg, Vec::add(Vec::bits_of(x.m), bits_for_exp_avg(x_random)),
                                     Vec::add(Vec::bits_of(y.m), bits_for_exp_avg(y_random)));
  Vec::store_high_halves_alternating(exp_avg_sq, Vec::add(Vec::bits_of(x.v), bits_for_exp_avg_sq(x_random)),
                                     Vec::add(Vec::bits_of(y.v), bits_for_exp_avg_sq(y_random)));
}

// The indices of the elements at even places from i on.
inline Vec::U even_indices(const AdamWSpan& s, std::int64_t i) noexcept {
  const Vec::U first = Vec::set_bits(s.first_index + static_cast<std::uint32_t>(i));
  return Vec::add(first, Vec::add(Vec::lane_numbers(), Vec::lane_numbers()));
}

// Fewer elements than a pair of vectors has: through a padded copy, so that nothing beyond the arrays is touched.
template <GradientKind kGradient, bool kMoves>
void split_bf16_tail(SplitBf16Loop local, std::int64_t begin) noexcept {
  const AdamWSpan s = local.s;
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr std::int64_t kGradientBytes = kBytesOf<kGradient>;
  alignas(64) std::uint16_t planes[4][kPair] = {};
  alignas(64) std::byte gradient[kPair * sizeof(float)] = {};  // bytes: of any element type
  void* const arrays[4] = {s.weights, s.remainder, s.exp_avg, s.exp_avg_sq};
  for (int j = 0; j < 4; ++j) std::memcpy(planes[j], static_cast<std::uint16_t*>(arrays[j]) + begin, rest * 2);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * kGradientBytes,
              rest * static_cast<std::size_t>(kGradientBytes));
  local.s.weights = planes[0];
  local.s.remainder = planes[1];
  local.s.exp_avg = planes[2];
  local.s.exp_avg_sq = planes[3];
  local.s.gradient = gradient;
  split_bf16_pair<kGradient, kMoves>(local, 0, even_indices(s, begin));
  for (int j = 0; j < 4; ++j) std::memcpy(static_cast<std::uint16_t*>(arrays[j]) + begin, planes[j], rest * 2);
}

template <GradientKind kGradient, bool kMoves>
void split_bf16_loop(const SplitBf16Loop loop) noexcept {
  const AdamWSpan s = loop.s;
  Vec::U index = even_indices(s, 0);
  LinesAhead<8 + kBytesOf<kGradient>> lines;
  lines.add(s.gradient, kBytesOf<kGradient>);
  lines.add(s.weights, 2);
  lines.add(s.remainder, 2);
  lines.add(s.exp_avg, 2);
  lines.add(s.exp_avg_sq, 2);
  std::int64_t i = 0;
  for (; i + kBlockElements <= s.elements; i += kBlockElements) {
    lines.ask();
#pragma GCC unroll 2
    for (int j = 0; j < kBlockElements; j += kPair) {
      split_bf16_pair<kGradient, kMoves>(loop, i + j, index);
      index = Vec::add(index, Vec::set_bits(kPair));
    }
  }
  for (; i + kPair <= s.elements; i += kPair) split_bf16_pair<kGradient, kMoves>(loop, i, even_indices(s, i));
  if (i < s.elements) split_bf16_tail<kGradient, kMoves>(loop, i);
}

template <GradientKind kGradient>
void split_bf16_span(const AdamWSpan& span, const AdamWScalars& scalars) noexcept {
  const SplitBf16Loop loop = {span, AdamWConstants(scalars), RoundingBits(scalars)};
  scalars.moves ? split_bf16_loop<kGradient, true>(loop) : split_bf16_loop<kGradient, false>(loop);
}
