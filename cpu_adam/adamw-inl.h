// SPDX-License-Identifier: Apache-2.0
// The AdamW loop, included once per SIMD target after loop-inl.h, inside its anonymous namespace. Vec offers
// the same IEEE operations on every target, so the order written here is the whole definition of the result's bits.

// Broadcast constants of one update.
struct AdamWConstants {
  explicit AdamWConstants(const AdamWScalars& s) noexcept
      : gradient_scale(Vec::set(s.gradient_scale)),
        beta1(Vec::set(s.beta1)),
        one_minus_beta1(Vec::set(s.one_minus_beta1)),
        beta2(Vec::set(s.beta2)),
        one_minus_beta2(Vec::set(s.one_minus_beta2)),
        inverse_sqrt_correction2(Vec::set(s.inverse_sqrt_correction2)),
        eps(Vec::set(s.eps)),
        step_size(Vec::set(s.step_size)),
        decay(Vec::set(s.decay)),
        flush_limit(Vec::set(s.flushes ? 0x1p-126F : 0.0F)),
        moves(s.moves),
        decays(s.decays) {}
  Vec::F gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps, step_size,
      decay, flush_limit;
  bool moves, decays;
};

// The moments after a gradient of `raw`, before it is scaled.
inline void advance_moments(Vec::F raw, const AdamWConstants& c, Vec::F& m, Vec::F& v) noexcept {
  const Vec::F g = Vec::mul(c.gradient_scale, raw);
  m = Vec::flush_below(Vec::fma(c.beta1, m, Vec::mul(c.one_minus_beta1, g)), c.flush_limit);
  v = Vec::flush_below(Vec::fma(c.beta2, v, Vec::mul(Vec::mul(c.one_minus_beta2, g), g)), c.flush_limit);
}

// The master after one step with these moments.
inline Vec::F step_master(Vec::F p, Vec::F m, Vec::F root_of_v, const AdamWConstants& c) noexcept {
  const Vec::F denominator = Vec::fma(root_of_v, c.inverse_sqrt_correction2, c.eps);
  if (c.decays) p = Vec::negated_fma(c.decay, p, p);
  return Vec::negated_fma(c.step_size, Vec::div(m, denominator), p);
}

// One vector of the update; returns the new master. `nans` learns whether any result is a NaN: one in a moment shows in
// the master.
template <WeightKind kWeights, GradientKind kGradient>
inline Vec::F adamw_vector(const AdamWSpan& s, std::int64_t i, const AdamWConstants& c, Vec::Nans& nans) noexcept {
  auto* const exp_avg = static_cast<float*>(s.exp_avg) + i;
  auto* const exp_avg_sq = static_cast<float*>(s.exp_avg_sq) + i;
  Vec::F m = Vec::load(exp_avg);
  Vec::F v = Vec::load(exp_avg_sq);
  advance_moments(load_gradient<kGradient>(s.gradient, i), c, m, v);
  Vec::store(exp_avg, m);
  Vec::store(exp_avg_sq, v);
  if (!c.moves) {
    Vec::note_nans(nans, m, v);
    return kHasMaster<kWeights> ? load_master<kWeights>(s, i) : m;
  }
  const Vec::F p = step_master(load_master<kWeights>(s, i), m, Vec::sqrt(v), c);
  Vec::note_nans(nans, p, p);
  return p;
}

template <WeightKind kWeights, GradientKind kGradient, bool kStreams>
inline void adamw_pair(const AdamWSpan& s, std::int64_t i, const AdamWConstants& c, Vec::Nans& nans) noexcept {
  const Vec::F p = adamw_vector<kWeights, kGradient>(s, i, c, nans);
  const Vec::F q = adamw_vector<kWeights, kGradient>(s, i + Vec::kLanes, c, nans);
  // Weights that have a master beside them are made from it even where it does not move: they may not have been read.
  if (c.moves || kHasMaster<kWeights>) store_masters<kWeights, kStreams>(s, i, p, q);
}

// Gives every NaN of the results one pattern: its payload would depend on the operand order that a compiler picks, and
// a split master needs a NaN whose upper half is a NaN by itself. Rare, so it is a second visit and costs the common
// case one comparison.
template <WeightKind kWeights>
__attribute__((noinline, cold)) void make_nans_canonical(const AdamWSpan& s, std::int64_t begin, std::int64_t elements,
                                                         bool moves) noexcept {
  const std::int64_t end = begin + elements;
  for (std::int64_t i = begin; i < end; i += Vec::kLanes) {
    auto* const exp_avg = static_cast<float*>(s.exp_avg) + i;
    auto* const exp_avg_sq = static_cast<float*>(s.exp_avg_sq) + i;
    Vec::store(exp_avg, Vec::canonical_nan(Vec::load(exp_avg)));
    Vec::store(exp_avg_sq, Vec::canonical_nan(Vec::load(exp_avg_sq)));
  }
  for (std::int64_t i = begin; moves && i < end; i += kPair) {
    const Vec::F p = Vec::canonical_nan(load_master<kWeights>(s, i));
    const Vec::F q = Vec::canonical_nan(load_master<kWeights>(s, i + Vec::kLanes));
    store_masters<kWeights>(s, i, p, q);
  }
}

template <WeightKind kWeights, GradientKind kGradient, int kElements, bool kStreams = false>
inline void adamw_block(const AdamWSpan& s, std::int64_t i, const AdamWConstants& c) noexcept {
  Vec::Nans nans = {};
#pragma GCC unroll 16
  for (int j = 0; j < kElements; j += kPair) adamw_pair<kWeights, kGradient, kStreams>(s, i + j, c, nans);
  if (__builtin_expect(Vec::any(nans), 0)) make_nans_canonical<kWeights>(s, i, kElements, c.moves);
}

// Fewer elements than a pair of vectors has: through a padded copy, so that nothing beyond the arrays is touched.
template <WeightKind kWeights, GradientKind kGradient>
void adamw_tail(const AdamWSpan& s, std::int64_t begin, const AdamWConstants& c) noexcept {
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr auto kWeight = static_cast<std::size_t>(kWeightBytes<kWeights>);
  constexpr auto kGradientSize = static_cast<std::size_t>(kBytesOf<kGradient>);
  alignas(64) std::byte weights[kPair * sizeof(float)] = {};  // bytes: of any element type
  alignas(64) std::byte gradient[kPair * sizeof(float)] = {};
  alignas(64) float master[kPair] = {};
  alignas(64) float exp_avg[kPair] = {};
  alignas(64) float exp_avg_sq[kPair] = {};
  alignas(64) std::int16_t remainder[kPair] = {};
  auto* const weights_at = static_cast<char*>(s.weights) + begin * kWeightBytes<kWeights>;
  auto* const exp_avg_at = static_cast<float*>(s.exp_avg) + begin;
  auto* const exp_avg_sq_at = static_cast<float*>(s.exp_avg_sq) + begin;
  auto* const remainder_at = static_cast<std::int16_t*>(s.remainder) + begin;
  std::memcpy(weights, weights_at, rest * kWeight);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * kBytesOf<kGradient>, rest * kGradientSize);
  std::memcpy(exp_avg, exp_avg_at, rest * 4);
  std::memcpy(exp_avg_sq, exp_avg_sq_at, rest * 4);
  if constexpr (kHasMaster<kWeights>) std::memcpy(master, s.master + begin, rest * 4);
  if constexpr (kWeights == WeightKind::kSplit) std::memcpy(remainder, remainder_at, rest * 2);
  AdamWSpan local = s;
  local.weights = weights;
  local.master = master;
  local.remainder = remainder;
  local.exp_avg = exp_avg;
  local.exp_avg_sq = exp_avg_sq;
  local.gradient = gradient;
  local.elements = kPair;
  adamw_block<kWeights, kGradient, kPair>(local, 0, c);
  std::memcpy(weights_at, weights, rest * kWeight);
  std::memcpy(exp_avg_at, exp_avg, rest * 4);
  std::memcpy(exp_avg_sq_at, exp_avg_sq, rest * 4);
  if constexpr (kHasMaster<kWeights>) std::memcpy(s.master + begin, master, rest * 4);
  if constexpr (kWeights == WeightKind::kSplit) std::memcpy(remainder_at, remainder, rest * 2);
}

// Whole blocks from the start of `s`; returns where they end.
template <WeightKind kWeights, GradientKind kGradient, bool kStreams>
std::int64_t adamw_blocks(const AdamWSpan s, const AdamWConstants& c) noexcept {
  constexpr int kReadWeightBytes = kStreams ? 0 : kWeightBytes<kWeights>;
  constexpr int kMasterBytes = kHasMaster<kWeights> ? 4 : 0;
  constexpr int kRemainderBytes = kWeights == WeightKind::kSplit ? 2 : 0;
  LinesAhead<8 + kBytesOf<kGradient> + kReadWeightBytes + kMasterBytes + kRemainderBytes> lines;
  lines.add(s.exp_avg, 4);
  lines.add(s.exp_avg_sq, 4);
  lines.add(s.gradient, kBytesOf<kGradient>);
  if constexpr (kReadWeightBytes > 0) lines.add(s.weights, kReadWeightBytes);
  if constexpr (kMasterBytes > 0) lines.add(s.master, kMasterBytes);
  if constexpr (kRemainderBytes > 0) lines.add(s.remainder, kRemainderBytes);
  std::int64_t i = 0;
  for (; i + kBlockElements <= s.elements; i += kBlockElements) {
    lines.ask();
    adamw_block<kWeights, kGradient, kBlockElements, kStreams>(s, i, c);
  }
  return i;
}

template <WeightKind kWeights, GradientKind kGradient>
void adamw_span(const AdamWSpan& span, const AdamWScalars& scalars) noexcept {
  const AdamWSpan s = span;  // a copy: stores through the arrays cannot change it, so pointers stay in registers
  const AdamWConstants c(scalars);
  std::int64_t i = 0;
  if constexpr (kHasMaster<kWeights>) {
    if (s.streams_weights) {
      i = adamw_blocks<kWeights, kGradient, true>(s, c);
      Vec::fence();
    } else {
      i = adamw_blocks<kWeights, kGradient, false>(s, c);
    }
  } else {
    i = adamw_blocks<kWeights, kGradient, false>(s, c);
  }
  for (; i + kPair <= s.elements; i += kPair) adamw_block<kWeights, kGradient, kPair>(s, i, c);
  if (i < s.elements) adamw_tail<kWeights, kGradient>(s, i, c);
}
