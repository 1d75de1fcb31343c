// SPDX-License-Identifier: Apache-2.0
// What each optimizer does with one vector of gradients: it moves its moments and returns the direction that the loop
// subtracts step_size times from the weights. Included once per SIMD target after that target's vectors, inside its
// anonymous namespace.

// Broadcast constants of one update.
struct OptimizerConstants {
  explicit OptimizerConstants(const OptimizerScalars& s) noexcept
      : gradient_scale(Vec::set(s.gradient_scale)),
        l2(Vec::set(s.l2)),
        decay(Vec::set(s.decay)),
        beta1(Vec::set(s.beta1)),
        one_minus_beta1(Vec::set(s.one_minus_beta1)),
        beta2(Vec::set(s.beta2)),
        one_minus_beta2(Vec::set(s.one_minus_beta2)),
        inverse_sqrt_correction2(Vec::set(s.inverse_sqrt_correction2)),
        eps(Vec::set(s.eps)),
        step_size(Vec::set(s.step_size)),
        has_l2(s.l2 != 0),
        decays(s.decay != 0),
        moves(s.moves),
        flushes(s.flushes),
        first(s.first),
        nesterov(s.nesterov) {}
  Vec::F gradient_scale, l2, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps,
      step_size;
  bool has_l2, decays, moves, flushes, first, nesterov;
};

// Where a rule flushes, a moment below the smallest normal number changes no digit of the weights, but would stay
// subnormal for good and slow every later step.
struct AdamRule {
  static constexpr int kMoments = 2;
  static Vec::F advance(Vec::F g, Vec::F (&moments)[2], const OptimizerConstants& c) noexcept {
    Vec::F m = Vec::fma(c.beta1, moments[0], Vec::mul(c.one_minus_beta1, g));
    Vec::F v = Vec::fma(c.beta2, moments[1], Vec::mul(Vec::mul(c.one_minus_beta2, g), g));
    if (c.flushes) {
      m = Vec::flush_subnormal(m);
      v = Vec::flush_subnormal(v);
    }
    moments[0] = m;
    moments[1] = v;
    return Vec::div(m, Vec::fma(Vec::sqrt(v), c.inverse_sqrt_correction2, c.eps));
  }
};

// The sign of a moment decides the step however small it is, so nothing is flushed.
struct LionRule {
  static constexpr int kMoments = 1;
  static Vec::F advance(Vec::F g, Vec::F (&moments)[2], const OptimizerConstants& c) noexcept {
    const Vec::F direction = Vec::fma(c.beta1, moments[0], Vec::mul(c.one_minus_beta1, g));
    moments[0] = Vec::fma(c.beta2, moments[0], Vec::mul(c.one_minus_beta2, g));
    return sign(direction);
  }
};

// A sum never decays, so small squares may add up over many steps: nothing is flushed.
struct AdagradRule {
  static constexpr int kMoments = 1;
  static Vec::F advance(Vec::F g, Vec::F (&moments)[2], const OptimizerConstants& c) noexcept {
    moments[0] = Vec::fma(g, g, moments[0]);
    return Vec::div(g, Vec::add(Vec::sqrt(moments[0]), c.eps));
  }
};

struct MomentumRule {
  static constexpr int kMoments = 1;
  static Vec::F advance(Vec::F g, Vec::F (&moments)[2], const OptimizerConstants& c) noexcept {
    Vec::F buffer = c.first ? g : Vec::fma(c.beta1, moments[0], Vec::mul(c.one_minus_beta2, g));
    if (c.flushes) buffer = Vec::flush_subnormal(buffer);
    moments[0] = buffer;
    return c.nesterov ? Vec::fma(c.beta1, buffer, g) : buffer;
  }
};

struct StepRule {
  static constexpr int kMoments = 0;
  static Vec::F advance(Vec::F g, Vec::F (&)[2], const OptimizerConstants&) noexcept { return g; }
};
