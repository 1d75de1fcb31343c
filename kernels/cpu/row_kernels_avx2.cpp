// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_kernels-inl.h"

namespace headrace::kernels {

const RowKernels* row_kernels_avx2() noexcept {
  static constexpr RowKernels kKernels = make_row_kernels("avx2");
  return __builtin_cpu_supports("avx2") != 0 ? &kKernels : nullptr;
}

}  // namespace headrace::kernels
