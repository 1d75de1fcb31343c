// SPDX-License-Identifier: Apache-2.0
// perf_gemm: rate of gemm() at the shapes of a training step against oneDNN's own fp32 product with all its threads,
// measured turn by turn in the same run, and the memory that oneDNN keeps. Prints one JSON report.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

extern "C" void omp_set_num_threads(int threads);

namespace headrace {
namespace {

struct Shape {
  const char* name;
  std::int64_t m, n, k;
  DType b;
  bool a_transposed, b_transposed;
};

constexpr Shape kShapes[] = {
    {"forward 512x2048x2048 bf16 weights", 512, 2048, 2048, DType::kBf16, false, true},
    {"forward 512x5632x2048 bf16 weights", 512, 5632, 2048, DType::kBf16, false, true},
    {"forward 512x2048x5632 bf16 weights", 512, 2048, 5632, DType::kBf16, false, true},
    {"input gradient 512x2048x2048 bf16 weights", 512, 2048, 2048, DType::kBf16, false, false},
    {"input gradient 512x2048x5632 bf16 weights", 512, 2048, 5632, DType::kBf16, false, false},
    {"weight gradient 2048x2048x512", 2048, 2048, 512, DType::kFp32, true, false},
    {"weight gradient 5632x2048x512", 5632, 2048, 512, DType::kFp32, true, false},
    {"forward 512x2048x2048 fp32 weights", 512, 2048, 2048, DType::kFp32, false, true},
    {"forward 512x256x2048 bf16 weights", 512, 256, 2048, DType::kBf16, false, true},
    {"forward 2048x2048x2048 bf16 weights", 2048, 2048, 2048, DType::kBf16, false, true},
    {"forward 128x2048x2048 bf16 weights", 128, 2048, 2048, DType::kBf16, false, true},
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double deviation(const std::vector<double>& values) {
  const double center = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::fabs(value - center));
  return median(distances);
}

Bytes resident_bytes() {
  long pages = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(file);
  return static_cast<Bytes>(resident) * ::sysconf(_SC_PAGESIZE);
}

struct Matrices {
  std::vector<float> a, b, c, expected;
  std::vector<Bf16> narrow;
};

nlohmann::json measure(const kernels::Parallel& parallel, const Shape& shape, Matrices& data, int samples) {
  const std::int64_t a_stride = shape.a_transposed ? shape.m : shape.k;
  const std::int64_t b_stride = shape.b_transposed ? shape.k : shape.n;
  const void* b = shape.b == DType::kFp32 ? static_cast<const void*>(data.b.data()) : data.narrow.data();
  const auto ours = [&] {
    kernels::gemm(parallel, {shape.m,
                             shape.n,
                             shape.k,
                             {data.a.data(), DType::kFp32, a_stride, shape.a_transposed},
                             {b, shape.b, b_stride, shape.b_transposed},
                             data.c.data(),
                             shape.n});
  };
  const auto theirs = [&] {
    omp_set_num_threads(parallel.threads());
    const auto status =
        dnnl_sgemm(shape.a_transposed ? 'T' : 'N', shape.b_transposed ? 'T' : 'N', shape.m, shape.n, shape.k, 1.0F,
                   data.a.data(), a_stride, data.b.data(), b_stride, 0.0F, data.expected.data(), shape.n);
    if (status != dnnl_success) std::abort();
  };
  ours();
  theirs();
  const double tolerance = kernels::gemm_uses_bf16() && shape.b == DType::kBf16 ? 0.5 : 1e-3;
  for (std::int64_t i = 0; i < shape.m * shape.n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (!(std::fabs(static_cast<double>(data.c[at] - data.expected[at])) <= tolerance)) {
      std::fprintf(stderr, "perf_gemm: %s: element %lld is %g, oneDNN says %g\n", shape.name, static_cast<long long>(i),
                   static_cast<double>(data.c[at]), static_cast<double>(data.expected[at]));
      std::exit(1);
    }
  }
  const double work = 2e-9 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  std::vector<double> rates;
  std::vector<double> ceilings;
  for (int sample = 0; sample < samples; ++sample) {
    rates.push_back(work / seconds_of(ours));
    ceilings.push_back(work / seconds_of(theirs));
  }
  return {{"name", shape.name},
          {"value", median(rates)},
          {"unit", "GFLOP/s"},
          {"ceiling", median(ceilings)},
          {"fraction", median(rates) / median(ceilings)},
          {"samples", samples},
          {"mad", deviation(rates)},
          {"ceiling_mad", deviation(ceilings)}};
}

nlohmann::json machine(int threads) {
  utsname system{};
  ::uname(&system);
  return {{"kernel", system.release},
          {"cpus", std::thread::hardware_concurrency()},
          {"threads", threads},
          {"gemm_target", kernels::gemm_target()}};
}

int run(int samples, int threads, const char* commit) {
  const kernels::Parallel parallel(threads);
  Matrices data;
  const std::size_t largest = 5632 * 2048;
  data.a.resize(largest);
  data.b.resize(largest);
  data.narrow.resize(largest);
  data.c.resize(largest);
  data.expected.resize(largest);
  std::uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525U + 1013904223U;
    return static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  };
  for (float& value : data.a) value = next();
  for (std::size_t i = 0; i < largest; ++i) {
    data.narrow[i] = to_bf16(next() * 0.0625F);
    data.b[i] = to_fp32(data.narrow[i]);
  }
  const Bytes before = resident_bytes();
  nlohmann::json results = nlohmann::json::array();
  kernels::gemm(parallel, {512,
                           2048,
                           2048,
                           {data.a.data(), DType::kFp32, 2048, false},
                           {data.narrow.data(), DType::kBf16, 2048, true},
                           data.c.data(),
                           2048});
  kernels::gemm(parallel, {2048,
                           2048,
                           512,
                           {data.a.data(), DType::kFp32, 2048, true},
                           {data.b.data(), DType::kFp32, 2048, false},
                           data.c.data(),
                           2048});
  const Bytes kept = resident_bytes() - before;
  for (const Shape& shape : kShapes) results.push_back(measure(parallel, shape, data, samples));
  results.push_back({{"name", "memory kept by oneDNN after two products"},
                     {"value", kept},
                     {"unit", "bytes"},
                     {"ceiling", nullptr},
                     {"fraction", nullptr},
                     {"samples", 1}});
  const nlohmann::json report{{"machine", machine(threads)}, {"commit", commit}, {"results", std::move(results)}};
  std::printf("%s\n", report.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  int samples = 9;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const char* commit = "unknown";
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--samples") == 0 && has_value) {
      samples = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--threads") == 0 && has_value) {
      threads = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--commit") == 0 && has_value) {
      commit = argv[++i];
    } else if (std::strcmp(argv[i], "--json") == 0 && has_value) {
      if (std::freopen(argv[++i], "w", stdout) == nullptr) {
        std::fprintf(stderr, "perf_gemm: cannot write %s\n", argv[i]);
        return 1;
      }
    } else {
      std::fprintf(stderr, "usage: perf_gemm [--samples N] [--threads N] [--commit ID] [--json FILE]\n");
      return 2;
    }
  }
  return headrace::run(samples, threads, commit);
}
