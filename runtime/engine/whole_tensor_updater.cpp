// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/whole_tensor_updater.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "cpu_adam/adafactor.h"
#include "cpu_adam/muon.h"
#include "kernels/cpu/gemm.h"

namespace headrace::runtime {

namespace {

using cpu_adam::MatrixProduct;
using cpu_adam::OptimizerKind;

constexpr std::size_t kLine = 64;

void multiply(const kernels::Parallel& parallel, const MatrixProduct& product) {
  kernels::GemmArguments g;
  g.m = product.m;
  g.n = product.n;
  g.k = product.k;
  g.a = {product.a, DType::kFp32, product.k, false};
  g.b = {product.b, DType::kFp32, product.b_transposed ? product.k : product.n, product.b_transposed};
  g.c = product.c;
  g.c_stride = product.n;
  kernels::gemm(parallel, g);
}

// The tensor's name before the optimizer's words.
Result<void> named(const TensorInfo& tensor, Result<void> result) {
  if (result.ok()) return result;
  Error error = std::move(result).error();
  error.message = tensor.name + ": " + error.message;
  return error;
}

}  // namespace

void WholeTensorUpdater::Free::operator()(std::byte* p) const noexcept { std::free(p); }

WholeTensorUpdater::WholeTensorUpdater(Bytes workspace_bytes, const kernels::Parallel* products)
    : workspace_bytes_(round_up(workspace_bytes, Bytes{kLine})), products_(products) {
  if (workspace_bytes_ == 0) return;
  workspace_.reset(static_cast<std::byte*>(std::aligned_alloc(kLine, static_cast<std::size_t>(workspace_bytes_))));
  HEADRACE_CHECK(workspace_ != nullptr, "out of memory for the workspace of an optimizer of whole tensors");
  // Resident from now on, so that the memory plan is exact.
  std::memset(workspace_.get(), 0, static_cast<std::size_t>(workspace_bytes_));
}

Result<void> WholeTensorUpdater::update(const cpu_adam::ParallelOptimizer& workers, const WholeTensor& tensor,
                                        cpu_adam::StateFormat format, const cpu_adam::OptimizerHyper& hyper) const {
  const bool is_vector = tensor.info->shape.size() != 2;
  const std::int64_t rows = is_vector ? 1 : tensor.info->shape[0];
  const std::int64_t columns = tensor.info->elements / std::max<std::int64_t>(1, rows);
  const std::span workspace(workspace_.get(), static_cast<std::size_t>(workspace_bytes_));
  if (tensor.state.optimizer == OptimizerKind::kMuon) {
    HEADRACE_CHECK(products_ != nullptr, "Muon has threads for its products");
    const cpu_adam::MuonArrays muon{tensor.arrays, rows, columns, workspace};
    return named(*tensor.info,
                 cpu_adam::muon_update(workers, muon, format, hyper,
                                       [this](const MatrixProduct& product) { multiply(*products_, product); }));
  }
  cpu_adam::AdafactorArrays adafactor;
  adafactor.tensor = tensor.arrays;
  float* const variances = std::exchange(adafactor.tensor.moments[0], nullptr);
  adafactor.rows = rows;
  adafactor.columns = columns;
  (is_vector ? adafactor.variance : adafactor.row_variance) = variances;
  if (!is_vector) adafactor.column_variance = variances + rows;
  adafactor.workspace = workspace;
  return named(*tensor.info, cpu_adam::adafactor_update(workers, adafactor, format, hyper));
}

}  // namespace headrace::runtime
