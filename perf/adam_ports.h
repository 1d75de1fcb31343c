// SPDX-License-Identifier: Apache-2.0
// What the execution ports need at least for one element of the AdamW update: the written loops, run over vectors that
// count their instructions, with throughputs of one family of processors. For perf_adam's roofline.
#pragma once

#include "core/dtype.h"
#include "cpu_adam/adamw.h"
#include "cpu_adam/target.h"

namespace headrace::perf {

// For one element, of a loop that is long enough.
struct PortMix {
  double divides = 0, roots = 0;  // elements
  double arithmetic = 0;          // micro-operations of vectors: floating point, integer, logic, comparisons
  double bound = 0;               // of these, what not every vector port does
  double shuffles = 0;            // the same that move lanes, or set a mask
  double loads = 0, stores = 0;
  // Cycles that each kind of port is busy for an element; the largest bounds the loop.
  double divider_cycles = 0, vector_cycles = 0, shuffle_cycles = 0, memory_cycles = 0;
  [[nodiscard]] double cycles() const noexcept;
};

// Golden Cove (Xeon "Sapphire Rapids", "Emerald Rapids"): vectors of 32 bytes on three ports, of 64 bytes on two.
inline constexpr const char* kPortModel = "Golden Cove";

// For kAvx2 and kAvx512. Weight decay is on, the learning rate is not 0.
[[nodiscard]] PortMix count_adamw(cpu_adam::StateFormat format, DType weights, DType gradient, cpu_adam::Target target);
// Clock cycles a second, by a chain of products that wait for each other: the fastest of a few short runs. 0 on other
// processors than x86-64.
[[nodiscard]] double measure_clock();

}  // namespace headrace::perf
