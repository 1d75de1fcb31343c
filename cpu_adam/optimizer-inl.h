// SPDX-License-Identifier: Apache-2.0
// The loop of all elementwise updates, included once per SIMD target after loop-inl.h and the rules, inside
// its anonymous namespace. Vec offers the same IEEE operations on every target, so the order written here and in the
// rules is the whole definition of the result's bits.

// One vector of the update; returns the new master. `nans` learns whether any result is a NaN.
template <class Rule, WeightKind kWeights, GradientKind kGradient>
inline Vec::F update_vector(const OptimizerSpan& s, std::int64_t i, const OptimizerConstants& c,
                            Vec::Nans& nans) noexcept {
  const Vec::F p = load_master<kWeights>(s, i);
  Vec::F g = Vec::mul(c.gradient_scale, load_gradient<kGradient>(s.gradient, i));
  if (c.has_l2) g = Vec::fma(c.l2, p, g);
  Vec::F moments[2] = {g, g};
  for (int k = 0; k < Rule::kMoments; ++k) moments[k] = Vec::load(s.moments[k] + i);
  const Vec::F direction = Rule::advance(g, moments, c);
  for (int k = 0; k < Rule::kMoments; ++k) Vec::store(s.moments[k] + i, moments[k]);
  if (!c.moves) {
    if (Rule::kMoments > 0) Vec::note_nans(nans, moments[0], moments[Rule::kMoments > 1 ? 1 : 0]);
    return p;
  }
  Vec::F moved = p;
  if (c.decays) moved = Vec::negated_fma(c.decay, moved, moved);
  moved = Vec::negated_fma(c.step_size, direction, moved);
  Vec::note_nans(nans, moved, Rule::kMoments > 0 ? moments[0] : moved);
  return moved;
}

// Gives every NaN of the results one pattern: its payload would depend on the operand order that a compiler picks, and
// a split master needs a NaN whose upper half is a NaN by itself. Rare, so it is a second visit.
template <class Rule, WeightKind kWeights>
__attribute__((noinline, cold)) void settle_nans(const OptimizerSpan& s, std::int64_t begin, std::int64_t elements,
                                                 bool moves) noexcept {
  const std::int64_t end = begin + elements;
  for (int k = 0; k < Rule::kMoments; ++k) {
    for (std::int64_t i = begin; i < end; i += Vec::kLanes) {
      Vec::store(s.moments[k] + i, Vec::canonical_nan(Vec::load(s.moments[k] + i)));
    }
  }
  for (std::int64_t i = begin; moves && i < end; i += kPair) {
    const Vec::F p = Vec::canonical_nan(load_master<kWeights>(s, i));
    const Vec::F q = Vec::canonical_nan(load_master<kWeights>(s, i + Vec::kLanes));
    store_masters<kWeights>(s, i, p, q);
  }
}

template <class Rule, WeightKind kWeights, GradientKind kGradient, int kElements>
inline void update_turn(const OptimizerSpan& s, std::int64_t begin, const OptimizerConstants& c) noexcept {
  Vec::Nans nans = {};
#pragma GCC unroll 16
  for (int j = 0; j < kElements; j += kPair) {
    const std::int64_t i = begin + j;
    const Vec::F p = update_vector<Rule, kWeights, kGradient>(s, i, c, nans);
    const Vec::F q = update_vector<Rule, kWeights, kGradient>(s, i + Vec::kLanes, c, nans);
    // Weights that have a master beside them are made from it even where it does not move: they may not have been read.
    if (c.moves || kHasMaster<kWeights>) store_masters<kWeights>(s, i, p, q);
  }
  if (__builtin_expect(Vec::any(nans), 0)) settle_nans<Rule, kWeights>(s, begin, kElements, c.moves);
}

// Fewer elements than a pair of vectors has: through a padded copy, so that nothing beyond the arrays is touched.
template <class Rule, WeightKind kWeights, GradientKind kGradient>
void update_tail(const OptimizerSpan& s, std::int64_t begin, const OptimizerConstants& c) noexcept {
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr auto kWeight = static_cast<std::size_t>(kWeightBytes<kWeights>);
  constexpr auto kGradientSize = static_cast<std::size_t>(kBytesOf<kGradient>);
  alignas(64) std::byte weights[kPair * sizeof(float)] = {};  // bytes: of any element type
  alignas(64) std::byte gradient[kPair * sizeof(float)] = {};
  alignas(64) float master[kPair] = {};
  alignas(64) float moments[2][kPair] = {};
  alignas(64) std::int16_t remainder[kPair] = {};
  auto* weights_at = static_cast<char*>(s.weights) + begin * kWeightBytes<kWeights>;
  std::memcpy(weights, weights_at, rest * kWeight);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * kBytesOf<kGradient>, rest * kGradientSize);
  for (int k = 0; k < Rule::kMoments; ++k) std::memcpy(moments[k], s.moments[k] + begin, rest * 4);
  if constexpr (kHasMaster<kWeights>) std::memcpy(master, s.master + begin, rest * 4);
  if constexpr (kWeights == WeightKind::kSplit) std::memcpy(remainder, s.remainder + begin, rest * 2);
  const OptimizerSpan local{weights, master, remainder, {moments[0], moments[1]}, gradient, kPair};
  update_turn<Rule, kWeights, kGradient, kPair>(local, 0, c);
  std::memcpy(weights_at, weights, rest * kWeight);
  for (int k = 0; k < Rule::kMoments; ++k) std::memcpy(s.moments[k] + begin, moments[k], rest * 4);
  if constexpr (kHasMaster<kWeights>) std::memcpy(s.master + begin, master, rest * 4);
  if constexpr (kWeights == WeightKind::kSplit) std::memcpy(s.remainder + begin, remainder, rest * 2);
}

template <class Rule, WeightKind kWeights, GradientKind kGradient>
void update_elements(const OptimizerSpan& span, const OptimizerScalars& scalars) noexcept {
  const OptimizerSpan s = span;  // a copy: stores through the arrays cannot change it, so pointers stay in registers
  const OptimizerConstants c(scalars);
  constexpr int kMasterBytes = kHasMaster<kWeights> ? 4 : (kWeights == WeightKind::kSplit ? 2 : 0);
  LinesAhead<4 * Rule::kMoments + kBytesOf<kGradient> + kWeightBytes<kWeights> + kMasterBytes> lines;
  for (int k = 0; k < Rule::kMoments; ++k) lines.add(s.moments[k], 4);
  lines.add(s.gradient, kBytesOf<kGradient>);
  lines.add(s.weights, kWeightBytes<kWeights>);
  if constexpr (kWeights == WeightKind::kSplit) lines.add(s.remainder, kMasterBytes);
  if constexpr (kHasMaster<kWeights>) lines.add(s.master, kMasterBytes);
  std::int64_t i = 0;
  for (; i + kBlockElements <= s.elements; i += kBlockElements) {
    lines.ask();
    update_turn<Rule, kWeights, kGradient, kBlockElements>(s, i, c);
  }
  for (; i + kPair <= s.elements; i += kPair) {
    update_turn<Rule, kWeights, kGradient, kPair>(s, i, c);
  }
  if (i < s.elements) update_tail<Rule, kWeights, kGradient>(s, i, c);
}
