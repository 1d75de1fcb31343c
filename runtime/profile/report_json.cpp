// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"
#include "runtime/profile/report.h"

namespace headrace::profile {
namespace {

JsonArray numbers(const std::vector<double>& values) {
  JsonArray array;
  for (const double value : values) array.add(value);
  return array;
}

// fio's names and its way to write percentiles.
std::string latency_json(const io::LatencyHistogram& latency) {
  JsonObject percentiles;
  for (const double share : {50.0, 90.0, 99.0, 99.9})
    percentiles.add(fmt::format("{:.6f}", share), latency.percentile_ns(share / 100));
  JsonObject object;
  object.add("N", latency.count());
  object.add("mean", latency.mean_ns());
  object.add_raw("percentile", percentiles.text());
  return object.text();
}

JsonObject repeats_json(const Repeats& repeats, const TransferSetting& setting) {
  JsonObject object;
  const double rate = repeats.median();
  object.add("bw_bytes", rate);
  object.add("iops", rate / static_cast<double>(setting.block_bytes));
  object.add("spread", repeats.spread());
  object.add("steady", repeats.steady);
  object.add("cpu_seconds_per_byte", repeats.cpu_seconds_per_byte);
  object.add_raw("samples", numbers(repeats.bytes_per_s).text());
  return object;
}

std::string mixed_json(const StorageResult& result) {
  JsonObject object = repeats_json(result.mixed, result.setting);
  const double rate = result.mixed.median(), share = result.mixed.read_share;
  JsonObject read, write;
  read.add("bw_bytes", rate * share).add_raw("lat_ns", latency_json(result.mixed.read_latency));
  read.add("of_alone", rate * share / result.read.median());
  write.add("bw_bytes", rate * (1 - share)).add_raw("lat_ns", latency_json(result.mixed.write_latency));
  write.add("of_alone", rate * (1 - share) / result.write.median());
  object.add_raw("read", read.text()).add_raw("write", write.text());
  object.add("additive_bound_bytes", result.additive_bound());
  return object.text();
}

std::string fio_json(const StorageResult& result) {
  const FioComparison& fio = *result.fio;
  JsonObject object;
  object.add("version", fio.version);
  const auto part = [&](const char* name, const std::vector<double>& samples, const std::string& setting, double ours) {
    JsonObject side;
    side.add("bw_bytes", median_of(samples)).add("setting", setting).add("ratio", ours / median_of(samples));
    side.add_raw("samples", numbers(samples).text());
    object.add_raw(name, side.text());
  };
  part("read", fio.read, fio.read_setting, result.read.median());
  part("write", fio.write, fio.write_setting, result.write.median());
  part("mixed", fio.mixed, fio.write_setting, result.mixed.median());
  object.add("cpu_seconds_per_byte", fio.cpu_seconds_per_byte);
  return object.text();
}

std::string sweep_json(const std::vector<SweepPoint>& sweep) {
  JsonArray array;
  for (const SweepPoint& point : sweep) {
    JsonObject object;
    object.add("rw", traffic_name(point.traffic)).add("block_bytes", point.setting.block_bytes);
    object.add("in_flight_bytes", point.setting.in_flight_bytes).add("bw_bytes", point.bytes_per_s);
    object.add("cpu_seconds_per_byte", point.cpu_seconds_per_byte);
    object.add("lat_ns_p50", point.p50_ns).add("lat_ns_p99", point.p99_ns);
    array.add_raw(object.text());
  }
  return array.text();
}

double cpu_of(const StorageResult& result) {
  return std::max(result.read.cpu_seconds_per_byte, result.write.cpu_seconds_per_byte);
}

std::string storage_json(const StorageResult& result) {
  JsonObject object;
  object.add("path", joined(result.paths)).add("backend", result.backend);
  object.add("mode", result.direct ? "direct" : "buffered");
  if (!result.direct) object.add("why_buffered", result.why_buffered);
  object.add("block_bytes", result.setting.block_bytes).add("in_flight_bytes", result.setting.in_flight_bytes);
  object.add("default_setting", result.is_default);
  JsonObject read = repeats_json(result.read, result.setting), write = repeats_json(result.write, result.setting);
  read.add_raw("lat_ns", latency_json(result.read.read_latency)).add("latency_seconds", result.read_latency_seconds);
  write.add_raw("lat_ns", latency_json(result.write.write_latency));
  write.add("latency_seconds", result.write_latency_seconds);
  object.add_raw("read", read.text()).add_raw("write", write.text()).add_raw("mixed", mixed_json(result));
  object.add("cpu_seconds_per_byte", cpu_of(result));
  if (result.fio) {
    object.add_raw("fio", fio_json(result));
  } else {
    object.add_null("fio").add("why_no_fio", result.why_no_fio);
  }
  if (result.pages.huge_kind != PageKind::kOrdinary) {
    JsonObject pages, huge, ordinary;
    huge.add("kind", page_kind_name(result.pages.huge_kind));
    huge.add("read_bw_bytes", result.pages.huge_read).add("write_bw_bytes", result.pages.huge_write);
    ordinary.add("read_bw_bytes", result.pages.ordinary_read).add("write_bw_bytes", result.pages.ordinary_write);
    pages.add_raw("huge", huge.text()).add_raw("ordinary", ordinary.text());
    object.add_raw("pages", pages.text());
  }
  object.add("parameters_per_s", feed_of(result).parameters_per_s);
  if (!result.sweep.empty()) object.add_raw("sweep", sweep_json(result.sweep));
  return object.text();
}

std::string memory_json(const MemoryReport& memory) {
  JsonObject object;
  object.add("read_bytes_per_s", memory.read);
  object.add("write_bytes_per_s", std::max(memory.write, memory.write_streaming));
  object.add("copy_bytes_per_s", memory.copy_one_thread);
  JsonObject all;
  all.add("threads", memory.threads).add("array_bytes", memory.array_bytes).add("pages", memory.pages);
  all.add("read", memory.read).add("write", memory.write).add("write_streaming", memory.write_streaming);
  all.add("copy", memory.copy).add("copy_streaming", memory.copy_streaming);
  object.add_raw("all_threads", all.text());
  if (memory.lock_limit < 0) {
    object.add("lock_limit_bytes", "unlimited");
  } else {
    object.add("lock_limit_bytes", memory.lock_limit);
  }
  object.add("locked", memory.can_lock);
  return object.text();
}

std::string compute_json(const ComputeReport& compute, bool with_samples) {
  JsonArray array;
  for (const GemmRate& rate : compute.rates) {
    JsonObject object;
    object.add("dtype", rate.dtype).add("flops_per_s", rate.flops_per_s);
    object.add("forward_flops_per_s", rate.forward_flops_per_s).add("backward_flops_per_s", rate.backward_flops_per_s);
    object.add("threads", compute.threads);
    object.add("source", "products of 512 tokens by 2048 × 2048, " + compute.target);
    if (with_samples) object.add_raw("samples", numbers(rate.samples).text());
    array.add_raw(object.text());
  }
  return array.text();
}

std::string optimizer_json(const OptimizerReport& optimizer, bool with_samples) {
  JsonArray array;
  for (const OptimizerRate& rate : optimizer.rates) {
    JsonObject object;
    object.add("format", rate.format).add("parameters_per_s", rate.parameters_per_s);
    object.add("threads", optimizer.threads).add("source", "AdamW, " + optimizer.target);
    if (with_samples) object.add_raw("samples", numbers(rate.samples).text());
    array.add_raw(object.text());
  }
  return array.text();
}

void add_machine(JsonObject& document, const Report& report) {
  JsonObject machine;
  machine.add("cpu", report.cpu_model).add("cores", report.cores).add("memory_bytes", report.memory_bytes);
  document.add_raw("machine", machine.text());
}

}  // namespace

std::string joined(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

std::string report_json(const Report& report) {
  JsonObject document;
  document.add("version", 1).add("source", "headrace profile, " + report.program_version).add("date", report.date);
  document.add("quick", report.quick).add("seconds", report.seconds).add("cores", report.cores);
  add_machine(document, report);
  JsonArray storage;
  if (report.storage) {
    for (const StorageResult& result : report.storage->results) storage.add_raw(storage_json(result));
    document.add_raw("storage", storage.text());
    document.add("written_bytes", report.storage->written_bytes);
    document.add("verified_bytes", report.storage->verified_bytes);
    document.add("file_bytes", report.storage->file_bytes);
  }
  if (report.memory) document.add_raw("memory", memory_json(*report.memory));
  if (report.compute) document.add_raw("compute", compute_json(*report.compute, true));
  if (report.optimizer) {
    document.add_raw("optimizer", optimizer_json(*report.optimizer, true));
    document.add_raw("gradients", JsonObject().add("elements_per_s", report.optimizer->gradient_elements_per_s).text());
  }
  JsonArray words;
  for (const std::string& sentence : verdict(report)) words.add(sentence);
  document.add_raw("verdict", words.text());
  return document.text();
}

std::string hardware_json(const Report& report) {
  JsonObject document;
  document.add("version", 1).add("name", report.cpu_model);
  document.add("source", "headrace profile, " + report.program_version).add("date", report.date);
  document.add("cores", report.cores);
  add_machine(document, report);
  if (report.compute) document.add_raw("compute", compute_json(*report.compute, false));
  if (report.optimizer) {
    document.add_raw("optimizer", optimizer_json(*report.optimizer, false));
    document.add_raw("gradients", JsonObject().add("elements_per_s", report.optimizer->gradient_elements_per_s).text());
  }
  if (report.memory) {
    JsonObject memory;
    memory.add("read_bytes_per_s", report.memory->read);
    memory.add("write_bytes_per_s", std::max(report.memory->write, report.memory->write_streaming));
    memory.add("copy_bytes_per_s", report.memory->copy_one_thread);
    document.add_raw("memory", memory.text());
  }
  if (report.storage) {
    // All paths together are one entry: a job that names the same paths gets what they reach together.
    const StorageResult& result = report.storage->results.front();
    const double read = result.read.median(), write = result.write.median();
    JsonObject storage;
    storage.add("path", joined(result.paths)).add("backend", result.backend);
    storage.add("mode", result.direct ? "direct" : "buffered");
    storage.add_raw("read", JsonObject()
                                .add("bw_bytes", read)
                                .add("latency_seconds", result.read_latency_seconds)
                                .add("block_bytes", result.setting.block_bytes)
                                .text());
    storage.add_raw("write", JsonObject()
                                 .add("bw_bytes", write)
                                 .add("latency_seconds", result.write_latency_seconds)
                                 .add("block_bytes", result.setting.block_bytes)
                                 .text());
    // More than both alone together is noise of a short sample.
    storage.add_raw("mixed", JsonObject().add("bw_bytes", std::min(result.mixed.median(), read + write)).text());
    storage.add("cpu_seconds_per_byte", cpu_of(result));
    document.add_raw("storage", "[" + storage.text() + "]");
  }
  return document.text();
}

}  // namespace headrace::profile
