// SPDX-License-Identifier: Apache-2.0
// What the loops of all optimizers share: their stride, and how gradients and masters are read and written. Included
// once per SIMD target after that target's `Vec`, inside its anonymous namespace.

inline constexpr int kPair = 2 * Vec::kLanes;  // narrowing two vectors to 16 bits costs about as much as narrowing one
// Elements of one turn of a loop: two lines of an fp32 array, one of a 16-bit array.
inline constexpr std::int64_t kBlockElements = 32;
// How far ahead lines are asked for. The hardware's own prefetchers lose the thread between five arrays at page
// boundaries: without this the update of AdamW took 17 % longer. Less than about 128 comes too late for memory; beyond
// 1024 lines leave the first-level cache unused.
inline constexpr std::int64_t kPrefetchElements = 512;

// Asks for the lines of elements i … i + kBlockElements; a hint, which may point beyond the array.
template <int kBytes>
inline void prefetch_elements(const void* array, std::int64_t i) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(array) + static_cast<std::uintptr_t>(i * kBytes);
  __builtin_prefetch(reinterpret_cast<const void*>(address));
  if constexpr (kBytes == 4) __builtin_prefetch(reinterpret_cast<const void*>(address + 64));
}

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

template <WeightKind kWeights, class Span>
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
  if constexpr (kWeights == WeightKind::kFp16Master) {
    Vec::store_fp16(weights, p);
    Vec::store_fp16(weights + Vec::kLanes, q);
  } else {
    Vec::store_rounded_high_halves(weights, p, q);
  }
}
