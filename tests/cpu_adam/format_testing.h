// SPDX-License-Identifier: Apache-2.0
// What the tests of the state formats share: a state of any format with bf16 weights as guarded planes, and fp32 views
// of it.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "adamw_testing.h"
#include "cpu_adam/format_state.h"

namespace headrace::cpu_adam::testing {

inline constexpr StateFormat kNarrowFormats[] = {StateFormat::kSplitBf16, StateFormat::kCompact};
inline constexpr StateFormat kBf16Formats[] = {StateFormat::kFp32, StateFormat::kSplit, StateFormat::kSplitBf16,
                                               StateFormat::kCompact};

// The values of a state in fp32.
struct Wide {
  explicit Wide(std::int64_t n)
      : master(static_cast<std::size_t>(n)),
        exp_avg(static_cast<std::size_t>(n)),
        exp_avg_sq(static_cast<std::size_t>(n)) {}
  std::vector<float> master, exp_avg, exp_avg_sq;
};

// bf16 weights and the planes of the format, each array at its own misalignment and between guards.
class FormatState {
 public:
  FormatState(StateFormat f, std::int64_t n, std::int64_t offset)
      : format(f),
        elements(n),
        weights(n, offset),
        master(f == StateFormat::kFp32 ? n : 0, offset),
        planes{GuardedArray<std::uint8_t>(n * remainder_bytes(), offset * remainder_bytes()),
               GuardedArray<std::uint8_t>(n * moment_bytes(), offset * moment_bytes()),
               GuardedArray<std::uint8_t>(n * moment_bytes(), offset * moment_bytes()),
               GuardedArray<std::uint8_t>(scales(), offset), GuardedArray<std::uint8_t>(scales(), offset)} {}

  AdamWArrays arrays() {
    AdamWArrays a;
    a.weights = weights.data();
    a.weights_dtype = DType::kBf16;
    if (format == StateFormat::kFp32) a.master = master.data();
    if (format != StateFormat::kFp32) a.remainder = planes[0].data();
    a.exp_avg = planes[1].data();
    a.exp_avg_sq = planes[2].data();
    if (format == StateFormat::kCompact) {
      a.exp_avg_scale = planes[3].data();
      a.exp_avg_sq_scale = planes[4].data();
    }
    a.elements = elements;
    return a;
  }
  AdamWArrays arrays(Gradient& gradient) {
    AdamWArrays a = arrays();
    a.gradient = gradient.data();
    a.gradient_dtype = gradient.dtype;
    return a;
  }
  void narrow(const Wide& wide) {
    const Result<void> done = narrow_state(wide.master, wide.exp_avg, wide.exp_avg_sq, format, arrays());
    ASSERT_TRUE(done.ok()) << done.error().message;
  }
  [[nodiscard]] Wide widen() {
    Wide wide(elements);
    widen_state(arrays(), format, wide.master, wide.exp_avg, wide.exp_avg_sq);
    return wide;
  }
  [[nodiscard]] bool guards_intact() const {
    bool intact = weights.guards_intact() && master.guards_intact();
    for (const auto& plane : planes) intact = intact && plane.guards_intact();
    return intact;
  }
  [[nodiscard]] bool same_bits(const FormatState& o) const {
    bool same = weights.same_bits(o.weights) && master.same_bits(o.master);
    for (std::size_t j = 0; j < planes.size(); ++j) same = same && planes[j].same_bits(o.planes[j]);
    return same;
  }
  // Elements begin … end of the state: kCompact from a multiple of a block.
  AdamWArrays part(Gradient& gradient, std::int64_t begin, std::int64_t end) {
    AdamWArrays a = arrays(gradient);
    const auto moved = [begin](void* array, std::int64_t bytes) -> void* {
      return array == nullptr ? nullptr : static_cast<std::byte*>(array) + begin * bytes;
    };
    a.weights = moved(a.weights, 2);
    if (a.master != nullptr) a.master += begin;
    a.remainder = moved(a.remainder, remainder_bytes());
    a.exp_avg = moved(a.exp_avg, moment_bytes());
    a.exp_avg_sq = moved(a.exp_avg_sq, moment_bytes());
    if (a.exp_avg_scale != nullptr) a.exp_avg_scale += begin / kCompactBlockElements;
    if (a.exp_avg_sq_scale != nullptr) a.exp_avg_sq_scale += begin / kCompactBlockElements;
    a.gradient = static_cast<const std::byte*>(a.gradient) + begin * dtype_bytes(a.gradient_dtype);
    a.elements = end - begin;
    a.first_element = begin;
    return a;
  }

  StateFormat format;
  std::int64_t elements;
  GuardedArray<std::uint16_t> weights;
  GuardedArray<float> master;
  std::array<GuardedArray<std::uint8_t>, 5> planes;  // remainder, exp_avg, exp_avg_sq, their scales

 private:
  [[nodiscard]] std::int64_t remainder_bytes() const {
    return format == StateFormat::kFp32 ? 0 : (format == StateFormat::kCompact ? 1 : 2);
  }
  [[nodiscard]] std::int64_t moment_bytes() const {
    return format == StateFormat::kCompact ? 1 : (format == StateFormat::kSplitBf16 ? 2 : 4);
  }
  [[nodiscard]] std::int64_t scales() const {
    return format == StateFormat::kCompact ? ceil_div(elements, kCompactBlockElements) : 0;
  }
};

// A reachable state: |exp_avg| is at most a few times the root of exp_avg_sq; sizes over `decades` decades.
inline Wide random_state(std::int64_t n, Random& random, double decades) {
  Wide wide(n);
  for (std::size_t i = 0; i < wide.master.size(); ++i) {
    const double size = std::pow(10.0, random.uniform(-decades, 0));
    wide.master[i] = random.weight();
    wide.exp_avg[i] = static_cast<float>(size * random.uniform(-1, 1));
    wide.exp_avg_sq[i] = static_cast<float>(size * size);
  }
  return wide;
}

inline void fill_gradient(Gradient& gradient, std::int64_t n, Random& random) {
  for (std::int64_t i = 0; i < n; ++i) gradient.set(i, random.gradient());
}

}  // namespace headrace::cpu_adam::testing
