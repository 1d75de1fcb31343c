// SPDX-License-Identifier: Apache-2.0
// What the tests of the further optimizers share: the formulas in any arithmetic (fp64 is the truth, fp32 what a
// straightforward program gets), and a state with the arrays of each kind.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "adamw_testing.h"
#include "cpu_adam/optimizer.h"

namespace headrace::cpu_adam::testing {

// The elementwise optimizers with all their branches.
struct Variant {
  const char* name;
  OptimizerKind kind;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};
inline constexpr Variant kVariants[] = {
    {"adam", OptimizerKind::kAdam},
    {"lion", OptimizerKind::kLion},
    {"adagrad", OptimizerKind::kAdagrad},
    {"sgd plain", OptimizerKind::kSgd},
    {"sgd", OptimizerKind::kSgd, 0.9},
    {"sgd damped", OptimizerKind::kSgd, 0.9, 0.3},
    {"sgd nesterov", OptimizerKind::kSgd, 0.9, 0, true},
    {"adamw", OptimizerKind::kAdamW},
};

inline OptimizerHyper hyper_of(const Variant& variant, std::int64_t step = 1, double weight_decay = 0.0) {
  OptimizerHyper h = default_hyper(variant.kind);
  h.momentum = variant.momentum;
  h.dampening = variant.dampening;
  h.nesterov = variant.nesterov;
  h.weight_decay = weight_decay;
  h.optimizer_step = step;
  if (variant.kind == OptimizerKind::kSgd) h.lr = 1e-2;
  return h;
}

inline OptimizerArrays arrays_of(OptimizerKind kind, const OptimizerHyper& hyper, State& state, Gradient& gradient) {
  const AdamWArrays a = state.arrays(gradient);
  OptimizerArrays o;
  o.weights = a.weights;
  o.weights_dtype = a.weights_dtype;
  o.master = a.master;
  if (state.kind == Kind::kSplit) o.remainder = state.remainder.data();
  const int moments = num_moments(kind, hyper);
  if (moments > 0) o.moments[0] = state.exp_avg.data();
  if (moments > 1) o.moments[1] = state.exp_avg_sq.data();
  o.gradient = a.gradient;
  o.gradient_dtype = a.gradient_dtype;
  o.elements = a.elements;
  return o;
}

// One element under the textbook formulas, one rounding to T for each operation.
template <class T>
struct Textbook {
  T p = 0, m = 0, v = 0;
  double travelled = 0;   // sum of the sizes of the steps
  bool doubtful = false;  // Lion: a sign that fp32 may see differently

  void step(OptimizerKind kind, T gradient, const OptimizerHyper& h) {
    const T before = p;
    T g = gradient * static_cast<T>(h.gradient_scale);
    const bool decoupled = kind == OptimizerKind::kAdamW || kind == OptimizerKind::kLion;
    if (decoupled) {
      p = p * static_cast<T>(1.0 - h.lr * h.weight_decay);
    } else if (h.weight_decay != 0) {
      g = g + static_cast<T>(h.weight_decay) * p;
    }
    if (kind == OptimizerKind::kLion) lion(g, h);
    if (kind == OptimizerKind::kAdagrad) adagrad(g, h);
    if (kind == OptimizerKind::kSgd) sgd(g, h);
    if (kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamW) adam(g, h);
    travelled += std::abs(static_cast<double>(p) - static_cast<double>(before));
  }

 private:
  void adam(T g, const OptimizerHyper& h) {
    const auto t = static_cast<double>(h.optimizer_step);
    m = m * static_cast<T>(h.beta1) + static_cast<T>(1.0 - h.beta1) * g;
    v = v * static_cast<T>(h.beta2) + static_cast<T>(1.0 - h.beta2) * g * g;
    const T root = std::sqrt(v) / static_cast<T>(std::sqrt(1.0 - std::pow(h.beta2, t)));
    p = p - static_cast<T>(h.lr / (1.0 - std::pow(h.beta1, t))) * m / (root + static_cast<T>(h.eps));
  }
  void lion(T g, const OptimizerHyper& h) {
    const T u = static_cast<T>(h.beta1) * m + static_cast<T>(1.0 - h.beta1) * g;
    const double terms =
        std::abs(h.beta1 * static_cast<double>(m)) + std::abs((1.0 - h.beta1) * static_cast<double>(g));
    doubtful = doubtful || (terms > 0 && std::abs(static_cast<double>(u)) < 1e-5 * terms);
    p = p - static_cast<T>(h.lr) * (u > 0 ? T{1} : (u < 0 ? T{-1} : T{0}));
    m = static_cast<T>(h.beta2) * m + static_cast<T>(1.0 - h.beta2) * g;
  }
  void adagrad(T g, const OptimizerHyper& h) {
    m = m + g * g;
    const double lr = h.lr / (1.0 + static_cast<double>(h.optimizer_step - 1) * h.lr_decay);
    p = p - static_cast<T>(lr) * g / (std::sqrt(m) + static_cast<T>(h.eps));
  }
  void sgd(T g, const OptimizerHyper& h) {
    if (h.momentum != 0) {
      m = h.optimizer_step == 1 ? g : m * static_cast<T>(h.momentum) + static_cast<T>(1.0 - h.dampening) * g;
      g = h.nesterov ? g + static_cast<T>(h.momentum) * m : m;
    }
    p = p - static_cast<T>(h.lr) * g;
  }
};

}  // namespace headrace::cpu_adam::testing
