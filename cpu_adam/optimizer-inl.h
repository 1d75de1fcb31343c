// SPDX-License-Identifier: Apache-2.0
// The loop of all elementwise updates, included once per SIMD target after that target's vectors and the rules, inside
// its anonymous namespace. Vec offers the same IEEE operations on every target, so the order written here and in the
// rules is the whole definition of the result's bits.

inline constexpr int kVectorPair = 2 * Vec::kLanes;  // narrowing two vectors to 16 bits costs as much as narrowing one
inline constexpr std::int64_t kTurnElements = 32;    // of one turn of the loop: two lines of an fp32 array
// How far ahead lines are asked for; as in the AdamW loop, where its worth was measured.
inline constexpr std::int64_t kAheadElements = 512;

// Asks for the lines of elements i … i + kTurnElements; a hint, which may point beyond the array.
template <int kBytes>
inline void ask_for(const void* array, std::int64_t i) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(array) + static_cast<std::uintptr_t>(i * kBytes);
  __builtin_prefetch(reinterpret_cast<const void*>(address));
  if constexpr (kBytes == 4) __builtin_prefetch(reinterpret_cast<const void*>(address + 64));
}

template <GradientKind kGradient>
inline constexpr int kBytesOf = kGradient == GradientKind::kFp32 ? 4 : 2;

template <GradientKind kGradient>
inline Vec::F widen(const void* gradient, std::int64_t i) noexcept {
  if constexpr (kGradient == GradientKind::kFp32) return Vec::load(static_cast<const float*>(gradient) + i);
  if constexpr (kGradient == GradientKind::kBf16)
    return Vec::load_bf16(static_cast<const std::uint16_t*>(gradient) + i);
  if constexpr (kGradient == GradientKind::kFp16)
    return Vec::load_fp16(static_cast<const std::uint16_t*>(gradient) + i);
}

template <MasterKind kMaster>
inline constexpr bool kBeside = kMaster == MasterKind::kBesideBf16 || kMaster == MasterKind::kBesideFp16;
template <MasterKind kMaster>
inline constexpr int kWeightBytes = kMaster == MasterKind::kWeights ? 4 : 2;

template <MasterKind kMaster>
inline Vec::F read_master(const OptimizerSpan& s, std::int64_t i) noexcept {
  if constexpr (kMaster == MasterKind::kWeights) {
    return Vec::load(static_cast<const float*>(s.weights) + i);
  } else if constexpr (kMaster == MasterKind::kSplit) {
    return Vec::load_split(static_cast<const std::uint16_t*>(s.weights) + i, s.remainder + i);
  } else {
    return Vec::load(s.master + i);
  }
}

template <MasterKind kMaster>
inline void write_masters(const OptimizerSpan& s, std::int64_t i, Vec::F p, Vec::F q) noexcept {
  if constexpr (kMaster == MasterKind::kWeights) {
    Vec::store(static_cast<float*>(s.weights) + i, p);
    Vec::store(static_cast<float*>(s.weights) + i + Vec::kLanes, q);
    return;
  }
  auto* weights = static_cast<std::uint16_t*>(s.weights) + i;
  if constexpr (kMaster == MasterKind::kSplit) {
    Vec::store_low_halves(s.remainder + i, p, q);
  } else if constexpr (kBeside<kMaster>) {
    Vec::store(s.master + i, p);
    Vec::store(s.master + i + Vec::kLanes, q);
  }
  if constexpr (kMaster == MasterKind::kBesideFp16) {
    Vec::store_fp16(weights, p);
    Vec::store_fp16(weights + Vec::kLanes, q);
  } else {
    Vec::store_rounded_high_halves(weights, p, q);
  }
}

// One vector of the update; returns the new master. `nans` learns whether any result is a NaN.
template <class Rule, MasterKind kMaster, GradientKind kGradient>
inline Vec::F update_vector(const OptimizerSpan& s, std::int64_t i, const OptimizerConstants& c,
                            Vec::Nans& nans) noexcept {
  const Vec::F p = read_master<kMaster>(s, i);
  Vec::F g = Vec::mul(c.gradient_scale, widen<kGradient>(s.gradient, i));
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
template <class Rule, MasterKind kMaster>
__attribute__((noinline, cold)) void settle_nans(const OptimizerSpan& s, std::int64_t begin, std::int64_t elements,
                                                 bool moves) noexcept {
  const std::int64_t end = begin + elements;
  for (int k = 0; k < Rule::kMoments; ++k) {
    for (std::int64_t i = begin; i < end; i += Vec::kLanes) {
      Vec::store(s.moments[k] + i, Vec::canonical_nan(Vec::load(s.moments[k] + i)));
    }
  }
  for (std::int64_t i = begin; moves && i < end; i += kVectorPair) {
    const Vec::F p = Vec::canonical_nan(read_master<kMaster>(s, i));
    const Vec::F q = Vec::canonical_nan(read_master<kMaster>(s, i + Vec::kLanes));
    write_masters<kMaster>(s, i, p, q);
  }
}

template <class Rule, MasterKind kMaster, GradientKind kGradient, int kElements>
inline void update_turn(const OptimizerSpan& s, std::int64_t begin, const OptimizerConstants& c) noexcept {
  Vec::Nans nans = {};
#pragma GCC unroll 16
  for (int j = 0; j < kElements; j += kVectorPair) {
    const std::int64_t i = begin + j;
    const Vec::F p = update_vector<Rule, kMaster, kGradient>(s, i, c, nans);
    const Vec::F q = update_vector<Rule, kMaster, kGradient>(s, i + Vec::kLanes, c, nans);
    // Weights that have a master beside them are made from it even where it does not move: they may not have been read.
    if (c.moves || kBeside<kMaster>) write_masters<kMaster>(s, i, p, q);
  }
  if (__builtin_expect(Vec::any(nans), 0)) settle_nans<Rule, kMaster>(s, begin, kElements, c.moves);
}

// Fewer elements than a pair of vectors has: through a padded copy, so that nothing beyond the arrays is touched.
template <class Rule, MasterKind kMaster, GradientKind kGradient>
void update_tail(const OptimizerSpan& s, std::int64_t begin, const OptimizerConstants& c) noexcept {
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr auto kWeight = static_cast<std::size_t>(kWeightBytes<kMaster>);
  constexpr auto kGradientSize = static_cast<std::size_t>(kBytesOf<kGradient>);
  alignas(64) std::byte weights[kVectorPair * sizeof(float)] = {};  // bytes: of any element type
  alignas(64) std::byte gradient[kVectorPair * sizeof(float)] = {};
  alignas(64) float master[kVectorPair] = {};
  alignas(64) float moments[2][kVectorPair] = {};
  alignas(64) std::int16_t remainder[kVectorPair] = {};
  auto* weights_at = static_cast<char*>(s.weights) + begin * kWeightBytes<kMaster>;
  std::memcpy(weights, weights_at, rest * kWeight);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * kBytesOf<kGradient>, rest * kGradientSize);
  for (int k = 0; k < Rule::kMoments; ++k) std::memcpy(moments[k], s.moments[k] + begin, rest * 4);
  if constexpr (kBeside<kMaster>) std::memcpy(master, s.master + begin, rest * 4);
  if constexpr (kMaster == MasterKind::kSplit) std::memcpy(remainder, s.remainder + begin, rest * 2);
  const OptimizerSpan local{weights, master, remainder, {moments[0], moments[1]}, gradient, kVectorPair};
  update_turn<Rule, kMaster, kGradient, kVectorPair>(local, 0, c);
  std::memcpy(weights_at, weights, rest * kWeight);
  for (int k = 0; k < Rule::kMoments; ++k) std::memcpy(s.moments[k] + begin, moments[k], rest * 4);
  if constexpr (kBeside<kMaster>) std::memcpy(s.master + begin, master, rest * 4);
  if constexpr (kMaster == MasterKind::kSplit) std::memcpy(s.remainder + begin, remainder, rest * 2);
}

template <class Rule, MasterKind kMaster, GradientKind kGradient>
inline void ask_for_turn(const OptimizerSpan& s, std::int64_t i) noexcept {
  for (int k = 0; k < Rule::kMoments; ++k) ask_for<4>(s.moments[k], i);
  ask_for<kBytesOf<kGradient>>(s.gradient, i);
  ask_for<kWeightBytes<kMaster>>(s.weights, i);
  if constexpr (kMaster == MasterKind::kSplit) ask_for<2>(s.remainder, i);
  if constexpr (kBeside<kMaster>) ask_for<4>(s.master, i);
}

template <class Rule, MasterKind kMaster, GradientKind kGradient>
void update_elements(const OptimizerSpan& span, const OptimizerScalars& scalars) noexcept {
  const OptimizerSpan s = span;  // a copy: stores through the arrays cannot change it, so pointers stay in registers
  const OptimizerConstants c(scalars);
  std::int64_t i = 0;
  for (; i + kTurnElements <= s.elements; i += kTurnElements) {
    ask_for_turn<Rule, kMaster, kGradient>(s, i + kAheadElements);
    update_turn<Rule, kMaster, kGradient, kTurnElements>(s, i, c);
  }
  for (; i + kVectorPair <= s.elements; i += kVectorPair) {
    update_turn<Rule, kMaster, kGradient, kVectorPair>(s, i, c);
  }
  if (i < s.elements) update_tail<Rule, kMaster, kGradient>(s, i, c);
}
