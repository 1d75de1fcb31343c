// SPDX-License-Identifier: Apache-2.0
// The bodies of vector_math.h over a vector type V of kLanes floats; included once per SIMD target, inside its
// anonymous namespace. V has: load, store, set, zero, fma(a,b,c)=a·b+c, add, sub, mul, div, max (second operand where
// NaN), min (same), load_first(p, count, rest: the other lanes), store_first(p, v, count), keep_first(v, count: others
// zero), neg_abs, round, exp2_int (2^i of an integral float in [-126,127]), half_floor (floor(a/2)),
// select_less(x,y,a,b)=x<y?a:b.

// 2 ≤ 16 / kLanes registers make the 16 lanes that all targets add in.
inline constexpr std::int64_t kSumLanes = 16;

// out = body(x) by vectors; lanes behind the end are zero on the way in and not written.
template <class V, class Body>
inline void for_vectors(const float* x, float* out, std::int64_t count, Body body) noexcept {
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::store(out + i, body(V::load(x + i)));
  if (i < count) V::store_first(out + i, body(V::load_first(x + i, count - i, 0.0F)), count - i);
}

// Cephes expf: x = n·ln2 + r, polynomial in r, scaled in two steps so that neither 2^n overflows nor underflows.
template <class V>
inline V exp_vector(V x) noexcept {
  const V low = V::set(-87.33654F);
  const V clamped = V::min(V::set(89.0F), V::max(low, x));
  const V n = V::round(V::mul(clamped, V::set(1.44269504088896341F)));
  V r = V::fma(n, V::set(-0.693359375F), clamped);
  r = V::fma(n, V::set(2.12194440e-4F), r);
  V p = V::set(1.9875691500e-4F);
  p = V::fma(p, r, V::set(1.3981999507e-3F));
  p = V::fma(p, r, V::set(8.3334519073e-3F));
  p = V::fma(p, r, V::set(4.1665795894e-2F));
  p = V::fma(p, r, V::set(1.6666665459e-1F));
  p = V::fma(p, r, V::set(5.0000001201e-1F));
  p = V::add(V::fma(p, V::mul(r, r), r), V::set(1.0F));
  const V half = V::half_floor(n);
  const V result = V::mul(V::mul(p, V::exp2_int(half)), V::exp2_int(V::sub(n, half)));
  return V::select_less(x, low, V::zero(), result);
}

template <class V>
inline V sigmoid_vector(V x) noexcept {
  const V e = exp_vector(V::neg_abs(x));  // in (0, 1]: no overflow on either side
  const V denominator = V::add(V::set(1.0F), e);
  return V::div(V::select_less(x, V::zero(), e, V::set(1.0F)), denominator);
}

template <class V>
void exp_loop(const float* x, float* out, std::int64_t count) noexcept {
  for_vectors<V>(x, out, count, [](V value) { return exp_vector(value); });
}
template <class V>
void sigmoid_loop(const float* x, float* out, std::int64_t count) noexcept {
  for_vectors<V>(x, out, count, [](V value) { return sigmoid_vector(value); });
}

template <class V>
float exp_minus_sum_loop(const float* x, float shift, float* out, std::int64_t count) noexcept {
  constexpr std::int64_t kRegisters = kSumLanes / V::kLanes;
  const V minus = V::set(-shift);
  V sums[kRegisters];
  for (V& sum : sums) sum = V::zero();
  std::int64_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (std::int64_t r = 0; r < kRegisters; ++r) {
      const V value = exp_vector(V::add(V::load(x + i + r * V::kLanes), minus));
      V::store(out + i + r * V::kLanes, value);
      sums[r] = V::add(sums[r], value);
    }
  }
  for (std::int64_t r = 0; r < kRegisters && i < count; ++r, i += V::kLanes) {
    const std::int64_t rest = count - i < V::kLanes ? count - i : V::kLanes;
    const V value = V::keep_first(exp_vector(V::add(V::load_first(x + i, rest, 0.0F), minus)), rest);
    V::store_first(out + i, value, rest);
    sums[r] = V::add(sums[r], value);
  }
  float lanes[kSumLanes];
  for (std::int64_t r = 0; r < kRegisters; ++r) V::store(lanes + r * V::kLanes, sums[r]);
  for (std::int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <class V>
float max_loop(const float* x, std::int64_t count) noexcept {
  const float lowest = -__builtin_inff();
  V best = V::set(lowest);
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) best = V::max(best, V::load(x + i));
  if (i < count) best = V::max(best, V::load_first(x + i, count - i, lowest));
  float lanes[V::kLanes];
  V::store(lanes, best);
  float result = lowest;
  for (const float lane : lanes) result = lane > result ? lane : result;
  return result;
}
