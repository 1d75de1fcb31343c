// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "bindings/cli/command.h"
#include "core/topology.h"
#include "cpu_adam/adamw.h"
#include "kernels/cpu/gemm.h"

namespace headrace::cli {

std::string version_text() {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
#if defined(NDEBUG)
  const char* const build = "release";
#else
  const char* const build = "with assertions";
#endif
  return fmt::format("headrace {} ({}, {}; products {}, updates {}; CPU: {})", HEADRACE_VERSION, compiler, build,
                     kernels::gemm_target(), cpu_adam::target_name(cpu_adam::best_target()), describe(cpu_features()));
}

}  // namespace headrace::cli
