// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/step_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_text.h"
#include "core/json.h"
#include "runtime/engine/step_report.h"

namespace headrace::cli {

std::string step_line(const models::StepReport& report, std::uint64_t last_step) {
  const runtime::StepOutcome& outcome = report.outcome;
  std::string norm = fmt::format("grad_norm {:.2f}", outcome.grad_norm);
  if (outcome.skipped) {
    norm = fmt::format("skipped: {} not finite, first in {}", count_text(outcome.non_finite, "gradient element"),
                       outcome.non_finite_tensor);
  } else if (outcome.clip_factor < 1) {
    norm += fmt::format(" clipped ×{:.2f}", outcome.clip_factor);
  }
  const std::string total = std::to_string(last_step);
  return fmt::format("step {:>{}}/{} | loss {:.4f} | {} | lr {:.1e} | {:.0f} tok/s | mem {} | bound_ratio {:.2f} ({})",
                     outcome.step, total.size(), total, report.loss, norm, report.lr, report.tokens_per_second,
                     format_bytes(report.peak_rss_bytes), report.bound_ratio, report.bound_lane);
}

void Summary::add(const models::StepReport& report, models::Trainer& trainer) {
  const runtime::StepOutcome& outcome = report.outcome;
  ++steps_;
  tokens_ += report.tokens;
  skipped_ += outcome.skipped ? 1 : 0;
  clipped_ += outcome.clip_factor < 1 ? 1 : 0;
  seconds_ += outcome.seconds;
  for (std::size_t i = 0; i < busy_.size(); ++i) busy_[i] += outcome.lane_busy[i];
  for (const auto& [cause, seconds] :
       runtime::lost_seconds(trainer.engine().last_operations(), trainer.engine().last_times()))
    lost_[cause] += seconds;
  read_bytes_ += outcome.nvme_read_bytes;
  write_bytes_ += outcome.nvme_write_bytes;
  peak_rss_ = std::max(peak_rss_, report.peak_rss_bytes);
  last_loss_ = report.loss;
}

std::string Summary::text(models::Trainer& trainer) const {
  const runtime::Plan& plan = trainer.plan();
  const double steps = static_cast<double>(steps_);
  std::vector<std::vector<std::string>> rows{{"lane", "busy", "share of the step"}};
  for (int lane = 0; lane < runtime::kNumLanes; ++lane) {
    const double busy = busy_[static_cast<std::size_t>(lane)];
    if (busy < 0.0005 * seconds_) continue;
    rows.push_back({runtime::lane_name(static_cast<runtime::Lane>(lane)), fmt::format("{:.3f} s", busy / steps),
                    fmt::format("{:.0f} %", 100 * busy / seconds_)});
  }
  std::string text =
      fmt::format("{} in {:.1f} s: {:.3f} s per step, {:.0f} tokens/s, bound {:.3f} s ({}): ratio {:.2f}\n",
                  count_text(steps_, "step"), seconds_, seconds_ / steps, static_cast<double>(tokens_) / seconds_,
                  trainer.bound().seconds(), trainer.bound().resource(), seconds_ / steps / trainer.bound().seconds());
  text += format_table(rows);
  if (seconds_ / steps < 0.95 * trainer.bound().seconds())
    text += "faster than the bound: something else used the cores or the disk while the rates were measured\n";
  std::vector<std::pair<std::string, double>> lost(lost_.begin(), lost_.end());
  std::sort(lost.begin(), lost.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  if (!lost.empty()) {
    text += "neither computing nor updating, waiting for";
    for (std::size_t i = 0; i < lost.size() && i < 4; ++i)
      text += fmt::format("{} {} {:.3f} s", i == 0 ? ":" : " ·", lost[i].first, lost[i].second / steps);
    text += " per step\n";
  }
  const double parameters = static_cast<double>(std::max<std::int64_t>(1, parameters_of(plan)));
  text += fmt::format("nvme    {} read and {} written per step: {:.2f} and {:.2f} bytes per parameter\n",
                      format_bytes(read_bytes_ / steps_), format_bytes(write_bytes_ / steps_),
                      static_cast<double>(read_bytes_) / steps / parameters,
                      static_cast<double>(write_bytes_) / steps / parameters);
  text += fmt::format("memory  peak {} of {} planned ({:.1f} %)\n", format_bytes(peak_rss_),
                      format_bytes(plan.host_peak_bytes),
                      100.0 * static_cast<double>(peak_rss_) / static_cast<double>(plan.host_peak_bytes));
  text += fmt::format("loss    {:.4f} at the last step", last_loss_);
  if (validation_.has_value()) text += fmt::format(", {:.4f} nats per token on the validation part", *validation_);
  if (clipped_ > 0) text += "; " + count_text(clipped_, "step") + " clipped";
  if (skipped_ > 0) text += "; " + count_text(skipped_, "step") + " skipped";
  if (digest_.has_value()) text += fmt::format("\nstate   digest {:016x}", *digest_);
  text += fmt::format("\nreport  {}/metrics.jsonl", trainer.folder().path());
  return text;
}

std::string Summary::json(models::Trainer& trainer) const {
  JsonObject object;
  object.add("run_id", trainer.run_id());
  object.add("run_dir", trainer.folder().path());
  object.add("step", trainer.step_done());
  object.add("steps", trainer.last_step());
  object.add("steps_taken", steps_);
  if (steps_ > 0) {
    object.add("loss", last_loss_);
  } else {
    object.add_null("loss");
  }
  if (validation_.has_value()) object.add("val_loss", *validation_);
  if (digest_.has_value()) object.add("digest", fmt::format("{:016x}", *digest_));
  object.add("seconds", seconds_);
  object.add("tokens_per_second", seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0.0);
  object.add("bound_seconds", trainer.bound().seconds());
  object.add("bound_lane", trainer.bound().resource());
  object.add("bound_ratio", steps_ > 0 ? seconds_per_step() / trainer.bound().seconds() : 0.0);
  JsonObject lost;
  for (const auto& [cause, seconds] : lost_)
    lost.add(cause, seconds / static_cast<double>(std::max<std::int64_t>(1, steps_)));
  object.add_raw("lost_seconds_per_step", lost.text());
  object.add("peak_rss_bytes", peak_rss_);
  object.add("plan_peak_bytes", trainer.plan().host_peak_bytes);
  object.add("skipped", skipped_);
  return object.text();
}

}  // namespace headrace::cli
