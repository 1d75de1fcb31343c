// SPDX-License-Identifier: Apache-2.0
// Trains one matrix that lives in plain arrays with any of the optimizers: bf16 weights, a 16-bit remainder that makes
// them an exact fp32 master, fp32 gradients, clipping fused into the update.
//
// usage: train_arrays [OPTIMIZER [LEARNING_RATE]]      default: AdamW
#include <cpu_adam/adafactor.h>
#include <cpu_adam/muon.h>
#include <cpu_adam/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using namespace headrace;            // NOLINT(google-build-using-namespace): an example
using namespace headrace::cpu_adam;  // NOLINT(google-build-using-namespace)

constexpr std::int64_t kRows = 32;
constexpr std::int64_t kColumns = 16;
constexpr std::int64_t kElements = kRows * kColumns;
constexpr int kSamples = 200;

// Everything that is kept for the matrix. A real program would keep it where it likes: in one mapped file, say.
struct Matrix {
  std::vector<Bf16> weights = std::vector<Bf16>(kElements);  // what the forward pass reads
  std::vector<std::int16_t> remainder = std::vector<std::int16_t>(kElements);
  std::vector<float> moments[2];                     // as many as moment_names() says
  std::vector<float> row_variance, column_variance;  // Adafactor
  std::vector<float> gradient = std::vector<float>(kElements);
  std::vector<float> workspace;  // Adafactor and Muon, while they update
};

// A workspace begins at a multiple of 64 bytes.
std::span<std::byte> aligned(std::vector<float>& storage, Bytes bytes) {
  storage.resize(static_cast<std::size_t>(bytes) / sizeof(float) + 16);
  const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
  return {reinterpret_cast<std::byte*>(storage.data()) + (64 - address % 64) % 64, static_cast<std::size_t>(bytes)};
}

// Muon's matrix product. A real program calls its BLAS here.
void multiply(const MatrixProduct& p) {
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t column = 0; column < p.n; ++column) {
      float sum = 0;
      for (std::int64_t i = 0; i < p.k; ++i) {
        sum += p.a[row * p.k + i] * (p.b_transposed ? p.b[column * p.k + i] : p.b[i * p.n + column]);
      }
      p.c[row * p.n + column] = sum;
    }
  }
}

// Samples x with targets y = T x; the loss is half the mean of |W x - y|².
class Problem {
 public:
  Problem() : inputs_(kSamples * kColumns), targets_(kSamples * kRows) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::vector<float> teacher(kElements);
    for (float& value : teacher) value = 0.5F * normal(engine);
    for (float& value : inputs_) value = normal(engine);
    for (int s = 0; s < kSamples; ++s) multiply({kRows, 1, kColumns, teacher.data(), input(s), target(s), false});
  }

  // The loss of the weights; their gradient goes to `gradient`.
  double loss(const std::vector<Bf16>& weights, std::vector<float>& gradient) {
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    double loss = 0;
    for (int s = 0; s < kSamples; ++s) {
      for (std::int64_t row = 0; row < kRows; ++row) {
        float error = -target(s)[row];
        for (std::int64_t i = 0; i < kColumns; ++i) error += to_fp32(weights[at(row, i)]) * input(s)[i];
        for (std::int64_t i = 0; i < kColumns; ++i) gradient[at(row, i)] += error * input(s)[i] / kSamples;
        loss += 0.5 * static_cast<double>(error) * static_cast<double>(error) / kSamples;
      }
    }
    return loss;
  }

 private:
  static std::size_t at(std::int64_t row, std::int64_t column) {
    return static_cast<std::size_t>(row * kColumns + column);
  }
  float* input(int sample) { return inputs_.data() + sample * kColumns; }
  float* target(int sample) { return targets_.data() + sample * kRows; }
  std::vector<float> inputs_, targets_;
};

double default_learning_rate(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kLion: return 3e-3;
    case OptimizerKind::kSgd:
    case OptimizerKind::kAdagrad: return 0.1;
    case OptimizerKind::kAdafactor: return 0.05;
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
    case OptimizerKind::kMuon: break;
  }
  return 0.02;
}

OptimizerArrays arrays_of(Matrix& m, OptimizerKind kind, const OptimizerHyper& hyper) {
  OptimizerArrays a;
  a.weights = m.weights.data();
  a.weights_dtype = DType::kBf16;
  a.remainder = m.remainder.data();
  for (int k = 0; k < num_moments(kind, hyper); ++k) {
    std::vector<float>& moment = m.moments[k];
    moment.resize(kElements);  // starts as zeros
    a.moments[static_cast<std::size_t>(k)] = moment.data();
  }
  a.gradient = m.gradient.data();
  a.gradient_dtype = DType::kFp32;
  a.elements = kElements;
  return a;
}

Result<void> update(const ParallelOptimizer& workers, Matrix& m, OptimizerKind kind, const OptimizerHyper& hyper) {
  const OptimizerArrays tensor = arrays_of(m, kind, hyper);
  if (kind == OptimizerKind::kMuon) {
    const MuonArrays arrays{tensor, kRows, kColumns, aligned(m.workspace, muon_workspace_bytes(kRows, kColumns))};
    return muon_update(workers, arrays, StateFormat::kSplit, hyper, multiply);
  }
  if (kind == OptimizerKind::kAdafactor) {
    m.row_variance.resize(kRows);
    m.column_variance.resize(kColumns);
    const Bytes workspace = adafactor_workspace_bytes(kRows, kColumns, false);
    const AdafactorArrays arrays{tensor,
                                 kRows,
                                 kColumns,
                                 m.row_variance.data(),
                                 m.column_variance.data(),
                                 nullptr,
                                 aligned(m.workspace, workspace)};
    return adafactor_update(workers, arrays, StateFormat::kSplit, hyper);
  }
  return workers.checked_update(kind, tensor, StateFormat::kSplit, hyper);
}

Result<void> train(OptimizerKind kind, OptimizerHyper hyper) {
  const ParallelOptimizer workers(2);
  Problem problem;
  Matrix matrix;
  const double first = problem.loss(matrix.weights, matrix.gradient);
  for (hyper.optimizer_step = 1; hyper.optimizer_step <= 300; ++hyper.optimizer_step) {
    const GradientMeasure measured = workers.measure(matrix.gradient.data(), DType::kFp32, kElements);
    constexpr double kMaxNorm = 1.0;
    hyper.gradient_scale = static_cast<float>(std::min(1.0, kMaxNorm / (std::sqrt(measured.sum_of_squares) + 1e-6)));
    HEADRACE_RETURN_IF_ERROR(update(workers, matrix, kind, hyper));
    problem.loss(matrix.weights, matrix.gradient);
  }
  const double last = problem.loss(matrix.weights, matrix.gradient);
  std::printf("%-9s lr %-6g target %s: loss %.4f -> %.6f\n", optimizer_name(kind), hyper.lr,
              target_name(workers.target()), first, last);
  if (last < 0.1 * first) return {};
  return make_error(ErrorCode::kNumeric, "the loss did not fall to a tenth");
}

}  // namespace

int main(int argc, char** argv) {
  const Result<OptimizerKind> kind = parse_optimizer(argc > 1 ? argv[1] : "AdamW");
  if (!kind.ok()) {
    std::fprintf(stderr, "%s\n", kind.error().to_string().c_str());
    return exit_code(kind.error().code);
  }
  OptimizerHyper hyper = default_hyper(*kind);
  hyper.weight_decay = 0;
  hyper.lr = argc > 2 ? std::strtod(argv[2], nullptr) : default_learning_rate(*kind);
  if (*kind == OptimizerKind::kSgd) hyper.momentum = 0.9;
  const Result<void> result = train(*kind, hyper);
  if (result.ok()) return 0;
  std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
  return exit_code(result.error().code);
}
