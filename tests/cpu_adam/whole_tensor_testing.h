// SPDX-License-Identifier: Apache-2.0
// A tensor under any optimizer, with the state that Adafactor and Muon keep, and a plain matrix product for Muon.
#pragma once

#include <cstddef>
#include <vector>

#include "cpu_adam/adafactor.h"
#include "cpu_adam/muon.h"
#include "optimizer_testing.h"

namespace headrace::cpu_adam::testing {

// fp64 accumulation, rounded once: the same bits whatever the threads.
inline void plain_product(const MatrixProduct& p) {
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t column = 0; column < p.n; ++column) {
      double sum = 0;
      for (std::int64_t i = 0; i < p.k; ++i) {
        const float b = p.b_transposed ? p.b[column * p.k + i] : p.b[i * p.n + column];
        sum += static_cast<double>(p.a[row * p.k + i]) * static_cast<double>(b);
      }
      p.c[row * p.n + column] = static_cast<float>(sum);
    }
  }
}

// Bytes at a multiple of 64, filled with what no update may rely on.
class Workspace {
 public:
  explicit Workspace(Bytes bytes) : lines_(static_cast<std::size_t>(ceil_div(bytes, 64)) + 1) {
    std::memset(static_cast<void*>(lines_.data()), 0xFF, lines_.size() * sizeof(Line));
    bytes_ = bytes;
  }
  std::span<std::byte> span() { return {lines_.front().bytes, static_cast<std::size_t>(bytes_)}; }
  [[nodiscard]] bool guard_intact() const {
    const std::byte* const bytes = lines_.front().bytes;
    for (auto i = static_cast<std::size_t>(bytes_); i < lines_.size() * sizeof(Line); ++i) {
      if (bytes[i] != std::byte{0xFF}) return false;
    }
    return true;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
  Bytes bytes_ = 0;
};

struct TensorState {
  TensorState(Kind kind, std::int64_t r, std::int64_t c, bool vector)
      : rows(r),
        columns(c),
        is_vector(vector),
        state(kind, r * c, 0),
        row_variance(vector ? 0 : r, 1),
        column_variance(vector ? 0 : c, 1),
        variance(vector ? c : 0, 1) {}
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }

  AdafactorArrays adafactor(Gradient& gradient, Workspace& workspace) {
    AdafactorArrays a;
    a.tensor = arrays_of(OptimizerKind::kAdafactor, {}, state, gradient);
    a.rows = rows;
    a.columns = columns;
    if (is_vector) {
      a.variance = variance.data();
    } else {
      a.row_variance = row_variance.data();
      a.column_variance = column_variance.data();
    }
    a.workspace = workspace.span();
    return a;
  }
  MuonArrays muon(Gradient& gradient, Workspace& workspace) {
    MuonArrays a;
    a.tensor = arrays_of(OptimizerKind::kMuon, {}, state, gradient);
    a.rows = rows;
    a.columns = columns;
    a.workspace = workspace.span();
    return a;
  }
  Result<void> update(OptimizerKind kind, const ParallelOptimizer& workers, Gradient& gradient,
                      const OptimizerHyper& hyper) {
    const StateFormat format = format_of(state.kind);
    if (is_elementwise(kind)) {
      return workers.checked_update(kind, arrays_of(kind, hyper, state, gradient), format, hyper);
    }
    const bool is_muon = kind == OptimizerKind::kMuon;
    Workspace workspace(is_muon ? muon_workspace_bytes(rows, columns)
                                : adafactor_workspace_bytes(rows, columns, is_vector));
    const Result<void> result = is_muon ? muon_update(workers, muon(gradient, workspace), format, hyper, plain_product)
                                        : adafactor_update(workers, adafactor(gradient, workspace), format, hyper);
    EXPECT_TRUE(workspace.guard_intact()) << "wrote behind its workspace";
    EXPECT_TRUE(guards_intact()) << "wrote outside its arrays";
    if (result.ok()) return {};
    return result.error();
  }
  [[nodiscard]] bool guards_intact() const {
    return state.guards_intact() && row_variance.guards_intact() && column_variance.guards_intact() &&
           variance.guards_intact();
  }
  [[nodiscard]] bool same_bits(const TensorState& o) const {
    return state.same_bits(o.state) && row_variance.same_bits(o.row_variance) &&
           column_variance.same_bits(o.column_variance) && variance.same_bits(o.variance);
  }

  std::int64_t rows;
  std::int64_t columns;
  bool is_vector;
  State state;
  GuardedArray<float> row_variance;
  GuardedArray<float> column_variance;
  GuardedArray<float> variance;
};

// A tensor with weights of a trained one, and gradients that differ by row and column.
inline void fill_tensor(TensorState& tensor, Random& random) {
  for (std::int64_t i = 0; i < tensor.elements(); ++i) tensor.state.set_master(i, 0.2F * random.weight());
}
inline void fill_gradient(const TensorState& tensor, Gradient& gradient, Random& random) {
  std::vector<float> column_sizes(static_cast<std::size_t>(tensor.columns));
  for (float& size : column_sizes) size = static_cast<float>(std::pow(10.0, random.uniform(-2, 0)));
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    const auto row_size = static_cast<float>(std::pow(10.0, random.uniform(-2, 0)));
    for (std::int64_t column = 0; column < tensor.columns; ++column) {
      gradient.set(row * tensor.columns + column,
                   row_size * column_sizes[static_cast<std::size_t>(column)] * random.weight());
    }
  }
}

}  // namespace headrace::cpu_adam::testing
