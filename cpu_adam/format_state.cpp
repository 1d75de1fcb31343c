// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/format_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cpu_adam/format_compact.h"

namespace headrace::cpu_adam {
namespace {

struct ElementBytes {
  Bytes master, remainder, moment;
};

ElementBytes element_bytes(StateFormat format, DType weights) noexcept {
  switch (format) {
    case StateFormat::kFp32: return {weights == DType::kFp32 ? 0 : 4, 0, 4};
    case StateFormat::kSplit: return {0, 2, 4};
    case StateFormat::kSplitBf16: return {0, 2, 2};
    case StateFormat::kCompact: return {0, 1, 1};
  }
  check_failed(__FILE__, __LINE__, "state format", "unknown state format");
}

template <class T>
T* as(void* array) noexcept {
  return static_cast<T*>(array);
}

float master_at(const AdamWArrays& a, StateFormat format, std::int64_t i) noexcept {
  if (format == StateFormat::kFp32) return a.weights_dtype == DType::kFp32 ? as<float>(a.weights)[i] : a.master[i];
  const std::uint16_t high = as<std::uint16_t>(a.weights)[i];
  if (format == StateFormat::kCompact) return join_compact(high, as<std::int8_t>(a.remainder)[i]);
  return join_master({high, as<std::int16_t>(a.remainder)[i]});
}

void put_master(const AdamWArrays& a, StateFormat format, std::int64_t i, float value) noexcept {
  if (format == StateFormat::kFp32 && a.weights_dtype == DType::kFp32) {
    as<float>(a.weights)[i] = value;
    return;
  }
  auto& weight = as<std::uint16_t>(a.weights)[i];
  if (format == StateFormat::kCompact) {
    const CompactMaster compact = split_compact(value);
    weight = compact.high;
    as<std::int8_t>(a.remainder)[i] = compact.low;
    return;
  }
  const SplitMaster split = split_master(value);
  weight = a.weights_dtype == DType::kFp16 ? to_fp16(value).bits : split.hi;
  if (format == StateFormat::kFp32) a.master[i] = value;
  if (format != StateFormat::kFp32) as<std::int16_t>(a.remainder)[i] = split.lo;
}

void widen_moments(const AdamWArrays& a, StateFormat format, std::int64_t i, float& m, float& v) noexcept {
  if (format == StateFormat::kSplitBf16) {
    m = to_fp32(Bf16{as<std::uint16_t>(a.exp_avg)[i]});
    v = to_fp32(Bf16{as<std::uint16_t>(a.exp_avg_sq)[i]});
  } else if (format == StateFormat::kCompact) {
    const std::int64_t block = i / kCompactBlockElements;
    m = exp_avg_of(as<std::int8_t>(a.exp_avg)[i], a.exp_avg_scale[block]);
    v = exp_avg_sq_of(as<std::uint8_t>(a.exp_avg_sq)[i], a.exp_avg_sq_scale[block]);
  } else {
    m = as<float>(a.exp_avg)[i];
    v = as<float>(a.exp_avg_sq)[i];
  }
}

// The nearest bf16, but the smallest of all rather than zero.
std::uint16_t nonzero_bf16(float v) noexcept {
  const std::uint16_t bits = to_bf16(v).bits;
  return v > 0 && bits == 0 ? std::uint16_t{1} : bits;
}

void narrow_moments(std::span<const float> m, std::span<const float> v, StateFormat format,
                    const AdamWArrays& a) noexcept {
  if (format == StateFormat::kCompact) {
    for (std::int64_t i = 0; i < a.elements; i += kCompactBlockElements) {
      const auto at = static_cast<std::size_t>(i);
      const std::size_t count = std::min<std::size_t>(kCompactBlockElements, m.size() - at);
      const std::int64_t block = i / kCompactBlockElements;
      a.exp_avg_scale[block] = narrow_exp_avg(m.subspan(at, count), as<std::int8_t>(a.exp_avg) + i);
      a.exp_avg_sq_scale[block] = narrow_exp_avg_sq(v.subspan(at, count), as<std::uint8_t>(a.exp_avg_sq) + i);
    }
    return;
  }
  for (std::size_t i = 0; i < m.size(); ++i) {
    if (format == StateFormat::kSplitBf16) {
      as<std::uint16_t>(a.exp_avg)[i] = to_bf16(m[i]).bits;
      as<std::uint16_t>(a.exp_avg_sq)[i] = nonzero_bf16(v[i]);
    } else {
      as<float>(a.exp_avg)[i] = m[i];
      as<float>(a.exp_avg_sq)[i] = v[i];
    }
  }
}

}  // namespace

StatePlanes state_planes(StateFormat format, DType weights_dtype, std::int64_t length, int moments) noexcept {
  HEADRACE_CHECK(moments == 2 || (moments >= 0 && moments < 2 && format <= StateFormat::kSplit),
                 "only formats with fp32 moments have fewer of them");
  constexpr std::int64_t kPlaneElements = 64;
  const std::int64_t plane = round_up(length, kPlaneElements);
  const ElementBytes element = element_bytes(format, weights_dtype);
  StatePlanes planes;
  Bytes next = 0;
  const auto lay = [&next](Bytes bytes) {
    const Bytes at = next;
    next += bytes;
    return bytes == 0 ? StatePlanes::kNone : at;
  };
  const Bytes scales = format == StateFormat::kCompact ? round_up(plane / kCompactBlockElements, kPlaneElements) : 0;
  planes.master = lay(element.master * plane);
  planes.remainder = lay(element.remainder * plane);
  planes.exp_avg = lay(moments > 0 ? element.moment * plane : 0);
  planes.exp_avg_sq = lay(moments > 1 ? element.moment * plane : 0);
  planes.exp_avg_scale = lay(scales);
  planes.exp_avg_sq_scale = lay(scales);
  planes.bytes = next;
  return planes;
}

void point_at_state(AdamWArrays& arrays, StateFormat format, const StatePlanes& planes, std::byte* state,
                    std::int64_t at) noexcept {
  const ElementBytes element = element_bytes(format, arrays.weights_dtype);
  const auto plane = [&](Bytes offset, Bytes bytes) -> std::byte* {
    return offset == StatePlanes::kNone ? nullptr : state + offset + at * bytes;
  };
  const auto scales = [&](Bytes offset) -> std::uint8_t* {
    if (offset == StatePlanes::kNone) return nullptr;
    HEADRACE_CHECK(at % kCompactBlockElements == 0, "a piece of a compact state begins inside of a block");
    return reinterpret_cast<std::uint8_t*>(state + offset) + at / kCompactBlockElements;
  };
  arrays.master = reinterpret_cast<float*>(plane(planes.master, element.master));
  arrays.remainder = plane(planes.remainder, element.remainder);
  arrays.exp_avg = plane(planes.exp_avg, element.moment);
  arrays.exp_avg_sq = plane(planes.exp_avg_sq, element.moment);
  arrays.exp_avg_scale = scales(planes.exp_avg_scale);
  arrays.exp_avg_sq_scale = scales(planes.exp_avg_sq_scale);
}

void widen_state(const AdamWArrays& arrays, StateFormat format, std::span<float> master, std::span<float> exp_avg,
                 std::span<float> exp_avg_sq) noexcept {
  HEADRACE_CHECK(std::ssize(master) == arrays.elements && std::ssize(exp_avg) == arrays.elements &&
                     std::ssize(exp_avg_sq) == arrays.elements,
                 "a state is widened into as many values as it has elements");
  for (std::int64_t i = 0; i < arrays.elements; ++i) {
    const auto at = static_cast<std::size_t>(i);
    master[at] = master_at(arrays, format, i);
    widen_moments(arrays, format, i, exp_avg[at], exp_avg_sq[at]);
  }
}

Result<void> narrow_state(std::span<const float> master, std::span<const float> exp_avg,
                          std::span<const float> exp_avg_sq, StateFormat format, const AdamWArrays& arrays) {
  HEADRACE_CHECK(std::ssize(master) == arrays.elements && std::ssize(exp_avg) == arrays.elements &&
                     std::ssize(exp_avg_sq) == arrays.elements,
                 "a state is narrowed from as many values as it has elements");
  for (std::size_t i = 0; i < exp_avg.size(); ++i) {
    const bool finite = std::isfinite(exp_avg[i]) && std::isfinite(exp_avg_sq[i]);
    if (exp_avg_sq[i] < 0 || (format == StateFormat::kCompact && !finite)) {
      return make_error(ErrorCode::kNumeric,
                        fmt::format("element {} has exp_avg {} and exp_avg_sq {}: the {} format cannot keep them", i,
                                    exp_avg[i], exp_avg_sq[i], state_format_name(format)));
    }
  }
  for (std::int64_t i = 0; i < arrays.elements; ++i) {
    put_master(arrays, format, i, master[static_cast<std::size_t>(i)]);
  }
  narrow_moments(exp_avg, exp_avg_sq, format, arrays);
  return {};
}

}  // namespace headrace::cpu_adam
