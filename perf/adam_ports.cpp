// SPDX-License-Identifier: Apache-2.0
#include "perf/adam_ports.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu_adam/kernels.h"

namespace headrace::perf {
namespace {

struct Counts {
  double divides = 0, roots = 0, arithmetic = 0, bound = 0, shuffles = 0, loads = 0, stores = 0;
};
Counts counts;  // of the loop that runs; one thread

// The vectors of a SIMD target as the loops know them, without contents. Each function adds what the intrinsics of the
// target's own vectors compile to; the numbers of AVX2 and AVX-512 stand side by side. Floating point, conversions,
// shifts, integer products and maxima of 32 bytes have two of the three ports; of 64 bytes shifts and maxima have one
// of the two. Broadcast constants are made before the loop and cost nothing.
template <int kLanesOfTarget>
struct CountingVec {
  struct F {};
  struct U {};
  struct Nans {};
  static constexpr int kLanes = kLanesOfTarget;
  static constexpr bool kWide = kLanes == 16;

  static void count(double arithmetic, double shuffles, double loads = 0, double stores = 0) noexcept {
    counts.arithmetic += arithmetic;
    counts.shuffles += shuffles;
    counts.loads += loads;
    counts.stores += stores;
  }
  // Arithmetic that only two ports of three do for 32 bytes; all of 64 bytes that are not shifts or maxima may go
  // anywhere.
  static F floating(double operations) noexcept {
    counts.bound += kWide ? 0 : operations;
    return count(operations, 0), F{};
  }
  static U first_port(double operations) noexcept {  // shifts, maxima
    counts.bound += operations;
    return count(operations, 0), U{};
  }
  // A word of each lane of two vectors: packed and put in order, or one permutation of three micro-operations.
  static void store_words_of_pair(double shifts, double others) noexcept {
    first_port(shifts);
    count(others + (kWide ? 1 : 0), 2, 0, 1);
  }

  static F set(float) noexcept { return {}; }
  static U set_bits(std::uint32_t) noexcept { return {}; }
  static U lane_numbers() noexcept { return {}; }
  static U bits_of(F) noexcept { return {}; }
  static F from_bits(U) noexcept { return {}; }
  static F load(const float*) noexcept { return count(0, 0, 1), F{}; }
  static void store(float* to, F) noexcept {
    std::fill_n(to, kLanes, 0.0F);
    count(0, 0, 0, 1);
  }
  static F load_bf16(const std::uint16_t*) noexcept { return first_port(1), count(0, 1, 1), F{}; }
  static F load_fp16(const std::uint16_t*) noexcept { return count(0, 0, 1), floating(1); }
  static F load_split(const std::uint16_t*, const std::int16_t*) noexcept { return first_port(1), count(1, 2, 2), F{}; }
  static F load_split8(const std::uint16_t*, const std::int8_t*) noexcept { return first_port(2), count(1, 2, 2), F{}; }
  static U load_signed_bytes(const std::int8_t*) noexcept { return count(0, 1, 1), U{}; }
  static U load_bytes(const std::uint8_t*) noexcept { return count(0, 1, 1), U{}; }
  static void load_bf16_alternating(const std::uint16_t*, F&, F&) noexcept { first_port(1), count(1, 0, 1); }
  static void load_split_alternating(const std::uint16_t*, const std::int16_t*, F&, F&) noexcept {
    first_port(4), count(3, 0, 2);
  }
  static void alternate(F, F, F&, F&) noexcept { count(0, kWide ? 2 : 4); }
  static void store_low_halves(std::int16_t*, F, F) noexcept { store_words_of_pair(0, kWide ? 0 : 2); }
  static void store_rounded_high_halves(std::uint16_t*, F, F) noexcept { store_words_of_pair(kWide ? 0 : 2, 2); }
  static void store_high_halves(std::uint16_t*, U, U) noexcept { store_words_of_pair(kWide ? 0 : 2, 0); }
  static void store_high_halves_alternating(void*, U, U) noexcept { first_port(1), count(1, 0, 0, 1); }
  static void store_low_halves_alternating(void*, U, U) noexcept { first_port(1), count(1, 0, 0, 1); }
  static void stream_rounded_high_halves(std::uint16_t* to, F x, F y) noexcept { store_rounded_high_halves(to, x, y); }
  static void stream_fp16(std::uint16_t* to, F x, F y) noexcept { store_fp16(to, x), store_fp16(to, y); }
  static void fence() noexcept {}
  static void store_fp16(std::uint16_t*, F) noexcept { floating(1), count(0, 1, 0, 1); }
  static void store_signed_bytes(std::int8_t*, U, U, U, U) noexcept { count(0, kWide ? 8 : 4, 0, kWide ? 4 : 1); }
  static void store_bytes(std::uint8_t*, U, U, U, U) noexcept { count(0, kWide ? 8 : 4, 0, kWide ? 4 : 1); }

  static F mul(F, F) noexcept { return floating(1); }
  static F fma(F, F, F) noexcept { return floating(1); }
  static F negated_fma(F, F, F) noexcept { return floating(1); }
  static F div(F, F) noexcept {
    counts.divides += kLanes;
    return floating(kWide ? 3 : 1);
  }
  static F sqrt(F) noexcept {
    counts.roots += kLanes;
    return floating(kWide ? 3 : 1);
  }
  static F magnitude(F) noexcept { return count(1, 0), F{}; }
  static F flush_below(F, F) noexcept { return floating(kWide ? 0 : 1), count(2, kWide ? 1 : 0), F{}; }
  static F canonical_nan(F) noexcept { return {}; }  // only where there is a NaN
  static F to_float(U) noexcept { return floating(1); }
  static U truncate(F) noexcept { return floating(1), U{}; }
  static U add(U, U) noexcept { return count(1, 0), U{}; }
  static U mul(U, U) noexcept { return floating(2), U{}; }
  static U bit_and(U, U) noexcept { return count(1, 0), U{}; }
  static U bit_xor(U, U) noexcept { return count(1, 0), U{}; }
  template <int kBits>
  static U shift_right(U) noexcept {
    return first_port(1);
  }
  static U larger(U, U) noexcept { return first_port(1); }
  static U smaller(U, U) noexcept { return first_port(1); }
  static std::uint32_t largest(U) noexcept { return count(kWide ? 5 : 4, kWide ? 4 : 3), 0x3F800000U; }
  static U add_one_where_greater(U, F, F) noexcept { return floating(kWide ? 0 : 1), count(1, kWide ? 1 : 0), U{}; }
  static U with_sign_of(U, F) noexcept { return count(kWide ? 2 : 1, 0), U{}; }
  static void note_nans(Nans&, F, F) noexcept { floating(kWide ? 0 : 1), count(1, kWide ? 1 : 0); }
  static bool any(Nans) noexcept { return first_port(1), false; }
};

}  // namespace
}  // namespace headrace::perf

// The loops of cpu_adam, as kernels_avx2.cpp and kernels_avx512.cpp include them.
namespace headrace::cpu_adam {
namespace {

namespace avx2_loops {
using Vec = perf::CountingVec<8>;
#include "cpu_adam/loop-inl.h"

#include "cpu_adam/adamw-inl.h"
#include "cpu_adam/format_random-inl.h"

#include "cpu_adam/format_compact-inl.h"
#include "cpu_adam/format_split_bf16-inl.h"
}  // namespace avx2_loops

namespace avx512_loops {
using Vec = perf::CountingVec<16>;
#include "cpu_adam/loop-inl.h"

#include "cpu_adam/adamw-inl.h"
#include "cpu_adam/format_random-inl.h"

#include "cpu_adam/format_compact-inl.h"
#include "cpu_adam/format_split_bf16-inl.h"
}  // namespace avx512_loops

template <GradientKind kGradient>
AdamWFn avx2_loop(StateFormat format, DType weights) {
  using namespace avx2_loops;
  if (format == StateFormat::kSplit) return adamw_span<WeightKind::kSplit, kGradient>;
  if (format == StateFormat::kSplitBf16) return split_bf16_span<kGradient>;
  if (format == StateFormat::kCompact) return compact_span<kGradient>;
  if (weights == DType::kFp32) return adamw_span<WeightKind::kFp32, kGradient>;
  return weights == DType::kBf16 ? adamw_span<WeightKind::kBf16Master, kGradient>
                                 : adamw_span<WeightKind::kFp16Master, kGradient>;
}

template <GradientKind kGradient>
AdamWFn avx512_loop(StateFormat format, DType weights) {
  using namespace avx512_loops;
  if (format == StateFormat::kSplit) return adamw_span<WeightKind::kSplit, kGradient>;
  if (format == StateFormat::kSplitBf16) return split_bf16_span<kGradient>;
  if (format == StateFormat::kCompact) return compact_span<kGradient>;
  if (weights == DType::kFp32) return adamw_span<WeightKind::kFp32, kGradient>;
  return weights == DType::kBf16 ? adamw_span<WeightKind::kBf16Master, kGradient>
                                 : adamw_span<WeightKind::kFp16Master, kGradient>;
}

AdamWFn loop_of(StateFormat format, DType weights, DType gradient, bool wide) {
  switch (gradient) {
    case DType::kFp32:
      return wide ? avx512_loop<GradientKind::kFp32>(format, weights) : avx2_loop<GradientKind::kFp32>(format, weights);
    case DType::kBf16:
      return wide ? avx512_loop<GradientKind::kBf16>(format, weights) : avx2_loop<GradientKind::kBf16>(format, weights);
    case DType::kFp16:
      return wide ? avx512_loop<GradientKind::kFp16>(format, weights) : avx2_loop<GradientKind::kFp16>(format, weights);
  }
  return nullptr;
}

}  // namespace
}  // namespace headrace::cpu_adam

namespace headrace::perf {

double PortMix::cycles() const noexcept {
  return std::max({divider_cycles, vector_cycles, shuffle_cycles, memory_cycles});
}

PortMix count_adamw(cpu_adam::StateFormat format, DType weights, DType gradient, cpu_adam::Target target) {
  constexpr std::int64_t kElements = 64 * 256;
  std::vector<float> fp32(static_cast<std::size_t>(kElements));  // no value matters
  std::vector<float> more(fp32), yet_more(fp32), last(fp32);
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(kElements / cpu_adam::kCompactBlock), 127);
  cpu_adam::AdamWScalars scalars = {};
  scalars.moves = scalars.decays = scalars.flushes = true;
  const cpu_adam::AdamWSpan span{fp32.data(),   more.data(),   more.data(), yet_more.data(), last.data(),
                                 scales.data(), scales.data(), fp32.data(), kElements,       0,
                                 false};
  const bool wide = target == cpu_adam::Target::kAvx512;
  counts = {};
  cpu_adam::loop_of(format, weights, gradient, wide)(span, scalars);
  const auto n = static_cast<double>(kElements);
  PortMix mix;
  mix.divides = counts.divides / n;
  mix.roots = counts.roots / n;
  mix.arithmetic = counts.arithmetic / n;
  mix.bound = counts.bound / n;
  mix.shuffles = counts.shuffles / n;
  mix.loads = counts.loads / n;
  mix.stores = counts.stores / n;
  // Reciprocal throughputs: vdivps 5 cycles for 32 bytes and 10 for 64, vsqrtps 6 and 12; both widths alike for one
  // element.
  mix.divider_cycles = 5.0 / 8 * mix.divides + 6.0 / 8 * mix.roots;
  mix.vector_cycles = std::max((mix.arithmetic + mix.shuffles) / (wide ? 2 : 3), mix.bound / (wide ? 1 : 2));
  // Of 32 bytes some shuffles run on two ports; of 64 bytes, and masks, all on one.
  mix.shuffle_cycles = mix.shuffles / (wide ? 1 : 2);
  mix.memory_cycles = std::max(mix.loads / (wide ? 2 : 3), mix.stores / (wide ? 1 : 2));
  return mix;
}

double measure_clock() {
#ifdef __x86_64__
  constexpr int kRuns = 50;
  constexpr std::int64_t kTurns = 30'000;
  constexpr double kCycles = 10 * 3;  // of a turn: a product of two registers takes three
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    std::uint64_t x = 1;
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < kTurns; ++i) {
      asm volatile(
          "imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0\n\t"
          "imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0"
          : "+r"(x));
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return kTurns * kCycles / best;
#else
  return 0;
#endif
}

}  // namespace headrace::perf
