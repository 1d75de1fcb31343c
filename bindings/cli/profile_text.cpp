// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/profile_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bindings/cli/command.h"

namespace headrace::cli {
namespace {

using profile::Repeats;
using profile::StorageResult;
using profile::Traffic;

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} µs", seconds * 1e6);
  return fmt::format("{:.3g} ms", seconds * 1e3);
}

std::vector<std::string> repeats_row(const char* name, const Repeats& repeats, const std::vector<double>* fio) {
  io::LatencyHistogram latency = repeats.read_latency;
  latency.merge(repeats.write_latency);
  const auto at = [&](double share) { return time_text(1e-9 * static_cast<double>(latency.percentile_ns(share))); };
  std::vector<std::string> row{name,
                               format_rate(repeats.median()),
                               fmt::format("{:.0f} %", 100 * repeats.spread()),
                               at(0.5),
                               at(0.99),
                               at(0.999),
                               fmt::format("{:.2f} s", repeats.cpu_seconds_per_byte * 1e9)};
  if (fio != nullptr && !fio->empty()) {
    const double theirs = profile::median_of(*fio);
    row.push_back(format_rate(theirs));
    row.push_back(fmt::format("{:.2f}", repeats.median() / theirs));
  }
  return row;
}

std::string sweep_text(const StorageResult& result, Traffic traffic) {
  std::vector<Bytes> flights;
  for (const auto& point : result.sweep)
    if (std::find(flights.begin(), flights.end(), point.setting.in_flight_bytes) == flights.end())
      flights.push_back(point.setting.in_flight_bytes);
  std::vector<std::vector<std::string>> rows(1);
  rows[0].push_back(traffic == Traffic::kRead    ? "read, GB/s"
                    : traffic == Traffic::kWrite ? "write, GB/s"
                                                 : "both at once, GB/s");
  for (const Bytes flight : flights) rows[0].push_back(format_bytes(flight) + " in flight");
  Bytes block = 0;
  for (const auto& point : result.sweep) {
    if (point.traffic != traffic) continue;
    if (point.setting.block_bytes != block) rows.push_back({"  block " + format_bytes(point.setting.block_bytes)});
    block = point.setting.block_bytes;
    rows.back().push_back(fmt::format("{:.2f}", point.bytes_per_s / 1e9));
  }
  return format_table(rows);
}

std::string storage_text(const StorageResult& result, bool in_full) {
  std::string text = fmt::format("{} · {}, {} · {}{}\n\n", profile::joined(result.paths), result.backend,
                                 result.direct ? "direct I/O" : "page cache (" + result.why_buffered + ")",
                                 setting_text(result.setting), result.is_default ? " (the default)" : "");
  std::vector<std::vector<std::string>> rows{{"", "rate", "spread", "p50", "p99", "p99.9", "CPU per GB"}};
  if (result.fio) rows[0].insert(rows[0].end(), {"fio", "of fio"});
  rows.push_back(repeats_row("read", result.read, result.fio ? &result.fio->read : nullptr));
  rows.push_back(repeats_row("write", result.write, result.fio ? &result.fio->write : nullptr));
  rows.push_back(repeats_row("both at once", result.mixed, result.fio ? &result.fio->mixed : nullptr));
  text += format_table(rows) + "\n";
  const double mixed = result.mixed.median(), share = result.mixed.read_share;
  text += fmt::format(
      "  interference   while both run, reading keeps {:.0f} % of its rate and writing {:.0f} %; together "
      "{:.0f} % of what taking turns would reach\n",
      100 * mixed * share / result.read.median(), 100 * mixed * (1 - share) / result.write.median(),
      100 * mixed / result.additive_bound());
  text += fmt::format("  one request    of 4 KiB alone: read {}, write {}\n", time_text(result.read_latency_seconds),
                      time_text(result.write_latency_seconds));
  if (result.pages.ordinary_read > 0)
    text += fmt::format("  huge pages     {:.2f}× of ordinary ones when reading, {:.2f}× when writing\n",
                        result.pages.huge_read / result.pages.ordinary_read,
                        result.pages.huge_write / result.pages.ordinary_write);
  else if (in_full)
    text += "  huge pages     the system gives none: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled\n";
  if (result.fio)
    text += fmt::format("  {:<12}   best of its sweep: reading {}; writing {}\n", result.fio->version,
                        result.fio->read_setting, result.fio->write_setting);
  else if (in_full)
    text += fmt::format("  fio            not beside it: {}\n", result.why_no_fio);
  if (result.sweep.size() > 12) {
    text += "\n";
    for (const Traffic traffic : {Traffic::kRead, Traffic::kWrite, Traffic::kMixed})
      text += sweep_text(result, traffic);
  }
  return text + "\n";
}

std::string memory_text(const profile::MemoryReport& memory) {
  std::string text = fmt::format("memory · {} threads, arrays of {} on {}\n\n", memory.threads,
                                 format_bytes(memory.array_bytes), memory.pages);
  const auto streaming = [](double rate) { return rate > 0 ? format_rate(rate) : std::string("–"); };
  text += format_table({{"", "ordinary stores", "non-temporal"},
                        {"read", format_rate(memory.read), "–"},
                        {"write", format_rate(memory.write), streaming(memory.write_streaming)},
                        {"copy", format_rate(memory.copy), streaming(memory.copy_streaming)},
                        {"memcpy, 1 thread", format_rate(memory.copy_one_thread), "–"}});
  const std::string limit = memory.lock_limit < 0 ? "unlimited" : format_bytes(memory.lock_limit);
  return text + fmt::format("\n  locked memory  limit {}; {}\n\n", limit,
                            memory.can_lock ? "the arrays were locked" : "the arrays were not locked");
}

std::string cores_text(const profile::Report& report) {
  std::string text;
  if (report.compute) {
    std::vector<std::vector<std::string>> rows{{"", "forward", "backward", "both"}};
    const auto giga = [](double value) { return fmt::format("{:.0f}", value / 1e9); };
    for (const auto& rate : report.compute->rates)
      rows.push_back({rate.dtype + " weights", giga(rate.forward_flops_per_s), giga(rate.backward_flops_per_s),
                      giga(rate.flops_per_s)});
    text += fmt::format("products, GFLOP/s · {} threads, {}\n\n", report.compute->threads, report.compute->target) +
            format_table(rows) + "\n";
  }
  if (report.optimizer) {
    std::vector<std::vector<std::string>> rows{{"", "million parameters/s"}};
    for (const auto& rate : report.optimizer->rates)
      rows.push_back({rate.format, fmt::format("{:.0f}", rate.parameters_per_s / 1e6)});
    rows.push_back({"gradients in", fmt::format("{:.0f}", report.optimizer->gradient_elements_per_s / 1e6)});
    text +=
        fmt::format("AdamW by state format · {} threads, {}\n\n", report.optimizer->threads, report.optimizer->target) +
        format_table(rows) + "\n";
  }
  return text;
}

}  // namespace

std::string setting_text(const profile::TransferSetting& setting) {
  return fmt::format("block {}, {} in flight", format_bytes(setting.block_bytes),
                     format_bytes(setting.in_flight_bytes));
}

Result<Bytes> size_option(const std::string& name, const std::string& value) {
  Result<Bytes> size = parse_bytes(value);
  if (size.ok()) return size;
  return make_error(ErrorCode::kUsage, fmt::format("headrace: {} {}: {}", name, value, size.error().message),
                    size.error().hint);
}

profile::ProgressSink progress_line() {
  if (!is_terminal(STDERR_FILENO)) return {};
  return [](const profile::ProgressEvent& event) {
    std::string line = fmt::format("{:3.0f} %, {:.0f} s left · {}", 100 * event.share, event.seconds_left, event.what);
    if (!event.found.empty()) line += " · so far: " + event.found;
    print_error("\r\033[K" + line);
  };
}

void clear_progress_line() {
  if (is_terminal(STDERR_FILENO)) print_error("\r\033[K");
}

std::string profile_text(const profile::Report& report) {
  std::string text;
  if (report.storage) {
    for (std::size_t i = 0; i < report.storage->results.size(); ++i)
      text += storage_text(report.storage->results[i], i == 0);
  }
  if (report.memory) text += memory_text(*report.memory);
  text += cores_text(report);
  for (const std::string& sentence : profile::verdict(report)) text += "→ " + sentence + "\n";
  if (report.storage)
    text += fmt::format("{} written to test files that are gone again, {} read through checksums; {:.0f} s\n",
                        format_bytes(report.storage->written_bytes), format_bytes(report.storage->verified_bytes),
                        report.seconds);
  return text;
}

}  // namespace headrace::cli
