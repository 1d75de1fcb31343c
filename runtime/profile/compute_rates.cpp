// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <functional>

#include "core/host_slab.h"
#include "core/topology.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "runtime/profile/compute.h"
#include "runtime/profile/storage.h"

namespace headrace::profile {
namespace {

// The products of one square layer as training makes them: 512 tokens, 2048 features.
constexpr std::int64_t kTokens = 512, kFeatures = 2048;
constexpr double kFlops = 2.0 * kTokens * kFeatures * kFeatures;  // of one product

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Matrices {
  float* inputs;    // [tokens, features]
  float* outputs;   // [tokens, features]
  float* gradient;  // [features, features], of the weights
  void* weights;    // [features, features] of `dtype`
  DType dtype;
};

void forward(const kernels::Parallel& parallel, const Matrices& data) {
  kernels::gemm(parallel, {kTokens,
                           kFeatures,
                           kFeatures,
                           {data.inputs, DType::kFp32, kFeatures, false},
                           {data.weights, data.dtype, kFeatures, true},
                           data.outputs,
                           kFeatures});
}

void backward(const kernels::Parallel& parallel, const Matrices& data) {
  kernels::gemm(parallel, {kTokens,
                           kFeatures,
                           kFeatures,
                           {data.outputs, DType::kFp32, kFeatures, false},
                           {data.weights, data.dtype, kFeatures, false},
                           data.inputs,
                           kFeatures});
  kernels::gemm(parallel, {kFeatures,
                           kFeatures,
                           kTokens,
                           {data.outputs, DType::kFp32, kFeatures, true},
                           {data.inputs, DType::kFp32, kFeatures, false},
                           data.gradient,
                           kFeatures});
}

// Values around one, none of them special.
void fill(const Matrices& data, std::int64_t elements) {
  for (std::int64_t i = 0; i < kTokens * kFeatures; ++i)
    data.inputs[i] = data.outputs[i] = 0.5F + static_cast<float>(i % 101) / 101;
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = static_cast<float>(i % 97 - 48) / 4096;
    if (data.dtype == DType::kBf16) {
      static_cast<Bf16*>(data.weights)[i] = to_bf16(value);
    } else if (data.dtype == DType::kFp16) {
      static_cast<Fp16*>(data.weights)[i] = to_fp16(value);
    } else {
      static_cast<float*>(data.weights)[i] = value;
    }
  }
}

}  // namespace

Result<ComputeReport> measure_compute(double seconds, Progress& progress) {
  const Topology topology = detect_topology();
  ComputeReport report;
  report.threads = topology.usable_cores;
  report.target = kernels::gemm_target();
  const kernels::Parallel parallel(report.threads);
  constexpr Bytes kActivation = kTokens * kFeatures * 4, kWeights = kFeatures * kFeatures * 4;
  HEADRACE_TRY(const HostSlab slab, HostSlab::allocate(2 * kActivation + 2 * kWeights));
  std::byte* const base = slab.bytes().data();
  Matrices data{};
  data.inputs = reinterpret_cast<float*>(base);
  data.outputs = reinterpret_cast<float*>(base + kActivation);
  data.gradient = reinterpret_cast<float*>(base + 2 * kActivation);
  data.weights = base + 2 * kActivation + kWeights;
  constexpr DType kDTypes[] = {DType::kBf16, DType::kFp32, DType::kFp16};
  for (const DType dtype : kDTypes) {
    progress.step(std::string("products, weights in ") + dtype_name(dtype), seconds / std::size(kDTypes));
    data.dtype = dtype;
    std::vector<double> forward_rates, backward_rates;
    GemmRate& rate = report.rates.emplace_back();
    rate.dtype = dtype_name(dtype);
    const double share = seconds / std::size(kDTypes);
    const auto start = std::chrono::steady_clock::now();
    // Three turns after the first at least; on a busy machine one, where more would take half as long again.
    const auto goes_on = [&](int turn) {
      const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      return turn < 2 || (turn < 4 && passed < 1.5 * share) || passed < share;
    };
    for (int turn = 0; goes_on(turn); ++turn) {
      fill(data, turn == 0 ? kFeatures * kFeatures : 0);
      const double one = seconds_of([&] { forward(parallel, data); });
      const double two = seconds_of([&] { backward(parallel, data); });
      if (turn == 0) continue;  // warms caches and the library up
      forward_rates.push_back(kFlops / one);
      backward_rates.push_back(2 * kFlops / two);
      rate.samples.push_back(3 * kFlops / (one + two));
    }
    rate.flops_per_s = median_of(rate.samples);
    rate.forward_flops_per_s = median_of(forward_rates);
    rate.backward_flops_per_s = median_of(backward_rates);
  }
  return report;
}

}  // namespace headrace::profile
