// SPDX-License-Identifier: Apache-2.0
// The optimizer state of a tile as bytes: which planes a state format keeps, where they lie, and how fp32 values go in
// and come out. For whoever stores, moves or converts state; the update itself is in adamw.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/result.h"
#include "cpu_adam/adamw.h"

namespace headrace::cpu_adam {

// Offsets in bytes; kNone: the format has no such plane. Planes lie end to end in this order, each as long as
// round_up(length, 64) elements take, scales rounded up to 64 bytes. All zero bytes are a fresh state of a zero master.
struct StatePlanes {
  static constexpr Bytes kNone = -1;
  Bytes master = kNone;
  Bytes remainder = kNone;
  Bytes exp_avg = kNone;
  Bytes exp_avg_sq = kNone;
  Bytes exp_avg_scale = kNone;
  Bytes exp_avg_sq_scale = kNone;
  Bytes bytes = 0;  // of all planes; per element 12 | 8 (fp32 weights) | 10 | 6 | 3 1/32
};
// `moments`: AdamW and Adam have two; others fewer (num_moments() of optimizer.h), in fp32, the only one as exp_avg.
[[nodiscard]] StatePlanes state_planes(StateFormat format, DType weights_dtype, std::int64_t length,
                                       int moments = 2) noexcept;

// Points the state arrays of `arrays` at element `at` of planes that begin at `state`; sets nothing else. kCompact:
// `at` is a multiple of kCompactBlockElements. `state` is aligned to 4 bytes.
void point_at_state(AdamWArrays& arrays, StateFormat format, const StatePlanes& planes, std::byte* state,
                    std::int64_t at) noexcept;

// Conversions between a state and fp32 values, for checkpoints and initialisation. Spans of arrays.elements each; only
// weights and state of `arrays` are used, the gradient may be null.
//
// widen: exact; for kFp32 and kSplit nothing is lost either way.
void widen_state(const AdamWArrays& arrays, StateFormat format, std::span<float> master, std::span<float> exp_avg,
                 std::span<float> exp_avg_sq) noexcept;
// narrow: to the nearest value that the format has, and to nothing but itself for values that came from widen_state, so
// that a state survives export and import bit for bit. A second moment that is not zero stays so. Refused, before
// anything is written: moments that are not finite in kCompact, a second moment below zero.
[[nodiscard]] Result<void> narrow_state(std::span<const float> master, std::span<const float> exp_avg,
                                        std::span<const float> exp_avg_sq, StateFormat format,
                                        const AdamWArrays& arrays);

}  // namespace headrace::cpu_adam
