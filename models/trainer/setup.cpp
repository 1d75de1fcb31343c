// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/process.h"
#include "core/topology.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::models {

namespace {

using config::OffloadDevice;
using runtime::Home;

// Beside what the process holds when the plan is made: stacks, the GEMM library's generated code and buffers, the heap
// of a step.
constexpr Bytes kProgramReserve = 30 * kMiB;
// Default tile: long enough for full disk speed, short enough that several fit into a small budget.
constexpr Bytes kDefaultTileBytes = 4 * kMiB;
// What the process holds when the plan is made differs between starts and between `plan` and `train`: up to 0.4 MiB
// seen.
constexpr Bytes kProgramSpread = 1 * kMiB;
constexpr std::int64_t kTileQuantum = 4096;  // elements: payloads of every stream are whole blocks

Home home_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kNone: return Home::kDevice;
    case OffloadDevice::kCpu: return Home::kHost;
    case OffloadDevice::kNvme: return Home::kNvme;
  }
  return Home::kDevice;
}

runtime::UpdatePolicy policy_of(config::UpdatePolicy update) {
  switch (update) {
    case config::UpdatePolicy::kAfterBackward: return runtime::UpdatePolicy::kAfterBackward;
    case config::UpdatePolicy::kInBackward: return runtime::UpdatePolicy::kInBackward;
    case config::UpdatePolicy::kIntoForward: return runtime::UpdatePolicy::kIntoForward;
  }
  return runtime::UpdatePolicy::kAfterBackward;
}

runtime::ActivationPolicy policy_of(config::ActivationPolicy activations) {
  switch (activations) {
    case config::ActivationPolicy::kKeep: return runtime::ActivationPolicy::kKeep;
    case config::ActivationPolicy::kRecompute: return runtime::ActivationPolicy::kRecompute;
    case config::ActivationPolicy::kHost: return runtime::ActivationPolicy::kHost;
    case config::ActivationPolicy::kNvme: return runtime::ActivationPolicy::kNvme;
  }
  return runtime::ActivationPolicy::kAuto;
}

// Of weights and optimizer; a parameter of some formats takes no whole number of bytes.
Bytes bytes_per_quantum(const runtime::PlanInput& input) {
  return kTileQuantum * dtype_bytes(input.weights_dtype) + runtime::optimizer_layout(input, kTileQuantum).bytes;
}

}  // namespace

int resolve_threads(const config::RunConfig& run) {
  return run.threads.is_auto() ? detect_topology().usable_cores : run.threads.value();
}

std::vector<std::string> nvme_paths_of(const config::RunConfig& run) {
  std::vector<std::string> paths;
  for (const config::OffloadConfig* offload : {&run.zero.parameters, &run.zero.optimizer})
    if (offload->device == OffloadDevice::kNvme)
      for (const std::string& path : offload->nvme_paths)
        if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  return paths;
}

Result<runtime::PlanInput> make_plan_input(const TrainingSetup& setup, const runtime::ModelInfo& model,
                                           std::int64_t tile_elements, Bytes scratch_bytes) {
  const config::RunConfig& run = setup.config.run;
  runtime::PlanInput input;
  input.model = model;
  input.weights_dtype = run.weights_dtype;
  input.gradient_dtype = run.gradient_dtype;
  input.state_format = run.state_format;
  input.optimizer = run.optimizer.kind;
  input.newton_schulz_steps = run.optimizer.hyper.newton_schulz_steps;
  input.moments = config::num_moments(run);
  input.weights_home = home_of(run.zero.parameters.device);
  input.optimizer_home = home_of(run.zero.optimizer.device);
  input.micro_batches = static_cast<std::int32_t>(run.batch.accumulation_steps);
  input.group_size = run.schedule.group_size.is_auto() ? 0 : run.schedule.group_size.value();
  input.snake = run.schedule.snake;
  if (!run.schedule.activations.is_auto()) input.activations = policy_of(run.schedule.activations.value());
  if (!run.schedule.update.is_auto()) {
    input.update = policy_of(run.schedule.update.value());
  } else if (run.slots == 2 && cpu_adam::is_elementwise(input.optimizer)) {
    input.update = runtime::UpdatePolicy::kAuto;
  }
  input.delayed_fraction = run.schedule.delayed_fraction.value_or(-1);
  input.can_clip = run.gradient_clipping > 0;
  input.cache = run.memory.cache;
  input.can_spill = io::folders_among(nvme_paths_of(run)).ok();
  input.force_copies = run.force_copies;
  input.tile_elements = tile_elements;
  if (!cpu_adam::is_elementwise(input.optimizer)) {
    input.tile_elements = runtime::whole_unit_tile(model);
  } else if (tile_elements <= 0) {
    const std::int64_t wanted = run.tile_elements.is_auto()
                                    ? kDefaultTileBytes / bytes_per_quantum(input) * kTileQuantum
                                    : run.tile_elements.value();
    input.tile_elements = std::max(kTileQuantum, wanted / kTileQuantum * kTileQuantum);
  }
  const Topology topology = detect_topology();
  // Unset: what the machine has, less a tenth for everybody else.
  input.host_budget = run.memory.host.is_auto() ? topology.effective_memory_limit / 10 * 9 : run.memory.host.value();
  if (input.host_budget > topology.effective_memory_limit)
    return make_error(ErrorCode::kPreflight,
                      fmt::format("memory.host is {}, this machine has {}", format_bytes(input.host_budget),
                                  format_bytes(topology.effective_memory_limit)),
                      "a smaller memory.host, or \"auto\"");
  input.device_budget = run.memory.device.is_auto() ? 0 : run.memory.device.value();
  HEADRACE_TRY(const ProcessMemory memory, process_memory());
  input.program_bytes =
      memory.resident + memory.huge_pages + scratch_bytes + kProgramReserve + runtime::update_workspace_bytes(input);
  input.program_spread_bytes = kProgramSpread;
  if (setup.validation_data.has_value()) input.eval_micro_batches = 1;
  return input;
}

Result<void> check_nvme_budget(const runtime::Plan& plan, const config::RunConfig& run) {
  if (run.memory.nvme.is_auto() || plan.nvme_state_bytes <= run.memory.nvme.value()) return {};
  return make_error(ErrorCode::kDoesNotFit,
                    fmt::format("nvme needs {}, memory.nvme is {}", format_bytes(plan.nvme_state_bytes),
                                format_bytes(run.memory.nvme.value())),
                    "slots: 1 halves it at the price of resume after a kill; or a larger memory.nvme");
}

runtime::EngineOptions make_engine_options(const TrainingSetup& setup, const std::string& run_id) {
  const config::RunConfig& run = setup.config.run;
  runtime::EngineOptions options;
  options.nvme_paths = nvme_paths_of(run);
  options.run_id = run_id;
  options.slots = run.slots;
  options.threads = resolve_threads(run);
  options.decay_vectors = run.decay == config::DecayScope::kAll;
  options.executor.lane_delay_us = run.debug.lane_delay_us;
  options.executor.seed = run.debug.seed;
  options.volume.durability =
      run.durability == config::Durability::kPower ? io::Durability::kPower : io::Durability::kProcess;
  if (!run.io.backend.is_auto()) {
    using config::IoBackendKind;
    options.volume.backend = run.io.backend.value() == IoBackendKind::kUring    ? io::IoBackendChoice::kUring
                             : run.io.backend.value() == IoBackendKind::kLibaio ? io::IoBackendChoice::kLibaio
                                                                                : io::IoBackendChoice::kThreads;
  }
  options.volume.striping =
      run.io.striping == config::IoStriping::kEqual ? io::Striping::kEqual : io::Striping::kMeasured;
  options.volume.overwrite_devices = run.io.overwrite_devices;
  if (!run.io.mode.is_auto())
    options.volume.mode = run.io.mode.value() == config::IoMode::kDirect ? io::IoMode::kDirect : io::IoMode::kBuffered;
  if (!run.io.block_bytes.is_auto()) options.volume.block_bytes = run.io.block_bytes.value();
  if (!run.io.in_flight_bytes.is_auto()) options.volume.in_flight_bytes = run.io.in_flight_bytes.value();
  if (!run.io.threads.is_auto()) options.volume.threads = static_cast<int>(run.io.threads.value());
  if (run.debug.throttle.has_value()) options.volume.throttle_bytes_per_s = *run.debug.throttle;
  return options;
}

}  // namespace headrace::models
