// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/adamw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/check.h"
#include "cpu_adam/dispatch.h"
#include "cpu_adam/format_random.h"

namespace headrace::cpu_adam {
namespace {

Error bad_hyper(const char* name, double value, const char* rule) {
  return make_error(ErrorCode::kConfig, fmt::format("AdamW: {} is {}, but must be {}", name, value, rule));
}

Error bad_arrays(std::string message) { return make_error(ErrorCode::kFailed, "AdamW arrays: " + std::move(message)); }

struct NamedArray {
  const char* name;
  const void* data;
  Bytes element_bytes;
  std::int64_t elements;
  bool wanted;
};

Result<void> validate_array(const NamedArray& array) {
  const std::int64_t elements = array.elements;
  if (!array.wanted) {
    if (array.data == nullptr) return {};
    return bad_arrays(fmt::format("{} is given, but this state format and weights dtype keep none", array.name));
  }
  if (elements == 0) return {};
  if (array.data == nullptr) return bad_arrays(fmt::format("{} is null with {} elements", array.name, elements));
  const auto address = reinterpret_cast<std::uintptr_t>(array.data);
  if (address % static_cast<std::uintptr_t>(array.element_bytes) != 0) {
    return bad_arrays(
        fmt::format("{} at {:#x} is not aligned to its element of {} bytes", array.name, address, array.element_bytes));
  }
  return {};
}

bool overlap(const NamedArray& a, const NamedArray& b) {
  if (!a.wanted || !b.wanted || a.elements == 0) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + static_cast<std::uintptr_t>(b.elements * b.element_bytes) &&
         b_begin < a_begin + static_cast<std::uintptr_t>(a.elements * a.element_bytes);
}

bool is_dtype(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kBf16 || dtype == DType::kFp16; }

Result<void> validate_range(const AdamWArrays& a, StateFormat format) {
  constexpr std::int64_t kMostElements = std::int64_t{1} << 60;  // byte counts stay far from overflow
  if (a.elements < 0 || a.elements > kMostElements) {
    return bad_arrays(fmt::format("{} elements, but must be 0 … {}", a.elements, kMostElements));
  }
  if (a.first_element < 0 || a.first_element > kMostElements) {
    return bad_arrays(fmt::format("first_element is {}, but must be 0 … {}", a.first_element, kMostElements));
  }
  if (format == StateFormat::kCompact && a.first_element % kCompactBlockElements != 0) {
    return bad_arrays(
        fmt::format("first_element is {}, but the compact format shares scales among {} elements: give a multiple",
                    a.first_element, kCompactBlockElements));
  }
  return {};
}

}  // namespace

const char* state_format_name(StateFormat format) noexcept {
  switch (format) {
    case StateFormat::kFp32: return "fp32";
    case StateFormat::kSplit: return "split";
    case StateFormat::kSplitBf16: return "split_bf16";
    case StateFormat::kCompact: return "compact";
  }
  return "?";
}

Result<void> validate(const AdamWHyper& h) {
  if (!std::isfinite(h.lr) || h.lr < 0) return bad_hyper("lr", h.lr, "finite and not negative");
  if (!(h.beta1 >= 0 && h.beta1 < 1)) return bad_hyper("beta1", h.beta1, "in [0, 1)");
  if (!(h.beta2 >= 0 && h.beta2 < 1)) return bad_hyper("beta2", h.beta2, "in [0, 1)");
  if (!std::isfinite(h.eps) || h.eps < 0) return bad_hyper("eps", h.eps, "finite and not negative");
  if (!std::isfinite(h.weight_decay) || h.weight_decay < 0) {
    return bad_hyper("weight_decay", h.weight_decay, "finite and not negative");
  }
  if (h.optimizer_step < 1) {
    return make_error(ErrorCode::kConfig,
                      fmt::format("AdamW: optimizer_step is {}, but the first update is number 1", h.optimizer_step));
  }
  if (!std::isfinite(h.gradient_scale))
    return bad_hyper("gradient_scale", static_cast<double>(h.gradient_scale), "finite");
  const AdamWScalars scalars = make_scalars(h);
  if (h.eps > 0 && scalars.eps == 0)
    return bad_hyper("eps", h.eps, "0 or a number that fp32 can tell from 0 (at least 1e-45)");
  if (!std::isfinite(scalars.eps)) return bad_hyper("eps", h.eps, "within the range of fp32");
  if (!std::isfinite(scalars.step_size)) return bad_hyper("lr", h.lr, "such that lr / (1 - beta1^t) is within fp32");
  if (!std::isfinite(scalars.decay))
    return bad_hyper("weight_decay", h.weight_decay, "such that lr * weight_decay is within fp32");
  if (!(scalars.beta1 < 1)) return bad_hyper("beta1", h.beta1, "in [0, 1) after rounding to fp32");
  if (!(scalars.beta2 < 1)) return bad_hyper("beta2", h.beta2, "in [0, 1) after rounding to fp32");
  return {};
}

Result<void> validate(const AdamWArrays& a, StateFormat format) {
  if (format > StateFormat::kCompact) {
    return bad_arrays(fmt::format("unknown state format {}", static_cast<int>(format)));
  }
  if (!is_dtype(a.weights_dtype) || !is_dtype(a.gradient_dtype)) {
    return bad_arrays(fmt::format("unknown dtype: weights {}, gradient {}", static_cast<int>(a.weights_dtype),
                                  static_cast<int>(a.gradient_dtype)));
  }
  if (format != StateFormat::kFp32 && a.weights_dtype != DType::kBf16) {
    return bad_arrays(fmt::format("the {} format keeps bf16 weights, not {}", state_format_name(format),
                                  dtype_name(a.weights_dtype)));
  }
  HEADRACE_RETURN_IF_ERROR(validate_range(a, format));
  const bool compact = format == StateFormat::kCompact;
  const std::int64_t n = a.elements;
  const std::int64_t scales = ceil_div(n, kCompactBlockElements);
  const Bytes moment = compact ? 1 : (format == StateFormat::kSplitBf16 ? 2 : 4);
  const NamedArray arrays[] = {
      {"weights", a.weights, dtype_bytes(a.weights_dtype), n, true},
      {"master", a.master, 4, n, format == StateFormat::kFp32 && a.weights_dtype != DType::kFp32},
      {"remainder", a.remainder, compact ? 1 : 2, n, format != StateFormat::kFp32},
      {"exp_avg", a.exp_avg, moment, n, true},
      {"exp_avg_sq", a.exp_avg_sq, moment, n, true},
      {"exp_avg_scale", a.exp_avg_scale, 1, scales, compact},
      {"exp_avg_sq_scale", a.exp_avg_sq_scale, 1, scales, compact},
      {"gradient", a.gradient, dtype_bytes(a.gradient_dtype), n, true},
  };
  for (const NamedArray& array : arrays) HEADRACE_RETURN_IF_ERROR(validate_array(array));
  for (const NamedArray& first : arrays) {
    for (const NamedArray* second = &first + 1; second != std::end(arrays); ++second) {
      if (overlap(first, *second))
        return bad_arrays(fmt::format("{} and {} overlap within {} elements", first.name, second->name, n));
    }
  }
  return {};
}

const KernelTable& kernel_table(Target target) noexcept {
#ifdef HEADRACE_X86_KERNELS
  if (target == Target::kAvx512) return kAvx512Kernels;
  if (target == Target::kAvx2) return kAvx2Kernels;
#endif
#ifdef HEADRACE_NEON_KERNELS
  if (target == Target::kNeon) return kNeonKernels;
#endif
  HEADRACE_CHECK(target == Target::kScalar, "the target is not built for this machine");
  return kScalarKernels;
}

AdamWScalars make_scalars(const AdamWHyper& h) noexcept {
  const auto t = static_cast<double>(h.optimizer_step);
  const double correction1 = 1.0 - std::pow(h.beta1, t);
  const double correction2 = 1.0 - std::pow(h.beta2, t);
  AdamWScalars s = {};
  s.gradient_scale = h.gradient_scale;
  s.beta1 = static_cast<float>(h.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
  s.beta2 = static_cast<float>(h.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
  s.inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(correction2));
  s.eps = static_cast<float>(h.eps);
  s.step_size = static_cast<float>(h.lr / correction1);
  s.decay = static_cast<float>(h.lr * h.weight_decay);
  s.moves = h.lr != 0;
  s.decays = s.decay != 0;
  // Without gradients a moment decays to a subnormal and, rounded to nearest, stays one for good: 0.9 times the
  // smallest is the smallest. Arithmetic on it is more than ten times slower. Beside such an eps it changes no digit of
  // the step.
  s.flushes = h.eps >= 1e-12;
  return s;
}

WeightKind weight_kind(DType weights, StateFormat format) noexcept {
  if (format == StateFormat::kSplit) return WeightKind::kSplit;
  if (format == StateFormat::kSplitBf16) return WeightKind::kSplitBf16;
  if (format == StateFormat::kCompact) return WeightKind::kCompact;
  switch (weights) {
    case DType::kFp32: return WeightKind::kFp32;
    case DType::kBf16: return WeightKind::kBf16Master;
    case DType::kFp16: return WeightKind::kFp16Master;
  }
  check_failed(__FILE__, __LINE__, "weights dtype", "unknown dtype of weights");
}

GradientKind gradient_kind(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFp32: return GradientKind::kFp32;
    case DType::kBf16: return GradientKind::kBf16;
    case DType::kFp16: return GradientKind::kFp16;
  }
  check_failed(__FILE__, __LINE__, "gradient dtype", "unknown dtype of a gradient");
}

AdamWFn select_adamw(const AdamWArrays& arrays, StateFormat format, Target target) noexcept {
  const auto weights = static_cast<std::size_t>(weight_kind(arrays.weights_dtype, format));
  return kernel_table(target).adamw[weights][static_cast<std::size_t>(gradient_kind(arrays.gradient_dtype))];
}

namespace {

bool rounds_stochastically(StateFormat format) noexcept {
  return format == StateFormat::kSplitBf16 || format == StateFormat::kCompact;
}

template <class T>
T* advanced(T* array, std::int64_t elements) noexcept {
  return array == nullptr ? nullptr : array + elements;
}
std::byte* advanced(void* array, Bytes bytes) noexcept { return advanced(static_cast<std::byte*>(array), bytes); }

// From so many elements on, weights of which nothing is read (they have a master) are written past the caches, which
// saves reading their lines: 5 % of the time. Arrays of fewer may stay in the caches for whoever uses the weights next.
constexpr std::int64_t kStreamElements = 1 << 18;

AdamWSpan make_span(const AdamWArrays& a, StateFormat format, std::int64_t begin, std::int64_t elements) noexcept {
  const Bytes moment = format == StateFormat::kCompact ? 1 : (format == StateFormat::kSplitBf16 ? 2 : 4);
  const Bytes remainder = format == StateFormat::kCompact ? 1 : 2;
  AdamWSpan span = {};
  span.weights = advanced(a.weights, begin * dtype_bytes(a.weights_dtype));
  span.master = advanced(a.master, begin);
  span.remainder = advanced(a.remainder, begin * remainder);
  span.exp_avg = advanced(a.exp_avg, begin * moment);
  span.exp_avg_sq = advanced(a.exp_avg_sq, begin * moment);
  span.exp_avg_scale = advanced(a.exp_avg_scale, begin / kCompactBlockElements);
  span.exp_avg_sq_scale = advanced(a.exp_avg_sq_scale, begin / kCompactBlockElements);
  span.gradient = static_cast<const std::byte*>(a.gradient) + begin * dtype_bytes(a.gradient_dtype);
  span.elements = elements;
  span.streams_weights = a.elements >= kStreamElements && reinterpret_cast<std::uintptr_t>(span.weights) % 64 == 0;
  span.first_index = static_cast<std::uint32_t>(a.first_element + begin);
  return span;
}

}  // namespace

UpdateCall::UpdateCall(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper, Target target) noexcept
    : arrays_(arrays),
      format_(format),
      scalars_(make_scalars(hyper)),
      step_(hyper.optimizer_step),
      seed_(hyper.rounding_seed),
      update_(select_adamw(arrays, format, target)) {}

void UpdateCall::run(std::int64_t begin, std::int64_t elements) const noexcept {
  AdamWScalars scalars = scalars_;
  const std::int64_t end = begin + elements;
  while (begin < end) {
    std::int64_t length = end - begin;
    if (rounds_stochastically(format_)) {  // a key serves the elements up to the next multiple of 2^32
      const std::int64_t element = arrays_.first_element + begin;
      length = std::min(length, (std::int64_t{1} << 32) - (element & 0xFFFFFFFF));
      const RoundingKey key = rounding_key(seed_, step_, arrays_.stream, element);
      std::copy(key.begin(), key.end(), scalars.rounding_key);
    }
    update_(make_span(arrays_, format_, begin, length), scalars);
    begin += length;
  }
}

void adamw_update(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper, Target target) noexcept {
  UpdateCall(arrays, format, hyper, target).run(0, arrays.elements);
}

}  // namespace headrace::cpu_adam
