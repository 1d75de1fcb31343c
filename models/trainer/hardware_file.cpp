// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/hardware_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "core/file.h"
#include "core/json.h"
#include "models/files/input_file.h"
#include "runtime/config/json_reader.h"
#include "runtime/config/suggest.h"

namespace headrace::models {

namespace {

using config::JsonMember;
using config::JsonValue;

const char* format_word(const runtime::PlanInput& input) { return cpu_adam::state_format_name(input.state_format); }

bool uses_disk(const runtime::PlanInput& input) {
  return input.weights_home == runtime::Home::kNvme || input.optimizer_home == runtime::Home::kNvme;
}

// The model's own rates: all floating-point operations of a micro-batch over all of its time, and of each pass alone.
struct FlopRates {
  double all = 0, forward = 0, backward = 0;
};

FlopRates flops_per_s(const runtime::Rates& rates, const runtime::ModelInfo& model) {
  double forward = 0, backward = 0, forward_seconds = 0, backward_seconds = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const runtime::UnitInfo& unit = model.units[u];
    // Backward has twice the products of forward; a fused unit makes its forward products in its backward pass.
    if (!unit.fused_loss) forward += unit.forward_flops;
    backward += (unit.fused_loss ? 3 : 2) * unit.forward_flops;
    forward_seconds += unit.fused_loss ? 0 : rates.forward_seconds[u];
    backward_seconds += rates.backward_seconds[u];
  }
  const auto over = [](double flops, double seconds) { return seconds > 0 ? flops / seconds : 0; };
  return {over(forward + backward, forward_seconds + backward_seconds), over(forward, forward_seconds),
          over(backward, backward_seconds)};
}

std::string rate_object(double value) {
  JsonObject object;
  object.add("bw_bytes", value);
  return object.text();
}

// Outside of these a figure is a slip of the pen (bytes for gigabytes, a time for a rate) and no machine.
struct Range {
  double low, high;
};
constexpr Range kBytesPerSecond{1e5, 1e15}, kFlops{1e6, 1e19}, kElements{1e3, 1e15}, kSeconds{0, 10}, kCount{1, 1e6},
    kBytes{1e6, 1e18}, kCpuSecondsPerByte{1e-14, 1e-6};

// Walks a parsed file. The first fault wins; later questions are then answered with nothing.
class HardwareReader {
 public:
  HardwareReader(std::string file, const JsonValue& root) : file_(std::move(file)), root_(root) {}

  Result<runtime::Hardware> read() {
    check_keys(root_, "",
               {"version", "name", "source", "cores", "host", "compute", "optimizer", "gradients", "memory", "storage",
                "device", "links", "network", "collective", "machine", "commit", "date"});
    if (const double version = number(root_, "", "version", kCount, 1); version != 1)
      fail("version", fmt::format("is {}, this program reads version 1", version));
    hardware_.name = text(root_, "", "name");
    hardware_.cores = static_cast<int>(number(root_, "", "cores", kCount));
    read_host();
    read_rates("compute", "dtype", "flops_per_s", kFlops, hardware_.flops_per_s);
    read_rates("optimizer", "format", "parameters_per_s", kElements, hardware_.updates_per_s);
    if (const JsonValue* gradients = object(root_, "", "gradients", {"elements_per_s", "source"}))
      hardware_.gradient_elements_per_s = number(*gradients, "gradients", "elements_per_s", kElements);
    read_memory();
    read_storage();
    read_device();
    read_links();
    if (error_.has_value()) return std::move(*error_);
    return std::move(hardware_);
  }

 private:
  static std::string join(const std::string& where, const std::string& key) {
    return where.empty() ? key : where + "." + key;
  }

  void fail(const std::string& key, const std::string& what, const JsonValue* at = nullptr) {
    if (error_.has_value()) return;
    const std::string place = at != nullptr && at->position.line > 0
                                  ? fmt::format(":{}:{}", at->position.line, at->position.column)
                                  : std::string();
    error_ = make_error(ErrorCode::kConfig, fmt::format("{}{}: {} {}", file_, place, key, what),
                        "docs/hardware-files.md lists the keys; a run writes such a file as hardware.json into its "
                        "folder");
  }

  void check_keys(const JsonValue& value, const std::string& where, std::initializer_list<std::string_view> known) {
    if (value.kind != JsonValue::Kind::kObject) return fail(where.empty() ? "the file" : where, "is no object", &value);
    for (const JsonMember& member : value.members)
      if (std::find(known.begin(), known.end(), member.key) == known.end()) {
        std::vector<std::string> names(known.begin(), known.end());
        const std::string near = config::nearest(member.key, names);
        fail(join(where, member.key), "is not known" + (near.empty() ? "" : "; did you mean \"" + near + "\"?"),
             &member.value);
      }
  }

  const JsonValue* object(const JsonValue& parent, const std::string& where, const std::string& key,
                          std::initializer_list<std::string_view> known) {
    const JsonMember* const member = parent.find(key);
    if (member == nullptr) return nullptr;
    check_keys(member->value, join(where, key), known);
    return member->value.kind == JsonValue::Kind::kObject ? &member->value : nullptr;
  }

  std::string text(const JsonValue& parent, const std::string& where, const std::string& key) {
    const JsonMember* const member = parent.find(key);
    if (member == nullptr) return {};
    if (member->value.kind != JsonValue::Kind::kString) fail(join(where, key), "is no text", &member->value);
    return member->value.text;
  }

  // `otherwise` where the key may be missing.
  double number(const JsonValue& parent, const std::string& where, const std::string& key, Range range,
                std::optional<double> otherwise = std::nullopt) {
    const std::string name = join(where, key);
    const JsonMember* const member = parent.find(key);
    if (member == nullptr) {
      if (!otherwise.has_value()) fail(name, "is missing", &parent);
      return otherwise.value_or(0);
    }
    return number_of(member->value, name, range);
  }

  double number_of(const JsonValue& value, const std::string& name, Range range) {
    if (value.kind != JsonValue::Kind::kNumber) {
      fail(name, "is not a number", &value);
      return 0;
    }
    const double number = std::strtod(value.text.c_str(), nullptr);
    if (!std::isfinite(number) || number < range.low || number > range.high) {
      fail(name, fmt::format("is {}; it must be between {:g} and {:g}", value.text, range.low, range.high), &value);
      return 0;
    }
    return number;
  }

  const std::vector<JsonValue>& array(const std::string& key) {
    static const std::vector<JsonValue> none;
    const JsonMember* const member = root_.find(key);
    if (member == nullptr) return none;
    if (member->value.kind != JsonValue::Kind::kArray) fail(key, "is no array", &member->value);
    return member->value.elements;
  }

  // An array of {word, rate}.
  void read_rates(const std::string& key, const std::string& word, const std::string& rate, Range range,
                  std::vector<std::pair<std::string, double>>& rates) {
    const std::vector<JsonValue>& elements = array(key);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const JsonValue& element = elements[i];
      const std::string where = fmt::format("{}[{}]", key, i);
      check_keys(
          element, where,
          {word, rate, "forward_" + rate, "backward_" + rate, "source", "threads", "samples", "ceiling", "fraction"});
      const std::string name = text(element, where, word);
      if (name.empty()) fail(join(where, word), "is missing", &element);
      rates.emplace_back(name, number(element, where, rate, range));
      for (const char* pass : {"forward", "backward"})
        if (element.find(pass + ("_" + rate)) != nullptr)
          rates.emplace_back(name + " " + pass, number(element, where, pass + ("_" + rate), range));
    }
  }

  // An object of rates by name.
  void read_named(const JsonValue& parent, const std::string& where, const std::string& key,
                  std::vector<std::pair<std::string, double>>& rates) {
    const JsonMember* const member = parent.find(key);
    if (member == nullptr) return;
    if (member->value.kind != JsonValue::Kind::kObject || member->value.members.empty())
      return fail(join(where, key), "is no object of rates by dtype", &member->value);
    for (const JsonMember& rate : member->value.members)
      rates.emplace_back(rate.key, number_of(rate.value, join(join(where, key), rate.key), kFlops));
  }

  void read_host() {
    const JsonValue* const host = object(root_, "", "host", {"memory_bytes", "cores", "source"});
    if (host == nullptr) return;
    hardware_.host_memory_bytes = static_cast<Bytes>(number(*host, "host", "memory_bytes", kBytes, 0));
    hardware_.host_cores = static_cast<int>(number(*host, "host", "cores", kCount, 0));
  }

  void read_memory() {
    const JsonValue* const memory =
        object(root_, "", "memory", {"read_bytes_per_s", "write_bytes_per_s", "copy_bytes_per_s", "source"});
    if (memory == nullptr) return;
    hardware_.copy_bytes_per_s = number(*memory, "memory", "copy_bytes_per_s", kBytesPerSecond, 0);
    hardware_.read_memory_bytes_per_s = number(*memory, "memory", "read_bytes_per_s", kBytesPerSecond, 0);
    hardware_.write_memory_bytes_per_s = number(*memory, "memory", "write_bytes_per_s", kBytesPerSecond, 0);
  }

  double direction(const JsonValue& entry, const std::string& where, const std::string& key, double& latency) {
    const JsonValue* const rates =
        object(entry, where, key, {"bw_bytes", "latency_seconds", "lat_ns", "source", "block_bytes", "queue_depth"});
    if (rates == nullptr) {
      fail(join(where, key), "is missing", &entry);
      return 0;
    }
    latency = number(*rates, join(where, key), "latency_seconds", kSeconds, 0);
    return number(*rates, join(where, key), "bw_bytes", kBytesPerSecond);
  }

  void read_storage() {
    const std::vector<JsonValue>& entries = array("storage");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const JsonValue& entry = entries[i];
      const std::string where = fmt::format("storage[{}]", i);
      check_keys(entry, where,
                 {"path", "read", "write", "mixed", "cpu_seconds_per_byte", "drives", "capacity_bytes",
                  "endurance_bytes", "source", "fio", "backend", "mode", "huge_pages"});
      runtime::StorageHardware storage;
      double mixed_latency = 0;
      storage.path = text(entry, where, "path");
      storage.read_bytes_per_s = direction(entry, where, "read", storage.read_latency_seconds);
      storage.write_bytes_per_s = direction(entry, where, "write", storage.write_latency_seconds);
      storage.mixed_bytes_per_s = direction(entry, where, "mixed", mixed_latency);
      storage.cpu_seconds_per_byte = number(entry, where, "cpu_seconds_per_byte", kCpuSecondsPerByte);
      storage.drives = static_cast<int>(number(entry, where, "drives", kCount, 1));
      storage.capacity_bytes = number(entry, where, "capacity_bytes", kBytes, 0);
      storage.endurance_bytes = number(entry, where, "endurance_bytes", {1e9, 1e21}, 0);
      if (storage.mixed_bytes_per_s > storage.read_bytes_per_s + storage.write_bytes_per_s)
        fail(join(where, "mixed.bw_bytes"), "is more than read and write together", &entry);
      hardware_.storage.push_back(std::move(storage));
    }
  }

  void read_device() {
    const JsonValue* const device =
        object(root_, "", "device",
               {"name", "count", "memory_bytes", "flops_per_s", "peak_flops_per_s", "memory_bytes_per_s", "source"});
    if (device == nullptr) return;
    hardware_.device.name = text(*device, "device", "name");
    hardware_.device.count = static_cast<int>(number(*device, "device", "count", kCount, 1));
    hardware_.device.memory_bytes = static_cast<Bytes>(number(*device, "device", "memory_bytes", kBytes));
    if (device->find("flops_per_s") == nullptr) fail("device.flops_per_s", "is missing", device);
    if (hardware_.host_memory_bytes == 0)
      fail("host.memory_bytes", "is missing: a machine with devices is one elsewhere", device);
    read_named(*device, "device", "flops_per_s", hardware_.device.flops_per_s);
    read_named(*device, "device", "peak_flops_per_s", hardware_.device.peak_flops_per_s);
  }

  void read_links() {
    if (const JsonValue* links =
            object(root_, "", "links", {"h2d_bytes_per_s", "d2h_bytes_per_s", "latency_seconds", "source"})) {
      hardware_.h2d_bytes_per_s = number(*links, "links", "h2d_bytes_per_s", kBytesPerSecond);
      hardware_.d2h_bytes_per_s = number(*links, "links", "d2h_bytes_per_s", kBytesPerSecond);
      hardware_.link_latency_seconds = number(*links, "links", "latency_seconds", kSeconds, 0);
    }
    if (const JsonValue* network =
            object(root_, "", "network", {"intra_bytes_per_s", "inter_bytes_per_s", "latency_seconds", "source"})) {
      hardware_.intra_bytes_per_s = number(*network, "network", "intra_bytes_per_s", kBytesPerSecond, 0);
      hardware_.inter_bytes_per_s = number(*network, "network", "inter_bytes_per_s", kBytesPerSecond, 0);
      hardware_.network_latency_seconds = number(*network, "network", "latency_seconds", kSeconds, 0);
    }
  }

  std::string file_;
  const JsonValue& root_;
  runtime::Hardware hardware_;
  std::optional<Error> error_;
};

}  // namespace

std::string format_hardware(const runtime::Rates& rates, const runtime::PlanInput& input,
                            const std::vector<std::string>& paths) {
  JsonObject compute;
  compute.add("dtype", dtype_name(input.weights_dtype));
  const FlopRates flops = flops_per_s(rates, input.model);
  compute.add("flops_per_s", flops.all);
  if (flops.forward > 0) compute.add("forward_flops_per_s", flops.forward);
  if (flops.backward > 0) compute.add("backward_flops_per_s", flops.backward);
  JsonObject optimizer;
  optimizer.add("format", format_word(input));
  optimizer.add("parameters_per_s", 1 / rates.update_seconds_per_element);
  JsonObject gradients;
  gradients.add("elements_per_s", 1 / rates.gradient_out_seconds_per_element);
  JsonObject memory;
  memory.add("copy_bytes_per_s", rates.copy_bytes_per_s);
  JsonObject document;
  document.add("cores", rates.cores);
  std::string products;
  if (rates.update_seconds_per_product_flop > 0) {
    JsonObject muon;
    muon.add("dtype", runtime::kMuonProducts);
    muon.add("flops_per_s", 1 / rates.update_seconds_per_product_flop);
    products = "," + muon.text();
  }
  document.add_raw("compute", "[" + compute.text() + products + "]");
  document.add_raw("optimizer", "[" + optimizer.text() + "]");
  document.add_raw("gradients", gradients.text());
  document.add_raw("memory", memory.text());
  if (uses_disk(input)) {
    JsonObject storage;
    std::string joined;
    for (const std::string& path : paths) joined += (joined.empty() ? "" : ", ") + path;
    storage.add("path", joined);
    storage.add_raw("read", rate_object(rates.read_bytes_per_s));
    storage.add_raw("write", rate_object(rates.write_bytes_per_s));
    // More than both alone together is noise of a short sample.
    const double both = rates.read_bytes_per_s + rates.write_bytes_per_s;
    storage.add_raw("mixed", rate_object(std::min(rates.mixed_bytes_per_s, both)));
    storage.add("cpu_seconds_per_byte", rates.io_cpu_seconds_per_byte);
    document.add_raw("storage", "[" + storage.text() + "]");
  }
  return document.text();
}

Result<runtime::Hardware> read_hardware_file(const std::string& file) {
  HEADRACE_TRY(const File opened, open_input(file));  // a path that is wrong is a fault of the configuration
  HEADRACE_TRY(const std::string text, read_text_file(file));
  HEADRACE_TRY(const JsonValue root, config::parse_json(text, file));
  return HardwareReader(file, root).read();
}

namespace {

Result<runtime::Machine> machine_of(const std::string& file, const runtime::PlanInput& input) {
  HEADRACE_TRY(const runtime::Hardware hardware, read_hardware_file(file));
  if (hardware.device.count > 0)
    return make_error(ErrorCode::kConfig,
                      fmt::format("{}: device: training computes on the host, this file describes {} × {}", file,
                                  hardware.device.count, hardware.device.name),
                      "leave headrace.hardware out and the run measures its machine; headrace plan --hardware plans "
                      "for such machines");
  Result<runtime::Machine> machine = runtime::machine_for(hardware, input, {});
  if (machine.ok()) return machine;
  Error error = std::move(machine).error();
  error.message = file + ": " + error.message;
  return error;
}

}  // namespace

Result<runtime::Rates> read_hardware(const std::string& file, const runtime::PlanInput& input) {
  HEADRACE_TRY(runtime::Machine machine, machine_of(file, input));
  return std::move(machine.rates);
}

Result<runtime::Plan> plan_with(const std::optional<std::string>& hardware_file, const runtime::PlanInput& input) {
  if (!hardware_file.has_value()) return runtime::compile_plan(input);
  HEADRACE_TRY(const runtime::Machine machine, machine_of(*hardware_file, input));
  HEADRACE_TRY(runtime::Choice choice, runtime::choose_plan(input, machine));
  return std::move(choice.plan);
}

}  // namespace headrace::models
