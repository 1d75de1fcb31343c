// SPDX-License-Identifier: Apache-2.0
// The simulated step as one HTML page without anything beside it: what each lane does when, and how full each tier is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_predict.h"
#include "bindings/cli/plan_text.h"

namespace headrace::cli {

namespace {

using runtime::Lane;
using runtime::OperationKind;

constexpr double kWidth = 1180, kLeft = 110, kRight = 20;    // of the picture, in pixels
constexpr double kLaneHeight = 34, kLaneGap = 8, kTop = 30;  // of one lane
constexpr double kPlotHeight = 120, kPlotGap = 44;           // of one tier's memory
constexpr double kThinnest = 0.7;                            // pixels; thinner bars of one colour are drawn as one

// Colours that can be told apart without seeing red and green (Okabe and Ito).
struct Colour {
  const char* name;
  const char* value;
};
constexpr Colour kForwardColour{"forward", "#56b4e9"}, kBackwardColour{"backward", "#0072b2"},
    kReadWeightsColour{"read weights", "#e69f00"}, kReadStateColour{"read state", "#f0e442"},
    kWriteColour{"write", "#d55e00"}, kUpdateColour{"update", "#009e73"}, kGradientColour{"gradient out", "#cc79a7"},
    kCopyColour{"copy to device", "#999999"}, kNetworkColour{"collective", "#7b5ea7"},
    kOtherColour{"norm, commit", "#222222"};
constexpr std::array kColours = {kForwardColour, kBackwardColour, kReadWeightsColour, kReadStateColour, kWriteColour,
                                 kUpdateColour,  kGradientColour, kCopyColour,        kNetworkColour,   kOtherColour};

Colour colour_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kForward: return kForwardColour;
    case OperationKind::kBackward: return kBackwardColour;
    case OperationKind::kReadWeights: return kReadWeightsColour;
    case OperationKind::kReadState:
    case OperationKind::kReadGradient:
    case OperationKind::kReadActivation: return kReadStateColour;
    case OperationKind::kWriteState:
    case OperationKind::kWriteGradient:
    case OperationKind::kWriteActivation: return kWriteColour;
    case OperationKind::kUpdate: return kUpdateColour;
    case OperationKind::kGradientOut: return kGradientColour;
    case OperationKind::kCopyToDevice:
    case OperationKind::kActivationOut:
    case OperationKind::kActivationIn: return kCopyColour;
    default: return kOtherColour;
  }
}

struct Bar {
  double begin = 0, end = 0;  // seconds
  Colour colour;
  std::string title;
};

// A round step of an axis that gives about `count` marks.
double round_step(double range, double count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

class Page {
 public:
  Page(const Prediction& prediction, const runtime::Plan& plan)
      : prediction_(prediction), plan_(plan), scale_((kWidth - kLeft - kRight) / prediction.step_seconds()) {}

  std::string text() {
    collect_bars();
    double y = kTop;
    for (int lane = 0; lane < runtime::kNumLanes; ++lane) {
      if (bars_[static_cast<std::size_t>(lane)].empty()) continue;
      draw_lane(lane, y);
      y += kLaneHeight + kLaneGap;
    }
    draw_time_axis(y);
    y += kPlotGap;
    draw_memory(runtime::Tier::kHost, "host", y);
    y += kPlotHeight + kPlotGap;
    if (plan_.device_slab_bytes > 0) {
      draw_memory(runtime::Tier::kDevice, "device", y);
      y += kPlotHeight + kPlotGap;
    }
    const std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" "
        "fill=\"#ffffff\"/>\n{2}</svg>",
        kWidth, y, body_);
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>body{{font-family:"
        "sans-serif;margin:24px;max-width:1220px}}pre{{background:#f6f6f6;padding:12px;overflow-x:auto}}</style></head>"
        "\n<body>\n<h1>{0}</h1>\n<p>One training step as planned, on a virtual clock: {1:.3f} s, {2:.2f} times the "
        "bound ({3}).</p>\n{4}\n{5}\n<pre>{6}</pre>\n</body></html>\n",
        escaped("headrace plan of " + plan_.input.model.name), prediction_.step_seconds(),
        prediction_.step_seconds() / prediction_.bound.seconds(), prediction_.bound.resource(), legend(), svg,
        escaped(prediction_text(prediction_, plan_)));
  }

 private:
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (c == '<') {
        out += "&lt;";
      } else if (c == '&') {
        out += "&amp;";
      } else {
        out += c;
      }
    }
    return out;
  }

  [[nodiscard]] double x_of(double seconds) const { return kLeft + seconds * scale_; }

  void collect_bars() {
    for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
      const runtime::Operation& op = plan_.operations[i];
      const runtime::OperationTime& time = prediction_.simulation.times[i];
      std::string title = runtime::operation_kind_name(op.kind);
      if (op.unit >= 0) title += " of " + plan_.input.model.units[static_cast<std::size_t>(op.unit)].name;
      if (op.micro_batch >= 0) title += fmt::format(", micro-batch {}", op.micro_batch);
      add_bar(op.lane, {time.start, time.end, colour_of(op.kind), title});
    }
    for (const runtime::CollectiveTime& collective : prediction_.simulation.collectives)
      add_bar(Lane::kCollective,
              {collective.time.start, collective.time.end, kNetworkColour,
               fmt::format("{} of {}", collective.use.is_gather ? "all-gather" : "reduce-scatter",
                           plan_.input.model.units[static_cast<std::size_t>(collective.use.unit)].name)});
  }

  // Operations of an NVMe lane wait for each other in its queue: a bar begins where the one before has ended.
  void add_bar(Lane lane, Bar bar) {
    std::vector<Bar>& bars = bars_[static_cast<std::size_t>(lane)];
    if (bar.end <= bar.begin) return;
    if (!bars.empty()) bar.begin = std::max(bar.begin, std::min(bars.back().end, bar.end));
    const bool thin = (bar.end - bar.begin) * scale_ < kThinnest;
    if (thin && !bars.empty() && bars.back().colour.value == bar.colour.value &&
        (bar.begin - bars.back().end) * scale_ < kThinnest / 2) {
      bars.back().end = bar.end;
      return;
    }
    bars.push_back(std::move(bar));
  }

  void draw_lane(int lane, double y) {
    const double busy = prediction_.simulation.busy[static_cast<std::size_t>(lane)] / prediction_.step_seconds();
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#f1f1f1\"/>\n", kLeft, y,
                         kWidth - kLeft - kRight, kLaneHeight);
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + 15,
                         runtime::lane_name(static_cast<Lane>(lane)));
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#666\">busy {:.0f} %</text>\n", kLeft - 8,
                         y + 29, 100 * busy);
    for (const Bar& bar : bars_[static_cast<std::size_t>(lane)])
      body_ += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{} ({:.4f} to {:.4f} "
          "s)</title></rect>\n",
          x_of(bar.begin), y, std::max(kThinnest / 2, (bar.end - bar.begin) * scale_), kLaneHeight, bar.colour.value,
          escaped(bar.title), bar.begin, bar.end);
  }

  void draw_time_axis(double y) {
    const double step = round_step(prediction_.step_seconds(), 8);
    for (double seconds = 0; seconds <= prediction_.step_seconds() * 1.0001; seconds += step)
      body_ += fmt::format(
          "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#bbb\"/><text x=\"{0:.2f}\" y=\"{3}\" "
          "text-anchor=\"middle\">{4:g} s</text>\n",
          x_of(seconds), kTop - 6, y, y + 12, seconds);
  }

  void draw_memory(runtime::Tier tier, const char* name, double y) {
    const bool host = tier == runtime::Tier::kHost;
    const auto points = memory_over_time(plan_, prediction_.simulation.times, tier);
    const Bytes slab = host ? plan_.host_slab_bytes : plan_.device_slab_bytes;
    const double top = static_cast<double>(std::max<Bytes>(1, slab));
    const auto y_of = [&](Bytes bytes) { return y + kPlotHeight * (1 - static_cast<double>(bytes) / top); };
    std::string path = fmt::format("M{:.2f},{:.2f}", x_of(0), y + kPlotHeight);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double end = i + 1 < points.size() ? points[i + 1].seconds : prediction_.step_seconds();
      path += fmt::format("L{:.2f},{:.2f}L{:.2f},{:.2f}", x_of(points[i].seconds), y_of(points[i].bytes), x_of(end),
                          y_of(points[i].bytes));
    }
    path += fmt::format("L{:.2f},{:.2f}Z", x_of(prediction_.step_seconds()), y + kPlotHeight);
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#f1f1f1\"/>\n", kLeft, y,
                         kWidth - kLeft - kRight, kPlotHeight);
    body_ += fmt::format("<path d=\"{}\" fill=\"{}\" fill-opacity=\"0.75\"/>\n", path, host ? "#009e73" : "#0072b2");
    body_ += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">0</text>\n",
        kLeft - 8, y + 11, format_bytes(slab), kLeft - 8, y + kPlotHeight);
    body_ += fmt::format(
        "<text x=\"{}\" y=\"{}\">{} buffers in use; the top is the slab{}</text>\n", kLeft, y - 6, name,
        host ? fmt::format(" (the process holds {} besides)", format_bytes(plan_.input.program_bytes)) : std::string());
  }

  static std::string legend() {
    std::string text = "<p>";
    for (const Colour& colour : kColours)
      text +=
          fmt::format("<span style=\"display:inline-block;width:12px;height:12px;background:{}\"></span> {} &nbsp; ",
                      colour.value, colour.name);
    return text + "</p>";
  }

  const Prediction& prediction_;
  const runtime::Plan& plan_;
  double scale_;  // pixels per second
  std::array<std::vector<Bar>, runtime::kNumLanes> bars_;
  std::string body_;
};

}  // namespace

std::string simulation_page(const Prediction& prediction, const runtime::Plan& plan) {
  return Page(prediction, plan).text();
}

}  // namespace headrace::cli
