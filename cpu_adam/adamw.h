// SPDX-License-Identifier: Apache-2.0
// AdamW on host memory in one pass: unscale and clip the gradient, update master and moments, write the compute weight.
// p *= 1 - lr·wd; m = b1·m + (1-b1)·g; v = b2·v + (1-b2)·g²; p -= lr/(1-b1^t) · m / (sqrt(v)/sqrt(1-b2^t) + eps)
// (Loshchilov & Hutter 2019, algorithm 2, in PyTorch's order). Same operations in the same order on every target, so
// all targets, thread counts and splits give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/bytes.h"
#include "core/dtype.h"
#include "core/result.h"

namespace headrace::cpu_adam {

// How the state of one parameter is kept (design §2 "State formats").
enum class StateFormat : std::uint8_t {
  kFp32,   // with 16-bit weights: fp32 master, exp_avg, exp_avg_sq beside them (2 + 12 bytes); with fp32 weights these
           // are the master and there is no other copy (4 + 8 bytes)
  kSplit,  // bf16 weights: 16-bit remainder, fp32 moments (2 + 10 bytes); bit-identical to kFp32
  kSplitBf16,  // bf16 weights: 16-bit remainder, bf16 moments rounded stochastically (2 + 6 bytes)
  kCompact,    // bf16 weights: 8-bit remainder, moments of 8 bits with a scale byte for 64 elements, all rounded
               // stochastically (2 + 3 1/32 bytes); docs/numerics.md has the rules
};

[[nodiscard]] const char* state_format_name(StateFormat format) noexcept;  // "fp32", "split", "split_bf16", "compact"

enum class Target : std::uint8_t { kScalar, kAvx2, kAvx512, kNeon };  // kNeon: every AArch64 CPU
[[nodiscard]] const char* target_name(Target target) noexcept;
[[nodiscard]] Target best_target() noexcept;  // by CPUID; HEADRACE_CPU_TARGET=scalar|avx2|avx512|neon lowers it
[[nodiscard]] bool target_available(Target target) noexcept;

struct AdamWHyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;        // decoupled
  std::int64_t optimizer_step = 1;  // t ≥ 1: this update's number; bias correction in double
  float gradient_scale = 1.0F;      // unscale × clip, applied to the gradient first
  std::uint64_t rounding_seed = 0;  // of stochastic rounding, with optimizer_step, stream and element
};
[[nodiscard]] Result<void> validate(const AdamWHyper& hyper);

// Arrays of `elements` elements each; any alignment that the element type allows; updated in place except `gradient`.
// format_state.h lays the state of a tile out and points arrays at it.
struct AdamWArrays {
  void* weights = nullptr;  // weights_dtype
  DType weights_dtype = DType::kBf16;
  float* master = nullptr;                // kFp32 with 16-bit weights, else null
  void* remainder = nullptr;              // int16 for kSplit and kSplitBf16, int8 for kCompact, else null
  void* exp_avg = nullptr;                // fp32; bf16 for kSplitBf16; int8 codes for kCompact
  void* exp_avg_sq = nullptr;             // fp32; bf16 for kSplitBf16; uint8 codes for kCompact
  std::uint8_t* exp_avg_scale = nullptr;  // kCompact: one for each kCompactBlockElements, else null
  std::uint8_t* exp_avg_sq_scale = nullptr;
  const void* gradient = nullptr;  // gradient_dtype
  DType gradient_dtype = DType::kFp32;
  std::int64_t elements = 0;
  // Place of element 0 among all elements that are rounded with this `stream` (a unit's flat space, say): a state that
  // is updated in pieces, or moved, is rounded as if it were whole. kCompact: a multiple of kCompactBlockElements, so
  // that pieces do not share a scale; only the last block of a piece may be shorter.
  std::int64_t first_element = 0;
  std::uint32_t stream = 0;
};
inline constexpr std::int64_t kCompactBlockElements = 64;
// For kFp32 with 16-bit weights: the weight is made from the master by the ties-away rule of core/dtype.h (bf16) or RNE
// (fp16).
[[nodiscard]] Result<void> validate(const AdamWArrays& arrays, StateFormat format);

// One thread; never allocates, locks or throws. lr = 0 leaves the master's bits untouched;
// weights with a master beside them are then made from it again, others keep their bits too. Arguments must
// be valid.
void adamw_update(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper, Target target) noexcept;

// The same over a pool of `threads`, at most the CPUs of this process (fixed grains, so the bits do not depend on it).
// Thread-safe.
class ParallelUpdater {
 public:
  explicit ParallelUpdater(int threads, Target target = best_target());
  ~ParallelUpdater();
  ParallelUpdater(const ParallelUpdater&) = delete;
  ParallelUpdater& operator=(const ParallelUpdater&) = delete;

  void update(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper) const;
  [[nodiscard]] Target target() const noexcept;

  // Gradient arrival: destination (dtype) = round(source + (add ? destination : 0)), RNE, in one pass that also gives,
  // for each run of kNormChunk elements from the start of the span, the fp64 sum of squares of the *stored* values and
  // the number of non-finite ones. The caller passes one tensor at a time so that chunks are chunks of a tensor.
  // chunk_sums, chunk_non_finite: ceil_div(elements, kNormChunk) entries.
  static constexpr std::int64_t kNormChunk = 4096;
  struct Arrival {
    const float* source = nullptr;  // fp32 accumulator
    void* destination = nullptr;    // may equal source when dtype is kFp32
    DType dtype = DType::kFp32;
    bool add = false;
    std::int64_t elements = 0;
  };
  void arrive(const Arrival& arrival, std::span<double> chunk_sums, std::span<std::int64_t> chunk_non_finite) const;
  // body(0) … body(count - 1), each once, in any order on any threads of the pool; returns when all are done.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const;

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace headrace::cpu_adam
