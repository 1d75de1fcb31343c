// SPDX-License-Identifier: Apache-2.0
// AdamW in the compact format, included once per SIMD target after format_random-inl.h. A block of 64 elements is
// widened, updated as in every other format, and narrowed again: its new scales are known only after its last element.
// Codes and the eight bits of the remainder are rounded stochastically in the value itself, not in the code, so that
// the mean is kept. The first root is that of the update; narrowing takes one more for each moment and no division.

struct CompactUnits {
  float exp_avg, exp_avg_sq_root;  // one step: scale / 127^2 and scale / 255^2
};

inline float power_of_two(std::uint32_t exponent_field) noexcept {
  const std::uint32_t bits = exponent_field << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline constexpr int kCompactVectors = static_cast<int>(kCompactBlock) / Vec::kLanes;
inline constexpr int kQuad = 4;  // vectors whose bytes are stored together

struct CompactBlock {
  Vec::F m[kCompactVectors];
  Vec::F root[kCompactVectors];  // of the second moment
  Vec::U random[kCompactVectors];
  Vec::U largest_m, largest_root;  // bits of magnitudes: they order NaN above infinity above all numbers
  std::uint32_t m_scale, v_scale;
};

// Cuts the master to 24 bits: the bf16 weight by the rule of all formats, and eight bits below it.
inline void store_split8(const AdamWSpan& s, std::int64_t i, const Vec::F (&p)[kQuad], const Vec::U* random) noexcept {
  Vec::U bits[kQuad], low[kQuad];
#pragma GCC unroll 4
  for (int j = 0; j < kQuad; ++j) {
    bits[j] = Vec::add(Vec::bits_of(p[j]), bits_for_master(random[j]));
    low[j] = Vec::bit_and(Vec::shift_right<8>(bits[j]), Vec::set_bits(0xFF));
    // The rule looks at bit 15 only, so the bits below the cut need not be cleared.
    bits[j] = Vec::add(bits[j], Vec::set_bits(0x8000));
  }
  Vec::store_bytes(static_cast<std::uint8_t*>(s.remainder) + i, low[0], low[1], low[2], low[3]);
  auto* const weights = static_cast<std::uint16_t*>(s.weights) + i;
  Vec::store_high_halves(weights, bits[0], bits[1]);
  Vec::store_high_halves(weights + 2 * Vec::kLanes, bits[2], bits[3]);
}

// Updates four vectors of the block, from vector `first` of it on, and stores their masters.
template <GradientKind kGradient, bool kMoves>
inline void compact_quad(const AdamWSpan& s, std::int64_t begin, int first, const AdamWConstants& c,
                         const CompactUnits& units, CompactBlock& block) noexcept {
  const Vec::F exp_avg_unit = Vec::set(units.exp_avg);
  const Vec::F root_unit = Vec::set(units.exp_avg_sq_root);
  Vec::F p[kQuad];
  Vec::Nans nans = {};
#pragma GCC unroll 4
  for (int j = 0; j < kQuad; ++j) {
    const std::int64_t i = begin + (first + j) * Vec::kLanes;
    const Vec::F m_code = Vec::to_float(Vec::load_signed_bytes(static_cast<const std::int8_t*>(s.exp_avg) + i));
    const Vec::F v_code = Vec::to_float(Vec::load_bytes(static_cast<const std::uint8_t*>(s.exp_avg_sq) + i));
    Vec::F m = Vec::mul(Vec::mul(m_code, Vec::magnitude(m_code)), exp_avg_unit);
    const Vec::F old_root = Vec::mul(Vec::mul(v_code, v_code), root_unit);
    Vec::F v = Vec::mul(old_root, old_root);
    advance_moments(load_gradient<kGradient>(s.gradient, i), c, m, v);
    const Vec::F root = Vec::sqrt(v);
    block.m[first + j] = m;
    block.root[first + j] = root;
    block.largest_m = Vec::larger(block.largest_m, Vec::bits_of(Vec::magnitude(m)));
    block.largest_root = Vec::larger(block.largest_root, Vec::bits_of(root));
    if constexpr (!kMoves) continue;
    p[j] = Vec::load_split8(static_cast<const std::uint16_t*>(s.weights) + i,
                            static_cast<const std::int8_t*>(s.remainder) + i);
    p[j] = step_master(p[j], m, root, c);
    Vec::note_nans(nans, p[j], p[j]);
  }
  if constexpr (!kMoves) return;
  if (__builtin_expect(Vec::any(nans), 0)) {
    for (Vec::F& x : p) x = Vec::canonical_nan(x);
  }
  store_split8(s, begin + first * Vec::kLanes, p, block.random + first);
}

// The codes have no place for what is not finite. The weight of such an element is a NaN and stays one, so its moments
// begin anew at zero; an overflowed square and a first moment too large for a scale are cut to the largest that fits.
__attribute__((noinline, cold)) inline void make_finite(CompactBlock& block) noexcept {
  alignas(64) float m[kCompactBlock];
  alignas(64) float root[kCompactBlock];
  for (int k = 0; k < kCompactVectors; ++k) {
    Vec::store(m + k * Vec::kLanes, block.m[k]);
    Vec::store(root + k * Vec::kLanes, block.root[k]);
  }
  constexpr float kLargestExpAvg = 0x1.fffffep125F;
  constexpr float kLargestRoot = 0x1.fffffep62F;
  for (int i = 0; i < kCompactBlock; ++i) {
    const bool lost = !(__builtin_fabsf(m[i]) <= __FLT_MAX__) || root[i] != root[i];
    if (lost) m[i] = 0;
    if (lost) root[i] = 0;
    if (__builtin_fabsf(m[i]) > kLargestExpAvg) m[i] = __builtin_copysignf(kLargestExpAvg, m[i]);
    if (root[i] > kLargestRoot) root[i] = kLargestRoot;
  }
  block.largest_m = block.largest_root = Vec::set_bits(0);
  for (int k = 0; k < kCompactVectors; ++k) {
    block.m[k] = Vec::load(m + k * Vec::kLanes);
    block.root[k] = Vec::load(root + k * Vec::kLanes);
    block.largest_m = Vec::larger(block.largest_m, Vec::bits_of(Vec::magnitude(block.m[k])));
    block.largest_root = Vec::larger(block.largest_root, Vec::bits_of(block.root[k]));
  }
}

// y in steps lies between the squares of a code and the next: the next one where y exceeds a threshold drawn evenly
// between them. `random` has 16 bits, as floats.
inline Vec::U exp_avg_code(Vec::F m, Vec::F inverse_unit, Vec::F random) noexcept {
  const Vec::F y = Vec::mul(Vec::magnitude(m), inverse_unit);
  const Vec::U code = Vec::truncate(Vec::sqrt(y));
  const Vec::F n = Vec::to_float(code);
  const Vec::F gap = Vec::fma(Vec::set(0x1p-15F), n, Vec::set(0x1p-16F));  // (2n + 1) / 2^16
  return Vec::with_sign_of(Vec::add_one_where_greater(code, y, Vec::fma(random, gap, Vec::mul(n, n))), m);
}

// The same between fourth powers, for the square of `root`.
inline Vec::U exp_avg_sq_code(Vec::F root, Vec::F inverse_unit, Vec::F random) noexcept {
  const Vec::F y = Vec::mul(root, inverse_unit);
  const Vec::U code = Vec::truncate(Vec::sqrt(y));
  const Vec::F n = Vec::to_float(code);
  const Vec::F square = Vec::mul(n, n);
  const Vec::F gap =
      Vec::fma(Vec::set(2.0F), n, Vec::set(1.0F));           // of the squares; that of their squares is this times
  const Vec::F sum = Vec::fma(Vec::set(2.0F), square, gap);  // their sum
  const Vec::F step = Vec::mul(Vec::mul(random, Vec::set(0x1p-16F)), Vec::mul(gap, sum));
  const Vec::U rounded = Vec::add_one_where_greater(code, Vec::mul(y, y), Vec::fma(square, square, step));
  return Vec::larger(rounded, Vec::smaller(Vec::bits_of(root), Vec::set_bits(kLowestExpAvgSqCode)));
}

// The scale of a block: exponent field of the next power of two, at least `lowest`.
inline std::uint32_t compact_scale(std::uint32_t largest_bits, std::uint32_t lowest) noexcept {
  const std::uint32_t above = (largest_bits >> 23) + 1;
  return above > lowest ? above : lowest;
}

inline void choose_scales(CompactBlock& block) noexcept {
  std::uint32_t largest_m = Vec::largest(block.largest_m);
  std::uint32_t largest_root = Vec::largest(block.largest_root);
  if (__builtin_expect(largest_m >= kExpAvgLimitBits || largest_root >= kRootLimitBits, 0)) {
    make_finite(block);
    largest_m = Vec::largest(block.largest_m);
    largest_root = Vec::largest(block.largest_root);
  }
  block.m_scale = compact_scale(largest_m, kLowestExpAvgScale);
  block.v_scale = compact_scale(largest_root, kLowestExpAvgSqScale);
}

inline void store_codes(const AdamWSpan& s, std::int64_t begin, const CompactBlock& block) noexcept {
  s.exp_avg_scale[begin / kCompactBlock] = static_cast<std::uint8_t>(block.m_scale);
  s.exp_avg_sq_scale[begin / kCompactBlock] = static_cast<std::uint8_t>(block.v_scale);
  const Vec::F m_inverse = Vec::set(kExpAvgSteps * power_of_two(254 - block.m_scale));
  const Vec::F v_inverse = Vec::set(kExpAvgSqSteps * power_of_two(254 - block.v_scale));
#pragma GCC unroll 2
  for (int k = 0; k < kCompactVectors; k += kQuad) {
    Vec::U m[kQuad], v[kQuad];
#pragma GCC unroll 4
    for (int j = 0; j < kQuad; ++j) {
      const Vec::U random = block.random[k + j];
      m[j] = exp_avg_code(block.m[k + j], m_inverse, Vec::to_float(bits_for_exp_avg(random)));
      v[j] = exp_avg_sq_code(block.root[k + j], v_inverse, Vec::to_float(bits_for_exp_avg_sq(random)));
    }
    const std::int64_t i = begin + k * Vec::kLanes;
    Vec::store_signed_bytes(static_cast<std::int8_t*>(s.exp_avg) + i, m[0], m[1], m[2], m[3]);
    Vec::store_bytes(static_cast<std::uint8_t*>(s.exp_avg_sq) + i, v[0], v[1], v[2], v[3]);
  }
}

// Passed by value to what is not inlined: stores through the arrays cannot change it, so it stays in registers.
struct CompactLoop {
  AdamWSpan s;
  AdamWConstants c;
  RoundingBits rounding;
};

template <GradientKind kGradient, bool kMoves>
inline void update_block(const CompactLoop& loop, std::int64_t begin, Vec::U index, CompactBlock& block) noexcept {
  const AdamWSpan& s = loop.s;
  const std::int64_t at = begin / kCompactBlock;
  const CompactUnits units = {power_of_two(s.exp_avg_scale[at]) * (1.0F / kExpAvgSteps),
                              power_of_two(s.exp_avg_sq_scale[at]) * (1.0F / kExpAvgSqSteps)};
  block.largest_m = block.largest_root = Vec::set_bits(0);
#pragma GCC unroll 2
  for (int k = 0; k < kCompactVectors; k += kQuad) {
#pragma GCC unroll 4
    for (int j = k; j < k + kQuad; ++j) {
      block.random[j] = loop.rounding.at(index);
      index = Vec::add(index, Vec::set_bits(Vec::kLanes));
    }
    compact_quad<kGradient, kMoves>(s, begin, k, loop.c, units, block);
  }
  choose_scales(block);
}

inline Vec::U indices(const AdamWSpan& s, std::int64_t i) noexcept {
  return Vec::add(Vec::set_bits(s.first_index + static_cast<std::uint32_t>(i)), Vec::lane_numbers());
}

// The last block when it is not whole: through a padded copy. Zeros change no scale.
template <GradientKind kGradient, bool kMoves>
void compact_tail(CompactLoop local, std::int64_t begin) noexcept {
  const AdamWSpan s = local.s;
  const auto rest = static_cast<std::size_t>(s.elements - begin);
  constexpr std::int64_t kGradientBytes = kBytesOf<kGradient>;
  alignas(64) std::uint16_t weights[kCompactBlock] = {};
  alignas(64) std::byte gradient[kCompactBlock * sizeof(float)] = {};  // bytes: of any element type
  alignas(64) std::uint8_t bytes[3][kCompactBlock] = {};
  void* const arrays[3] = {s.remainder, s.exp_avg, s.exp_avg_sq};
  for (int j = 0; j < 3; ++j) std::memcpy(bytes[j], static_cast<std::uint8_t*>(arrays[j]) + begin, rest);
  std::memcpy(weights, static_cast<std::uint16_t*>(s.weights) + begin, rest * 2);
  std::memcpy(gradient, static_cast<const char*>(s.gradient) + begin * kGradientBytes,
              rest * static_cast<std::size_t>(kGradientBytes));
  local.s.weights = weights;
  local.s.remainder = bytes[0];
  local.s.exp_avg = bytes[1];
  local.s.exp_avg_sq = bytes[2];
  local.s.exp_avg_scale = s.exp_avg_scale + begin / kCompactBlock;
  local.s.exp_avg_sq_scale = s.exp_avg_sq_scale + begin / kCompactBlock;
  local.s.gradient = gradient;
  CompactBlock block;
  update_block<kGradient, kMoves>(local, 0, indices(s, begin), block);
  store_codes(local.s, 0, block);
  std::memcpy(static_cast<std::uint16_t*>(s.weights) + begin, weights, rest * 2);
  for (int j = 0; j < 3; ++j) std::memcpy(static_cast<std::uint8_t*>(arrays[j]) + begin, bytes[j], rest);
}

template <GradientKind kGradient, bool kMoves>
void compact_loop(const CompactLoop loop) noexcept {
  const AdamWSpan s = loop.s;
  Vec::U index = indices(s, 0);
  // A block is narrowed after the next one is updated: its scales are known by then, and nothing waits for them.
  CompactBlock blocks[2];
  LinesAhead<5 + kBytesOf<kGradient>, kCompactBlock> lines;
  lines.add(s.weights, 2);
  lines.add(s.gradient, kBytesOf<kGradient>);
  lines.add(s.remainder, 1);
  lines.add(s.exp_avg, 1);
  lines.add(s.exp_avg_sq, 1);
  std::int64_t i = 0;
  for (; i + kCompactBlock <= s.elements; i += kCompactBlock) {
    const std::int64_t number = i / kCompactBlock;
    lines.ask();
    update_block<kGradient, kMoves>(loop, i, index, blocks[number % 2]);
    if (i > 0) store_codes(s, i - kCompactBlock, blocks[(number + 1) % 2]);
    index = Vec::add(index, Vec::set_bits(static_cast<std::uint32_t>(kCompactBlock)));
  }
  if (i > 0) store_codes(s, i - kCompactBlock, blocks[(i / kCompactBlock + 1) % 2]);
  if (i < s.elements) compact_tail<kGradient, kMoves>(loop, i);
}

template <GradientKind kGradient>
void compact_span(const AdamWSpan& span, const AdamWScalars& scalars) noexcept {
  const CompactLoop loop = {span, AdamWConstants(scalars), RoundingBits(scalars)};
  scalars.moves ? compact_loop<kGradient, true>(loop) : compact_loop<kGradient, false>(loop);
}
