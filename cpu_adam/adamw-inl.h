// SPDX-License-Identifier: Apache-2.0
// The AdamW loop, included once per SIMD target after that target's `Vec`, inside its anonymous namespace. Vec offers
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
        decay(Vec::set(s.decay)) {}
  Vec::F gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps, step_size,
      decay;
};

template <GradientKind kGradient>
inline Vec::F load_gradient(const void* gradient, std::int64_t i) noexcept {
  if constexpr (kGradient == GradientKind::kFp32) return Vec::load(static_cast<const float*>(gradient) + i);
  if constexpr (kGradient == GradientKind::kBf16)
    return Vec::load_bf16(static_cast<const std::uint16_t*>(gradient) + i);
  if constexpr (kGradient == GradientKind::kFp16)
    return Vec::load_fp16(static_cast<const std::uint16_t*>(gradient) + i);
}

template <WeightKind kWeights>
inline Vec::F load_master(const AdamWSpan& s, std::int64_t i) noexcept {
  if constexpr (kWeights == WeightKind::kFp32) {
    return Vec::load(static_cast<const float*>(s.weights) + i);
  } else if constexpr (kWeights == WeightKind::kSplit) {
    return Vec::load_split(static_cast<const std::uint16_t*>(s.weights) + i, s.remainder + i);
  } else {
    return Vec::load(s.master + i);
  }
}

template <WeightKind kWeights>
inline void store_master(const AdamWSpan& s, std::int64_t i, Vec::F p) noexcept {
  if constexpr (kWeights == WeightKind::kFp32) {
    Vec::store(static_cast<float*>(s.weights) + i, p);
  } else if constexpr (kWeights == WeightKind::kSplit) {
    Vec::store_split(static_cast<std::uint16_t*>(s.weights) + i, s.remainder + i, p);
  } else {
    Vec::store(s.master + i, p);
    auto* weights = static_cast<std::uint16_t*>(s.weights) + i;
    if constexpr (kWeights == WeightKind::kBf16Master) Vec::store_split_high(weights, p);
    if constexpr (kWeights == WeightKind::kFp16Master) Vec::store_fp16(weights, p);
  }
}

// One vector of the update. NaNs are made canonical: their payload would depend on the operand order a compiler picks,
// and a split master needs a NaN whose upper half is a NaN by itself.
template <WeightKind kWeights, GradientKind kGradient>
inline void adamw_vector(const AdamWSpan& s, std::int64_t i, const AdamWConstants& c, bool moves,
                         bool decays) noexcept {
  const Vec::F g = Vec::mul(c.gradient_scale, load_gradient<kGradient>(s.gradient, i));
  Vec::F m = Vec::fma(c.beta1, Vec::load(s.exp_avg + i), Vec::mul(c.one_minus_beta1, g));
  Vec::F v = Vec::fma(c.beta2, Vec::load(s.exp_avg_sq + i), Vec::mul(Vec::mul(c.one_minus_beta2, g), g));
  m = Vec::canonical_nan(m);
  v = Vec::canonical_nan(v);
  Vec::store(s.exp_avg + i, m);
  Vec::store(s.exp_avg_sq + i, v);
  if (!moves) return;
  const Vec::F denominator = Vec::fma(Vec::sqrt(v), c.inverse_sqrt_correction2, c.eps);
  Vec::F p = load_master<kWeights>(s, i);
  if (decays) p = Vec::negated_fma(c.decay, p, p);
  p = Vec::negated_fma(c.step_size, Vec::div(m, denominator), p);
  store_master<kWeights>(s, i, Vec::canonical_nan(p));
}

// Fewer elements than a vector has: through a padded copy, so that nothing beyond the arrays is touched.
template <WeightKind kWeights, GradientKind kGradient>
void adamw_tail(const AdamWSpan& s, std::int64_t begin, const AdamWConstants& c, bool moves, bool decays) noexcept {
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr std::size_t kWeightBytes = kWeights == WeightKind::kFp32 ? 4 : 2;
  constexpr std::size_t kGradientBytes = kGradient == GradientKind::kFp32 ? 4 : 2;
  alignas(64) float weights[Vec::kLanes] = {};
  alignas(64) float gradient[Vec::kLanes] = {};
  alignas(64) float master[Vec::kLanes] = {};
  alignas(64) float exp_avg[Vec::kLanes] = {};
  alignas(64) float exp_avg_sq[Vec::kLanes] = {};
  alignas(64) std::int16_t remainder[Vec::kLanes] = {};
  auto* weights_at = static_cast<char*>(s.weights) + begin * static_cast<std::int64_t>(kWeightBytes);
  std::memcpy(weights, weights_at, rest * kWeightBytes);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * static_cast<std::int64_t>(kGradientBytes),
              rest * kGradientBytes);
  std::memcpy(exp_avg, s.exp_avg + begin, rest * 4);
  std::memcpy(exp_avg_sq, s.exp_avg_sq + begin, rest * 4);
  constexpr bool kHasMaster = kWeights == WeightKind::kBf16Master || kWeights == WeightKind::kFp16Master;
  if constexpr (kHasMaster) std::memcpy(master, s.master + begin, rest * 4);
  if constexpr (kWeights == WeightKind::kSplit) std::memcpy(remainder, s.remainder + begin, rest * 2);
  const AdamWSpan local{weights, master, remainder, exp_avg, exp_avg_sq, gradient, Vec::kLanes};
  adamw_vector<kWeights, kGradient>(local, 0, c, moves, decays);
  std::memcpy(weights_at, weights, rest * kWeightBytes);
  std::memcpy(s.exp_avg + begin, exp_avg, rest * 4);
  std::memcpy(s.exp_avg_sq + begin, exp_avg_sq, rest * 4);
  if constexpr (kHasMaster) std::memcpy(s.master + begin, master, rest * 4);
  if constexpr (kWeights == WeightKind::kSplit) std::memcpy(s.remainder + begin, remainder, rest * 2);
}

template <WeightKind kWeights, GradientKind kGradient>
void adamw_span(const AdamWSpan& span, const AdamWScalars& scalars) noexcept {
  const AdamWSpan s = span;  // a copy: stores through the arrays cannot change it, so pointers stay in registers
  const AdamWConstants c(scalars);
  const bool moves = scalars.moves;
  const bool decays = scalars.decays;
  std::int64_t i = 0;
  for (; i + Vec::kLanes <= s.elements; i += Vec::kLanes) adamw_vector<kWeights, kGradient>(s, i, c, moves, decays);
  if (i < s.elements) adamw_tail<kWeights, kGradient>(s, i, c, moves, decays);
}
