// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <oneapi/tbb/global_control.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/gemm_blocks.h"

namespace headrace::kernels {
namespace {

// A stored matrix whose rows are farther apart than they are long, at any byte offset from 64-byte alignment.
struct Stored {
  std::vector<std::byte> bytes;
  MatrixOperand operand;
  std::vector<float> values;  // of the operand, row-major without gaps

  Stored(std::mt19937& random, std::int64_t rows, std::int64_t columns, DType dtype, bool transposed,
         Bytes offset = 0) {
    const std::int64_t stored_rows = transposed ? columns : rows;
    const std::int64_t stored_columns = transposed ? rows : columns;
    const std::int64_t stride = stored_columns + 5;
    const Bytes size = dtype_bytes(dtype);
    bytes.resize(static_cast<std::size_t>(stored_rows * stride * size + 256));
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    std::byte* data = bytes.data() + ((64 - address % 64) % 64 + static_cast<std::uintptr_t>(offset));
    values.resize(static_cast<std::size_t>(rows * columns));
    std::normal_distribution<float> normal;
    for (std::int64_t row = 0; row < stored_rows; ++row) {
      for (std::int64_t column = 0; column < stored_columns; ++column) {
        float value = normal(random);
        std::byte* at = data + (row * stride + column) * size;
        if (dtype == DType::kBf16) {
          const Bf16 rounded = to_bf16(value);
          std::memcpy(at, &rounded, 2);
          value = to_fp32(rounded);
        } else if (dtype == DType::kFp16) {
          const Fp16 rounded = to_fp16(value);
          std::memcpy(at, &rounded, 2);
          value = to_fp32(rounded);
        } else {
          std::memcpy(at, &value, 4);
        }
        values[static_cast<std::size_t>(transposed ? column * columns + row : row * columns + column)] = value;
      }
    }
    operand = {data, dtype, stride, transposed};
  }
};

struct Case {
  std::int64_t m, n, k;
  DType a = DType::kFp32, b = DType::kFp32;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  bool has_bias = false;
  DType bias = DType::kFp32;
};

struct Outcome {
  double worst = 0;  // |error| / Σ|a·b|
  std::int64_t row = 0, column = 0;
  bool gap_kept = true;
};

// Error of each element relative to the sum of the absolute products, which is what rounding can reach.
Outcome compare(const Parallel& parallel, const Case& test, GemmPath path, std::mt19937& random) {
  const Stored a(random, test.m, test.k, test.a, test.a_transposed);
  const Stored b(random, test.k, test.n, test.b, test.b_transposed);
  const Stored bias(random, 1, test.n, test.bias, false);
  const std::int64_t c_stride = test.n + 3;
  std::vector<float> c(static_cast<std::size_t>(test.m * c_stride), test.accumulate ? 0.75F : std::nanf(""));
  const std::vector<float> before = c;
  GemmArguments arguments{test.m, test.n, test.k, a.operand, b.operand, c.data(), c_stride, test.accumulate};
  if (test.has_bias) arguments.bias = bias.operand.data, arguments.bias_dtype = test.bias;
  gemm_on_path(parallel, arguments, path);
  Outcome outcome;
  for (std::int64_t row = 0; row < test.m; ++row) {
    for (std::int64_t column = 0; column < c_stride; ++column) {
      const auto at = static_cast<std::size_t>(row * c_stride + column);
      if (column >= test.n) {
        outcome.gap_kept = outcome.gap_kept && std::memcmp(&c[at], &before[at], 4) == 0;
        continue;
      }
      double exact = test.accumulate ? 0.75 : 0.0;
      double magnitude = exact;
      for (std::int64_t k = 0; k < test.k; ++k) {
        const double product = static_cast<double>(a.values[static_cast<std::size_t>(row * test.k + k)]) *
                               static_cast<double>(b.values[static_cast<std::size_t>(k * test.n + column)]);
        exact += product;
        magnitude += std::fabs(product);
      }
      if (test.has_bias) exact += static_cast<double>(bias.values[static_cast<std::size_t>(column)]);
      magnitude += test.has_bias ? std::fabs(static_cast<double>(bias.values[static_cast<std::size_t>(column)])) : 0.0;
      const double error = std::fabs(static_cast<double>(c[at]) - exact) / std::max(magnitude, 1e-30);
      if (!(error <= outcome.worst)) outcome = {error, row, column, outcome.gap_kept};
    }
  }
  return outcome;
}

void expect_close(const Case& test, GemmPath path, double bound, double& worst) {
  static const Parallel parallel(2);
  std::mt19937 random(static_cast<std::uint32_t>(test.m * 31 + test.n * 17 + test.k));
  const Outcome outcome = compare(parallel, test, path, random);
  worst = std::max(worst, outcome.worst);
  EXPECT_LE(outcome.worst, bound) << test.m << "x" << test.n << "x" << test.k << " " << dtype_name(test.a)
                                  << (test.a_transposed ? "ᵀ" : "") << " · " << dtype_name(test.b)
                                  << (test.b_transposed ? "ᵀ" : "") << " accumulate " << test.accumulate << " bias "
                                  << test.has_bias << " at (" << outcome.row << ", " << outcome.column << ")";
  EXPECT_TRUE(outcome.gap_kept) << "wrote between the rows of c";
}

TEST(Gemm, EveryCombinationMatchesFp64) {
  double worst = 0;
  for (const DType a : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    for (const DType b : {DType::kFp32, DType::kBf16, DType::kFp16}) {
      for (int bits = 0; bits < 8; ++bits) {
        Case test{65, 130, 33, a, b, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
        test.has_bias = true;
        test.bias = a;
        expect_close(test, GemmPath::kFp32, 4e-7, worst);
      }
    }
  }
  std::printf("worst error %.3g of the sum of absolute products\n", worst);
}

TEST(Gemm, OddSizesMatchFp64) {
  double worst = 0;
  for (const std::int64_t m : {1, 3, 17, 65}) {
    for (const std::int64_t n : {1, 3, 17, 65}) {
      for (const std::int64_t k : {0, 1, 3, 17, 65}) {
        for (int bits = 0; bits < 4; ++bits) {
          expect_close(
              {m, n, k, DType::kFp32, DType::kBf16, (bits & 1) != 0, (bits & 2) != 0, (bits & 1) != 0, bits == 2},
              GemmPath::kFp32, 4e-7, worst);
          expect_close(
              {m, n, k, DType::kFp32, DType::kFp32, (bits & 1) != 0, (bits & 2) != 0, (bits & 1) != 0, bits == 2},
              GemmPath::kFp32, 4e-7, worst);
        }
      }
    }
  }
  std::printf("worst error %.3g of the sum of absolute products\n", worst);
}

TEST(Gemm, SeveralBlocksOfEveryDimensionMatchFp64) {
  double worst = 0;
  for (int bits = 0; bits < 4; ++bits) {
    const bool ta = (bits & 1) != 0;
    const bool tb = (bits & 2) != 0;
    expect_close({1, 1030, 2100, DType::kFp32, DType::kBf16, ta, tb, false, true}, GemmPath::kFp32, 4e-7, worst);
    expect_close({67, 550, 2100, DType::kFp32, DType::kBf16, ta, tb, true, true}, GemmPath::kFp32, 4e-7, worst);
    expect_close({550, 67, 2100, DType::kFp16, DType::kFp32, ta, tb, false, true}, GemmPath::kFp32, 4e-7, worst);
    expect_close({270, 330, 1100, DType::kBf16, DType::kBf16, ta, tb, true, false}, GemmPath::kFp32, 4e-7, worst);
    expect_close({700, 530, 129, DType::kFp32, DType::kFp32, ta, tb, true, false}, GemmPath::kFp32, 4e-7, worst);
  }
  std::printf("worst error %.3g of the sum of absolute products\n", worst);
}

// The bf16 path rounds the fp32 operand (2^-9 each); with both operands bf16 only the order of sums differs. oneDNN
// runs this path on every AVX-512 CPU, slowly where there are no bf16 instructions, so that it is tested there too.
TEST(Gemm, Bf16PathMatchesFp64) {
  if (std::strstr(gemm_target(), "avx512") == nullptr && !gemm_uses_bf16()) {
    GTEST_SKIP() << "oneDNN multiplies bf16 only on AVX-512 CPUs; this one is " << gemm_target();
  }
  double worst = 0;
  double worst_rounded = 0;
  for (int bits = 0; bits < 8; ++bits) {
    const bool ta = (bits & 1) != 0;
    const bool tb = (bits & 2) != 0;
    const bool accumulate = (bits & 4) != 0;
    for (const std::int64_t m : {1, 17, 130}) {
      Case test{m, 65, 1100, DType::kBf16, DType::kBf16, ta, tb, accumulate, true, DType::kBf16};
      expect_close(test, GemmPath::kBf16, 4e-7, worst);
      test.a = DType::kFp32;
      expect_close(test, GemmPath::kBf16, 1.0 / 512, worst_rounded);
      test.a = DType::kBf16;
      test.b = DType::kFp32;
      expect_close(test, GemmPath::kBf16, 1.0 / 512, worst_rounded);
    }
  }
  std::printf("worst error %.3g with bf16 operands, %.3g with one rounded\n", worst, worst_rounded);
}

TEST(Gemm, ReferenceIsTheFp64Sum) {
  std::mt19937 random(5);
  const Stored a(random, 3, 40, DType::kFp32, true);
  const Stored b(random, 40, 2, DType::kFp16, false);
  std::vector<float> c(6, 1.0F);
  const Fp16 bias[2] = {to_fp16(0.5F), to_fp16(-2.0F)};
  gemm_reference({3, 2, 40, a.operand, b.operand, c.data(), 2, true, bias, DType::kFp16});
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t column = 0; column < 2; ++column) {
      double exact = 1.0 + (column == 0 ? 0.5 : -2.0);
      for (std::size_t k = 0; k < 40; ++k)
        exact += static_cast<double>(a.values[row * 40 + k]) * static_cast<double>(b.values[k * 2 + column]);
      EXPECT_FLOAT_EQ(c[row * 2 + column], static_cast<float>(exact));
    }
  }
}

// Bits of one product, with every matrix moved by `offset` bytes from 64-byte alignment.
std::vector<float> product_bits(int threads, const Case& test, GemmPath path, Bytes offset) {
  const Parallel parallel(threads);
  std::mt19937 random(99);
  const Stored a(random, test.m, test.k, test.a, test.a_transposed, offset);
  const Stored b(random, test.k, test.n, test.b, test.b_transposed, offset);
  std::vector<float> storage(static_cast<std::size_t>(test.m * test.n) + 32);
  const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
  float* c = storage.data() + ((64 - address % 64) % 64 + static_cast<std::uintptr_t>(offset)) / 4;
  gemm_on_path(parallel, {test.m, test.n, test.k, a.operand, b.operand, c, test.n}, path);
  return {c, c + test.m * test.n};
}

TEST(Gemm, BitsDependOnNeitherThreadsNorAlignmentNorRepetition) {
  const tbb::global_control real_threads(tbb::global_control::max_allowed_parallelism, 3);
  const std::vector<Case> cases{
      {64, 64, 4096},
      {64, 64, 4096, DType::kFp32, DType::kBf16, false, true},
      {2048, 2048, 512, DType::kFp32, DType::kFp32, true, false},
      {512, 300, 1111, DType::kFp32, DType::kBf16, false, true},
      {512, 300, 1111, DType::kFp32, DType::kBf16, false, false},
      {1, 777, 1500, DType::kFp32, DType::kFp16, false, true},
      {777, 1, 1500, DType::kFp32, DType::kFp32, false, true},
      {1, 1, 5000, DType::kFp32, DType::kFp32, false, true},
      {130, 129, 700, DType::kBf16, DType::kBf16, true, true},
  };
  for (const Case& test : cases) {
    const auto expected = product_bits(1, test, GemmPath::kFp32, 0);
    for (const int threads : {1, 2, 3}) {
      for (const Bytes offset : {0, 4, 36}) {
        const auto got = product_bits(threads, test, GemmPath::kFp32, offset);
        EXPECT_EQ(std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)), 0)
            << test.m << "x" << test.n << "x" << test.k << ", " << threads << " threads, offset " << offset;
      }
    }
  }
}

Bytes resident_bytes() {
  long pages = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) ADD_FAILURE() << "no /proc/self/statm";
  if (file != nullptr) std::fclose(file);
  return static_cast<Bytes>(resident) * ::sysconf(_SC_PAGESIZE);
}

TEST(Gemm, MemoryDoesNotGrowWithCalls) {
  const Parallel parallel(2);
  std::vector<float> a(512 * 1024, 0.5F);
  std::vector<float> c(512 * 1024, 0.0F);
  std::vector<float> d(1024 * 1024, 0.0F);
  std::vector<Bf16> b(1024 * 1024, to_bf16(0.25F));
  const auto call = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    gemm(parallel, {m, n, k, {a.data(), DType::kFp32, k, false}, {b.data(), DType::kBf16, k, true}, c.data(), n});
    gemm(parallel, {n, k, m, {c.data(), DType::kFp32, n, true}, {a.data(), DType::kFp32, k, false}, d.data(), k});
  };
  const Bytes before = resident_bytes();
  call(512, 1024, 1024);
  call(500, 1000, 1000);
  const Bytes warm = resident_bytes();
  for (int repeat = 0; repeat < 40; ++repeat) call(512 - repeat, 1024 - 3 * repeat, 1024 - 5 * repeat);
  const Bytes after = resident_bytes();
  std::printf("oneDNN keeps %.1f MiB after the first calls, %.1f MiB more after 80 of 40 shapes\n",
              static_cast<double>(warm - before) / kMiB, static_cast<double>(after - warm) / kMiB);
  EXPECT_LE(warm - before, 24 * kMiB);
  EXPECT_LE(after - warm, 4 * kMiB);
}

}  // namespace
}  // namespace headrace::kernels
