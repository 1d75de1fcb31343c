// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/adafactor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {
namespace {

constexpr OptimizerKind kKind = OptimizerKind::kAdafactor;
// Columns that are worked on at a time: their directions (16 KiB) stay in the first-level cache.
constexpr std::int64_t kSegment = 4096;
// Rows are worked on in blocks, each with column sums of its own, which are added in order. More blocks: more room for
// sums; fewer: fewer threads have work. Shorter blocks: more than a quarter of a byte for each element.
constexpr std::int64_t kMostBlocks = 64;
constexpr std::int64_t kLeastBlockRows = 32;

// How a matrix is cut: by its shape alone, so that no bit depends on the threads.
struct Blocks {
  explicit Blocks(std::int64_t all_rows)
      : rows(std::max(kLeastBlockRows, ceil_div(all_rows, kMostBlocks))), count(ceil_div(all_rows, rows)) {}
  std::int64_t rows;
  std::int64_t count;
};

// The parts of the workspace of a matrix.
struct Workspace {
  double* column_sums;    // [blocks][columns]
  double* row_sums;       // [rows]
  float* row_factors;     // [rows]
  float* column_factors;  // [columns]
};

Bytes line(Bytes bytes) { return round_up(bytes, 64); }

// The variances are means of squares, and infinite ones would make NaNs of the weights: with the sum of all squares
// within fp32 every mean is.
Result<void> refuse_large(double sum_of_squares) {
  if (sum_of_squares < static_cast<double>(std::numeric_limits<float>::max())) return {};
  return make_error(ErrorCode::kNumeric,
                    fmt::format("Adafactor: the square of the scaled gradient's norm {:.3g} is beyond fp32; nothing "
                                "was changed",
                                std::sqrt(sum_of_squares)),
                    "skip this step");
}

class Matrix {
 public:
  Matrix(const ParallelOptimizer& workers, const AdafactorArrays& arrays, StateFormat format,
         const OptimizerHyper& hyper)
      : workers_(workers),
        a_(arrays),
        format_(format),
        h_(hyper),
        table_(optimizer_table(workers.target())),
        gradient_(gradient_index(arrays.tensor.gradient_dtype)),
        blocks_(arrays.rows) {
    std::byte* at = arrays.workspace.data();
    const auto take = [&at](Bytes bytes) {
      std::byte* const part = at;
      at += line(bytes);
      return part;
    };
    w_.column_sums = reinterpret_cast<double*>(take(blocks_.count * a_.columns * 8));
    w_.row_sums = reinterpret_cast<double*>(take(a_.rows * 8));
    w_.row_factors = reinterpret_cast<float*>(take(a_.rows * 4));
    w_.column_factors = reinterpret_cast<float*>(take(a_.columns * 4));
  }

  Result<void> update() {
    HEADRACE_RETURN_IF_ERROR(square());
    const double root_mean_square = std::sqrt(weights_.sum_of_squares / static_cast<double>(a_.tensor.elements));
    move_variances();
    measure_directions();
    const double elements = static_cast<double>(a_.tensor.elements);
    const double update_size = std::sqrt(sum_of_rows() / elements);
    apply(root_mean_square, update_size);
    return {};
  }

 private:
  [[nodiscard]] const void* gradient_at(std::int64_t row, std::int64_t column) const {
    return static_cast<const std::byte*>(a_.tensor.gradient) +
           (row * a_.columns + column) * dtype_bytes(a_.tensor.gradient_dtype);
  }

  template <class Body>
  void for_each_row(const Body& body) const {
    workers_.for_each(blocks_.count, [&](std::int64_t block) {
      const std::int64_t end = std::min(a_.rows, (block + 1) * blocks_.rows);
      for (std::int64_t row = block * blocks_.rows; row < end; ++row) body(block, row);
    });
  }

  // Squares of the gradient by row and column, and of the weights.
  Result<void> square() {
    std::vector<ArriveTotals> weights(static_cast<std::size_t>(a_.rows));
    std::vector<std::int64_t> bad(static_cast<std::size_t>(a_.rows));
    std::fill_n(w_.column_sums, blocks_.count * a_.columns, 0.0);
    const auto master = static_cast<std::size_t>(master_kind(a_.tensor.weights_dtype, format_));
    for_each_row([&](std::int64_t block, std::int64_t row) {
      const auto at = static_cast<std::size_t>(row);
      const ArriveTotals squares = table_.square_row[gradient_](
          {gradient_at(row, 0), w_.column_sums + block * a_.columns, a_.columns, h_.gradient_scale});
      w_.row_sums[row] = squares.sum_of_squares;
      bad[at] = squares.non_finite;
      weights[at] = table_.master_squares[master](make_span(slice(a_.tensor, row * a_.columns, a_.columns)));
    });
    weights_ = add_in_order(weights);
    std::int64_t non_finite = 0;
    for (const std::int64_t count : bad) non_finite += count;
    HEADRACE_RETURN_IF_ERROR(refuse_non_finite(kKind, "gradient", non_finite, a_.tensor.elements));
    HEADRACE_RETURN_IF_ERROR(refuse_large(sum_of_rows()));
    return refuse_non_finite(kKind, "weight", weights_.non_finite, a_.tensor.elements);
  }

  static float moved(float old, double mean, double weight) {
    return static_cast<float>(static_cast<double>(old) + weight * (mean - static_cast<double>(old)));
  }

  // Both variances, and the factors whose products are the roots of V.
  void move_variances() {
    const double weight = std::pow(static_cast<double>(h_.optimizer_step), h_.beta2_decay);
    const auto columns = static_cast<double>(a_.columns);
    const auto rows = static_cast<double>(a_.rows);
    double sum = 0;
    for (std::int64_t row = 0; row < a_.rows; ++row) {
      a_.row_variance[row] = moved(a_.row_variance[row], w_.row_sums[row] / columns, weight);
      sum += static_cast<double>(a_.row_variance[row]);
    }
    const double mean = std::max(sum / rows, h_.eps1);
    for (std::int64_t row = 0; row < a_.rows; ++row) {
      w_.row_factors[row] = static_cast<float>(std::sqrt(static_cast<double>(a_.row_variance[row]) / mean));
    }
    workers_.for_each(ceil_div(a_.columns, kSegment), [&](std::int64_t segment) {
      const std::int64_t end = std::min(a_.columns, (segment + 1) * kSegment);
      for (std::int64_t column = segment * kSegment; column < end; ++column) {
        double squares = 0;
        for (std::int64_t block = 0; block < blocks_.count; ++block) {
          squares += w_.column_sums[block * a_.columns + column];
        }
        a_.column_variance[column] = moved(a_.column_variance[column], squares / rows, weight);
        w_.column_factors[column] = static_cast<float>(std::sqrt(static_cast<double>(a_.column_variance[column])));
      }
    });
  }

  // Writes the directions of a part of a row; returns the sum of their squares.
  double directions(std::int64_t row, std::int64_t column, std::int64_t elements, float* to) const {
    return table_.factored_direction[gradient_]({gradient_at(row, column), w_.column_factors + column, to, elements,
                                                 h_.gradient_scale, w_.row_factors[row], static_cast<float>(h_.eps1)});
  }

  void measure_directions() {
    for_each_row([&](std::int64_t, std::int64_t row) {
      alignas(64) float scratch[kSegment];
      double sum = 0;
      for (std::int64_t column = 0; column < a_.columns; column += kSegment) {
        sum += directions(row, column, std::min(kSegment, a_.columns - column), scratch);
      }
      w_.row_sums[row] = sum;
    });
  }

  [[nodiscard]] double sum_of_rows() const {
    double sum = 0;
    for (std::int64_t row = 0; row < a_.rows; ++row) sum += w_.row_sums[row];
    return sum;
  }

  void apply(double root_mean_square, double update_size) const;

  const ParallelOptimizer& workers_;
  const AdafactorArrays& a_;
  StateFormat format_;
  const OptimizerHyper& h_;
  const OptimizerTable& table_;
  std::size_t gradient_;
  Blocks blocks_;
  Workspace w_ = {};
  GradientMeasure weights_;
};

StepSizes step_sizes(const OptimizerHyper& h, double root_mean_square, double update_size) {
  const double rho = std::min(h.lr, 1.0 / std::sqrt(static_cast<double>(h.optimizer_step)));
  const double alpha = std::max(h.eps2, root_mean_square) * rho;
  return {static_cast<float>(alpha / std::max(1.0, update_size / h.clip_threshold)),
          static_cast<float>(h.lr * h.weight_decay), h.lr != 0};
}

void Matrix::apply(double root_mean_square, double update_size) const {
  const StepSizes sizes = step_sizes(h_, root_mean_square, update_size);
  for_each_row([&](std::int64_t, std::int64_t row) {
    alignas(64) float scratch[kSegment];
    for (std::int64_t column = 0; column < a_.columns; column += kSegment) {
      const std::int64_t elements = std::min(kSegment, a_.columns - column);
      directions(row, column, elements, scratch);
      step_span(slice(a_.tensor, row * a_.columns + column, elements), format_, scratch, sizes, workers_.target());
    }
  });
}

// A vector keeps one variance for each element; its directions are kept in the workspace between the two passes.
Result<void> update_vector(const ParallelOptimizer& workers, const AdafactorArrays& a, StateFormat format,
                           const OptimizerHyper& h) {
  const OptimizerTable& table = optimizer_table(workers.target());
  const std::size_t gradient = gradient_index(a.tensor.gradient_dtype);
  const auto master = static_cast<std::size_t>(master_kind(a.tensor.weights_dtype, format));
  const std::int64_t n = a.columns;
  const std::int64_t parts = ceil_div(n, kSegment);
  const auto length_of = [&](std::int64_t part) { return std::min(kSegment, n - part * kSegment); };
  const GradientMeasure measured = workers.measure(a.tensor.gradient, a.tensor.gradient_dtype, n);
  HEADRACE_RETURN_IF_ERROR(refuse_non_finite(kKind, "gradient", measured.non_finite, n));
  const auto scale = static_cast<double>(h.gradient_scale);
  HEADRACE_RETURN_IF_ERROR(refuse_large(measured.sum_of_squares * scale * scale));
  std::vector<ArriveTotals> totals(static_cast<std::size_t>(parts));
  workers.for_each(parts, [&](std::int64_t part) {
    totals[static_cast<std::size_t>(part)] =
        table.master_squares[master](make_span(slice(a.tensor, part * kSegment, length_of(part))));
  });
  const GradientMeasure weights = add_in_order(totals);
  HEADRACE_RETURN_IF_ERROR(refuse_non_finite(kKind, "weight", weights.non_finite, n));
  auto* const direction = reinterpret_cast<float*>(a.workspace.data());
  const auto weight = static_cast<float>(std::pow(static_cast<double>(h.optimizer_step), h.beta2_decay));
  workers.for_each(parts, [&](std::int64_t part) {
    const std::int64_t at = part * kSegment;
    const double squares = table.variance_direction[gradient]({slice(a.tensor, at, length_of(part)).gradient,
                                                               a.variance + at, direction + at, length_of(part),
                                                               h.gradient_scale, weight, static_cast<float>(h.eps1)});
    totals[static_cast<std::size_t>(part)] = {squares, 0};
  });
  const auto elements = static_cast<double>(n);
  const StepSizes sizes = step_sizes(h, std::sqrt(weights.sum_of_squares / elements),
                                     std::sqrt(add_in_order(totals).sum_of_squares / elements));
  workers.for_each(parts, [&](std::int64_t part) {
    const std::int64_t at = part * kSegment;
    step_span(slice(a.tensor, at, length_of(part)), format, direction + at, sizes, workers.target());
  });
  return {};
}

Result<void> validate_state(const AdafactorArrays& a) {
  const auto bad = [](const char* what) {
    return make_error(ErrorCode::kFailed, fmt::format("Adafactor arrays: {}", what));
  };
  const bool is_vector = a.variance != nullptr;
  if (is_vector && (a.row_variance != nullptr || a.column_variance != nullptr)) {
    return bad("variance is given, which is a vector's, and row_variance or column_variance, which are a matrix's");
  }
  if (!is_vector && (a.row_variance == nullptr || a.column_variance == nullptr)) {
    return bad("a matrix needs row_variance and column_variance, a vector needs variance");
  }
  if (is_vector && a.rows != 1) return bad("variance is given, which is a vector's, and more than one row");
  for (const float* state : {a.row_variance, a.column_variance, a.variance}) {
    if (reinterpret_cast<std::uintptr_t>(state) % alignof(float) != 0)
      return bad("a variance is not aligned to 4 bytes");
  }
  return {};
}

}  // namespace

Bytes adafactor_workspace_bytes(std::int64_t rows, std::int64_t columns, bool is_vector) noexcept {
  if (is_vector) return line(columns * 4);
  return line(Blocks(rows).count * columns * 8) + line(rows * 8) + line(rows * 4) + line(columns * 4);
}

Result<void> adafactor_update(const ParallelOptimizer& workers, const AdafactorArrays& arrays, StateFormat format,
                              const OptimizerHyper& hyper) {
  HEADRACE_RETURN_IF_ERROR(validate(kKind, hyper));
  HEADRACE_RETURN_IF_ERROR(validate_arrays(kKind, arrays.tensor, format, hyper));
  HEADRACE_RETURN_IF_ERROR(validate_matrix(kKind, arrays.tensor, arrays.rows, arrays.columns));
  HEADRACE_RETURN_IF_ERROR(validate_state(arrays));
  const bool is_vector = arrays.variance != nullptr;
  const Bytes needed = adafactor_workspace_bytes(arrays.rows, arrays.columns, is_vector);
  HEADRACE_RETURN_IF_ERROR(validate_workspace(kKind, arrays.workspace, needed));
  if (is_vector) return update_vector(workers, arrays, format, hyper);
  return Matrix(workers, arrays, format, hyper).update();
}

}  // namespace headrace::cpu_adam
