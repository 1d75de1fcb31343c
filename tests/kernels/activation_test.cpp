// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/row_kernels.h"
#include "numeric_support.h"

namespace headrace::kernels {
namespace {

// Ordinary values, and a sweep far beyond what activations reach.
Values inputs() {
  Values values = random_values(1, 50'000, 3.0F);
  for (int i = -4000; i <= 4000; ++i) values.push_back(static_cast<float>(i) * 0.025F);
  for (const float extreme : {0.0F, -0.0F, 1e-30F, -1e-30F, 1e10F, -1e10F}) values.push_back(extreme);
  return values;
}
std::int64_t size_of(const Values& values) { return static_cast<std::int64_t>(values.size()); }

TEST(Swiglu, forward_is_within_6_ulp) {
  const Parallel parallel(2);
  const Values gate = inputs();
  const Values up = random_values(2, size_of(gate));
  Values got(gate.size());
  Values want(gate.size());
  swiglu_forward(parallel, gate.data(), up.data(), got.data(), size_of(gate));
  swiglu_forward_reference(gate.data(), up.data(), want.data(), size_of(gate));
  // The sigmoid ends at 4e-39: what a gate of -1e10 leaves of it is judged by a size that no activation reaches.
  const WorstUlp worst = worst_ulp(got, want, 1e-20F);
  EXPECT_LE(worst.ulps, 6.0) << worst.text() << " gate " << gate[worst.index];
}

TEST(Swiglu, backward_is_within_4_ulp_of_the_upstream_gradient) {
  const Parallel parallel(2);
  const Values gate = inputs();
  const auto count = size_of(gate);
  const Values up = random_values(3, count);
  const Values d_y = random_values(4, count);
  Values got_gate(gate.size());
  Values got_up(gate.size());
  Values want_gate(gate.size());
  Values want_up(gate.size());
  swiglu_backward(parallel, {gate.data(), up.data(), d_y.data(), got_gate.data(), got_up.data(), count});
  swiglu_backward_reference({gate.data(), up.data(), d_y.data(), want_gate.data(), want_up.data(), count});
  const WorstUlp of_up = worst_ulp(got_up, want_up, 1e-20F);
  EXPECT_LE(of_up.ulps, 6.0) << of_up.text() << " gate " << gate[of_up.index];
  for (std::size_t i = 0; i < gate.size(); ++i) {
    // d silu crosses zero near -1.28, where its terms cancel: the error is that of the terms, which are at most 1.1 · d
    // · u.
    const double scale = std::abs(static_cast<double>(d_y[i]) * static_cast<double>(up[i]));
    const double error = std::abs(static_cast<double>(got_gate[i]) - static_cast<double>(want_gate[i]));
    ASSERT_LE(error, 4 * 0x1p-23 * scale + 1e-27)
        << "gate " << gate[i] << " got " << got_gate[i] << " want " << want_gate[i];
  }
}

TEST(Swiglu, outputs_may_be_the_inputs) {
  const Parallel parallel(1);
  const Values gate = random_values(5, 1000);
  const Values up = random_values(6, 1000);
  const Values d_y = random_values(7, 1000);
  Values apart_gate(1000);
  Values apart_up(1000);
  swiglu_backward(parallel, {gate.data(), up.data(), d_y.data(), apart_gate.data(), apart_up.data(), 1000});
  Values in_place_gate = gate;
  Values in_place_up = d_y;
  swiglu_backward(
      parallel, {in_place_gate.data(), up.data(), in_place_up.data(), in_place_gate.data(), in_place_up.data(), 1000});
  EXPECT_TRUE(same_bits(apart_gate, in_place_gate));
  EXPECT_TRUE(same_bits(apart_up, in_place_up));
  Values product = gate;
  Values expected(1000);
  swiglu_forward(parallel, gate.data(), up.data(), expected.data(), 1000);
  swiglu_forward(parallel, product.data(), up.data(), product.data(), 1000);
  EXPECT_TRUE(same_bits(expected, product));
}

class GeluOf : public testing::TestWithParam<Gelu> {};

// The error is bounded by the size of the input: where gelu is near zero, 1 + tanh or 1 + erf has cancelled.
TEST_P(GeluOf, forward_and_slope_are_within_their_bounds) {
  const Parallel parallel(2);
  const Values x = inputs();
  const auto count = size_of(x);
  const Values d_y(x.size(), 1.0F);
  Values got(x.size());
  Values want(x.size());
  gelu_forward(parallel, GetParam(), x.data(), got.data(), count);
  gelu_forward_reference(GetParam(), x.data(), want.data(), count);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    worst = std::max(worst, error / (std::abs(static_cast<double>(x[i])) + 1e-30));
    ASSERT_LE(error, 4e-7 * std::abs(static_cast<double>(x[i])) + 1e-30)
        << "x " << x[i] << " got " << got[i] << " want " << want[i];
  }
  RecordProperty("worst_forward_relative_to_x", std::to_string(worst));
  gelu_backward(parallel, GetParam(), x.data(), d_y.data(), got.data(), count);
  gelu_backward_reference(GetParam(), x.data(), d_y.data(), want.data(), count);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    ASSERT_LE(error, 1e-6) << "x " << x[i] << " got " << got[i] << " want " << want[i];
  }
}

TEST_P(GeluOf, a_nan_stays_a_nan) {
  const Parallel parallel(1);
  const Values x = {1.0F, std::numeric_limits<float>::quiet_NaN(), -1.0F};
  const Values d_y(3, 1.0F);
  Values y(3);
  Values d_x(3);
  gelu_forward(parallel, GetParam(), x.data(), y.data(), 3);
  gelu_backward(parallel, GetParam(), x.data(), d_y.data(), d_x.data(), 3);
  EXPECT_TRUE(std::isnan(y[1]) && std::isnan(d_x[1]));
  EXPECT_TRUE(std::isfinite(y[0]) && std::isfinite(y[2]) && std::isfinite(d_x[0]) && std::isfinite(d_x[2]));
}

INSTANTIATE_TEST_SUITE_P(Kinds, GeluOf, testing::Values(Gelu::kTanh, Gelu::kErf),
                         [](const auto& test) { return test.param == Gelu::kTanh ? "tanh" : "erf"; });

// Every function of the table on every length around a vector's, so that whole and partial vectors meet.
TEST(RowKernels, targets_give_the_same_bits) {
  const RowKernels& base = row_kernels_baseline();
  const RowKernels* fast = row_kernels_avx2();
  if (fast == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  for (const std::int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 511, 512, 513, 1000, 4099}) {
    const Values a = random_values(static_cast<std::uint64_t>(n), n, 2.0F);
    const Values b = random_values(static_cast<std::uint64_t>(n) + 1, n, 2.0F);
    const Values c = random_values(static_cast<std::uint64_t>(n) + 2, n);
    const NormRow row{a.data(), b.data(), c.data(), 0.3F, 1.7F};
    EXPECT_EQ(base.sum(a.data(), n), fast->sum(a.data(), n)) << n;
    EXPECT_EQ(base.sum_squares(a.data(), 0.1F, n), fast->sum_squares(a.data(), 0.1F, n)) << n;
    EXPECT_EQ(base.norm_sums(row, n).weighted, fast->norm_sums(row, n).weighted) << n;
    EXPECT_EQ(base.norm_sums(row, n).weighted_hat, fast->norm_sums(row, n).weighted_hat) << n;
    const auto expect_same = [&](const char* name, const auto& run) {
      Values one = c;
      Values two = c;
      Values one_more = b;
      Values two_more = b;
      run(base, one.data(), one_more.data());
      run(*fast, two.data(), two_more.data());
      EXPECT_TRUE(same_bits(one, two) && same_bits(one_more, two_more)) << name << " of " << n;
      EXPECT_FALSE(same_bits(one, c)) << name << " of " << n << " did nothing";
    };
    using Kernels = const RowKernels&;
    expect_same("normalize",
                [&](Kernels k, float* out, float*) { k.normalize(a.data(), 0.1F, 0.7F, b.data(), c.data(), out, n); });
    expect_same("normalize without bias",
                [&](Kernels k, float* out, float*) { k.normalize(a.data(), 0.1F, 0.7F, b.data(), nullptr, out, n); });
    expect_same("norm_input_gradient", [&](Kernels k, float* out, float*) {
      k.norm_input_gradient(row, {0.2, 0.4}, true, out, n);
    });
    expect_same("add", [&](Kernels k, float* out, float*) { k.add(a.data(), out, n); });
    expect_same("add_products",
                [&](Kernels k, float* out, float*) { k.add_products(a.data(), b.data(), 0.1F, 0.7F, out, n); });
    expect_same("rotate",
                [&](Kernels k, float* out, float* more) { k.rotate(out, more, a.data(), b.data(), -1.0F, n); });
    expect_same("swiglu", [&](Kernels k, float* out, float*) { k.swiglu(a.data(), b.data(), out, n); });
    expect_same("swiglu_gradient", [&](Kernels k, float* out, float* more) {
      k.swiglu_gradient(a.data(), b.data(), c.data(), out, more, n);
    });
    expect_same("gelu_tanh", [&](Kernels k, float* out, float*) { k.gelu_tanh(a.data(), out, n); });
    expect_same("gelu_tanh_gradient",
                [&](Kernels k, float* out, float*) { k.gelu_tanh_gradient(a.data(), b.data(), out, n); });
    expect_same("gelu_erf", [&](Kernels k, float* out, float*) { k.gelu_erf(a.data(), out, n); });
    expect_same("gelu_erf_gradient",
                [&](Kernels k, float* out, float*) { k.gelu_erf_gradient(a.data(), b.data(), out, n); });
  }
}

}  // namespace
}  // namespace headrace::kernels
