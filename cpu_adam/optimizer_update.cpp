// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>

#include "core/check.h"
#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {
namespace {

constexpr double kLeastFlushingEps = 1e-12;  // beside a smaller eps a subnormal moment still shows; as AdamW

OptimizerScalars adam_scalars(const OptimizerHyper& h) noexcept {
  const auto t = static_cast<double>(h.optimizer_step);
  OptimizerScalars s = {};
  s.l2 = static_cast<float>(h.weight_decay);
  s.beta1 = static_cast<float>(h.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
  s.beta2 = static_cast<float>(h.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
  s.inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(h.beta2, t)));
  s.eps = static_cast<float>(h.eps);
  s.step_size = static_cast<float>(h.lr / (1.0 - std::pow(h.beta1, t)));
  s.flushes = h.eps >= kLeastFlushingEps;
  return s;
}

OptimizerScalars lion_scalars(const OptimizerHyper& h) noexcept {
  OptimizerScalars s = {};
  s.decay = static_cast<float>(h.lr * h.weight_decay);
  s.beta1 = static_cast<float>(h.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - h.beta1);
  s.beta2 = static_cast<float>(h.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - h.beta2);
  s.step_size = static_cast<float>(h.lr);
  return s;
}

OptimizerScalars adagrad_scalars(const OptimizerHyper& h) noexcept {
  OptimizerScalars s = {};
  s.l2 = static_cast<float>(h.weight_decay);
  s.eps = static_cast<float>(h.eps);
  s.step_size = static_cast<float>(h.lr / (1.0 + static_cast<double>(h.optimizer_step - 1) * h.lr_decay));
  return s;
}

OptimizerScalars sgd_scalars(const OptimizerHyper& h) noexcept {
  OptimizerScalars s = {};
  s.l2 = static_cast<float>(h.weight_decay);
  s.beta1 = static_cast<float>(h.momentum);
  s.one_minus_beta2 = static_cast<float>(1.0 - h.dampening);
  s.step_size = static_cast<float>(h.lr);
  s.flushes = true;
  s.first = h.optimizer_step == 1;
  s.nesterov = h.nesterov;
  return s;
}

struct Rule {
  UpdateRule rule;
  OptimizerScalars scalars;
};

Rule rule_of(OptimizerKind kind, const OptimizerHyper& h) noexcept {
  switch (kind) {
    case OptimizerKind::kAdam: return {UpdateRule::kAdam, adam_scalars(h)};
    case OptimizerKind::kLion: return {UpdateRule::kLion, lion_scalars(h)};
    case OptimizerKind::kAdagrad: return {UpdateRule::kAdagrad, adagrad_scalars(h)};
    case OptimizerKind::kSgd: return {h.momentum == 0 ? UpdateRule::kStep : UpdateRule::kMomentum, sgd_scalars(h)};
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdafactor:
    case OptimizerKind::kMuon: break;
  }
  check_failed(__FILE__, __LINE__, "optimizer kind", "this optimizer has no elementwise rule here");
}

void update_adamw(const OptimizerArrays& a, StateFormat format, const OptimizerHyper& h, Target target) noexcept {
  AdamWArrays arrays;
  arrays.weights = a.weights;
  arrays.weights_dtype = a.weights_dtype;
  arrays.master = a.master;
  arrays.remainder = a.remainder;
  arrays.exp_avg = a.moments[0];
  arrays.exp_avg_sq = a.moments[1];
  arrays.gradient = a.gradient;
  arrays.gradient_dtype = a.gradient_dtype;
  arrays.elements = a.elements;
  adamw_update(arrays, format, adamw_hyper(h), target);
}

}  // namespace

const OptimizerTable& optimizer_table(Target target) noexcept {
#ifdef HEADRACE_X86_KERNELS
  if (target == Target::kAvx512) return kAvx512Optimizers;
  if (target == Target::kAvx2) return kAvx2Optimizers;
#endif
#ifdef HEADRACE_NEON_KERNELS
  if (target == Target::kNeon) return kNeonOptimizers;
#endif
  HEADRACE_CHECK(target == Target::kScalar, "the target is not built for this machine");
  return kScalarOptimizers;
}

WeightKind master_kind(DType weights_dtype, StateFormat format) noexcept {
  HEADRACE_CHECK(format == StateFormat::kFp32 || format == StateFormat::kSplit, "a format of AdamW alone");
  return weight_kind(weights_dtype, format);
}

std::size_t gradient_index(DType dtype) noexcept { return static_cast<std::size_t>(gradient_kind(dtype)); }

GradientMeasure add_in_order(std::span<const ArriveTotals> chunks) noexcept {
  GradientMeasure total;
  for (const ArriveTotals& chunk : chunks) {
    total.sum_of_squares += chunk.sum_of_squares;
    total.non_finite += chunk.non_finite;
  }
  return total;
}

OptimizerSpan make_span(const OptimizerArrays& a) noexcept {
  return {a.weights, a.master, a.remainder, {a.moments[0], a.moments[1]}, a.gradient, a.elements};
}

void step_span(const OptimizerArrays& part, StateFormat format, const float* direction, const StepSizes& sizes,
               Target target) noexcept {
  OptimizerScalars scalars = {};
  scalars.gradient_scale = 1;
  scalars.step_size = sizes.step_size;
  scalars.decay = sizes.decay;
  scalars.moves = sizes.moves;
  OptimizerSpan span = make_span(part);
  span.gradient = direction;
  const auto master = static_cast<std::size_t>(master_kind(part.weights_dtype, format));
  constexpr auto kRule = static_cast<std::size_t>(UpdateRule::kStep);
  optimizer_table(target).update[kRule][master][static_cast<std::size_t>(GradientKind::kFp32)](span, scalars);
}

void point_at_state(OptimizerArrays& arrays, const StatePlanes& planes, std::byte* state, std::int64_t at) noexcept {
  const auto plane = [&](Bytes offset, Bytes element_bytes) -> void* {
    return offset == StatePlanes::kNone ? nullptr : state + offset + at * element_bytes;
  };
  arrays.master = static_cast<float*>(plane(planes.master, 4));
  arrays.remainder = static_cast<std::int16_t*>(plane(planes.remainder, 2));
  arrays.moments = {static_cast<float*>(plane(planes.exp_avg, 4)), static_cast<float*>(plane(planes.exp_avg_sq, 4))};
}

OptimizerArrays slice(const OptimizerArrays& a, std::int64_t begin, std::int64_t elements) noexcept {
  OptimizerArrays part = a;
  part.weights = static_cast<std::byte*>(a.weights) + begin * dtype_bytes(a.weights_dtype);
  if (a.master != nullptr) part.master = a.master + begin;
  if (a.remainder != nullptr) part.remainder = a.remainder + begin;
  for (float*& moment : part.moments) {
    if (moment != nullptr) moment += begin;
  }
  part.gradient = static_cast<const std::byte*>(a.gradient) + begin * dtype_bytes(a.gradient_dtype);
  part.elements = elements;
  return part;
}

void update_span(OptimizerKind kind, const OptimizerArrays& a, StateFormat format, const OptimizerHyper& hyper,
                 Target target) noexcept {
  if (a.elements == 0) return;
  if (kind == OptimizerKind::kAdamW) return update_adamw(a, format, hyper, target);
  Rule rule = rule_of(kind, hyper);
  rule.scalars.gradient_scale = hyper.gradient_scale;
  rule.scalars.moves = hyper.lr != 0;
  const auto master = static_cast<std::size_t>(master_kind(a.weights_dtype, format));
  const OptimizerFn update =
      optimizer_table(target).update[static_cast<std::size_t>(rule.rule)][master][gradient_index(a.gradient_dtype)];
  update(make_span(a), rule.scalars);
}

}  // namespace headrace::cpu_adam
