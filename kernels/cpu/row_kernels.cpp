// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_kernels.h"

#include <cstdlib>
#include <string_view>

#include "kernels/cpu/row_kernels-inl.h"

namespace headrace::kernels {

const RowKernels& row_kernels_baseline() noexcept {
  static constexpr RowKernels kKernels = make_row_kernels("baseline");
  return kKernels;
}

const RowKernels& row_kernels() noexcept {
  static const RowKernels& chosen = []() -> const RowKernels& {
    const char* target = std::getenv("HEADRACE_CPU_TARGET");
    const bool lowered = target != nullptr && std::string_view(target) == "scalar";
    const RowKernels* avx2 = lowered ? nullptr : row_kernels_avx2();
    return avx2 != nullptr ? *avx2 : row_kernels_baseline();
  }();
  return chosen;
}

}  // namespace headrace::kernels
