// SPDX-License-Identifier: Apache-2.0
// What the loops of all optimizers share: their stride, and how gradients and masters are read and written. Included
// once per SIMD target after that target's `Vec`, inside its anonymous namespace.

inline constexpr int kPair = 2 * Vec::kLanes;  // narrowing two vectors to 16 bits costs about as much as narrowing one
// Elements of one turn of a loop: two lines of an fp32 array, one of a 16-bit array.
inline constexpr std::int64_t kBlockElements = 32;
// How far ahead of the loop lines are asked for. Less comes too late for memory; beyond 1024 lines leave the
// first-level cache unused.
inline constexpr std::int64_t kAheadElements = 384;

// Asks for the lines that a loop will need; hints only, which may point beyond the arrays. Memory gives lines fastest
// when several neighbours follow each other, so each turn asks for lines of one array only, and the arrays take turns:
// with a line or two of each array in every turn AdamW took 10 to 14 % longer (docs/numerics.md). kBytes: of one
// element in all arrays together. An array has one place in the cycle for each kUnit bytes of its elements.
template <int kBytes, std::int64_t kElements = kBlockElements>
class LinesAhead {
 public:
  void add(const void* array, int element_bytes) noexcept {
    const int places = element_bytes / kUnit;
    const auto begin =
        reinterpret_cast<std::uintptr_t>(array) + static_cast<std::uintptr_t>(kAheadElements * element_bytes);
    for (int k = 0; k < places; ++k) {
      places_[count_++] = {begin + static_cast<std::uintptr_t>(k * kRun), static_cast<std::uintptr_t>(places * kRun)};
    }
  }
  void ask() noexcept {
    Place& place = places_[turn_];
#pragma GCC unroll 16
    for (int k = 0; k < kLines; ++k)
      __builtin_prefetch(reinterpret_cast<const void*>(place.next + k * std::uintptr_t{kLine}));
    place.next += place.stride;
    turn_ = turn_ + 1 == kLines ? 0 : turn_ + 1;
  }

 private:
  static constexpr int kLine = 64;
  static constexpr int kUnit = kLine / kElements;
  static constexpr int kLines = kBytes / kUnit;  // of a turn, and turns of a cycle
  static constexpr int kRun = kLines * kLine;
  static_assert(kUnit * kElements == kLine && kLines * kUnit == kBytes, "arrays have whole numbers of places");
  struct Place {
    std::uintptr_t next, stride;
  };
  Place places_[kLines] = {};
  int count_ = 0, turn_ = 0;
};

template <GradientKind kGradient>
inline constexpr int kBytesOf = kGradient == GradientKind::kFp32 ? 4 : 2;

template <GradientKind kGradient>
inline Vec::F load_gradient(const void* gradient, std::int64_t i) noexcept {
  if constexpr (kGradient == GradientKind::kFp32) return Vec::load(static_cast<const float*>(gradient) + i);
  if constexpr (kGradient == GradientKind::kBf16)
    return Vec::load_bf16(static_cast<const std::uint16_t*>(gradient) + i);
  if constexpr (kGradient == GradientKind::kFp16)
    return Vec::load_fp16(static_cast<const std::uint16_t*>(gradient) + i);
}

// Those of the formats whose master is exact: the first kMasterKinds.
template <WeightKind kWeights>
inline constexpr bool kHasMaster = kWeights == WeightKind::kBf16Master || kWeights == WeightKind::kFp16Master;
template <WeightKind kWeights>
inline constexpr int kWeightBytes = kWeights == WeightKind::kFp32 ? 4 : 2;

template <WeightKind kWeights, class Span>
inline Vec::F load_master(const Span& s, std::int64_t i) noexcept {
  if constexpr (kWeights == WeightKind::kFp32) {
    return Vec::load(static_cast<const float*>(s.weights) + i);
  } else if constexpr (kWeights == WeightKind::kSplit) {
    return Vec::load_split(static_cast<const std::uint16_t*>(s.weights) + i,
                           static_cast<const std::int16_t*>(s.remainder) + i);
  } else {
    return Vec::load(s.master + i);
  }
}

// kStreams: weights that are made from a master go past the caches.
template <WeightKind kWeights, bool kStreams = false, class Span>
inline void store_masters(const Span& s, std::int64_t i, Vec::F p, Vec::F q) noexcept {
  if constexpr (kWeights == WeightKind::kFp32) {
    Vec::store(static_cast<float*>(s.weights) + i, p);
    Vec::store(static_cast<float*>(s.weights) + i + Vec::kLanes, q);
    return;
  }
  auto* weights = static_cast<std::uint16_t*>(s.weights) + i;
  if constexpr (kWeights == WeightKind::kSplit) {
    Vec::store_low_halves(static_cast<std::int16_t*>(s.remainder) + i, p, q);
  } else if constexpr (kHasMaster<kWeights>) {
    Vec::store(s.master + i, p);
    Vec::store(s.master + i + Vec::kLanes, q);
  }
  if constexpr (kStreams) {
    static_assert(kHasMaster<kWeights>, "others are read first, so that their lines are in the caches");
    kWeights == WeightKind::kFp16Master ? Vec::stream_fp16(weights, p, q)
                                        : Vec::stream_rounded_high_halves(weights, p, q);
  } else if constexpr (kWeights == WeightKind::kFp16Master) {
    Vec::store_fp16(weights, p);
    Vec::store_fp16(weights + Vec::kLanes, q);
  } else {
    Vec::store_rounded_high_halves(weights, p, q);
  }
}
