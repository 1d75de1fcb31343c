// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/plan_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_text.h"
#include "kernels/cpu/parallel.h"
#include "models/trainer/hardware_file.h"
#include "models/trainer/read_setup.h"

namespace headrace::cli {

namespace {

// Of host and device memory, for the operating system, the driver and what a framework holds.
constexpr double kUsable = 0.9;

// A preset alone names no homes and no numbers: what such a model is trained with on such machines.
void add_usual_settings(const runtime::Hardware& hardware, std::vector<std::string>& overrides,
                        std::vector<std::string>& notes) {
  std::vector<std::string> usual{"bf16.enabled=true", "zero_optimization.stage=3", "gradient_clipping=1.0",
                                 "train_micro_batch_size_per_gpu=1"};
  const bool nvme = !hardware.storage.empty();
  const std::string home = nvme ? R"({"device":"nvme","nvme_path":["nvme"]})" : R"({"device":"cpu"})";
  usual.push_back("zero_optimization.offload_param=" + home);
  usual.push_back("zero_optimization.offload_optimizer=" + home);
  overrides.insert(overrides.begin(), usual.begin(), usual.end());
  notes.push_back(fmt::format("no config given: bf16, ZeRO stage 3, micro-batches of 1, clipping at 1.0, all state {}",
                              nvme ? "on NVMe" : "in host memory"));
}

Result<models::SetupRequest> make_request(const PlanArguments& arguments) {
  models::SetupRequest request;
  request.config_file = arguments.config;
  request.overrides = arguments.overrides;
  request.purpose = config::Purpose::kPlan;
  // With --preset the first word may be an override: there need be no config.
  if (!arguments.preset.empty()) {
    request.preset = arguments.preset;
    if (request.config_file.find('=') != std::string::npos) {
      request.overrides.insert(request.overrides.begin(), request.config_file);
      request.config_file.clear();
    }
  } else if (request.config_file.empty()) {
    return make_error(ErrorCode::kUsage, "headrace plan needs a config file or --preset NAME",
                      "headrace plan run.json");
  }
  return request;
}

Bytes usable(Bytes bytes, int ranks) {
  return round_up(static_cast<Bytes>(static_cast<double>(bytes) * kUsable / ranks), kMiB);
}

// Budgets of one rank on a machine elsewhere: what the config says, else what the machine has.
Result<void> set_budgets(PlanJob& job, const config::MemoryConfig& memory) {
  const runtime::Hardware& hardware = *job.hardware;
  runtime::PlanInput& input = job.input;
  input.host_budget =
      memory.host.is_auto() ? usable(hardware.host_memory_bytes, job.ranks.ranks_per_node) : memory.host.value();
  if (hardware.device.count == 0) return {};
  input.separate_device = input.force_copies = true;
  input.device_budget = memory.device.is_auto() ? usable(hardware.device.memory_bytes, 1) : memory.device.value();
  return {};
}

// Tiles as large as keeps a plan for very large models short; drives of such machines are as fast with them.
void enlarge_tiles(PlanJob& job, bool is_auto) {
  constexpr std::int64_t kTiles = 2'048, kQuantum = 4'096;
  std::int64_t elements = 0;
  for (const runtime::UnitInfo& unit : job.input.model.units) elements += unit.flat_elements;
  const std::int64_t wanted = round_up(elements / job.ranks.world_size() / kTiles, kQuantum);
  if (!is_auto || wanted <= job.input.tile_elements) return;
  job.input.tile_elements = wanted;
  job.notes.push_back(fmt::format("planned with tiles of {} elements (headrace.tile_bytes sets them)", wanted));
}

Result<void> find_machine(PlanJob& job) {
  job.whole = job.input.model;
  if (!job.hardware.has_value()) return {};
  job.ranks.storage_paths = models::nvme_paths_of(job.setup.config.run);
  HEADRACE_TRY(job.machine, runtime::machine_for(*job.hardware, job.input, job.ranks));
  gather_units(job, 2);
  return {};
}

std::string cell(Bytes bytes) { return bytes > 0 ? format_bytes(bytes) : "–"; }

std::string machine_text(const PlanJob& job) {
  const runtime::Hardware& hardware = *job.hardware;
  std::string text =
      fmt::format("{} × {}", job.ranks.nodes, hardware.name.empty() ? std::string("this machine") : hardware.name);
  if (hardware.device.count > 0)
    text += fmt::format(", {} of its {} {}", job.ranks.ranks_per_node, hardware.device.count, hardware.device.name);
  return text;
}

}  // namespace

void gather_units(PlanJob& job, int units_in_flight) {
  job.machine->collectives.units_in_flight = units_in_flight;
  job.input.model =
      runtime::rank_model(job.whole, job.machine->collectives, job.input.weights_dtype, job.input.gradient_dtype);
}

Result<PlanJob> make_job(const PlanArguments& arguments) {
  PlanJob job;
  HEADRACE_TRY(models::SetupRequest request, make_request(arguments));
  if (!arguments.hardware.empty()) {
    HEADRACE_TRY(job.hardware, models::read_hardware_file(arguments.hardware));
    if (request.config_file.empty()) add_usual_settings(*job.hardware, request.overrides, job.notes);
  }
  const int devices = job.hardware.has_value() ? std::max(1, job.hardware->device.count) : 1;
  job.ranks.nodes = arguments.nodes;
  job.ranks.ranks_per_node = arguments.ranks_per_node > 0 ? arguments.ranks_per_node
                             : arguments.nodes > 1        ? devices
                                                          : 1;
  request.world_size = job.ranks.world_size();
  if (request.world_size > 1 && !job.hardware.has_value())
    return make_error(ErrorCode::kUsage,
                      fmt::format("{} ranks are planned with the rates of their machines", request.world_size),
                      "--hardware FILE (examples/hardware/ has some)");
  HEADRACE_TRY(job.setup, models::read_setup(request));
  config::RunConfig& run = job.setup.config.run;
  if (!job.hardware.has_value() && run.hardware.has_value()) {
    HEADRACE_TRY(job.hardware, models::read_hardware_file(*run.hardware));
  }
  const models::Model model(job.setup.model, run.weights_dtype, run.batch.micro_batch_size,
                            job.setup.train_data.sequence_length);
  const Bytes scratch = static_cast<Bytes>(models::resolve_threads(run)) * kernels::Parallel::kScratchBytes;
  const config::MemoryConfig memory = run.memory;
  if (job.is_elsewhere()) run.memory.host = {};  // not to be compared with the memory of this machine
  HEADRACE_TRY(job.input, models::make_plan_input(job.setup, model.info(), 0, scratch));
  run.memory = memory;
  if (job.is_elsewhere()) {
    HEADRACE_RETURN_IF_ERROR(set_budgets(job, memory));
    enlarge_tiles(job, run.tile_elements.is_auto());
  }
  HEADRACE_RETURN_IF_ERROR(find_machine(job));
  return job;
}

std::string job_text(const PlanJob& job, const runtime::Plan& plan) {
  const int ranks = job.ranks.world_size();
  double parameters = 0;
  for (const runtime::UnitInfo& unit : job.whole.units)
    for (const runtime::TensorInfo& tensor : unit.tensors) parameters += static_cast<double>(tensor.elements);
  std::string text = fmt::format(
      "{:.2f}B parameters ({}) on {} rank{}: {} · {} weights, {} state · {} micro-batch{} of {} × {} tokens per rank, "
      "groups of {}\n\n",
      parameters * 1e-9, job.whole.name, ranks, ranks == 1 ? "" : "s", machine_text(job),
      dtype_name(plan.input.weights_dtype), cpu_adam::state_format_name(plan.input.state_format),
      plan.input.micro_batches, plan.input.micro_batches == 1 ? "" : "es", job.setup.config.run.batch.micro_batch_size,
      job.setup.train_data.sequence_length, plan.input.group_size);
  std::vector<std::vector<std::string>> rows{{"per rank", "host", "device", "nvme", ""}};
  Bytes host = 0, device = 0, nvme = 0;
  for (const runtime::MemoryLine& line : plan.memory) {
    rows.push_back({line.what, cell(line.host), cell(line.device), cell(line.nvme), line.note});
    host += line.host;
    device += line.device;
    nvme += line.nvme;
  }
  rows.push_back({"", "-", "-", "-", ""});
  rows.push_back({"peak", cell(host), cell(device), cell(nvme), ""});
  double capacity = 0;
  for (const runtime::StorageHardware& storage : job.hardware->storage) capacity += storage.capacity_bytes;
  const auto share = static_cast<Bytes>(capacity / job.ranks.ranks_per_node);
  rows.push_back({"budget", format_bytes(plan.input.host_budget), cell(plan.input.device_budget), cell(share),
                  share > 0 && nvme > share ? "the drives are too small" : ""});
  if (ranks > 1)
    rows.push_back(
        {fmt::format("× {} ranks", ranks), cell(host * ranks), cell(device * ranks), cell(nvme * ranks), ""});
  text += format_table(rows) + "\n";
  text += fmt::format("state     {} of weights and optimizer in one slot, {} in all ranks\n",
                      format_bytes(plan.state_bytes), format_bytes(plan.state_bytes * ranks));
  const double share_of_parameters = std::max(1.0, parameters / ranks);
  text += fmt::format("disk      {} read and {} written per step and rank: {:.2f} + {:.2f} bytes per parameter\n",
                      format_bytes(plan.read_bytes_per_step), format_bytes(plan.write_bytes_per_step),
                      static_cast<double>(plan.read_bytes_per_step) / share_of_parameters,
                      static_cast<double>(plan.write_bytes_per_step) / share_of_parameters);
  return text;
}

}  // namespace headrace::cli
