// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/muon.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {
namespace {

constexpr OptimizerKind kKind = OptimizerKind::kMuon;
constexpr std::int64_t kChunk = ParallelUpdater::kNormChunk;
constexpr std::int64_t kSquare = 32;  // sides of the squares in which a matrix is transposed: both fit in the cache

Bytes line(Bytes bytes) { return round_up(bytes, 64); }

// to [columns, rows] = the transpose of from [rows, columns].
void transpose(const ParallelOptimizer& workers, const float* from, float* to, std::int64_t rows,
               std::int64_t columns) {
  workers.for_each(ceil_div(rows, kSquare), [&](std::int64_t strip) {
    const std::int64_t first = strip * kSquare;
    const std::int64_t last = std::min(rows, first + kSquare);
    for (std::int64_t left = 0; left < columns; left += kSquare) {
      const std::int64_t right = std::min(columns, left + kSquare);
      // Through a copy: the rows of a wide matrix fall on few lines of the cache and would drive each other out.
      float square[kSquare][kSquare + 1];
      for (std::int64_t row = first; row < last; ++row) {
        for (std::int64_t column = left; column < right; ++column) {
          square[column - left][row - first] = from[row * columns + column];
        }
      }
      for (std::int64_t column = left; column < right; ++column) {
        std::copy_n(square[column - left], last - first, to + column * rows + first);
      }
    }
  });
}

class Update {
 public:
  Update(const ParallelOptimizer& workers, const MuonArrays& arrays, StateFormat format, const OptimizerHyper& hyper)
      : workers_(workers),
        a_(arrays),
        format_(format),
        h_(hyper),
        tall_(arrays.rows > arrays.columns),
        shorter_(std::min(arrays.rows, arrays.columns)),
        longer_(std::max(arrays.rows, arrays.columns)) {
    std::byte* at = arrays.workspace.data();
    const auto take = [&at](std::int64_t elements) {
      auto* const part = reinterpret_cast<float*>(at);
      at += line(elements * 4);
      return part;
    };
    x_ = take(arrays.tensor.elements);
    y_ = take(arrays.tensor.elements);
    gram_ = take(shorter_ * shorter_);
    polynomial_ = take(shorter_ * shorter_);
  }

  // Gradient and momentum must be finite, also once they are scaled and added.
  [[nodiscard]] Result<void> check() const {
    const OptimizerArrays& t = a_.tensor;
    const GradientMeasure gradient = workers_.measure(t.gradient, t.gradient_dtype, t.elements);
    HEADRACE_RETURN_IF_ERROR(refuse_non_finite(kKind, "gradient", gradient.non_finite, t.elements));
    const GradientMeasure momentum = workers_.measure(t.moments[0], DType::kFp32, t.elements);
    HEADRACE_RETURN_IF_ERROR(refuse_non_finite(kKind, "momentum_buffer", momentum.non_finite, t.elements));
    const double norm = std::sqrt(gradient.sum_of_squares) * std::abs(static_cast<double>(h_.gradient_scale));
    if (norm + std::sqrt(momentum.sum_of_squares) < static_cast<double>(std::numeric_limits<float>::max())) return {};
    return make_error(
        ErrorCode::kNumeric,
        fmt::format("Muon: the gradient's norm {:.3g} with scale {:.3g} is beyond fp32; nothing was changed",
                    std::sqrt(gradient.sum_of_squares), h_.gradient_scale),
        "skip this step");
  }

  void run(const MatrixProductFn& multiply) {
    const double norm = move_momentum();
    if (h_.lr != 0) {
      start(static_cast<float>(norm + h_.newton_schulz_eps));
      for (int step = 0; step < h_.newton_schulz_steps; ++step) iterate(multiply);
      if (tall_) {
        transpose(workers_, x_, y_, shorter_, longer_);
        std::swap(x_, y_);
      }
    }
    apply();
  }

 private:
  template <class Body>
  void for_each_chunk(const Body& body) const {
    const std::int64_t chunks = ceil_div(a_.tensor.elements, kChunk);
    workers_.for_each(chunks, [&](std::int64_t chunk) {
      const std::int64_t at = chunk * kChunk;
      body(chunk, at, std::min(kChunk, a_.tensor.elements - at));
    });
  }

  // Writes what is orthogonalised to x_; returns its Frobenius norm.
  [[nodiscard]] double move_momentum() const {
    const auto kernel = optimizer_table(workers_.target()).momentum_update[gradient_index(a_.tensor.gradient_dtype)];
    std::vector<double> sums(static_cast<std::size_t>(ceil_div(a_.tensor.elements, kChunk)));
    for_each_chunk([&](std::int64_t chunk, std::int64_t at, std::int64_t elements) {
      const OptimizerArrays part = slice(a_.tensor, at, elements);
      sums[static_cast<std::size_t>(chunk)] =
          kernel({part.gradient, part.moments[0], x_ + at, elements, h_.gradient_scale, static_cast<float>(h_.momentum),
                  static_cast<float>(1.0 - h_.momentum), h_.nesterov});
    });
    double sum = 0;
    for (const double part : sums) sum += part;
    return std::sqrt(sum);
  }

  // x_ / divisor, with its shorter side as rows.
  void start(float divisor) {
    if (divisor > 0) {  // 0: all of x_ is, and stays
      for_each_chunk([&](std::int64_t, std::int64_t at, std::int64_t elements) {
        for (std::int64_t i = at; i < at + elements; ++i) x_[i] /= divisor;
      });
    }
    if (!tall_) return;
    transpose(workers_, x_, y_, a_.rows, a_.columns);
    std::swap(x_, y_);
  }

  // x_ ← (a·I + b·A + c·A·A)·x_ with A = x_·x_ᵀ.
  void iterate(const MatrixProductFn& multiply) {
    multiply({shorter_, shorter_, longer_, x_, x_, gram_, true});
    multiply({shorter_, shorter_, shorter_, gram_, gram_, polynomial_, false});
    const auto a = static_cast<float>(h_.newton_schulz_coefficients[0]);
    const auto b = static_cast<float>(h_.newton_schulz_coefficients[1]);
    const auto c = static_cast<float>(h_.newton_schulz_coefficients[2]);
    workers_.for_each(ceil_div(shorter_, kSquare), [&](std::int64_t strip) {
      const std::int64_t last = std::min(shorter_, (strip + 1) * kSquare);
      for (std::int64_t row = strip * kSquare; row < last; ++row) {
        float* const to = polynomial_ + row * shorter_;
        const float* const gram = gram_ + row * shorter_;
        for (std::int64_t column = 0; column < shorter_; ++column) to[column] = b * gram[column] + c * to[column];
        to[row] += a;
      }
    });
    multiply({shorter_, longer_, shorter_, polynomial_, x_, y_, false});
    std::swap(x_, y_);
  }

  void apply() const {
    const double scale = muon_scale_of(h_.muon_scale, a_.rows, a_.columns);
    const StepSizes sizes = {static_cast<float>(h_.lr * scale), static_cast<float>(h_.lr * h_.weight_decay),
                             h_.lr != 0};
    for_each_chunk([&](std::int64_t, std::int64_t at, std::int64_t elements) {
      step_span(slice(a_.tensor, at, elements), format_, x_ + at, sizes, workers_.target());
    });
  }

  const ParallelOptimizer& workers_;
  const MuonArrays& a_;
  StateFormat format_;
  const OptimizerHyper& h_;
  bool tall_;
  std::int64_t shorter_;
  std::int64_t longer_;
  float* x_ = nullptr;
  float* y_ = nullptr;
  float* gram_ = nullptr;
  float* polynomial_ = nullptr;
};

}  // namespace

double muon_scale_of(MuonScale scale, std::int64_t rows, std::int64_t columns) noexcept {
  const auto r = static_cast<double>(rows);
  const auto c = static_cast<double>(columns);
  return scale == MuonScale::kKellerJordan ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
}

Bytes muon_workspace_bytes(std::int64_t rows, std::int64_t columns) noexcept {
  const std::int64_t shorter = std::min(rows, columns);
  return 2 * line(rows * columns * 4) + 2 * line(shorter * shorter * 4);
}

Result<void> muon_update(const ParallelOptimizer& workers, const MuonArrays& arrays, StateFormat format,
                         const OptimizerHyper& hyper, const MatrixProductFn& multiply) {
  HEADRACE_RETURN_IF_ERROR(validate(kKind, hyper));
  HEADRACE_RETURN_IF_ERROR(validate_arrays(kKind, arrays.tensor, format, hyper));
  HEADRACE_RETURN_IF_ERROR(validate_matrix(kKind, arrays.tensor, arrays.rows, arrays.columns));
  HEADRACE_RETURN_IF_ERROR(
      validate_workspace(kKind, arrays.workspace, muon_workspace_bytes(arrays.rows, arrays.columns)));
  if (!multiply) return make_error(ErrorCode::kFailed, "Muon: no matrix product was handed in");
  Update update(workers, arrays, format, hyper);
  HEADRACE_RETURN_IF_ERROR(update.check());
  update.run(multiply);
  return {};
}

}  // namespace headrace::cpu_adam
