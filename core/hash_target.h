// SPDX-License-Identifier: Apache-2.0
// Between hash.cpp and the translation units that hold xxHash, one per instruction set. Plain functions: no inline code
// compiled with one set's flags may be picked by the linker for another.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace headrace::hash_detail {

struct HashTarget {
  uint64_t (*digest_once)(const void* data, size_t bytes, uint64_t seed);
  void (*reset)(void* state, uint64_t seed);
  void (*update)(void* state, const void* data, size_t bytes);
  uint64_t (*digest)(const void* state);
  size_t state_bytes;
  size_t state_alignment;
};

extern const HashTarget kBaselineTarget;
extern const HashTarget kAvx2Target;  // exists in builds for x86-64

}  // namespace headrace::hash_detail
