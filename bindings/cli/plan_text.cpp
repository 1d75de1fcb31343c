// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_predict.h"
#include "core/file.h"
#include "core/json.h"
#include "core/topology.h"

namespace headrace::cli {

namespace {

std::string cell(Bytes bytes) { return bytes > 0 ? format_bytes(bytes) : "–"; }

std::string parameters_text(std::int64_t parameters) {
  if (parameters >= 1'000'000'000) return fmt::format("{:.2f}B", static_cast<double>(parameters) * 1e-9);
  return fmt::format("{:.1f}M", static_cast<double>(parameters) * 1e-6);
}

const char* format_word(const runtime::PlanInput& input) { return cpu_adam::state_format_name(input.state_format); }

double tokens_of(const models::TrainingSetup& setup) {
  return static_cast<double>(setup.config.run.batch.train_batch_size * setup.train_data.sequence_length);
}

Bytes free_on(const std::vector<std::string>& paths) {
  Bytes sum = 0;
  for (const std::string& path : paths)
    if (const auto bytes = free_bytes(path); bytes.ok()) sum += *bytes;
  return sum;
}

std::string headline(const runtime::Plan& plan, const models::TrainingSetup& setup) {
  const runtime::PlanInput& input = plan.input;
  const config::BatchConfig& batch = setup.config.run.batch;
  const Topology topology = detect_topology();
  return fmt::format(
      "{} parameters ({}) on 1 rank · cpu device ({} cores, {}) · {} weights, {} state · {} micro-batch{} of {} × {} "
      "tokens, groups of {}",
      parameters_text(parameters_of(plan)), input.model.name, topology.usable_cores, describe(topology.features),
      dtype_name(input.weights_dtype), format_word(input), input.micro_batches, input.micro_batches == 1 ? "" : "es",
      batch.micro_batch_size, setup.train_data.sequence_length, input.group_size);
}

std::string update_text(const runtime::Plan& plan) {
  if (plan.input.update == runtime::UpdatePolicy::kIntoForward) {
    if (plan.input.delayed_fraction >= 1)
      return "update    of each unit in the next step, just before its first use there\n";
    return fmt::format(
        "update    after the backward pass; of the units used last, {:.0f} % of the parameters, in the next step just "
        "before their first use there\n",
        100 * runtime::delayed_share(plan));
  }
  if (plan.input.update != runtime::UpdatePolicy::kInBackward) return "update    after the backward pass\n";
  std::string text = "update    of each unit as soon as its gradient is complete";
  if (plan.redo_write_bytes > 0)
    text += fmt::format("; a step that is clipped reads {} and writes {} more", format_bytes(plan.redo_read_bytes),
                        format_bytes(plan.redo_write_bytes));
  return text + "\n";
}

}  // namespace

std::int64_t parameters_of(const runtime::Plan& plan) {
  std::int64_t sum = 0;
  for (const runtime::UnitInfo& unit : plan.input.model.units)
    for (const runtime::TensorInfo& tensor : unit.tensors) sum += tensor.elements;
  return sum;
}

std::string plan_text(const runtime::Plan& plan, const models::TrainingSetup& setup, const std::string& storage) {
  bool any_device = plan.device_slab_bytes > 0;
  Bytes host = 0, device = 0, nvme = 0;
  std::vector<std::vector<std::string>> rows{{"", "host", "device", "nvme", ""}};
  for (const runtime::MemoryLine& line : plan.memory) {
    rows.push_back({line.what, cell(line.host), cell(line.device), cell(line.nvme), line.note});
    host += line.host;
    device += line.device;
    nvme += line.nvme;
  }
  const std::vector<std::string> paths = models::nvme_paths_of(setup.config.run);
  rows.push_back({"", "-", "-", "-", ""});
  rows.push_back(
      {"peak", format_bytes(host), cell(device), cell(nvme),
       any_device ? fmt::format("{} in all: the cpu device's arena is host memory", format_bytes(plan.host_peak_bytes))
                  : ""});
  std::string where;
  for (const std::string& path : paths) where += (where.empty() ? " free in " : ", ") + path;
  rows.push_back({"budget", format_bytes(plan.input.host_budget),
                  plan.input.device_budget > 0 ? format_bytes(plan.input.device_budget) : "–",
                  paths.empty() ? "–" : format_bytes(free_on(paths)) + where, ""});
  std::string text = headline(plan, setup) + "\n\n" + format_table(rows) + "\n";
  const double parameters = static_cast<double>(std::max<std::int64_t>(1, parameters_of(plan)));
  text += fmt::format("state     {} of weights and optimizer in one slot\n", format_bytes(plan.state_bytes));
  text += fmt::format("disk      {} read and {} written per step: {:.2f} + {:.2f} bytes per parameter\n",
                      format_bytes(plan.read_bytes_per_step), format_bytes(plan.write_bytes_per_step),
                      static_cast<double>(plan.read_bytes_per_step) / parameters,
                      static_cast<double>(plan.write_bytes_per_step) / parameters);
  if (plan.activation_read_bytes > 0)
    text += fmt::format("          of these {} and {} are activations\n", format_bytes(plan.activation_read_bytes),
                        format_bytes(plan.activation_write_bytes));
  text += update_text(plan);
  for (const std::string& path : paths)
    if (!is_folder(path)) text += fmt::format("nvme      {} does not exist yet: mkdir -p {}\n", path, path);
  if (storage.empty() && !paths.empty() && free_on(paths) < plan.nvme_state_bytes)
    text += fmt::format("nvme      {} are needed and {} are free: train would refuse to start here\n",
                        format_bytes(plan.nvme_state_bytes), format_bytes(free_on(paths)));
  if (!storage.empty()) text += fmt::format("storage   {}\n", storage);
  return text;
}

std::string bound_text(const runtime::Bound& bound, const runtime::Plan& plan, const models::TrainingSetup& setup) {
  return bound_text(bound, plan, tokens_of(setup));
}

std::string bound_text(const runtime::Bound& bound, const runtime::Plan& plan, double tokens) {
  std::string text = fmt::format("bound     {:.3f} s = {:.0f} tokens/s: cores {:.3f} s (", bound.seconds(),
                                 tokens / bound.seconds(), bound.cores_seconds);
  if (bound.device_seconds == 0) text += fmt::format("compute {:.3f} · ", bound.compute_seconds);
  text += fmt::format("optimizer {:.3f} · I/O {:.3f}", bound.optimizer_seconds, bound.io_cpu_seconds);
  if (bound.copy_seconds > 0 && bound.device_seconds == 0) text += fmt::format(" · copies {:.3f}", bound.copy_seconds);
  text += ")";
  if (plan.read_bytes_per_step + plan.write_bytes_per_step > 0)
    text += fmt::format(" · disk {:.3f} s", bound.disk_seconds);
  if (bound.device_seconds > 0)
    text += fmt::format(" · device {:.3f} s · h2d {:.3f} s · d2h {:.3f} s", bound.device_seconds, bound.h2d_seconds,
                        bound.d2h_seconds);
  if (bound.network_seconds > 0) text += fmt::format(" · network {:.3f} s", bound.network_seconds);
  return text;
}

double tokens_per_step(const runtime::Plan& plan, int world_size) {
  return static_cast<double>(plan.input.model.tokens_per_micro_batch) * plan.input.micro_batches * world_size;
}

namespace {

void add_prediction(JsonObject& document, const Prediction* prediction, const runtime::Plan& plan) {
  if (prediction == nullptr) {  // they need measured rates: --hardware FILE
    document.add_null("predicted_step_seconds");
    document.add_null("tokens_per_second");
    document.add_null("bound");
    return;
  }
  const double step = prediction->step_seconds();
  JsonObject bound;
  bound.add("lane", prediction->bound.resource());
  bound.add("seconds", prediction->bound.seconds());
  JsonObject busy;
  for (int lane = 0; lane < runtime::kNumLanes; ++lane)
    busy.add(runtime::lane_name(static_cast<runtime::Lane>(lane)),
             prediction->simulation.busy[static_cast<std::size_t>(lane)]);
  JsonObject waited;
  for (const runtime::Waited& wait : prediction->waited) waited.add(runtime::waiting_name(wait.waiting), wait.seconds);
  JsonArray advice;
  for (const Advice& more : prediction->advice) {
    JsonObject entry;
    entry.add("what", more.what);
    entry.add("step_seconds", more.step_seconds);
    advice.add_raw(entry.text());
  }
  document.add("predicted_step_seconds", step);
  document.add("tokens_per_second", tokens_per_step(plan, prediction->world_size) / step);
  document.add_raw("bound", bound.text());
  document.add("critical_path_seconds", prediction->simulation.critical_path_seconds);
  document.add_raw("lane_busy_seconds", busy.text());
  document.add_raw("waiting_seconds", waited.text());
  document.add_raw("advice", advice.text());
  if (prediction->peak_flops_per_s > 0) {
    document.add("model_flops_per_step", model_flops(plan));
    document.add("model_flop_utilisation", model_flops(plan) / step / prediction->peak_flops_per_s);
  }
  if (prediction->endurance_bytes > 0 && plan.write_bytes_per_step > 0)
    document.add("drive_life_days",
                 prediction->endurance_bytes / (static_cast<double>(plan.write_bytes_per_step) / step * 86'400));
}

// What the plan has made of a key that is "auto"; empty where it says nothing.
std::string chosen_by(const runtime::Plan& plan, std::string_view path) {
  const runtime::PlanInput& input = plan.input;
  if (path == "headrace.schedule.group_size") return fmt::format("{}", input.group_size);
  if (path == "headrace.schedule.update") return fmt::format("\"{}\"", runtime::update_policy_name(input.update));
  if (path == "headrace.schedule.delayed_fraction" && input.update == runtime::UpdatePolicy::kIntoForward)
    return fmt::format("{}", input.delayed_fraction);
  return {};
}

std::string resolved_keys(const runtime::Plan& plan, const models::TrainingSetup& setup) {
  JsonObject resolved;
  for (const config::ResolvedKey& key : setup.config.keys) {
    if (key.use != config::FieldUse::kUsed) continue;
    const std::string chosen = key.value == "\"auto\"" ? chosen_by(plan, key.path) : std::string();
    JsonObject entry;
    entry.add_raw("value", !chosen.empty() ? chosen : key.value.empty() ? "null" : key.value);
    entry.add("source", chosen.empty() ? key.source : std::string("the plan"));
    resolved.add_raw(key.path, entry.text());
  }
  return resolved.text();
}

}  // namespace

std::string plan_json(const runtime::Plan& plan, const models::TrainingSetup& setup, const Prediction* prediction) {
  const auto tier = [](Bytes peak, Bytes budget) {
    JsonObject object;
    object.add("peak_bytes", peak);
    if (budget > 0) {
      object.add("budget_bytes", budget);
    } else {
      object.add_null("budget_bytes");
    }
    return object.text();
  };
  const std::vector<std::string> paths = models::nvme_paths_of(setup.config.run);
  JsonObject memory;
  memory.add_raw("host", tier(plan.host_peak_bytes, plan.input.host_budget));
  memory.add_raw("device", tier(plan.device_slab_bytes, plan.input.device_budget));
  memory.add_raw("nvme", tier(plan.nvme_state_bytes, free_on(paths)));
  JsonArray lines;
  for (const runtime::MemoryLine& line : plan.memory) {
    JsonObject row;
    row.add("what", line.what);
    row.add("host_bytes", line.host);
    row.add("device_bytes", line.device);
    row.add("nvme_bytes", line.nvme);
    row.add("note", line.note);
    lines.add_raw(row.text());
  }
  JsonObject document;
  document.add("fits", true);
  document.add_raw("memory", memory.text());
  document.add_raw("memory_table", lines.text());
  document.add("parameters", parameters_of(plan));
  document.add("state_bytes", plan.state_bytes);
  document.add("nvme_read_bytes_per_step", plan.read_bytes_per_step);
  document.add("nvme_write_bytes_per_step", plan.write_bytes_per_step);
  document.add("activation_read_bytes_per_step", plan.activation_read_bytes);
  document.add("activation_write_bytes_per_step", plan.activation_write_bytes);
  add_prediction(document, prediction, plan);
  document.add("group_size", plan.input.group_size);
  document.add("update", runtime::update_policy_name(plan.input.update));
  if (plan.input.update == runtime::UpdatePolicy::kIntoForward)
    document.add("delayed_fraction", plan.input.delayed_fraction);
  document.add("redo_read_bytes", plan.redo_read_bytes);
  document.add("redo_write_bytes", plan.redo_write_bytes);
  document.add("drain_read_bytes", plan.drain_read_bytes);
  document.add("drain_write_bytes", plan.drain_write_bytes);
  document.add("tile_elements", plan.input.tile_elements);
  document.add("prefetch_units", plan.prefetch_units);
  document.add("tile_buffers", plan.tile_buffers);
  document.add_raw("resolved", resolved_keys(plan, setup));
  return document.text();
}

std::string misfit_json(const Error& error) {
  JsonObject smallest;
  smallest.add("host", error.smallest_host_bytes);
  smallest.add("device", error.smallest_device_bytes);
  JsonObject fields;
  fields.add("code", error_code_name(error.code));
  fields.add("message", error.message);
  fields.add("hint", error.hint);
  JsonObject document;
  document.add("fits", false);
  document.add_raw("smallest", smallest.text());
  document.add_raw("error", fields.text());
  return document.text();
}

}  // namespace headrace::cli
