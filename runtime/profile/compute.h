// SPDX-License-Identifier: Apache-2.0
// What memory and cores of this machine do, measured alone: bandwidth, matrix products by dtype, optimizer updates by
// state format.
#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "runtime/profile/progress.h"

namespace headrace::profile {

struct MemoryReport {
  int threads = 0;
  Bytes array_bytes = 0;  // of each array, beyond the caches
  std::string pages;      // what the arrays lie on
  // All threads together, bytes per second that the program moved (a copy reads and writes each once, counted once).
  double read = 0, write = 0, copy = 0;
  double write_streaming = 0, copy_streaming = 0;  // non-temporal stores; 0 where the CPU has none that we use
  double copy_one_thread = 0;                      // memcpy
  Bytes lock_limit = 0;                            // -1 = unlimited
  bool can_lock = false;                           // whether the arrays could be locked
};

struct GemmRate {
  std::string dtype;  // of the weights
  double flops_per_s = 0, forward_flops_per_s = 0, backward_flops_per_s = 0;
  std::vector<double> samples;  // flops_per_s
};
struct ComputeReport {
  int threads = 0;
  std::string target;  // gemm_target()
  std::vector<GemmRate> rates;
};

struct OptimizerRate {
  std::string format;
  double parameters_per_s = 0;
  std::vector<double> samples;
};
struct OptimizerReport {
  int threads = 0;
  std::string target;
  std::vector<OptimizerRate> rates;
  double gradient_elements_per_s = 0;  // gradients on their way to the optimizer: rounded to bf16, squares summed
};

// Seconds that each takes are about those given; all cores of the process are used. kPreflight without memory.
[[nodiscard]] Result<MemoryReport> measure_memory(double seconds, Progress& progress);
[[nodiscard]] Result<ComputeReport> measure_compute(double seconds, Progress& progress);
[[nodiscard]] Result<OptimizerReport> measure_optimizer(double seconds, Progress& progress);

}  // namespace headrace::profile
