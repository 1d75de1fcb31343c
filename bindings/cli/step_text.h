// SPDX-License-Identifier: Apache-2.0
// The line of a step and the summary at the end of `headrace train`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "models/trainer/trainer.h"

namespace headrace::cli {

[[nodiscard]] std::string step_line(const models::StepReport& report, std::uint64_t last_step);

// Collects steps; one owner thread.
class Summary {
 public:
  void add(const models::StepReport& report, models::Trainer& trainer);
  void set_validation(double loss) { validation_ = loss; }
  void set_digest(std::uint64_t digest) { digest_ = digest; }
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  [[nodiscard]] double seconds_per_step() const noexcept {
    return steps_ > 0 ? seconds_ / static_cast<double>(steps_) : 0;
  }
  [[nodiscard]] std::string text(models::Trainer& trainer) const;
  [[nodiscard]] std::string json(models::Trainer& trainer) const;

 private:
  std::int64_t steps_ = 0, tokens_ = 0, skipped_ = 0, clipped_ = 0;
  double seconds_ = 0;
  std::array<double, runtime::kNumLanes> busy_{};
  std::map<std::string, double> lost_;
  std::int64_t read_bytes_ = 0, write_bytes_ = 0;
  Bytes peak_rss_ = 0;
  double last_loss_ = 0;
  std::optional<double> validation_;
  std::optional<std::uint64_t> digest_;
};

}  // namespace headrace::cli
