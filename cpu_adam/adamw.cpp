// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/adamw.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

#include "core/check.h"
#include "cpu_adam/dispatch.h"

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
  bool wanted;
};

Result<void> validate_array(const NamedArray& array, std::int64_t elements) {
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

bool overlap(const NamedArray& a, const NamedArray& b, std::int64_t elements) {
  if (!a.wanted || !b.wanted) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + static_cast<std::uintptr_t>(elements * b.element_bytes) &&
         b_begin < a_begin + static_cast<std::uintptr_t>(elements * a.element_bytes);
}

bool is_dtype(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kBf16 || dtype == DType::kFp16; }

WeightKind weight_kind(DType weights, StateFormat format) noexcept {
  if (format == StateFormat::kSplit) return WeightKind::kSplit;
  switch (weights) {
    case DType::kFp32: return WeightKind::kFp32;
    case DType::kBf16: return WeightKind::kBf16Master;
    case DType::kFp16: return WeightKind::kFp16Master;
  }
  check_failed(__FILE__, __LINE__, "weights dtype", "unknown dtype of weights");
}

}  // namespace

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
  if (format != StateFormat::kFp32 && format != StateFormat::kSplit) {
    return bad_arrays(fmt::format("unknown state format {}", static_cast<int>(format)));
  }
  if (!is_dtype(a.weights_dtype) || !is_dtype(a.gradient_dtype)) {
    return bad_arrays(fmt::format("unknown dtype: weights {}, gradient {}", static_cast<int>(a.weights_dtype),
                                  static_cast<int>(a.gradient_dtype)));
  }
  constexpr std::int64_t kMostElements = std::int64_t{1} << 60;  // byte counts stay far from overflow
  if (a.elements < 0 || a.elements > kMostElements) {
    return bad_arrays(fmt::format("{} elements, but must be 0 … {}", a.elements, kMostElements));
  }
  const bool split = format == StateFormat::kSplit;
  if (split && a.weights_dtype != DType::kBf16) {
    return bad_arrays(fmt::format("the split format keeps bf16 weights, not {}", dtype_name(a.weights_dtype)));
  }
  const NamedArray arrays[] = {
      {"weights", a.weights, dtype_bytes(a.weights_dtype), true},
      {"master", a.master, 4, !split && a.weights_dtype != DType::kFp32},
      {"remainder", a.remainder, 2, split},
      {"exp_avg", a.exp_avg, 4, true},
      {"exp_avg_sq", a.exp_avg_sq, 4, true},
      {"gradient", a.gradient, dtype_bytes(a.gradient_dtype), true},
  };
  for (const NamedArray& array : arrays) HEADRACE_RETURN_IF_ERROR(validate_array(array, a.elements));
  for (const NamedArray& first : arrays) {
    for (const NamedArray* second = &first + 1; second != std::end(arrays); ++second) {
      if (a.elements > 0 && overlap(first, *second, a.elements)) {
        return bad_arrays(fmt::format("{} and {} overlap within {} elements", first.name, second->name, a.elements));
      }
    }
  }
  return {};
}

const KernelTable& kernel_table(Target target) noexcept {
#ifdef HEADRACE_X86_KERNELS
  if (target == Target::kAvx512) return kAvx512Kernels;
  if (target == Target::kAvx2) return kAvx2Kernels;
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

AdamWSpan make_span(const AdamWArrays& a, std::int64_t begin, std::int64_t elements) noexcept {
  return {static_cast<std::byte*>(a.weights) + begin * dtype_bytes(a.weights_dtype),
          a.master == nullptr ? nullptr : a.master + begin,
          a.remainder == nullptr ? nullptr : a.remainder + begin,
          a.exp_avg + begin,
          a.exp_avg_sq + begin,
          static_cast<const std::byte*>(a.gradient) + begin * dtype_bytes(a.gradient_dtype),
          elements};
}

void adamw_update(const AdamWArrays& arrays, StateFormat format, const AdamWHyper& hyper, Target target) noexcept {
  if (arrays.elements == 0) return;
  select_adamw(arrays, format, target)(make_span(arrays, 0, arrays.elements), make_scalars(hyper));
}

}  // namespace headrace::cpu_adam
