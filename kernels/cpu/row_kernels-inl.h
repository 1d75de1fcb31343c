// SPDX-License-Identifier: Apache-2.0
// Bodies of row_kernels.h, compiled once for each SIMD target. Eight-lane vectors of the compiler's vector extension
// stand for one AVX register or two SSE ones; everything has internal linkage so that no target's code leaks into
// another's.

// NOLINTBEGIN(llvm-header-guard)
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/row_kernels.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kLanes = 8;
typedef float Floats __attribute__((vector_size(32)));       // NOLINT(modernize-use-using): attribute placement
typedef std::int32_t Ints __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)
#define HEADRACE_INLINE inline __attribute__((always_inline))

HEADRACE_INLINE Floats splat(float value) { return Floats{} + value; }
HEADRACE_INLINE Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
HEADRACE_INLINE void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }
HEADRACE_INLINE Floats load_part(const float* p, std::int64_t count) {
  Floats v{};
  std::memcpy(&v, p, static_cast<std::size_t>(count) * sizeof(float));
  return v;
}
HEADRACE_INLINE void store_part(float* p, Floats v, std::int64_t count) {
  std::memcpy(p, &v, static_cast<std::size_t>(count) * sizeof(float));
}
HEADRACE_INLINE Ints as_ints(Floats v) { return std::bit_cast<Ints>(v); }
HEADRACE_INLINE Floats as_floats(Ints v) { return std::bit_cast<Floats>(v); }

// Calls body(load, store) for each vector of [0, n): `load(p)` reads p[i…] (zeros past the end), `store(p, v)` writes
// it.
template <class Body>
HEADRACE_INLINE void for_each_vector(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body([i](const float* p) { return load(p + i); }, [i](float* p, Floats v) { store(p + i, v); });
  }
  if (const std::int64_t rest = n - i; rest > 0) {
    body([i, rest](const float* p) { return load_part(p + i, rest); },
         [i, rest](float* p, Floats v) { store_part(p + i, v, rest); });
  }
}

// Sum of term(load) in fp64 of fp32 partial sums. A lane adds at most kRun/8/2 terms in fp32: a longer run loses bits,
// a shorter one spends its time in the horizontal sums.
template <class Term>
HEADRACE_INLINE double sum_of(std::int64_t n, Term term) {
  constexpr std::int64_t kRun = 512;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t end = std::min(n, begin + kRun);
    Floats even{};
    Floats odd{};
    std::int64_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      even += term([i](const float* p) { return load(p + i); });
      odd += term([i](const float* p) { return load(p + i + kLanes); });
    }
    for (; i < end; i += kLanes) {
      const std::int64_t rest = std::min(kLanes, end - i);
      const Floats value = term([i, rest](const float* p) { return load_part(p + i, rest); });
      for (std::int64_t lane = 0; lane < rest; ++lane) total += static_cast<double>(value[lane]);
    }
    const Floats both = even + odd;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) total += static_cast<double>(both[lane]);
  }
  return total;
}

// e^x, relative error below 2 ulp (measured 1.1); x is clamped to where the result is a normal number
// (ends: 2.5e-38, 2.4e38).
HEADRACE_INLINE Floats exponential(Floats x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 · 2^23: adding it rounds to an integer
  x = x > splat(88.37F) ? splat(88.37F) : x;
  x = x < splat(-86.6F) ? splat(-86.6F) : x;
  const Floats shifted = x * 1.44269504F + kMagic;
  const Floats whole = shifted - kMagic;
  const Floats r = (x - whole * 0.693359375F) - whole * -2.12194440e-4F;  // |r| ≤ ln2 / 2; the first product is exact
  Floats p = r * 1.9875691500e-4F + 1.3981999507e-3F;                     // Cephes expf
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const Ints exponent = as_ints(shifted) - std::bit_cast<std::int32_t>(kMagic);
  return as_floats(as_ints(p) + (exponent << 23));
}

HEADRACE_INLINE Floats sigmoid(Floats x) { return 1.0F / (1.0F + exponential(-x)); }

struct Logistic {
  Floats value;       // s(x)
  Floats complement;  // 1 - s(x), without the cancellation of that difference
};
HEADRACE_INLINE Logistic logistic(Floats x) {
  const Floats e = exponential(-x);
  const Floats value = 1.0F / (1.0F + e);
  return {value, e * value};
}

// erf(x), absolute error below 4e-7: odd rational minimax on |x| ≤ 4 (coefficients as in Eigen's float erf).
HEADRACE_INLINE Floats error_function(Floats x) {
  x = x > splat(4.0F) ? splat(4.0F) : x;
  x = x < splat(-4.0F) ? splat(-4.0F) : x;
  const Floats s = x * x;
  Floats p = s * -2.72614225801306e-10F + 2.77068142495902e-08F;
  p = p * s + -2.10102402082508e-06F;
  p = p * s + -5.69250639462346e-05F;
  p = p * s + -7.34990630326855e-04F;
  p = p * s + -2.95459980854025e-03F;
  p = p * s + -1.60960333262415e-02F;
  Floats q = s * -1.45660718464996e-05F + -2.13374055278905e-04F;
  q = q * s + -1.68282697438203e-03F;
  q = q * s + -7.37332916720468e-03F;
  q = q * s + -1.42647390514189e-02F;
  return x * p / q;
}

double sum(const float* x, std::int64_t n) {
  return sum_of(n, [=](auto at) { return at(x); });
}

double sum_squares(const float* x, float center, std::int64_t n) {
  return sum_of(n, [=](auto at) {
    const Floats d = at(x) - center;
    return d * d;
  });
}

void normalize(const float* x, float center, float scale, const float* weight, const float* bias, float* y,
               std::int64_t n) {
  if (bias == nullptr) {
    for_each_vector(n, [=](auto at, auto put) { put(y, (at(x) - center) * scale * at(weight)); });
  } else {
    for_each_vector(n, [=](auto at, auto put) { put(y, (at(x) - center) * scale * at(weight) + at(bias)); });
  }
}

NormSums norm_sums(const NormRow& row, std::int64_t n) {
  NormSums sums;
  sums.weighted = sum_of(n, [=](auto at) { return at(row.gradient) * at(row.weight); });
  sums.weighted_hat =
      sum_of(n, [=](auto at) { return at(row.gradient) * at(row.weight) * ((at(row.x) - row.center) * row.scale); });
  return sums;
}

void norm_input_gradient(const NormRow& row, NormSums means, bool accumulate, float* d_x, std::int64_t n) {
  const auto mean = static_cast<float>(means.weighted);
  const auto mean_hat = static_cast<float>(means.weighted_hat);
  const auto gradient = [=](auto at) {
    const Floats hat = (at(row.x) - row.center) * row.scale;
    return (at(row.gradient) * at(row.weight) - mean - hat * mean_hat) * row.scale;
  };
  if (accumulate) {
    for_each_vector(n, [=](auto at, auto put) { put(d_x, at(d_x) + gradient(at)); });
  } else {
    for_each_vector(n, [=](auto at, auto put) { put(d_x, gradient(at)); });
  }
}

void add(const float* x, float* total, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) { put(total, at(total) + at(x)); });
}

void add_products(const float* g, const float* x, float center, float scale, float* total, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) { put(total, at(total) + at(g) * ((at(x) - center) * scale)); });
}

void rotate(float* a, float* b, const float* cosine, const float* sine, float sign, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats c = at(cosine);
    const Floats s = at(sine) * sign;
    const Floats u = at(a);
    const Floats v = at(b);
    put(a, u * c - v * s);
    put(b, v * c + u * s);
  });
}

void swiglu(const float* gate, const float* up, float* y, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats g = at(gate);
    put(y, g * sigmoid(g) * at(up));
  });
}

void swiglu_gradient(const float* gate, const float* up, const float* d_y, float* d_gate, float* d_up, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats g = at(gate);
    const Floats u = at(up);
    const Floats d = at(d_y);
    const Logistic s = logistic(g);
    put(d_gate, d * u * (s.value * (1.0F + g * s.complement)));
    put(d_up, d * (g * s.value));
  });
}

constexpr float kTwiceRoot2OverPi = 1.5957691216F;  // 2 · sqrt(2 / π)
constexpr float kCubic = 0.044715F;

// 0.5 x (1 + tanh(u)) is x · sigmoid(2u), which keeps its relative precision where tanh is near -1.
void gelu_tanh(const float* x, float* y, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats v = at(x);
    put(y, v * sigmoid(kTwiceRoot2OverPi * (v + kCubic * v * v * v)));
  });
}

void gelu_tanh_gradient(const float* x, const float* d_y, float* d_x, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats v = at(x);
    const Logistic s = logistic(kTwiceRoot2OverPi * (v + kCubic * v * v * v));
    const Floats slope = kTwiceRoot2OverPi * (1.0F + 3.0F * kCubic * v * v);
    // Far from zero the product of s and its complement vanishes while slope overflows: v·slope is bounded first.
    Floats bend = v * slope;
    bend = bend > splat(1e30F) ? splat(1e30F) : bend;
    bend = bend < splat(-1e30F) ? splat(-1e30F) : bend;
    put(d_x, at(d_y) * (s.value + s.value * s.complement * bend));
  });
}

constexpr float kRootHalf = 0.70710678118F;
constexpr float kInverseRoot2Pi = 0.39894228040F;  // 1 / sqrt(2π)

void gelu_erf(const float* x, float* y, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats v = at(x);
    put(y, v * (0.5F * (1.0F + error_function(v * kRootHalf))));
  });
}

void gelu_erf_gradient(const float* x, const float* d_y, float* d_x, std::int64_t n) {
  for_each_vector(n, [=](auto at, auto put) {
    const Floats v = at(x);
    const Floats density = kInverseRoot2Pi * exponential(v * v * -0.5F);
    put(d_x, at(d_y) * (0.5F * (1.0F + error_function(v * kRootHalf)) + v * density));
  });
}

constexpr RowKernels make_row_kernels(const char* name) {
  return {.name = name,
          .sum = sum,
          .sum_squares = sum_squares,
          .normalize = normalize,
          .norm_sums = norm_sums,
          .norm_input_gradient = norm_input_gradient,
          .add = add,
          .add_products = add_products,
          .rotate = rotate,
          .swiglu = swiglu,
          .swiglu_gradient = swiglu_gradient,
          .gelu_tanh = gelu_tanh,
          .gelu_tanh_gradient = gelu_tanh_gradient,
          .gelu_erf = gelu_erf,
          .gelu_erf_gradient = gelu_erf_gradient};
}

#undef HEADRACE_INLINE

}  // namespace
}  // namespace headrace::kernels

// NOLINTEND(llvm-header-guard)
