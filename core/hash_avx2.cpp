// SPDX-License-Identifier: Apache-2.0
#define HEADRACE_HASH_TARGET kAvx2Target
#include "core/hash_target-inl.h"
