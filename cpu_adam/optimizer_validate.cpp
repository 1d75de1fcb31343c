// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {
namespace {

// Checks of one optimizer's numbers; the first fault is kept.
class Checker {
 public:
  explicit Checker(OptimizerKind kind) : kind_(kind) {}
  void expect(bool holds, const char* name, double value, const char* rule) {
    if (holds || !result_.ok()) return;
    result_ = make_error(ErrorCode::kConfig,
                         fmt::format("{}: {} is {}, but must be {}", optimizer_name(kind_), name, value, rule));
  }
  // Also that fp32, in which it is used, still knows the number.
  void not_negative(const char* name, double value) {
    expect(std::isfinite(value) && value >= 0, name, value, "finite and not negative");
    expect(std::isfinite(static_cast<float>(value)), name, value, "within the range of fp32");
  }
  void fraction(const char* name, double value) {
    expect(value >= 0 && value < 1, name, value, "in [0, 1)");
    expect(static_cast<float>(value) < 1, name, value, "in [0, 1) after rounding to fp32");
  }
  void small_positive(const char* name, double value) {
    not_negative(name, value);
    expect(value == 0 || static_cast<float>(value) > 0, name, value,
           "0 or a number that fp32 can tell from 0 (at least 1e-45)");
  }
  [[nodiscard]] Result<void> take() { return std::move(result_); }

 private:
  OptimizerKind kind_;
  Result<void> result_;
};

void check_adam(Checker& c, const OptimizerHyper& h) {
  c.fraction("beta1", h.beta1);
  c.fraction("beta2", h.beta2);
  c.small_positive("eps", h.eps);
  const double step_size = h.lr / (1.0 - std::pow(h.beta1, static_cast<double>(h.optimizer_step)));
  c.expect(std::isfinite(static_cast<float>(step_size)), "lr", h.lr, "such that lr / (1 - beta1^t) is within fp32");
}

void check_sgd(Checker& c, const OptimizerHyper& h) {
  c.not_negative("momentum", h.momentum);
  c.expect(std::isfinite(h.dampening) && std::isfinite(static_cast<float>(1.0 - h.dampening)), "dampening", h.dampening,
           "finite");
  if (!h.nesterov) return;
  c.expect(h.momentum > 0, "momentum", h.momentum, "above 0 with nesterov");
  c.expect(h.dampening == 0, "dampening", h.dampening, "0 with nesterov");
}

void check_adafactor(Checker& c, const OptimizerHyper& h) {
  c.expect(std::isfinite(h.beta2_decay) && h.beta2_decay <= 0, "beta2_decay", h.beta2_decay, "finite and not above 0");
  c.small_positive("eps1", h.eps1);
  c.not_negative("eps2", h.eps2);
  c.expect(std::isfinite(h.clip_threshold) && h.clip_threshold >= 1, "clip_threshold", h.clip_threshold,
           "finite and at least 1");
}

void check_muon(Checker& c, const OptimizerHyper& h) {
  c.fraction("momentum", h.momentum);
  constexpr int kMostSteps = 99;  // the iteration has long converged
  c.expect(h.newton_schulz_steps >= 1 && h.newton_schulz_steps <= kMostSteps, "newton_schulz_steps",
           h.newton_schulz_steps, "1 … 99");
  for (const double value : h.newton_schulz_coefficients) {
    c.expect(std::isfinite(static_cast<float>(value)), "newton_schulz_coefficients", value, "finite");
  }
  c.not_negative("newton_schulz_eps", h.newton_schulz_eps);
  c.expect(h.muon_scale == MuonScale::kKellerJordan || h.muon_scale == MuonScale::kMatchRmsAdamW, "muon_scale",
           static_cast<double>(h.muon_scale), "a value of MuonScale");
}

struct NamedArray {
  const char* name;
  const void* data;
  Bytes element_bytes;
  bool wanted;
};

Error bad_arrays(OptimizerKind kind, std::string message) {
  return make_error(ErrorCode::kFailed, fmt::format("{} arrays: {}", optimizer_name(kind), message));
}

Result<void> check_array(OptimizerKind kind, const NamedArray& array, std::int64_t elements) {
  if (!array.wanted) {
    if (array.data == nullptr) return {};
    return bad_arrays(
        kind, fmt::format("{} is given, but this optimizer, state format and weights dtype keep none", array.name));
  }
  if (elements == 0) return {};
  if (array.data == nullptr) return bad_arrays(kind, fmt::format("{} is null with {} elements", array.name, elements));
  const auto address = reinterpret_cast<std::uintptr_t>(array.data);
  if (address % static_cast<std::uintptr_t>(array.element_bytes) == 0) return {};
  return bad_arrays(kind, fmt::format("{} at {:#x} is not aligned to its element of {} bytes", array.name, address,
                                      array.element_bytes));
}

bool overlap(const NamedArray& a, const NamedArray& b, std::int64_t elements) {
  if (!a.wanted || !b.wanted) return false;
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data);
  return a_begin < b_begin + static_cast<std::uintptr_t>(elements * b.element_bytes) &&
         b_begin < a_begin + static_cast<std::uintptr_t>(elements * a.element_bytes);
}

bool is_dtype(DType dtype) { return dtype == DType::kFp32 || dtype == DType::kBf16 || dtype == DType::kFp16; }

Result<void> check_scalars_of_arrays(OptimizerKind kind, const OptimizerArrays& a, StateFormat format) {
  if (!is_dtype(a.weights_dtype) || !is_dtype(a.gradient_dtype)) {
    return bad_arrays(kind, fmt::format("unknown dtype: weights {}, gradient {}", static_cast<int>(a.weights_dtype),
                                        static_cast<int>(a.gradient_dtype)));
  }
  if (format != StateFormat::kFp32 && format != StateFormat::kSplit) {
    return make_error(ErrorCode::kConfig, fmt::format("{} keeps its state in fp32 or split, not in state format {}",
                                                      optimizer_name(kind), static_cast<int>(format)));
  }
  if (format == StateFormat::kSplit && a.weights_dtype != DType::kBf16) {
    return make_error(ErrorCode::kConfig, fmt::format("{}: the split format keeps bf16 weights, not {}",
                                                      optimizer_name(kind), dtype_name(a.weights_dtype)));
  }
  constexpr std::int64_t kMostElements = std::int64_t{1} << 60;  // byte counts stay far from overflow
  if (a.elements >= 0 && a.elements <= kMostElements) return {};
  return bad_arrays(kind, fmt::format("{} elements, but must be 0 … {}", a.elements, kMostElements));
}

}  // namespace

Result<void> validate(OptimizerKind kind, const OptimizerHyper& h) {
  Checker c(kind);
  if (h.optimizer_step < 1) {
    return make_error(ErrorCode::kConfig, fmt::format("{}: optimizer_step is {}, but the first update is number 1",
                                                      optimizer_name(kind), h.optimizer_step));
  }
  c.not_negative("lr", h.lr);
  c.not_negative("weight_decay", h.weight_decay);
  c.expect(std::isfinite(static_cast<float>(h.lr * h.weight_decay)), "weight_decay", h.weight_decay,
           "such that lr * weight_decay is within fp32");
  c.expect(std::isfinite(h.gradient_scale), "gradient_scale", static_cast<double>(h.gradient_scale), "finite");
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam: check_adam(c, h); break;
    case OptimizerKind::kLion:
      c.fraction("beta1", h.beta1);
      c.fraction("beta2", h.beta2);
      break;
    case OptimizerKind::kAdagrad:
      c.small_positive("eps", h.eps);
      c.not_negative("lr_decay", h.lr_decay);
      break;
    case OptimizerKind::kSgd: check_sgd(c, h); break;
    case OptimizerKind::kAdafactor: check_adafactor(c, h); break;
    case OptimizerKind::kMuon: check_muon(c, h); break;
  }
  return c.take();
}

Result<void> validate(OptimizerKind kind, const OptimizerArrays& a, StateFormat format, const OptimizerHyper& hyper) {
  if (!is_elementwise(kind)) {
    return bad_arrays(kind, "its update needs whole tensors and has an entry of its own");
  }
  return validate_arrays(kind, a, format, hyper);
}

Result<void> validate_matrix(OptimizerKind kind, const OptimizerArrays& a, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 31;  // products of two stay far from overflow
  if (rows < 1 || columns < 1 || rows > kLongest || columns > kLongest || rows * columns != a.elements) {
    return bad_arrays(kind, fmt::format("{} rows of {} columns do not make {} elements", rows, columns, a.elements));
  }
  return {};
}

Result<void> validate_workspace(OptimizerKind kind, std::span<const std::byte> workspace, Bytes needed) {
  constexpr std::uintptr_t kAlignment = 64;
  if (std::ssize(workspace) < needed) {
    return bad_arrays(kind, fmt::format("the workspace has {} bytes, but must have {}", workspace.size(), needed));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (address % kAlignment == 0) return {};
  return bad_arrays(kind, fmt::format("the workspace at {:#x} is not aligned to {} bytes", address, kAlignment));
}

Result<void> refuse_non_finite(OptimizerKind kind, const char* array, std::int64_t non_finite, std::int64_t elements) {
  if (non_finite == 0) return {};
  return make_error(ErrorCode::kNumeric,
                    fmt::format("{}: {} of the {}'s {} values are not finite; nothing was changed",
                                optimizer_name(kind), non_finite, array, elements),
                    "skip this step");
}

Result<void> validate_arrays(OptimizerKind kind, const OptimizerArrays& a, StateFormat format,
                             const OptimizerHyper& hyper) {
  HEADRACE_RETURN_IF_ERROR(check_scalars_of_arrays(kind, a, format));
  const std::span<const char* const> names = moment_names(kind, hyper);
  const auto moment = [&](std::size_t k) {
    return NamedArray{k < names.size() ? names[k] : (k == 0 ? "a first moment" : "a second moment"), a.moments[k], 4,
                      k < names.size()};
  };
  const bool split = format == StateFormat::kSplit;
  const NamedArray arrays[] = {
      {"weights", a.weights, dtype_bytes(a.weights_dtype), true},
      {"master", a.master, 4, !split && a.weights_dtype != DType::kFp32},
      {"remainder", a.remainder, 2, split},
      moment(0),
      moment(1),
      {"gradient", a.gradient, dtype_bytes(a.gradient_dtype), true},
  };
  for (const NamedArray& array : arrays) HEADRACE_RETURN_IF_ERROR(check_array(kind, array, a.elements));
  for (const NamedArray& first : arrays) {
    for (const NamedArray* second = &first + 1; second != std::end(arrays); ++second) {
      if (a.elements > 0 && overlap(first, *second, a.elements)) {
        return bad_arrays(kind,
                          fmt::format("{} and {} overlap within {} elements", first.name, second->name, a.elements));
      }
    }
  }
  return {};
}

}  // namespace headrace::cpu_adam
