// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "runtime/profile/report.h"

namespace headrace::profile {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.45 system-ui,sans-serif;color:#1b2733;max-width:62em;margin:2em auto;padding:0 1em}"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #d5dde5}"
    "table{border-collapse:collapse;margin:.6em 0}td,th{padding:.2em .9em;text-align:right;font-weight:normal}"
    "th{color:#5a6b7b;border-bottom:1px solid #d5dde5}td:first-child,th:first-child{text-align:left;padding-left:0}"
    "svg{margin:.4em 1.2em .4em 0}svg text{font:12px system-ui,sans-serif;fill:#5a6b7b}.note{color:#5a6b7b}";
constexpr const char* kColours[] = {"#1f77b4", "#e08214", "#2a9d5c", "#b5435a", "#7a5cb5", "#6b7785"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '&') {
      result += "&amp;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<table>";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += "<tr>";
    for (const std::string& cell : rows[i]) text += fmt::format("<{0}>{1}</{0}>", i == 0 ? "th" : "td", escaped(cell));
    text += "</tr>";
  }
  return text + "</table>\n";
}

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y
};
struct Line {
  std::string name;
  double y = 0;
};
struct Plot {
  std::string title, x_title, y_title;
  std::vector<double> x_ticks;  // drawn at equal distances
  std::function<std::string(double)> x_text;
  std::vector<Series> series;
  std::vector<Line> lines;  // dashed, over the whole width
};

// Largest y of the axis and the distance of its ticks: 1, 2 or 5 times a power of ten.
std::pair<double, double> axis_of(const Plot& plot) {
  double most = 0;
  for (const Series& series : plot.series)
    for (const auto& point : series.points) most = std::max(most, point.second);
  for (const Line& line : plot.lines) most = std::max(most, line.y);
  if (most <= 0) return {1, 1};
  double step = std::pow(10.0, std::floor(std::log10(most)));
  if (most / step < 2) {
    step /= 5;
  } else if (most / step < 5) {
    step /= 2;
  }
  return {std::ceil(most / step * 1.02) * step, step};
}

std::string svg(const Plot& plot) {
  constexpr double kWidth = 440, kHeight = 300, kLeft = 52, kRight = 24, kTop = 30, kBottom = 62;
  const auto [top, step] = axis_of(plot);
  const auto x_at = [&](double x) {
    const auto found = std::find(plot.x_ticks.begin(), plot.x_ticks.end(), x);
    const auto index = static_cast<double>(found - plot.x_ticks.begin());
    const double last = std::max<double>(static_cast<double>(plot.x_ticks.size()) - 1, 1);
    return kLeft + 10 + index / last * (kWidth - kLeft - kRight - 20);
  };
  const auto y_at = [&, top = top](double y) { return kHeight - kBottom - y / top * (kHeight - kTop - kBottom); };
  std::string text = fmt::format(
      "<svg width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\"><text x=\"{3}\" "
      "y=\"16\" style=\"fill:#1b2733;font-size:13px\">{2}</text>",
      kWidth, kHeight, escaped(plot.title), kLeft - 6);
  for (double y = 0; y <= top * 1.001; y += step)
    text += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e3e9ef\"/><text x=\"{}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>",
        kLeft, kWidth - kRight, y_at(y), y_at(y), kLeft - 6, y_at(y) + 4, y);
  for (const double x : plot.x_ticks)
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", x_at(x), kHeight - kBottom + 16,
                        plot.x_text(x));
  text += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", (kLeft + kWidth - kRight) / 2,
                      kHeight - kBottom + 32, escaped(plot.x_title));
  text += fmt::format("<text transform=\"translate(13 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
                      (kTop + kHeight - kBottom) / 2, escaped(plot.y_title));
  double legend = kLeft;
  const auto legend_entry = [&](const std::string& name, const char* colour, const char* dash) {
    text += fmt::format(
        "<line x1=\"{0:.0f}\" x2=\"{1:.0f}\" y1=\"{2}\" y2=\"{2}\" stroke=\"{3}\" stroke-width=\"2\" "
        "stroke-dasharray=\"{4}\"/><text x=\"{5:.0f}\" y=\"{6}\">{7}</text>",
        legend, legend + 16, kHeight - 12, colour, dash, legend + 20, kHeight - 8, escaped(name));
    legend += 34 + 6.6 * static_cast<double>(name.size());
  };
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const char* const colour = kColours[i % std::size(kColours)];
    std::string path;
    for (const auto& [x, y] : plot.series[i].points) {
      path += fmt::format("{}{:.1f} {:.1f} ", path.empty() ? "M" : "L", x_at(x), y_at(y));
      text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>", x_at(x), y_at(y), colour);
    }
    text += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>", path, colour);
    legend_entry(plot.series[i].name, colour, "none");
  }
  for (const Line& line : plot.lines) {
    text += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#1b2733\" "
        "stroke-dasharray=\"5 4\"/>",
        kLeft, kWidth - kRight, y_at(line.y), y_at(line.y));
    legend_entry(line.name, "#1b2733", "5 4");
  }
  return text + "</svg>\n";
}

std::string sweep_plot(const StorageResult& result, Traffic traffic) {
  Plot plot;
  plot.title = traffic == Traffic::kRead    ? "Reading"
               : traffic == Traffic::kWrite ? "Writing"
                                            : "Reading and writing at once";
  plot.x_title = "bytes in flight (a line for each block size)";
  plot.y_title = "GB/s";
  plot.x_text = [](double bytes) { return format_bytes(static_cast<Bytes>(bytes)); };
  for (const SweepPoint& point : result.sweep) {
    if (point.traffic != traffic) continue;
    const auto flight = static_cast<double>(point.setting.in_flight_bytes);
    if (std::find(plot.x_ticks.begin(), plot.x_ticks.end(), flight) == plot.x_ticks.end())
      plot.x_ticks.push_back(flight);
    const std::string name = format_bytes(point.setting.block_bytes);
    auto series = std::find_if(plot.series.begin(), plot.series.end(), [&](const Series& s) { return s.name == name; });
    if (series == plot.series.end()) series = plot.series.insert(plot.series.end(), {name, {}});
    series->points.emplace_back(flight, point.bytes_per_s / 1e9);
  }
  if (result.fio) {
    const auto& samples = traffic == Traffic::kRead    ? result.fio->read
                          : traffic == Traffic::kWrite ? result.fio->write
                                                       : result.fio->mixed;
    plot.lines.push_back({"fio", median_of(samples) / 1e9});
  }
  return svg(plot);
}

std::string latency_plot(const StorageResult& result) {
  Plot plot;
  plot.title = "Time in the kernel of one request";
  plot.x_title = "share of the requests";
  plot.y_title = "ms";
  plot.x_ticks = {10, 50, 90, 99, 99.9};
  plot.x_text = [](double share) { return fmt::format("{:g} %", share); };
  const auto add = [&](const char* name, const io::LatencyHistogram& latency) {
    if (latency.count() == 0) return;
    Series& series = plot.series.emplace_back();
    series.name = name;
    for (const double share : plot.x_ticks)
      series.points.emplace_back(share, static_cast<double>(latency.percentile_ns(share / 100)) / 1e6);
  };
  add("read", result.read.read_latency);
  add("write", result.write.write_latency);
  add("read of both", result.mixed.read_latency);
  add("write of both", result.mixed.write_latency);
  return svg(plot);
}

std::string storage_section(const StorageResult& result) {
  std::string text = fmt::format(
      "<h2>Storage: {}</h2>\n<p class=\"note\">{}, {}; block {}, {} in flight{}</p>\n", escaped(joined(result.paths)),
      result.backend, result.direct ? "direct I/O" : "through the page cache", format_bytes(result.setting.block_bytes),
      format_bytes(result.setting.in_flight_bytes), result.is_default ? " (the default)" : "");
  std::vector<std::vector<std::string>> rows{{"", "rate", "spread", "p50", "p99", "p99.9", "fio", "of fio"}};
  const auto add = [&](const char* name, const Repeats& repeats, const std::vector<double>* fio) {
    io::LatencyHistogram latency = repeats.read_latency;
    latency.merge(repeats.write_latency);
    const auto ms = [&](double share) {
      return fmt::format("{:.3g} ms", static_cast<double>(latency.percentile_ns(share)) / 1e6);
    };
    const bool compared = fio != nullptr && !fio->empty();
    rows.push_back({name, format_rate(repeats.median()), fmt::format("{:.0f} %", 100 * repeats.spread()), ms(0.5),
                    ms(0.99), ms(0.999), compared ? format_rate(median_of(*fio)) : "–",
                    compared ? fmt::format("{:.2f}", repeats.median() / median_of(*fio)) : "–"});
  };
  add("read", result.read, result.fio ? &result.fio->read : nullptr);
  add("write", result.write, result.fio ? &result.fio->write : nullptr);
  add("both at once", result.mixed, result.fio ? &result.fio->mixed : nullptr);
  text += table(rows);
  if (!result.sweep.empty())
    for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite, Traffic::kMixed})
      text += sweep_plot(result, traffic);
  return text + latency_plot(result);
}

std::string compute_section(const Report& report) {
  std::string text;
  if (report.memory) {
    const MemoryReport& memory = *report.memory;
    text += fmt::format("<h2>Memory</h2><p class=\"note\">{} threads, arrays of {} on {}</p>", memory.threads,
                        format_bytes(memory.array_bytes), memory.pages);
    text += table({{"", "ordinary stores", "non-temporal stores"},
                   {"read", format_rate(memory.read), "–"},
                   {"write", format_rate(memory.write), format_rate(memory.write_streaming)},
                   {"copy", format_rate(memory.copy), format_rate(memory.copy_streaming)},
                   {"memcpy, one thread", format_rate(memory.copy_one_thread), "–"}});
  }
  if (report.compute) {
    std::vector<std::vector<std::string>> rows{{"weights", "forward", "backward", "together"}};
    for (const GemmRate& rate : report.compute->rates) {
      const auto giga = [](double value) { return fmt::format("{:.0f} GFLOP/s", value / 1e9); };
      rows.push_back(
          {rate.dtype, giga(rate.forward_flops_per_s), giga(rate.backward_flops_per_s), giga(rate.flops_per_s)});
    }
    text += fmt::format("<h2>Products</h2><p class=\"note\">{} threads, {}</p>", report.compute->threads,
                        escaped(report.compute->target)) +
            table(rows);
  }
  if (report.optimizer) {
    std::vector<std::vector<std::string>> rows{{"state format", "parameters/s"}};
    for (const OptimizerRate& rate : report.optimizer->rates)
      rows.push_back({rate.format, fmt::format("{:.0f} million", rate.parameters_per_s / 1e6)});
    text += "<h2>Optimizer</h2>" + table(rows);
  }
  return text;
}

}  // namespace

std::string report_html(const Report& report) {
  std::string text = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>headrace profile</title><style>{}</style>"
      "</head><body><h1>What this machine does for training</h1><p class=\"note\">{} · {} cores · {} memory · "
      "{}{}</p>\n",
      kStyle, escaped(report.cpu_model), report.cores, format_bytes(report.memory_bytes), escaped(report.date),
      report.quick ? " · quick" : "");
  for (const std::string& sentence : verdict(report)) text += "<p>" + escaped(sentence) + ".</p>\n";
  if (report.storage) {
    for (const StorageResult& result : report.storage->results) text += storage_section(result);
    text += fmt::format("<p class=\"note\">{} written, {} read through checksums.</p>",
                        format_bytes(report.storage->written_bytes), format_bytes(report.storage->verified_bytes));
  }
  return text + compute_section(report) + "</body></html>\n";
}

}  // namespace headrace::profile
