// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scale for fp16 with the meaning of DeepSpeed's keys: halved after `hysteresis` skipped steps, doubled
// after `window` good ones. Its state is part of the commit record.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/store/step_record.h"

namespace headrace::runtime {

struct LossScalerOptions {
  double fixed_scale = 0;  // 0 = dynamic
  std::int32_t initial_scale_power = 16;
  std::int64_t window = 1000;
  std::int32_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_scale = 1;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options)
      : options_(options),
        scale_(options.fixed_scale > 0 ? options.fixed_scale : std::ldexp(1.0, options.initial_scale_power)),
        hysteresis_left_(options.hysteresis) {}

  [[nodiscard]] double scale() const noexcept { return scale_; }
  // A skip at the smallest scale cannot be mended by scaling.
  [[nodiscard]] bool exhausted() const noexcept { return options_.fixed_scale > 0 || scale_ <= options_.min_scale; }

  void after_step(bool skipped) noexcept {
    if (options_.fixed_scale > 0) return;
    if (skipped) {
      if (--hysteresis_left_ <= 0) {
        scale_ = std::max(scale_ / 2, options_.min_scale);
        hysteresis_left_ = 1;
      }
      good_steps_ = 0;
      return;
    }
    if (options_.consecutive_hysteresis) hysteresis_left_ = options_.hysteresis;
    if (++good_steps_ % options_.window == 0) {
      if (!options_.consecutive_hysteresis) hysteresis_left_ = options_.hysteresis;
      scale_ *= 2;
    }
  }

  void save(StepRecord& record) const noexcept {
    record.loss_scale = scale_;
    record.loss_scale_good_steps = static_cast<std::uint64_t>(good_steps_);
    record.loss_scale_hysteresis = static_cast<std::uint64_t>(hysteresis_left_);
  }
  void restore(const StepRecord& record) noexcept {
    scale_ = record.loss_scale;
    good_steps_ = static_cast<std::int64_t>(record.loss_scale_good_steps);
    hysteresis_left_ = static_cast<std::int32_t>(record.loss_scale_hysteresis);
  }

 private:
  LossScalerOptions options_;
  double scale_;
  std::int64_t good_steps_ = 0;
  std::int32_t hysteresis_left_;
};

}  // namespace headrace::runtime
