// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/hardware_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "core/file.h"
#include "core/json.h"
#include "runtime/config/json_reader.h"

namespace headrace::models {

namespace {

using config::JsonMember;
using config::JsonValue;

const char* format_word(const runtime::PlanInput& input) { return cpu_adam::state_format_name(input.state_format); }

bool uses_disk(const runtime::PlanInput& input) {
  return input.weights_home == runtime::Home::kNvme || input.optimizer_home == runtime::Home::kNvme;
}

// The model's own rate: all floating-point operations of a micro-batch over all of its time.
double flops_per_s(const runtime::Rates& rates, const runtime::ModelInfo& model) {
  double flops = 0, seconds = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    flops += 3 * model.units[u].forward_flops;  // backward has twice the products of forward
    seconds += rates.forward_seconds[u] + rates.backward_seconds[u];
  }
  return seconds > 0 ? flops / seconds : 0;
}

std::string rate_object(double value) {
  JsonObject object;
  object.add("bw_bytes", value);
  return object.text();
}

Error bad(const std::string& file, const std::string& key, const std::string& what) {
  return make_error(ErrorCode::kConfig, fmt::format("{}: {} {}", file, key, what),
                    "a run writes such a file as hardware.json into its folder");
}

// The rate at a path of keys below `value`; positive and finite, or an error.
Result<double> rate_at(const std::string& file, const JsonValue& value, const std::vector<std::string>& keys,
                       const std::string& where) {
  const JsonValue* at = &value;
  std::string name = where;
  for (const std::string& key : keys) {
    name += (name.empty() ? "" : ".") + key;
    const JsonMember* const member = at->find(key);
    if (member == nullptr) return bad(file, name, "is missing");
    at = &member->value;
  }
  if (at->kind != JsonValue::Kind::kNumber) return bad(file, name, "is not a number");
  const double number = std::strtod(at->text.c_str(), nullptr);
  if (!std::isfinite(number) || number <= 0) return bad(file, name, fmt::format("is {}, not a rate", at->text));
  return number;
}

// The element of an array of objects whose `key` is `wanted`; the first one where `wanted` is empty.
Result<const JsonValue*> entry_of(const std::string& file, const JsonValue& root, const std::string& array,
                                  const std::string& key, const std::string& wanted) {
  const JsonMember* const member = root.find(array);
  if (member == nullptr) return bad(file, array, "is missing");
  for (const JsonValue& element : member->value.elements) {
    const JsonMember* const word = element.find(key);
    if (wanted.empty() || (word != nullptr && word->value.text == wanted)) return &element;
  }
  return bad(file, array, fmt::format("has no entry with \"{}\": \"{}\"", key, wanted));
}

Result<void> read_storage(const std::string& file, const JsonValue& root, runtime::Rates& rates) {
  HEADRACE_TRY(const JsonValue* storage, entry_of(file, root, "storage", "path", ""));
  HEADRACE_TRY(rates.read_bytes_per_s, rate_at(file, *storage, {"read", "bw_bytes"}, "storage[0]"));
  HEADRACE_TRY(rates.write_bytes_per_s, rate_at(file, *storage, {"write", "bw_bytes"}, "storage[0]"));
  HEADRACE_TRY(rates.mixed_bytes_per_s, rate_at(file, *storage, {"mixed", "bw_bytes"}, "storage[0]"));
  HEADRACE_TRY(rates.io_cpu_seconds_per_byte, rate_at(file, *storage, {"cpu_seconds_per_byte"}, "storage[0]"));
  return {};
}

}  // namespace

std::string format_hardware(const runtime::Rates& rates, const runtime::PlanInput& input,
                            const std::vector<std::string>& paths) {
  JsonObject compute;
  compute.add("dtype", dtype_name(input.weights_dtype));
  compute.add("flops_per_s", flops_per_s(rates, input.model));
  JsonObject optimizer;
  optimizer.add("format", format_word(input));
  optimizer.add("parameters_per_s", 1 / rates.update_seconds_per_element);
  JsonObject gradients;
  gradients.add("elements_per_s", 1 / rates.gradient_out_seconds_per_element);
  JsonObject memory;
  memory.add("copy_bytes_per_s", rates.copy_bytes_per_s);
  JsonObject document;
  document.add("cores", rates.cores);
  document.add_raw("compute", "[" + compute.text() + "]");
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
    storage.add_raw("mixed", rate_object(rates.mixed_bytes_per_s));
    storage.add("cpu_seconds_per_byte", rates.io_cpu_seconds_per_byte);
    document.add_raw("storage", "[" + storage.text() + "]");
  }
  return document.text();
}

Result<runtime::Rates> read_hardware(const std::string& file, const runtime::PlanInput& input) {
  HEADRACE_TRY(const std::string text, read_text_file(file));
  HEADRACE_TRY(const JsonValue root, config::parse_json(text, file));
  runtime::Rates rates;
  HEADRACE_TRY(const double cores, rate_at(file, root, {"cores"}, ""));
  rates.cores = static_cast<int>(cores);
  HEADRACE_TRY(const JsonValue* compute, entry_of(file, root, "compute", "dtype", dtype_name(input.weights_dtype)));
  HEADRACE_TRY(const double flops, rate_at(file, *compute, {"flops_per_s"}, "compute[]"));
  for (const runtime::UnitInfo& unit : input.model.units) {
    const double seconds = unit.forward_flops / flops;
    // A fused unit makes its forward products in its backward pass.
    rates.forward_seconds.push_back(seconds);
    rates.backward_seconds.push_back(unit.fused_loss ? 3 * seconds : 2 * seconds);
  }
  HEADRACE_TRY(const JsonValue* optimizer, entry_of(file, root, "optimizer", "format", format_word(input)));
  HEADRACE_TRY(const double updates, rate_at(file, *optimizer, {"parameters_per_s"}, "optimizer[]"));
  rates.update_seconds_per_element = 1 / updates;
  HEADRACE_TRY(const double elements, rate_at(file, root, {"gradients", "elements_per_s"}, ""));
  rates.gradient_out_seconds_per_element = 1 / elements;
  HEADRACE_TRY(rates.copy_bytes_per_s, rate_at(file, root, {"memory", "copy_bytes_per_s"}, ""));
  if (uses_disk(input)) HEADRACE_RETURN_IF_ERROR(read_storage(file, root, rates));
  return rates;
}

}  // namespace headrace::models
