// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "cpu_adam/kernels.h"

#ifdef HEADRACE_X86_KERNELS
#include <cpuid.h>
#endif

namespace headrace::cpu_adam {
namespace {

#ifdef HEADRACE_X86_KERNELS
bool cpu_has_f16c() noexcept {  // clang 14 does not know the name in __builtin_cpu_supports
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// __builtin_cpu_supports also asks the system (XGETBV) whether it saves the wide registers.
bool cpu_has_avx2() noexcept {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && cpu_has_f16c();
}
bool cpu_has_avx512() noexcept {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}
#else
bool cpu_has_avx2() noexcept { return false; }
bool cpu_has_avx512() noexcept { return false; }
#endif

#ifdef HEADRACE_NEON_KERNELS
constexpr bool kHasNeon = true;  // part of the architecture
#else
constexpr bool kHasNeon = false;
#endif

constexpr Target kAllTargets[] = {Target::kNeon, Target::kAvx512, Target::kAvx2, Target::kScalar};

Target next_lower(Target target) noexcept { return target == Target::kAvx512 ? Target::kAvx2 : Target::kScalar; }

Target parse_wish(std::string_view wish) noexcept {
  for (const Target target : kAllTargets) {
    if (wish == target_name(target)) return target;
  }
  std::fprintf(stderr, "HEADRACE_CPU_TARGET='%.*s' is none of scalar, avx2, avx512, neon: using scalar\n",
               static_cast<int>(wish.size()), wish.data());
  return Target::kScalar;
}

}  // namespace

const char* target_name(Target target) noexcept {
  switch (target) {
    case Target::kScalar: return "scalar";
    case Target::kAvx2: return "avx2";
    case Target::kAvx512: return "avx512";
    case Target::kNeon: return "neon";
  }
  return "?";
}

bool target_available(Target target) noexcept {
  switch (target) {
    case Target::kScalar: return true;
    case Target::kAvx2: return cpu_has_avx2();
    case Target::kAvx512: return cpu_has_avx512();
    case Target::kNeon: return kHasNeon;
  }
  return false;
}

Target choose_target(std::string_view wish) noexcept {
  if (wish.empty()) return *std::find_if(std::begin(kAllTargets), std::end(kAllTargets), target_available);
  Target target = parse_wish(wish);
  while (!target_available(target)) target = next_lower(target);
  return target;
}

Target best_target() noexcept {
  static const Target target = [] {
    const char* wish = std::getenv("HEADRACE_CPU_TARGET");
    return choose_target(wish == nullptr ? std::string_view{} : std::string_view{wish});
  }();
  return target;
}

}  // namespace headrace::cpu_adam
