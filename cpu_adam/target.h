// SPDX-License-Identifier: Apache-2.0
// Which SIMD target runs. Internal to cpu_adam and its tests; users call best_target() and target_available() of
// adamw.h.
#pragma once

#include <string_view>

#include "cpu_adam/adamw.h"

namespace headrace::cpu_adam {

// The fastest available target that is not above the wished one ("avx512" above "avx2" above "scalar", "neon" above
// "scalar"; empty: no wish). An unknown word is reported on stderr and lowers to scalar: whoever sets it wants less,
// and slow and loud beats an unnoticed typing error.
[[nodiscard]] Target choose_target(std::string_view wish) noexcept;

}  // namespace headrace::cpu_adam
