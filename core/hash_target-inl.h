// SPDX-License-Identifier: Apache-2.0
// Included once per instruction set, after HEADRACE_HASH_TARGET names the table to fill. xxHash is inlined with
// internal linkage and takes the vector code that the file's flags allow.
#define XXH_INLINE_ALL
#define XXH_STATIC_LINKING_ONLY
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <xxhash.h>
#pragma GCC diagnostic pop

#include "core/hash_target.h"

namespace headrace::hash_detail {
namespace {

uint64_t digest_once(const void* data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }
void reset(void* state, uint64_t seed) {
  XXH3_INITSTATE(static_cast<XXH3_state_t*>(state));
  XXH3_64bits_reset_withSeed(static_cast<XXH3_state_t*>(state), seed);
}
void update(void* state, const void* data, size_t bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}
uint64_t digest(const void* state) { return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state)); }

}  // namespace

extern const HashTarget HEADRACE_HASH_TARGET;
const HashTarget HEADRACE_HASH_TARGET{digest_once, reset, update, digest, sizeof(XXH3_state_t), alignof(XXH3_state_t)};

}  // namespace headrace::hash_detail
