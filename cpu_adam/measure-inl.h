// SPDX-License-Identifier: Apache-2.0
// Sum of squares and non-finite values of one chunk of a gradient, included once per SIMD target after
// optimizer-inl.h, inside its anonymous namespace. Sixteen fp64 partial sums and one tree, as for arriving gradients,
// so that the bits are the same on every target and those of arrival.

struct MeasureState {
  static constexpr int kVectors = kNormLanes / Vec::kLanes;
  Vec::Sums sums[kVectors] = {};
  Vec::Count non_finite = {};
};

template <GradientKind kGradient>
inline void measure_group(const void* gradient, std::int64_t i, MeasureState& state) noexcept {
#pragma GCC unroll 16
  for (int j = 0; j < MeasureState::kVectors; ++j) {
    const Vec::F value = load_gradient<kGradient>(gradient, i + j * Vec::kLanes);
    Vec::add_squares(state.sums[j], value);
    Vec::count_non_finite(state.non_finite, value);
  }
}

// The sixteen partial sums, added 8, 4, 2, 1 apart.
inline double sum_of_lanes(const Vec::Sums (&sums)[MeasureState::kVectors]) noexcept {
  double lanes[kNormLanes];
  for (int j = 0; j < MeasureState::kVectors; ++j) Vec::store_sums(lanes + j * Vec::kLanes, sums[j]);
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0] == lanes[0] ? lanes[0] : __builtin_nan("");
}

template <GradientKind kGradient>
ArriveTotals measure_chunk(const void* gradient, std::int64_t elements) noexcept {
  MeasureState state;
  std::int64_t i = 0;
  for (; i + kNormLanes <= elements; i += kNormLanes) measure_group<kGradient>(gradient, i, state);
  if (i < elements) {  // zeros that pad the last group add nothing to a sum that is never negative
    alignas(64) std::byte rest[kNormLanes * sizeof(float)] = {};  // of any element type
    std::memcpy(rest, static_cast<const char*>(gradient) + i * kBytesOf<kGradient>,
                static_cast<std::size_t>((elements - i) * kBytesOf<kGradient>));
    measure_group<kGradient>(rest, 0, state);
  }
  return {sum_of_lanes(state.sums), Vec::total(state.non_finite)};
}
