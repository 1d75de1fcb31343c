// SPDX-License-Identifier: Apache-2.0
// Adafactor: stored golden values, the formulas in fp64 at many shapes, equal bits, refusals.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden.h"
#include "whole_tensor_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::HasSubstr;

constexpr OptimizerKind kKind = OptimizerKind::kAdafactor;

// The formulas of the header in fp64, written down without any of the shortcuts of the code.
struct AdafactorTruth {
  std::int64_t rows, columns;
  bool is_vector;
  std::vector<double> p, row, column, variance;

  AdafactorTruth(const TensorState& tensor)  // NOLINT(google-explicit-constructor)
      : rows(tensor.rows),
        columns(tensor.columns),
        is_vector(tensor.is_vector),
        row(static_cast<std::size_t>(rows)),
        column(static_cast<std::size_t>(columns)),
        variance(static_cast<std::size_t>(columns)) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) p.push_back(static_cast<double>(tensor.state.master_at(i)));
  }
  static double rms(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum / static_cast<double>(values.size()));
  }
  void step(const Gradient& gradient, const OptimizerHyper& h) {
    const auto t = static_cast<double>(h.optimizer_step);
    const double w = std::pow(t, h.beta2_decay);
    const double alpha = std::max(h.eps2, rms(p)) * std::min(h.lr, 1 / std::sqrt(t));
    std::vector<double> g(p.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = static_cast<double>(gradient.at(static_cast<std::int64_t>(i))) * static_cast<double>(h.gradient_scale);
    }
    const std::vector<double> estimate = is_vector ? estimate_vector(g, w) : estimate_matrix(g, w, h.eps1);
    std::vector<double> u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) u[i] = g[i] / std::sqrt(std::max(estimate[i], h.eps1 * h.eps1));
    const double divisor = std::max(1.0, rms(u) / h.clip_threshold);
    for (std::size_t i = 0; i < g.size(); ++i) p[i] = p[i] * (1 - h.lr * h.weight_decay) - alpha / divisor * u[i];
  }
  std::vector<double> estimate_vector(const std::vector<double>& g, double w) {
    for (std::size_t i = 0; i < g.size(); ++i) variance[i] += w * (g[i] * g[i] - variance[i]);
    return variance;
  }
  std::vector<double> estimate_matrix(const std::vector<double>& g, double w, double eps1) {
    std::vector<double> row_means(row.size()), column_means(column.size()), estimate(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      row_means[i / column.size()] += g[i] * g[i] / static_cast<double>(column.size());
      column_means[i % column.size()] += g[i] * g[i] / static_cast<double>(row.size());
    }
    double mean = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] += w * (row_means[i] - row[i]);
      mean += row[i] / static_cast<double>(row.size());
    }
    for (std::size_t i = 0; i < column.size(); ++i) column[i] += w * (column_means[i] - column[i]);
    for (std::size_t i = 0; i < g.size(); ++i) {
      estimate[i] = row[i / column.size()] * column[i % column.size()] / std::max(mean, eps1);
    }
    return estimate;
  }
};

void expect_near(const GuardedArray<float>& state, const std::vector<double>& truth, const std::string& what) {
  double largest = 0;
  for (const double x : truth) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < truth.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(state[static_cast<std::int64_t>(i)]) - truth[i]), 2e-6 * largest)
        << what << " i=" << i;
  }
}

void compare_with_golden(const GoldenFile& golden, Target target, Kind kind, const std::string& wd,
                         const std::string& input, Worst& worst) {
  const auto initial = golden.read<float>(input + "/param");
  const auto gradients = golden.read<float>(input + "/grads");
  TensorState tensor(kind, input == "m32x48" ? 32 : 48, input == "m32x48" ? 48 : 32, false);
  const std::int64_t n = tensor.elements();
  for (std::int64_t i = 0; i < n; ++i) tensor.state.set_master(i, initial[static_cast<std::size_t>(i)]);
  Gradient gradient(DType::kFp32, n, 0);
  const ParallelOptimizer workers(2, target);
  OptimizerHyper hyper = default_hyper(kKind);
  hyper.eps1 = 1e-30;
  hyper.weight_decay = std::strtod(wd.c_str(), nullptr);
  for (int t = 1; t <= 10; ++t) {
    for (std::int64_t i = 0; i < n; ++i) gradient.set(i, gradients[static_cast<std::size_t>((t - 1) * n + i)]);
    hyper.optimizer_step = t;
    const Result<void> updated = tensor.update(kKind, workers, gradient, hyper);
    ASSERT_TRUE(updated.ok()) << updated.error().to_string();
    if (t != 1 && t != 2 && t != 10) continue;
    const std::string key = "adafactor/wd" + wd + "/" + input + "/step" + std::to_string(t) + "/";
    const auto p = golden.read<double>(key + "param");
    for (std::int64_t i = 0; i < n; ++i) {
      const double truth = p[static_cast<std::size_t>(i)];
      const double error = std::abs(static_cast<double>(tensor.state.master_at(i)) - truth);
      const double bound = 2e-6 * (std::abs(truth) + hyper.lr * t);
      worst.see(error, bound, truth, key + std::to_string(i) + " " + target_name(target) + " " + kind_name(kind));
      ASSERT_LE(error, bound) << key << i << " " << target_name(target);
    }
    expect_near(tensor.row_variance, golden.read<double>(key + "row_var"), key + "row_var");
    expect_near(tensor.column_variance, golden.read<double>(key + "col_var"), key + "col_var");
  }
}

TEST(Adafactor, stored_fp64_results_are_met_by_every_target_and_format) {
  const GoldenFile golden("optimizers.safetensors");
  ASSERT_TRUE(golden.ok()) << "HEADRACE_REFERENCE names the folder of the reference files";
  Worst worst("golden adafactor");
  for (const Target target : targets()) {
    for (const char* wd : {"0", "0.1"}) {
      for (const char* input : {"m32x48", "m48x32"}) {
        for (const Kind kind : kAllKinds) compare_with_golden(golden, target, kind, wd, input, worst);
        if (HasFatalFailure()) return;
      }
    }
  }
}

struct Shape {
  std::int64_t rows, columns;
  bool is_vector = false;
};
// Rows and columns that are no multiple of any vector, of a block of rows, or of a segment of columns.
constexpr Shape kShapes[] = {{1, 1},        {1, 17},        {33, 1},        {2, 65},      {65, 31},
                             {131, 64},     {2500, 3},      {3, 4097},      {1, 1, true}, {1, 15, true},
                             {1, 16, true}, {1, 129, true}, {1, 9001, true}};

TEST(Adafactor, steps_stay_near_fp64_at_every_shape_gradient_type_and_format) {
  Worst worst("adafactor, all shapes");
  for (const Target target : targets()) {
    const ParallelOptimizer workers(2, target);
    for (const Shape& shape : kShapes) {
      for (const Kind kind : {Kind::kFp32, Kind::kFp16Master, Kind::kSplit}) {
        for (const DType dtype : kAllDTypes) {
          const auto seed = static_cast<std::uint64_t>(shape.rows * 10007 + shape.columns);
          Random random(seed);
          TensorState tensor(kind, shape.rows, shape.columns, shape.is_vector);
          fill_tensor(tensor, random);
          AdafactorTruth truth(tensor);
          Gradient gradient(dtype, tensor.elements(), 3);
          OptimizerHyper hyper = default_hyper(kKind);
          hyper.gradient_scale = 0.37F;
          hyper.weight_decay = 0.1;
          for (int t = 1; t <= 3; ++t) {
            hyper.optimizer_step = t;
            fill_gradient(tensor, gradient, random);
            const Result<void> updated = tensor.update(kKind, workers, gradient, hyper);
            ASSERT_TRUE(updated.ok()) << updated.error().to_string();
            truth.step(gradient, hyper);
          }
          for (std::int64_t i = 0; i < tensor.elements(); ++i) {
            const double p = truth.p[static_cast<std::size_t>(i)];
            const double error = std::abs(static_cast<double>(tensor.state.master_at(i)) - p);
            const double bound = 2e-6 * (std::abs(p) + hyper.lr * 3);
            const std::string where = std::to_string(shape.rows) + " x " + std::to_string(shape.columns) + " " +
                                      kind_name(kind) + " gradient " + dtype_name(dtype) + " " + target_name(target) +
                                      " i=" + std::to_string(i) + " seed " + std::to_string(seed);
            worst.see(error, bound, p, where);
            ASSERT_LE(error, bound) << where;
            if (kind != Kind::kFp32) {
              ASSERT_EQ(tensor.state.half[i], tensor.state.expected_weight(tensor.state.master_at(i))) << where;
            }
          }
        }
      }
    }
  }
}

TEST(Adafactor, targets_and_thread_counts_do_not_change_a_bit) {
  for (const Shape& shape : kShapes) {
    for (const Kind kind : {Kind::kBf16Master, Kind::kSplit}) {
      Random random(17);
      TensorState truth(kind, shape.rows, shape.columns, shape.is_vector);
      fill_tensor(truth, random);
      const TensorState start = truth;
      Gradient gradient(DType::kBf16, truth.elements(), 1);
      fill_gradient(truth, gradient, random);
      OptimizerHyper hyper = default_hyper(kKind);
      hyper.optimizer_step = 3;
      hyper.weight_decay = 0.1;
      ASSERT_TRUE(truth.update(kKind, ParallelOptimizer(1, Target::kScalar), gradient, hyper).ok());
      for (const Target target : targets()) {
        for (const int threads : {1, 2, 3}) {
          TensorState tensor = start;
          ASSERT_TRUE(tensor.update(kKind, ParallelOptimizer(threads, target), gradient, hyper).ok());
          ASSERT_TRUE(tensor.same_bits(truth))
              << shape.rows << " x " << shape.columns << " " << threads << " threads, " << target_name(target) << ": "
              << first_difference_of(tensor.state, truth.state);
        }
      }
    }
  }
}

TEST(Adafactor, a_learning_rate_of_zero_moves_the_variances_and_nothing_else) {
  for (const Kind kind : kAllKinds) {
    for (const bool is_vector : {false, true}) {
      Random random(3);
      TensorState tensor(kind, is_vector ? 1 : 9, 20, is_vector);
      fill_tensor(tensor, random);
      const State before = tensor.state;
      Gradient gradient(DType::kFp32, tensor.elements(), 0);
      fill_gradient(tensor, gradient, random);
      OptimizerHyper hyper = default_hyper(kKind);
      hyper.lr = 0;
      hyper.weight_decay = 0.1;
      ASSERT_TRUE(tensor.update(kKind, ParallelOptimizer(1), gradient, hyper).ok());
      EXPECT_TRUE(tensor.state.same_bits(before)) << kind_name(kind);
      for (std::int64_t i = 0; i < 20; ++i) {
        EXPECT_GT(is_vector ? tensor.variance[i] : tensor.column_variance[i], 0.0F);
      }
    }
  }
}

TEST(Adafactor, a_tensor_without_gradients_keeps_its_weights) {
  TensorState tensor(Kind::kFp32, 4, 5, false);
  Random random(1);
  fill_tensor(tensor, random);
  const TensorState before = tensor;
  Gradient gradient(DType::kFp32, 20, 0);
  ASSERT_TRUE(tensor.update(kKind, ParallelOptimizer(1), gradient, default_hyper(kKind)).ok());
  EXPECT_TRUE(tensor.same_bits(before));
}

TEST(Adafactor, values_that_are_not_finite_are_refused_before_anything_changes) {
  for (const bool is_vector : {false, true}) {
    TensorState tensor(Kind::kSplit, is_vector ? 1 : 40, 50, is_vector);
    Random random(2);
    fill_tensor(tensor, random);
    Gradient gradient(DType::kBf16, tensor.elements(), 0);
    fill_gradient(tensor, gradient, random);
    const TensorState before = tensor;
    gradient.set(7, NAN);
    gradient.set(tensor.elements() - 1, INFINITY);
    const ParallelOptimizer workers(2);
    const Error error = tensor.update(kKind, workers, gradient, default_hyper(kKind)).error();
    EXPECT_EQ(error.code, ErrorCode::kNumeric);
    EXPECT_THAT(error.message, HasSubstr("Adafactor: 2 of the gradient's " + std::to_string(tensor.elements())));
    EXPECT_TRUE(tensor.same_bits(before));
    gradient.set(7, 1);
    gradient.set(tensor.elements() - 1, 1);
    tensor.state.set_master(3, INFINITY);
    const TensorState spoiled = tensor;
    EXPECT_THAT(tensor.update(kKind, workers, gradient, default_hyper(kKind)).error().message,
                HasSubstr("1 of the weight's"));
    EXPECT_TRUE(tensor.same_bits(spoiled));
  }
}

TEST(Adafactor, squares_beyond_fp32_are_refused_before_anything_changes) {
  for (const bool is_vector : {false, true}) {
    for (const auto& [value, scale] : {std::pair{1e20F, 1.0F}, std::pair{1e10F, 1e30F}, std::pair{1e-10F, 1e30F}}) {
      TensorState tensor(Kind::kFp32, is_vector ? 1 : 40, 50, is_vector);
      Random random(2);
      fill_tensor(tensor, random);
      Gradient gradient(DType::kFp32, tensor.elements(), 0);
      fill_gradient(tensor, gradient, random);
      gradient.set(7, value);
      OptimizerHyper hyper = default_hyper(kKind);
      hyper.gradient_scale = scale;
      const TensorState before = tensor;
      const Result<void> result = tensor.update(kKind, ParallelOptimizer(2), gradient, hyper);
      ASSERT_FALSE(result.ok()) << value << " " << scale;
      EXPECT_EQ(result.error().code, ErrorCode::kNumeric);
      EXPECT_TRUE(tensor.same_bits(before)) << value << " " << scale;
    }
  }
}

TEST(Adafactor, wrong_arguments_are_refused_with_their_numbers) {
  TensorState tensor(Kind::kSplit, 6, 5, false);
  Gradient gradient(DType::kFp32, 30, 0);
  Workspace workspace(adafactor_workspace_bytes(6, 5, false));
  const ParallelOptimizer workers(1);
  const auto message = [&](const auto& change) {
    AdafactorArrays arrays = tensor.adafactor(gradient, workspace);
    OptimizerHyper hyper = default_hyper(kKind);
    change(arrays, hyper);
    return adafactor_update(workers, arrays, StateFormat::kSplit, hyper).error().message;
  };
  EXPECT_THAT(message([](auto& a, auto&) { a.rows = 7; }), HasSubstr("7 rows of 5 columns do not make 30 elements"));
  EXPECT_THAT(message([](auto& a, auto&) { a.row_variance = nullptr; }), HasSubstr("needs row_variance"));
  EXPECT_THAT(message([](auto& a, auto&) { a.variance = a.row_variance; }), HasSubstr("variance is given"));
  EXPECT_THAT(message([](auto& a, auto&) { a.workspace = a.workspace.first(64); }), HasSubstr("has 64 bytes"));
  EXPECT_THAT(message([](auto& a, auto&) { a.workspace = a.workspace.subspan(0, 0); }), HasSubstr("has 0 bytes"));
  EXPECT_THAT(message([](auto& a, auto&) { a.tensor.weights = nullptr; }), HasSubstr("weights is null"));
  EXPECT_THAT(message([](auto&, auto& h) { h.clip_threshold = NAN; }), HasSubstr("clip_threshold is nan"));
  EXPECT_EQ(adafactor_state_elements(6, 5, false), 11);
  EXPECT_EQ(adafactor_state_elements(1, 5, true), 5);
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
