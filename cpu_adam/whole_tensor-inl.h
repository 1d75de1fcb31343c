// SPDX-License-Identifier: Apache-2.0
// The passes of Adafactor and Muon over a part of a tensor, included once per SIMD target after measure-inl.h, inside
// its anonymous namespace. They go in groups of kNormLanes elements, so that the fp64 sums have the same bits on every
// target; fewer elements go through padded copies.

// kBytes of each of kNormLanes elements, zero beyond those that are copied in.
template <std::size_t kBytes>
struct Padded {
  explicit Padded(const void* from, std::int64_t elements) noexcept : data() {
    std::memcpy(data, from, static_cast<std::size_t>(elements) * kBytes);
  }
  void copy_to(void* to, std::int64_t elements) const noexcept {
    std::memcpy(to, data, static_cast<std::size_t>(elements) * kBytes);
  }
  template <class T>
  T* as() noexcept {
    return reinterpret_cast<T*>(data);
  }
  alignas(64) std::byte data[kNormLanes * kBytes];
};

template <GradientKind kGradient>
inline const void* gradient_at(const void* gradient, std::int64_t i) noexcept {
  return static_cast<const char*>(gradient) + i * kBytesOf<kGradient>;
}

// Squares of one row of a gradient: their sum is returned, each is added to its column's sum.
template <GradientKind kGradient>
inline void square_group(const void* gradient, double* column_sums, Vec::F scale, MeasureState& state) noexcept {
#pragma GCC unroll 16
  for (int j = 0; j < MeasureState::kVectors; ++j) {
    const Vec::F g = Vec::mul(scale, load_gradient<kGradient>(gradient, j * Vec::kLanes));
    Vec::add_squares(state.sums[j], g);
    Vec::count_non_finite(state.non_finite, g);
    add_squares_to(column_sums + j * Vec::kLanes, g);
  }
}

template <GradientKind kGradient>
ArriveTotals square_row(const SquaresSpan& s) noexcept {
  MeasureState state;
  const Vec::F scale = Vec::set(s.scale);
  std::int64_t i = 0;
  for (; i + kNormLanes <= s.elements; i += kNormLanes) {
    square_group<kGradient>(gradient_at<kGradient>(s.gradient, i), s.column_sums + i, scale, state);
  }
  if (const std::int64_t rest = s.elements - i; rest > 0) {
    Padded<kBytesOf<kGradient>> gradient(gradient_at<kGradient>(s.gradient, i), rest);
    Padded<sizeof(double)> sums(s.column_sums + i, rest);
    square_group<kGradient>(gradient.data, sums.template as<double>(), scale, state);
    sums.copy_to(s.column_sums + i, rest);
  }
  return {sum_of_lanes(state.sums), Vec::total(state.non_finite)};
}

// Adafactor's direction of a matrix: gradient / max(row factor · column factor, floor).
template <GradientKind kGradient>
inline void factored_group(const void* gradient, const float* column_factors, float* direction, const FactoredSpan& s,
                           MeasureState& state) noexcept {
  const Vec::F scale = Vec::set(s.scale);
  const Vec::F row_factor = Vec::set(s.row_factor);
  const Vec::F floor = Vec::set(s.floor);
#pragma GCC unroll 16
  for (int j = 0; j < MeasureState::kVectors; ++j) {
    const int at = j * Vec::kLanes;
    const Vec::F g = Vec::mul(scale, load_gradient<kGradient>(gradient, at));
    const Vec::F root = maximum(Vec::mul(row_factor, Vec::load(column_factors + at)), floor);
    const Vec::F d = Vec::div(g, root);
    Vec::store(direction + at, d);
    Vec::add_squares(state.sums[j], d);
  }
}

template <GradientKind kGradient>
double factored_direction(const FactoredSpan& s) noexcept {
  MeasureState state;
  std::int64_t i = 0;
  for (; i + kNormLanes <= s.elements; i += kNormLanes) {
    factored_group<kGradient>(gradient_at<kGradient>(s.gradient, i), s.column_factors + i, s.direction + i, s, state);
  }
  if (const std::int64_t rest = s.elements - i; rest > 0) {
    Padded<kBytesOf<kGradient>> gradient(gradient_at<kGradient>(s.gradient, i), rest);
    Padded<sizeof(float)> factors(s.column_factors + i, rest);
    Padded<sizeof(float)> direction(s.direction + i, 0);
    factored_group<kGradient>(gradient.data, factors.template as<float>(), direction.template as<float>(), s, state);
    direction.copy_to(s.direction + i, rest);
  }
  return sum_of_lanes(state.sums);
}

// Adafactor's direction of a vector: variance += weight · (gradient² - variance); gradient / max(√variance, floor).
template <GradientKind kGradient>
inline void variance_group(const void* gradient, float* variance, float* direction, const VarianceSpan& s,
                           MeasureState& state) noexcept {
  const Vec::F scale = Vec::set(s.scale);
  const Vec::F weight = Vec::set(s.weight);
  const Vec::F floor = Vec::set(s.floor);
#pragma GCC unroll 16
  for (int j = 0; j < MeasureState::kVectors; ++j) {
    const int at = j * Vec::kLanes;
    const Vec::F g = Vec::mul(scale, load_gradient<kGradient>(gradient, at));
    const Vec::F old = Vec::load(variance + at);
    const Vec::F v = Vec::fma(weight, Vec::mul(g, g), Vec::negated_fma(weight, old, old));
    const Vec::F d = Vec::div(g, maximum(Vec::sqrt(v), floor));
    Vec::store(variance + at, v);
    Vec::store(direction + at, d);
    Vec::add_squares(state.sums[j], d);
  }
}

template <GradientKind kGradient>
double variance_direction(const VarianceSpan& s) noexcept {
  MeasureState state;
  std::int64_t i = 0;
  for (; i + kNormLanes <= s.elements; i += kNormLanes) {
    variance_group<kGradient>(gradient_at<kGradient>(s.gradient, i), s.variance + i, s.direction + i, s, state);
  }
  if (const std::int64_t rest = s.elements - i; rest > 0) {
    Padded<kBytesOf<kGradient>> gradient(gradient_at<kGradient>(s.gradient, i), rest);
    Padded<sizeof(float)> variance(s.variance + i, rest);
    Padded<sizeof(float)> direction(s.direction + i, 0);
    variance_group<kGradient>(gradient.data, variance.template as<float>(), direction.template as<float>(), s, state);
    variance.copy_to(s.variance + i, rest);
    direction.copy_to(s.direction + i, rest);
  }
  return sum_of_lanes(state.sums);
}

// Muon's buffer and what is orthogonalised: m = mu·m + (1-mu)·g; u = nesterov ? mu·m + (1-mu)·g : m.
template <GradientKind kGradient>
inline void momentum_group(const void* gradient, float* buffer, float* update, const MomentumSpan& s,
                           MeasureState& state) noexcept {
  const Vec::F scale = Vec::set(s.scale);
  const Vec::F momentum = Vec::set(s.momentum);
  const Vec::F one_minus_momentum = Vec::set(s.one_minus_momentum);
#pragma GCC unroll 16
  for (int j = 0; j < MeasureState::kVectors; ++j) {
    const int at = j * Vec::kLanes;
    const Vec::F part = Vec::mul(one_minus_momentum, Vec::mul(scale, load_gradient<kGradient>(gradient, at)));
    const Vec::F m = Vec::flush_subnormal(Vec::fma(momentum, Vec::load(buffer + at), part));
    const Vec::F u = s.nesterov ? Vec::fma(momentum, m, part) : m;
    Vec::store(buffer + at, m);
    Vec::store(update + at, u);
    Vec::add_squares(state.sums[j], u);
  }
}

template <GradientKind kGradient>
double momentum_update(const MomentumSpan& s) noexcept {
  MeasureState state;
  std::int64_t i = 0;
  for (; i + kNormLanes <= s.elements; i += kNormLanes) {
    momentum_group<kGradient>(gradient_at<kGradient>(s.gradient, i), s.buffer + i, s.update + i, s, state);
  }
  if (const std::int64_t rest = s.elements - i; rest > 0) {
    Padded<kBytesOf<kGradient>> gradient(gradient_at<kGradient>(s.gradient, i), rest);
    Padded<sizeof(float)> buffer(s.buffer + i, rest);
    Padded<sizeof(float)> update(s.update + i, 0);
    momentum_group<kGradient>(gradient.data, buffer.template as<float>(), update.template as<float>(), s, state);
    buffer.copy_to(s.buffer + i, rest);
    update.copy_to(s.update + i, rest);
  }
  return sum_of_lanes(state.sums);
}

// Squares and non-finite values of the masters of a span.
template <WeightKind kWeights>
ArriveTotals master_squares(const OptimizerSpan& s) noexcept {
  if constexpr (kWeights == WeightKind::kFp32) {
    return measure_chunk<GradientKind::kFp32>(s.weights, s.elements);
  } else if constexpr (kHasMaster<kWeights>) {
    return measure_chunk<GradientKind::kFp32>(s.master, s.elements);
  } else {
    MeasureState state;
    const auto group = [&state](const OptimizerSpan& from, std::int64_t i) {
      for (int j = 0; j < MeasureState::kVectors; ++j) {
        const Vec::F p = load_master<kWeights>(from, i + j * Vec::kLanes);
        Vec::add_squares(state.sums[j], p);
        Vec::count_non_finite(state.non_finite, p);
      }
    };
    std::int64_t i = 0;
    for (; i + kNormLanes <= s.elements; i += kNormLanes) group(s, i);
    if (const std::int64_t rest = s.elements - i; rest > 0) {
      Padded<2> high(static_cast<const std::uint16_t*>(s.weights) + i, rest);
      Padded<2> low(s.remainder + i, rest);
      group({high.data, nullptr, low.template as<std::int16_t>(), {}, nullptr, rest}, 0);
    }
    return {sum_of_lanes(state.sums), Vec::total(state.non_finite)};
  }
}
