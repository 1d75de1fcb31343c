// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "core/check.h"
#include "kernels/cpu/gemm_blocks.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

// Fewer: cores idle at the end of a product. More: smaller blocks, which convert and pack operands more often.
constexpr std::int64_t kEnoughTasks = 8;
// A block is not halved below this many multiply-adds (about 0.5 ms of one core), nor below 64 rows or columns.
constexpr std::int64_t kSmallestTask = std::int64_t{1} << 25;
constexpr std::int64_t kSmallestEdge = 64;
// Converted panels have rows of this many elements more than needed: rows a power of two apart would share cache sets.
constexpr std::int64_t kRowPadding = 16;
constexpr Bytes kPanelBytes = 5 * kMiB / 2;  // each of the two converted panels of a task
static_assert(2 * kPanelBytes + kGemmTileBf16WorkspaceBytes <= Parallel::kScratchBytes);

bool needs_conversion(DType dtype, GemmPath path) noexcept {
  return path == GemmPath::kFp32 ? dtype != DType::kFp32 : dtype != DType::kBf16;
}

struct Range {
  std::int64_t begin, end;
  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
};

// Block `index` of `count` nearly equal ones whose edges are multiples of 16.
struct Cut {
  std::int64_t total, count, step;
  Cut(std::int64_t length, std::int64_t largest) noexcept
      : total(length), count(ceil_div(length, largest)), step(round_up(ceil_div(length, count), 16)) {
    count = ceil_div(total, step);
  }
  [[nodiscard]] Range operator[](std::int64_t index) const noexcept {
    return {index * step, std::min((index + 1) * step, total)};
  }
};

// Makes rows × columns of a stored matrix, from (row, column) on, available as T: in place, or converted into `panel`.
template <class T, class Convert>
TileOperand<T> panel_of(const MatrixOperand& operand, Range rows, Range columns, std::span<std::byte> panel,
                        Convert convert) {
  // The stored matrix has the operand's rows as columns when transposed.
  const Range stored_rows = operand.transposed ? columns : rows;
  const Range stored_columns = operand.transposed ? rows : columns;
  const auto* source = static_cast<const std::byte*>(operand.data) +
                       (stored_rows.begin * operand.stride + stored_columns.begin) * dtype_bytes(operand.dtype);
  if (panel.empty()) return {reinterpret_cast<const T*>(source), operand.stride, operand.transposed};
  const std::int64_t stride = round_up(stored_columns.size(), 16) + kRowPadding;
  HEADRACE_CHECK(stored_rows.size() * stride * static_cast<Bytes>(sizeof(T)) <= static_cast<Bytes>(panel.size()),
                 "a converted panel of a product fits its scratch");
  auto* converted = reinterpret_cast<T*>(panel.data());
  const std::int64_t row_bytes = operand.stride * dtype_bytes(operand.dtype);
  for (std::int64_t row = 0; row < stored_rows.size(); ++row) {
    convert(source + row * row_bytes, converted + row * stride, stored_columns.size());
  }
  return {converted, stride, operand.transposed};
}

struct Block {
  Range rows, columns;
};

struct TaskScratch {
  std::span<std::byte> a, b, workspace;
};

TaskScratch divide_scratch(const Parallel& parallel, const GemmArguments& arguments, GemmPath path) {
  const auto scratch = parallel.scratch();
  const auto panel = static_cast<std::size_t>(kPanelBytes);
  TaskScratch parts;
  if (needs_conversion(arguments.a.dtype, path)) parts.a = scratch.first(panel);
  if (needs_conversion(arguments.b.dtype, path)) parts.b = scratch.subspan(panel, panel);
  parts.workspace = scratch.subspan(2 * panel, kGemmTileBf16WorkspaceBytes);
  return parts;
}

void multiply_fp32(const GemmArguments& arguments, const Block& block, Range depth, bool accumulate,
                   const TaskScratch& scratch) {
  const auto widen_as = [](DType dtype) {
    return [dtype](const std::byte* source, float* out, std::int64_t count) { widen_array(dtype, source, out, count); };
  };
  const auto a = panel_of<float>(arguments.a, block.rows, depth, scratch.a, widen_as(arguments.a.dtype));
  const auto b = panel_of<float>(arguments.b, depth, block.columns, scratch.b, widen_as(arguments.b.dtype));
  gemm_tile({block.rows.size(), block.columns.size(), depth.size()}, 1.0F, a, b, accumulate ? 1.0F : 0.0F,
            arguments.c + block.rows.begin * arguments.c_stride + block.columns.begin, arguments.c_stride);
}

void multiply_bf16(const GemmArguments& arguments, const Block& block, Range depth, bool accumulate,
                   const TaskScratch& scratch) {
  const auto round = [](const std::byte* source, Bf16* out, std::int64_t count) {
    round_to_bf16_array(reinterpret_cast<const float*>(source), out, count);
  };
  Bf16Tile tile;
  tile.shape = {block.rows.size(), block.columns.size(), depth.size()};
  tile.a = panel_of<Bf16>(arguments.a, block.rows, depth, scratch.a, round);
  tile.b = panel_of<Bf16>(arguments.b, depth, block.columns, scratch.b, round);
  tile.c = arguments.c + block.rows.begin * arguments.c_stride + block.columns.begin;
  tile.c_stride = arguments.c_stride;
  tile.accumulate = accumulate;
  gemm_tile_bf16(tile, scratch.workspace);
}

void add_bias(const GemmArguments& arguments, const Block& block) noexcept {
  constexpr std::int64_t kChunk = 256;
  float bias[kChunk];
  for (std::int64_t column = block.columns.begin; column < block.columns.end; column += kChunk) {
    const std::int64_t count = std::min(kChunk, block.columns.end - column);
    const auto* source = static_cast<const std::byte*>(arguments.bias) + column * dtype_bytes(arguments.bias_dtype);
    widen_array(arguments.bias_dtype, source, bias, count);
    for (std::int64_t row = block.rows.begin; row < block.rows.end; ++row) {
      float* c = arguments.c + row * arguments.c_stride + column;
      for (std::int64_t i = 0; i < count; ++i) c[i] += bias[i];
    }
  }
}

void run_block(const Parallel& parallel, const GemmArguments& arguments, GemmPath path, const Block& block,
               std::int64_t depth) {
  const SingleThreadedGemm single_threaded;
  const TaskScratch scratch = divide_scratch(parallel, arguments, path);
  if (arguments.k == 0 && !arguments.accumulate) {
    for (std::int64_t row = block.rows.begin; row < block.rows.end; ++row) {
      std::fill_n(arguments.c + row * arguments.c_stride + block.columns.begin, block.columns.size(), 0.0F);
    }
  }
  for (std::int64_t k = 0; k < arguments.k; k += depth) {
    const Range range{k, std::min(k + depth, arguments.k)};
    const bool accumulate = arguments.accumulate || k > 0;
    if (path == GemmPath::kFp32) {
      multiply_fp32(arguments, block, range, accumulate, scratch);
    } else {
      multiply_bf16(arguments, block, range, accumulate, scratch);
    }
  }
  if (arguments.bias != nullptr) add_bias(arguments, block);
}

float element(const MatrixOperand& operand, std::int64_t row, std::int64_t column) {
  const std::int64_t index = operand.transposed ? column * operand.stride + row : row * operand.stride + column;
  float value = 0;
  widen_array(operand.dtype, static_cast<const std::byte*>(operand.data) + index * dtype_bytes(operand.dtype), &value,
              1);
  return value;
}

}  // namespace

GemmBlocks gemm_blocks(const GemmArguments& arguments, GemmPath path) noexcept {
  const bool converts_a = needs_conversion(arguments.a.dtype, path);
  const bool converts_b = needs_conversion(arguments.b.dtype, path);
  // Measured: oneDNN likes wide blocks of fp32; a converted panel (256 × 1024: 1 MiB) that stays in the L2 cache serves
  // the other edge, which is therefore longer. Halving goes down to `shortest` in the preferred direction first.
  GemmBlocks blocks{1024, 1024, std::max<std::int64_t>(arguments.k, 1)};
  bool rows_first = true;
  std::int64_t shortest = 256;
  if (converts_a && converts_b) {
    blocks = {512, 512, 512};
  } else if (converts_a || converts_b) {
    blocks = converts_b ? GemmBlocks{512, 256, 1024} : GemmBlocks{256, 512, 1024};
    rows_first = converts_a;
    shortest = 128;
  }
  blocks.rows = std::min(blocks.rows, round_up(arguments.m, 16));
  blocks.columns = std::min(blocks.columns, round_up(arguments.n, 16));
  while (Cut(arguments.m, blocks.rows).count * Cut(arguments.n, blocks.columns).count < kEnoughTasks &&
         blocks.rows * blocks.columns * arguments.k >= 2 * kSmallestTask) {
    std::int64_t& first = rows_first ? blocks.rows : blocks.columns;
    std::int64_t& longer = blocks.columns > blocks.rows ? blocks.columns : blocks.rows;
    std::int64_t& edge = first >= 2 * shortest ? first : longer;
    if (edge < 2 * kSmallestEdge) break;
    edge = round_up(edge / 2, 16);
  }
  return blocks;
}

bool gemm_uses_bf16() noexcept {
  static const bool uses = [] {
    const char* setting = std::getenv("HEADRACE_GEMM");
    return cpu_has_bf16_product() && !(setting != nullptr && std::strcmp(setting, "fp32") == 0);
  }();
  return uses;
}

GemmPath gemm_path(const GemmArguments& arguments) noexcept {
  const bool has_fp16 = arguments.a.dtype == DType::kFp16 || arguments.b.dtype == DType::kFp16;
  const bool has_bf16 = arguments.a.dtype == DType::kBf16 || arguments.b.dtype == DType::kBf16;
  return gemm_uses_bf16() && has_bf16 && !has_fp16 ? GemmPath::kBf16 : GemmPath::kFp32;
}

void gemm(const Parallel& parallel, const GemmArguments& arguments) {
  gemm_on_path(parallel, arguments, gemm_path(arguments));
}

void gemm_on_path(const Parallel& parallel, const GemmArguments& arguments, GemmPath path) {
  if (arguments.m <= 0 || arguments.n <= 0) return;
  HEADRACE_CHECK(arguments.c_stride >= arguments.n, "rows of c do not overlap");
  const GemmBlocks blocks = gemm_blocks(arguments, path);
  const Cut rows(arguments.m, blocks.rows);
  const Cut columns(arguments.n, blocks.columns);
  parallel.for_each(rows.count * columns.count, [&](std::int64_t task) {
    // Neighbouring tasks share the rows of a, which are the larger operand of a training step.
    run_block(parallel, arguments, path, {rows[task / columns.count], columns[task % columns.count]}, blocks.depth);
  });
}

void gemm_reference(const GemmArguments& arguments) {
  for (std::int64_t row = 0; row < arguments.m; ++row) {
    for (std::int64_t column = 0; column < arguments.n; ++column) {
      float& c = arguments.c[row * arguments.c_stride + column];
      double sum = arguments.accumulate ? static_cast<double>(c) : 0.0;
      for (std::int64_t k = 0; k < arguments.k; ++k) {
        sum += static_cast<double>(element(arguments.a, row, k)) * static_cast<double>(element(arguments.b, k, column));
      }
      if (arguments.bias != nullptr)
        sum += static_cast<double>(element({arguments.bias, arguments.bias_dtype, 0, false}, 0, column));
      c = static_cast<float>(sum);
    }
  }
}

}  // namespace headrace::kernels
