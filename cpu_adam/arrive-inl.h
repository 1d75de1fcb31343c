// SPDX-License-Identifier: Apache-2.0
// Gradient arrival of one chunk, included once per SIMD target after that target's `Vec`, inside its anonymous
// namespace. Sixteen fp64 partial sums and one tree are the same on every target; squares of fp32 values are exact in
// fp64, so FMA changes nothing.

// Rounds and stores one vector; returns what was stored, widened to fp32.
template <GradientKind kKind, bool kAdd>
inline Vec::F arrive_vector(const float* source, void* destination, std::int64_t i) noexcept {
  Vec::F value = Vec::load(source + i);
  if constexpr (kAdd) value = Vec::canonical_nan(Vec::add(value, load_gradient<kKind>(destination, i)));
  if constexpr (kKind == GradientKind::kFp32) {
    Vec::store(static_cast<float*>(destination) + i, value);
    return value;
  } else if constexpr (kKind == GradientKind::kBf16) {
    return Vec::store_bf16(static_cast<std::uint16_t*>(destination) + i, value);
  } else {
    return Vec::store_fp16(static_cast<std::uint16_t*>(destination) + i, value);
  }
}

struct ArriveState {
  static constexpr int kVectors = kNormLanes / Vec::kLanes;
  Vec::Sums sums[kVectors] = {};
  Vec::Count non_finite = {};
};

// kNormLanes elements from position i.
template <GradientKind kKind, bool kAdd>
inline void arrive_group(const float* source, void* destination, std::int64_t i, ArriveState& state) noexcept {
#pragma GCC unroll 16
  for (int j = 0; j < ArriveState::kVectors; ++j) {
    const Vec::F stored = arrive_vector<kKind, kAdd>(source, destination, i + j * Vec::kLanes);
    Vec::add_squares(state.sums[j], stored);
    Vec::count_non_finite(state.non_finite, stored);
  }
}

template <GradientKind kKind, bool kAdd>
ArriveTotals arrive_chunk(const ArriveSpan& s) noexcept {
  ArriveState state;
  constexpr int kStoredBytes = kKind == GradientKind::kFp32 ? 4 : 2;
  LinesAhead<4 + kStoredBytes> lines;
  lines.add(s.source, 4);
  lines.add(s.destination, kStoredBytes);
  std::int64_t i = 0;
  for (; i + kBlockElements <= s.elements; i += kBlockElements) {
    lines.ask();
    for (int j = 0; j < kBlockElements; j += kNormLanes) {
      arrive_group<kKind, kAdd>(s.source, s.destination, i + j, state);
    }
  }
  for (; i + kNormLanes <= s.elements; i += kNormLanes) {
    arrive_group<kKind, kAdd>(s.source, s.destination, i, state);
  }
  if (i < s.elements) {  // zeros that pad the last group add nothing to a sum that is never negative
    const auto rest = static_cast<std::size_t>(s.elements - i);
    alignas(64) float source[kNormLanes] = {};
    alignas(64) std::byte destination[kNormLanes * sizeof(float)] = {};  // bytes: of any element type
    char* at = static_cast<char*>(s.destination) + i * kStoredBytes;
    std::memcpy(source, s.source + i, rest * 4);
    std::memcpy(destination, at, rest * kStoredBytes);
    arrive_group<kKind, kAdd>(source, destination, 0, state);
    std::memcpy(at, destination, rest * kStoredBytes);
  }
  double lanes[kNormLanes];
  for (int j = 0; j < ArriveState::kVectors; ++j) Vec::store_sums(lanes + j * Vec::kLanes, state.sums[j]);
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return {lanes[0] == lanes[0] ? lanes[0] : __builtin_nan(""), Vec::total(state.non_finite)};
}
