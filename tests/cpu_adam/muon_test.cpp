// SPDX-License-Identifier: Apache-2.0
// Muon: stored golden values, orthogonal updates at many shapes, equal bits, refusals.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden.h"
#include "whole_tensor_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::HasSubstr;

constexpr OptimizerKind kKind = OptimizerKind::kMuon;

OptimizerHyper muon_hyper(double wd = 0) {
  OptimizerHyper h = default_hyper(kKind);
  h.lr = 0.02;
  h.weight_decay = wd;
  return h;
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
  OptimizerHyper hyper = muon_hyper(std::strtod(wd.c_str(), nullptr));
  for (int t = 1; t <= 10; ++t) {
    for (std::int64_t i = 0; i < n; ++i) gradient.set(i, gradients[static_cast<std::size_t>((t - 1) * n + i)]);
    hyper.optimizer_step = t;
    const State before = tensor.state;
    const Result<void> updated = tensor.update(kKind, workers, gradient, hyper);
    ASSERT_TRUE(updated.ok()) << updated.error().to_string();
    if (t != 1 && t != 2 && t != 10) continue;
    const std::string key = "muon/wd" + wd + "/" + input + "/step" + std::to_string(t) + "/";
    const auto p = golden.read<double>(key + "param");
    const auto buffer = golden.read<double>(key + "momentum_buffer");
    const auto ortho = golden.read<double>(key + "ortho");
    const double scale = muon_scale_of(hyper.muon_scale, tensor.rows, tensor.columns);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double error = std::abs(static_cast<double>(tensor.state.master_at(i)) - p[at]);
      const double bound = 2e-6 * (std::abs(p[at]) + hyper.lr * t);
      worst.see(error, bound, p[at], key + std::to_string(i) + " " + target_name(target) + " " + kind_name(kind));
      ASSERT_LE(error, bound) << key << i << " " << target_name(target);
      ASSERT_NEAR(static_cast<double>(tensor.state.exp_avg[i]), buffer[at], 2e-6) << key << i;
      const double decayed = static_cast<double>(before.master_at(i)) * (1 - hyper.lr * hyper.weight_decay);
      const double direction = (decayed - static_cast<double>(tensor.state.master_at(i))) / (hyper.lr * scale);
      ASSERT_NEAR(direction, ortho[at], 2e-5 + ulp_of(decayed) / hyper.lr) << key << i;
    }
  }
}

TEST(Muon, stored_fp64_results_are_met_by_every_target_and_format) {
  const GoldenFile golden("optimizers.safetensors");
  ASSERT_TRUE(golden.ok()) << "HEADRACE_REFERENCE names the folder of the reference files";
  Worst worst("golden muon");
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
};
constexpr Shape kShapes[] = {{1, 1}, {1, 7}, {7, 1}, {3, 3}, {33, 15}, {15, 33}, {40, 40}, {65, 130}};

// Rows (or columns, of a tall matrix) of the update are nearly orthonormal: singular values between about 0.7 and 1.2.
TEST(Muon, the_update_of_every_shape_and_gradient_type_is_nearly_orthogonal) {
  for (const Target target : targets()) {
    const ParallelOptimizer workers(2, target);
    for (const Shape& shape : kShapes) {
      for (const DType dtype : kAllDTypes) {
        TensorState tensor(Kind::kFp32, shape.rows, shape.columns, false);
        constexpr std::uint64_t kSeed = 11;
        Random random(kSeed);
        Gradient gradient(dtype, tensor.elements(), 0);
        for (std::int64_t i = 0; i < tensor.elements(); ++i) gradient.set(i, random.weight());
        ASSERT_TRUE(tensor.update(kKind, workers, gradient, muon_hyper()).ok());
        const double step = 0.02 * muon_scale_of(MuonScale::kKellerJordan, shape.rows, shape.columns);
        double squares = 0;
        double along = 0;  // with the gradient: descends
        for (std::int64_t i = 0; i < tensor.elements(); ++i) {
          const double u = -static_cast<double>(tensor.state.wide[i]) / step;
          squares += u * u;
          along += u * static_cast<double>(gradient.at(i));
        }
        const auto rank = static_cast<double>(std::min(shape.rows, shape.columns));
        EXPECT_GT(squares / rank, 0.4) << shape.rows << " x " << shape.columns << " seed " << kSeed;
        EXPECT_LT(squares / rank, 1.5) << shape.rows << " x " << shape.columns << " seed " << kSeed;
        EXPECT_GT(along, 0) << shape.rows << " x " << shape.columns;
      }
    }
  }
}

TEST(Muon, targets_and_thread_counts_do_not_change_a_bit) {
  for (const Shape& shape : kShapes) {
    for (const Kind kind : {Kind::kFp16Master, Kind::kSplit}) {
      Random random(17);
      TensorState truth(kind, shape.rows, shape.columns, false);
      fill_tensor(truth, random);
      const TensorState start = truth;
      Gradient gradient(DType::kBf16, truth.elements(), 1);
      fill_gradient(truth, gradient, random);
      ASSERT_TRUE(truth.update(kKind, ParallelOptimizer(1, Target::kScalar), gradient, muon_hyper(0.1)).ok());
      for (const Target target : targets()) {
        for (const int threads : {1, 2, 3}) {
          TensorState tensor = start;
          ASSERT_TRUE(tensor.update(kKind, ParallelOptimizer(threads, target), gradient, muon_hyper(0.1)).ok());
          ASSERT_TRUE(tensor.same_bits(truth))
              << shape.rows << " x " << shape.columns << " " << threads << " threads, " << target_name(target) << ": "
              << first_difference_of(tensor.state, truth.state);
        }
      }
    }
  }
}

TEST(Muon, a_learning_rate_of_zero_moves_the_momentum_and_nothing_else) {
  for (const Kind kind : kAllKinds) {
    TensorState tensor(kind, 6, 9, false);
    Random random(3);
    fill_tensor(tensor, random);
    const State before = tensor.state;
    Gradient gradient(DType::kFp32, 54, 0);
    for (std::int64_t i = 0; i < 54; ++i) gradient.set(i, 1.0F);
    OptimizerHyper hyper = muon_hyper(0.1);
    hyper.lr = 0;
    ASSERT_TRUE(tensor.update(kKind, ParallelOptimizer(1), gradient, hyper).ok());
    EXPECT_TRUE(tensor.state.wide.same_bits(before.wide) && tensor.state.half.same_bits(before.half) &&
                tensor.state.master.same_bits(before.master) && tensor.state.remainder.same_bits(before.remainder))
        << kind_name(kind);
    for (std::int64_t i = 0; i < 54; ++i) EXPECT_NEAR(tensor.state.exp_avg[i], 0.05F, 1e-8F);
  }
}

TEST(Muon, a_matrix_without_gradients_keeps_its_weights) {
  for (const double eps : {1e-7, 0.0}) {
    TensorState tensor(Kind::kFp32, 5, 4, false);
    Random random(1);
    fill_tensor(tensor, random);
    const TensorState before = tensor;
    Gradient gradient(DType::kFp32, 20, 0);
    OptimizerHyper hyper = muon_hyper();
    hyper.newton_schulz_eps = eps;
    ASSERT_TRUE(tensor.update(kKind, ParallelOptimizer(1), gradient, hyper).ok());
    EXPECT_TRUE(tensor.same_bits(before)) << eps;
  }
}

TEST(Muon, values_that_are_not_finite_are_refused_before_anything_changes) {
  TensorState tensor(Kind::kSplit, 40, 50, false);
  Random random(2);
  fill_tensor(tensor, random);
  Gradient gradient(DType::kFp32, 2000, 0);
  fill_gradient(tensor, gradient, random);
  const TensorState before = tensor;
  const ParallelOptimizer workers(2);
  gradient.set(7, NAN);
  gradient.set(1999, INFINITY);
  const Error error = tensor.update(kKind, workers, gradient, muon_hyper()).error();
  EXPECT_EQ(error.code, ErrorCode::kNumeric);
  EXPECT_THAT(error.message, HasSubstr("Muon: 2 of the gradient's 2000 values are not finite"));
  EXPECT_TRUE(tensor.same_bits(before));
  gradient.set(7, 1);
  gradient.set(1999, 3e38F);
  OptimizerHyper scaled = muon_hyper();
  scaled.gradient_scale = 2;
  EXPECT_THAT(tensor.update(kKind, workers, gradient, scaled).error().message, HasSubstr("beyond fp32"));
  EXPECT_TRUE(tensor.same_bits(before));
  gradient.set(1999, 1);
  tensor.state.exp_avg[9] = NAN;
  EXPECT_THAT(tensor.update(kKind, workers, gradient, muon_hyper()).error().message,
              HasSubstr("1 of the momentum_buffer's 2000"));
}

TEST(Muon, wrong_arguments_are_refused_with_their_numbers) {
  TensorState tensor(Kind::kSplit, 6, 5, false);
  Gradient gradient(DType::kFp32, 30, 0);
  Workspace workspace(muon_workspace_bytes(6, 5));
  const ParallelOptimizer workers(1);
  const auto message = [&](const auto& change) {
    MuonArrays arrays = tensor.muon(gradient, workspace);
    OptimizerHyper hyper = muon_hyper();
    change(arrays, hyper);
    return muon_update(workers, arrays, StateFormat::kSplit, hyper, plain_product).error().message;
  };
  EXPECT_THAT(message([](auto& a, auto&) { a.columns = 4; }), HasSubstr("6 rows of 4 columns do not make 30 elements"));
  EXPECT_THAT(message([](auto& a, auto&) { a.workspace = a.workspace.subspan(1); }), HasSubstr("bytes"));
  EXPECT_THAT(message([](auto& a, auto&) { a.tensor.moments[0] = nullptr; }), HasSubstr("momentum_buffer is null"));
  EXPECT_THAT(message([](auto&, auto& h) { h.momentum = 1; }), HasSubstr("momentum is 1"));
  EXPECT_THAT(
      muon_update(workers, tensor.muon(gradient, workspace), StateFormat::kSplit, muon_hyper(), {}).error().message,
      HasSubstr("no matrix product"));
}

TEST(Muon, scales_are_those_of_the_two_publications) {
  EXPECT_DOUBLE_EQ(muon_scale_of(MuonScale::kKellerJordan, 100, 400), 1.0);
  EXPECT_DOUBLE_EQ(muon_scale_of(MuonScale::kKellerJordan, 400, 100), 2.0);
  EXPECT_DOUBLE_EQ(muon_scale_of(MuonScale::kMatchRmsAdamW, 100, 400), 4.0);
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
