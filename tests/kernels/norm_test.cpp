// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/norm.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <vector>

#include "kernels/cpu/elementwise.h"
#include "numeric_support.h"

namespace headrace::kernels {
namespace {

struct Case {
  std::int64_t rows, width;
  bool centered;
  DType dtype;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << (c.centered ? "LayerNorm " : "RMSNorm ") << c.rows << 'x' << c.width << ' ' << dtype_name(c.dtype);
}

struct Problem {
  explicit Problem(const Case& of)
      : shape{of.rows, of.width, 1e-5},
        centered(of.centered),
        dtype(of.dtype),
        x(random_values(1, of.rows * of.width, 2.0F, 0.5F)),
        d_y(random_values(2, of.rows * of.width)),
        weight(stored(random_values(3, of.width, 0.2F, 1.0F))),
        bias(stored(random_values(4, of.width, 0.3F))) {}

  [[nodiscard]] std::vector<std::byte> stored(const Values& values) const {
    std::vector<std::byte> bytes;
    for (const float value : values) {
      std::byte raw[4];
      if (dtype == DType::kFp32) {
        std::memcpy(raw, &value, 4);
      } else {
        const std::uint16_t half = dtype == DType::kBf16 ? to_bf16(value).bits : to_fp16(value).bits;
        std::memcpy(raw, &half, 2);
      }
      bytes.insert(bytes.end(), raw, raw + dtype_bytes(dtype));
    }
    return bytes;
  }
  [[nodiscard]] NormParameters parameters() const { return {weight.data(), centered ? bias.data() : nullptr, dtype}; }

  NormShape shape;
  bool centered;
  DType dtype;
  Values x, d_y;
  std::vector<std::byte> weight, bias;
};

struct Results {
  explicit Results(const Problem& problem)
      : mean(static_cast<std::size_t>(problem.shape.rows)),
        inverse(mean.size()),
        y(problem.x.size()),
        d_x(random_values(5, static_cast<std::int64_t>(problem.x.size()))),
        d_weight(random_values(6, problem.shape.width)),
        d_bias(random_values(7, problem.shape.width)),
        centered(problem.centered) {}
  [[nodiscard]] NormStatistics statistics() { return {centered ? mean.data() : nullptr, inverse.data()}; }
  [[nodiscard]] NormBackward backward(const Problem& problem, bool accumulate) {
    return {.d_y = problem.d_y.data(),
            .x = problem.x.data(),
            .parameters = problem.parameters(),
            .statistics = statistics(),
            .d_x = d_x.data(),
            .accumulate_d_x = accumulate,
            .d_weight = d_weight.data(),
            .d_bias = centered ? d_bias.data() : nullptr,
            .accumulate_d_parameters = accumulate};
  }
  Values mean, inverse, y, d_x, d_weight, d_bias;
  bool centered;
};

class Norm : public testing::TestWithParam<Case> {};

// Bounds: y and d_x have a handful of roundings of terms of size up to about 8; sums over rows add up to `rows` terms
// in runs of 32.
TEST_P(Norm, forward_and_backward_are_near_the_reference) {
  const Parallel parallel(2);
  const Problem problem(GetParam());
  for (const bool accumulate : {false, true}) {
    Results got(problem);
    Results want(problem);
    norm_forward(parallel, problem.shape, problem.x.data(), problem.parameters(), got.statistics(), got.y.data());
    norm_forward_reference(problem.shape, problem.x.data(), problem.parameters(), want.statistics(), want.y.data());
    norm_backward(parallel, problem.shape, got.backward(problem, accumulate));
    norm_backward_reference(problem.shape, want.backward(problem, accumulate));
    const auto expect_near = [&](const char* name, const Values& a, const Values& b, double bound, float scale) {
      const WorstUlp worst = worst_ulp(a, b, scale);
      EXPECT_LE(worst.ulps, bound) << name << ": " << worst.text();
    };
    expect_near("mean", got.mean, want.mean, 4, 1.0F);
    expect_near("inverse", got.inverse, want.inverse, 4, 0);
    expect_near("y", got.y, want.y, 6, 1.0F);
    expect_near("d_x", got.d_x, want.d_x, 8, 1.0F);
    const auto rows = static_cast<double>(problem.shape.rows);
    expect_near("d_weight", got.d_weight, want.d_weight, 8 + rows / 16, 4.0F);
    expect_near("d_bias", got.d_bias, want.d_bias, 8 + rows / 16, 4.0F);
  }
}

TEST_P(Norm, applying_saved_statistics_gives_the_bits_of_forward) {
  const Parallel parallel(2);
  const Problem problem(GetParam());
  Results results(problem);
  norm_forward(parallel, problem.shape, problem.x.data(), problem.parameters(), results.statistics(), results.y.data());
  Values again(results.y.size());
  norm_apply(parallel, problem.shape, problem.x.data(), problem.parameters(), results.statistics(), again.data());
  EXPECT_TRUE(same_bits(results.y, again));
}

TEST_P(Norm, threads_do_not_change_a_bit) {
  const Problem problem(GetParam());
  Results one(problem);
  Results two(problem);
  for (Results* results : {&one, &two}) {
    const Parallel parallel(results == &one ? 1 : 2);
    norm_forward(parallel, problem.shape, problem.x.data(), problem.parameters(), results->statistics(),
                 results->y.data());
    norm_backward(parallel, problem.shape, results->backward(problem, true));
  }
  EXPECT_TRUE(same_bits(one.y, two.y) && same_bits(one.d_x, two.d_x) && same_bits(one.d_weight, two.d_weight) &&
              same_bits(one.d_bias, two.d_bias));
}

TEST_P(Norm, input_gradient_may_overwrite_the_output_gradient) {
  const Parallel parallel(2);
  Problem problem(GetParam());
  Results apart(problem);
  Results in_place(problem);
  norm_forward(parallel, problem.shape, problem.x.data(), problem.parameters(), apart.statistics(), apart.y.data());
  in_place.mean = apart.mean;
  in_place.inverse = apart.inverse;
  norm_backward(parallel, problem.shape, apart.backward(problem, false));
  NormBackward arguments = in_place.backward(problem, false);
  arguments.d_x = problem.d_y.data();
  norm_backward(parallel, problem.shape, arguments);
  EXPECT_TRUE(same_bits(apart.d_x, problem.d_y) && same_bits(apart.d_weight, in_place.d_weight));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Norm,
                         testing::Values(Case{1, 1, false, DType::kFp32}, Case{3, 7, true, DType::kFp32},
                                         Case{70, 64, false, DType::kBf16}, Case{33, 300, true, DType::kFp16},
                                         Case{130, 1000, false, DType::kFp32}, Case{65, 2049, true, DType::kBf16}));

TEST(RmsNorm, a_row_of_zeros_is_not_divided_by_zero) {
  const Parallel parallel(1);
  const Values x(16, 0.0F);
  const Values weight(16, 1.0F);
  Values inverse(1);
  Values y(16, 1.0F);
  norm_forward(parallel, {1, 16, 1e-5}, x.data(), {weight.data(), nullptr, DType::kFp32}, {nullptr, inverse.data()},
               y.data());
  EXPECT_TRUE(same_bits(y, x));
  EXPECT_NEAR(inverse[0], 316.2278F, 1e-3F);
}

TEST(ColumnSums, add_rows_in_order_whatever_the_threads) {
  constexpr std::int64_t kRows = 101;
  constexpr std::int64_t kColumns = 519;
  const Values x = random_values(8, kRows * kColumns);
  Values want(kColumns);
  for (std::int64_t column = 0; column < kColumns; ++column) {
    double sum = 0.5;
    for (std::int64_t row = 0; row < kRows; ++row)
      sum += static_cast<double>(x[static_cast<std::size_t>(row * kColumns + column)]);
    want[static_cast<std::size_t>(column)] = static_cast<float>(sum);
  }
  Values one(kColumns, 0.5F);
  Values two(kColumns, 0.5F);
  column_sums(Parallel(1), x.data(), kRows, kColumns, one.data(), true);
  column_sums(Parallel(2), x.data(), kRows, kColumns, two.data(), true);
  EXPECT_TRUE(same_bits(one, two));
  const WorstUlp worst = worst_ulp(one, want, 8.0F);
  EXPECT_LE(worst.ulps, 16) << worst.text();
  column_sums(Parallel(2), x.data(), kRows, kColumns, two.data(), false);
  for (std::size_t i = 0; i < two.size(); ++i)
    ASSERT_NEAR(two[i] + 0.5F, one[i], 1e-4F) << "without accumulation the old sum is gone";
}

}  // namespace
}  // namespace headrace::kernels
