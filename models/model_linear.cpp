// SPDX-License-Identifier: Apache-2.0
#include "models/model_linear.h"

#include <utility>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"

namespace headrace::models {
namespace {

kernels::MatrixOperand weight_operand(const LinearSlots& linear, const FlatWeights& weights, bool transposed) {
  const bool in_out = linear.stored == Stored::kInOut;
  return {.data = weights.at(linear.weight),
          .dtype = weights.dtype,
          .stride = in_out ? linear.out : linear.in,
          .transposed = in_out == transposed};
}

kernels::MatrixOperand rows_operand(const float* data, std::int64_t width, bool transposed) {
  return {.data = data, .dtype = DType::kFp32, .stride = width, .transposed = transposed};
}

}  // namespace

void linear_forward(const Rows& rows, const LinearSlots& linear, const FlatWeights& weights, const float* x, float* y,
                    bool accumulate) {
  kernels::GemmArguments product;
  product.m = rows.count;
  product.n = linear.out;
  product.k = linear.in;
  product.a = rows_operand(x, linear.in, false);
  product.b = weight_operand(linear, weights, false);
  product.c = y;
  product.c_stride = linear.out;
  product.accumulate = accumulate;
  product.bias = linear.bias == kNone ? nullptr : weights.at(linear.bias);
  product.bias_dtype = weights.dtype;
  kernels::gemm(rows.parallel, product);
}

void linear_input_gradient(const Rows& rows, const LinearSlots& linear, const FlatWeights& weights, const float* d_y,
                           float* d_x, bool accumulate) {
  kernels::GemmArguments product;
  product.m = rows.count;
  product.n = linear.in;
  product.k = linear.out;
  product.a = rows_operand(d_y, linear.out, false);
  product.b = weight_operand(linear, weights, true);
  product.c = d_x;
  product.c_stride = linear.in;
  product.accumulate = accumulate;
  kernels::gemm(rows.parallel, product);
}

void linear_weight_gradient(const Rows& rows, const LinearSlots& linear, const FlatGradient& gradient, const float* d_y,
                            const float* x) {
  const bool in_out = linear.stored == Stored::kInOut;
  kernels::GemmArguments product;
  product.m = in_out ? linear.in : linear.out;
  product.n = in_out ? linear.out : linear.in;
  product.k = rows.count;
  product.a = in_out ? rows_operand(x, linear.in, true) : rows_operand(d_y, linear.out, true);
  product.b = in_out ? rows_operand(d_y, linear.out, false) : rows_operand(x, linear.in, false);
  product.c = gradient.base + linear.weight;
  product.c_stride = product.n;
  product.accumulate = gradient.accumulate;
  kernels::gemm(rows.parallel, product);
  if (linear.bias != kNone) {
    kernels::column_sums(rows.parallel, d_y, rows.count, linear.out, gradient.base + linear.bias, gradient.accumulate);
  }
}

void zero_padding(const kernels::Parallel& parallel, const runtime::UnitInfo& unit, float* gradient) {
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const std::int64_t end = unit.tensors[i].offset + unit.tensors[i].elements;
    const std::int64_t next = i + 1 < unit.tensors.size() ? unit.tensors[i + 1].offset : unit.flat_elements;
    kernels::fill_zero(parallel, gradient + end, next - end);
  }
}

void UnitBuilder::matrix(std::string name, std::int64_t rows, std::int64_t columns, double deviation) {
  runtime::TensorInfo tensor;
  tensor.name = std::move(name);
  tensor.shape = {rows, columns};
  tensor.init = {.kind = runtime::InitRule::Kind::kNormal, .deviation = deviation};
  unit_.tensors.push_back(std::move(tensor));
}

void UnitBuilder::embedding(std::string name, std::int64_t rows, std::int64_t columns, double deviation) {
  matrix(std::move(name), rows, columns, deviation);
  unit_.tensors.back().embedding = true;
}

void UnitBuilder::vector(std::string name, std::int64_t elements, runtime::InitRule::Kind kind) {
  runtime::TensorInfo tensor;
  tensor.name = std::move(name);
  tensor.shape = {elements};
  tensor.init = {.kind = kind, .deviation = 0};
  unit_.tensors.push_back(std::move(tensor));
}

runtime::UnitInfo UnitBuilder::finish() {
  runtime::lay_out(unit_);
  return std::move(unit_);
}

std::int64_t offset_of(const runtime::UnitInfo& unit, const std::string& suffix) {
  for (const runtime::TensorInfo& tensor : unit.tensors) {
    if (tensor.name.size() > suffix.size() && tensor.name.ends_with(suffix) &&
        tensor.name[tensor.name.size() - suffix.size() - 1] == '.') {
      return tensor.offset;
    }
  }
  return kNone;
}

}  // namespace headrace::models
