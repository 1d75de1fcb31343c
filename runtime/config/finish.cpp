// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cpu_adam/format_state.h"
#include "runtime/config/finish_optimizer.h"
#include "runtime/config/run_fields.h"

namespace headrace::config {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kParam = "zero_optimization.offload_param";
constexpr const char* kOptimizer = "zero_optimization.offload_optimizer";

Error batch_mismatch(const Settings& settings, std::int64_t train, std::int64_t micro, std::int64_t steps,
                     const World& world) {
  std::string fix;
  const std::int64_t product = micro * steps * world.size;  // fields' ranges keep it below 2^63 where it is printed
  if (train % (micro * world.size) == 0) {
    fix = fmt::format("set \"{}\": {} or \"{}\": {}, or leave one of the three out", kAccumulation,
                      train / (micro * world.size), kTrain, product);
  } else {
    fix = fmt::format("set \"{}\": {}, or leave it out", kTrain, product);
  }
  return settings.fail(kTrain,
                       fmt::format("{} {} is not {} {} × {} {} × world size {} ({}) = {}", kTrain, train, kMicro, micro,
                                   kAccumulation, steps, world.size, world.source, product),
                       fix);
}

// total = known × unknown × world size, solved for the unknown.
Result<std::int64_t> solve(const Settings& settings, std::int64_t train, const char* known, std::int64_t value,
                           const World& world) {
  const std::int64_t unit = value * world.size;
  if (train % unit == 0) return train / unit;
  const std::int64_t below = train / unit * unit;
  const std::string near = below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
  return settings.fail(kTrain,
                       fmt::format("{} {} is not a multiple of {} {} × world size {} ({})", kTrain, train, known, value,
                                   world.size, world.source),
                       fmt::format("set \"{}\": {}", kTrain, near));
}

Result<void> finish_batch(Draft& draft, Settings& settings, const World& world) {
  constexpr std::int64_t kLargest = std::int64_t{1}
                                    << 40;  // samples; larger products are mistakes and would overflow later
  BatchConfig& batch = draft.run.batch;
  batch.world_size = world.size;
  const bool has_train = !draft.train_batch_size.is_auto();
  const bool has_micro = !draft.micro_batch_size.is_auto();
  const bool has_steps = !draft.accumulation_steps.is_auto();
  if (!has_train && !has_micro && !has_steps && settings.purpose() == Purpose::kTrain) {
    return settings.fail(kTrain, "no batch size is given",
                         fmt::format("set one or two of {}, {} and {}", kTrain, kMicro, kAccumulation));
  }
  std::int64_t micro = draft.micro_batch_size.value_or(1);
  std::int64_t steps = draft.accumulation_steps.value_or(1);
  if (micro > kLargest / steps / world.size) {
    return settings.fail(has_micro ? kMicro : kAccumulation, fmt::format("a step of more than {} samples", kLargest));
  }
  if (has_train) {
    const std::int64_t train = draft.train_batch_size.value();
    if (has_micro && has_steps) {
      if (train != micro * steps * world.size) return batch_mismatch(settings, train, micro, steps, world);
    } else if (has_micro) {
      HEADRACE_TRY(steps, solve(settings, train, kMicro, micro, world));
    } else {
      HEADRACE_TRY(micro, solve(settings, train, kAccumulation, steps, world));
    }
  }
  batch.micro_batch_size = micro;
  batch.accumulation_steps = steps;
  batch.train_batch_size = micro * steps * world.size;
  const std::string from = fmt::format("the other batch settings and world size {} ({})", world.size, world.source);
  if (!has_train) settings.derive(kTrain, batch.train_batch_size, from);
  if (!has_micro) settings.derive(kMicro, micro, from);
  if (!has_steps) settings.derive(kAccumulation, steps, from);
  return {};
}

Result<void> finish_precision(Draft& draft, Settings& settings) {
  RunConfig& run = draft.run;
  if (draft.bf16 && draft.fp16) {
    return settings.fail("fp16.enabled", "bf16.enabled and fp16.enabled are both true", "switch one of them off");
  }
  run.weights_dtype = draft.bf16 ? DType::kBf16 : draft.fp16 ? DType::kFp16 : DType::kFp32;
  const StateFormat natural = draft.bf16 ? StateFormat::kSplit : StateFormat::kFp32;
  run.state_format = draft.state_format.value_or(natural);
  if (run.state_format != StateFormat::kFp32 && !draft.bf16) {
    return settings.fail(
        "headrace.state_format",
        fmt::format(
            "headrace.state_format \"{}\" keeps the master as a bf16 weight and a remainder; the weights are {}",
            cpu_adam::state_format_name(run.state_format), dtype_name(run.weights_dtype)),
        "set \"bf16\": {\"enabled\": true}, or headrace.state_format \"fp32\"");
  }
  if (draft.state_format.is_auto()) {
    settings.derive("headrace.state_format", std::string(cpu_adam::state_format_name(natural)),
                    draft.bf16 ? "bf16 is on" : "bf16 is off");
  }
  if (run.slots == 1 && draft.fp16) {
    return settings.fail("headrace.slots",
                         "headrace.slots 1 cannot be used with fp16: a step that overflows could not be dropped",
                         "set headrace.slots 2, or use bf16");
  }
  return {};
}

// headrace.gradient_dtype, or DeepSpeed's data_types.grad_accum_dtype, or what suits the weights.
Result<void> finish_gradients(Draft& draft, Settings& settings) {
  constexpr const char* kNative = "headrace.gradient_dtype";
  constexpr const char* kDeepSpeed = "data_types.grad_accum_dtype";
  DType dtype = draft.bf16 ? DType::kBf16 : DType::kFp32;
  if (draft.grad_accum_dtype) dtype = parse_dtype(*draft.grad_accum_dtype).value_or(DType::kFp32);
  if (draft.grad_accum_dtype && !draft.gradient_dtype.is_auto() && draft.gradient_dtype.value() != dtype &&
      settings.at(kNative).source.kind == settings.at(kDeepSpeed).source.kind) {
    return settings.fail(kDeepSpeed, fmt::format("{} and {} disagree", kDeepSpeed, kNative), "keep one of them");
  }
  const bool deepspeed_wins = draft.grad_accum_dtype && settings.at(kDeepSpeed).source.kind == SourceKind::kOverride &&
                              settings.at(kNative).source.kind != SourceKind::kOverride;
  if (!draft.gradient_dtype.is_auto() && !deepspeed_wins) dtype = draft.gradient_dtype.value();
  draft.run.gradient_dtype = dtype;
  const char* source = draft.gradient_dtype.is_auto() || deepspeed_wins
                           ? (draft.grad_accum_dtype ? kDeepSpeed : "the weights' type")
                           : nullptr;
  if (source != nullptr) settings.derive(kNative, std::string(dtype_name(dtype)), source);
  if (dtype == DType::kBf16 && !draft.bf16) {
    return settings.fail(
        settings.given(kNative) ? kNative : kDeepSpeed,
        fmt::format("gradients in bf16 need bf16 weights; the weights are {}", dtype_name(draft.run.weights_dtype)),
        "set headrace.gradient_dtype \"fp32\"");
  }
  return {};
}

// Keys of one scheduler type given with another one.
Result<void> check_scheduler_keys(const Settings& settings, SchedulerType type) {
  struct Key {
    const char* name;
    bool warmup, decay, cosine;
  };
  constexpr Key kKeys[] = {{"warmup_min_lr", true, true, false},   {"warmup_max_lr", true, true, false},
                           {"warmup_num_steps", true, true, true}, {"warmup_type", true, true, true},
                           {"total_num_steps", false, true, true}, {"warmup_min_ratio", false, false, true},
                           {"cos_min_ratio", false, false, true}};
  for (const Key& key : kKeys) {
    const std::string path = fmt::format("scheduler.params.{}", key.name);
    const bool valid = (type == SchedulerType::kWarmup && key.warmup) ||
                       (type == SchedulerType::kWarmupDecay && key.decay) ||
                       (type == SchedulerType::kWarmupCosine && key.cosine);
    if (valid || !settings.given(path)) continue;
    return settings.fail(path,
                         fmt::format("\"{}\" is no parameter of scheduler.type {}", path,
                                     to_json_text(settings.at("scheduler.type").value)),
                         settings.given("scheduler.type") ? "remove it" : "name the scheduler: \"type\": \"WarmupLR\"");
  }
  return {};
}

Result<void> finish_scheduler(Draft& draft, Settings& settings) {
  SchedulerConfig& scheduler = draft.run.scheduler;
  constexpr const char* kTotal = "scheduler.params.total_num_steps";
  constexpr const char* kWarmup = "scheduler.params.warmup_num_steps";
  constexpr const char* kMax = "scheduler.params.warmup_max_lr";
  HEADRACE_RETURN_IF_ERROR(check_scheduler_keys(settings, scheduler.type));
  const bool decays = scheduler.type == SchedulerType::kWarmupDecay || scheduler.type == SchedulerType::kWarmupCosine;
  if (decays) {
    scheduler.total_num_steps = draft.total_num_steps.value_or(draft.steps.value_or(scheduler.warmup_num_steps));
    if (draft.total_num_steps.is_auto()) settings.derive(kTotal, scheduler.total_num_steps, "headrace.steps");
    if (scheduler.total_num_steps < scheduler.warmup_num_steps) {
      std::string message = fmt::format("the warm-up of {} steps is longer than the whole schedule of {}",
                                        scheduler.warmup_num_steps, scheduler.total_num_steps);
      if (settings.given(kWarmup))
        return settings.fail(kWarmup, std::move(message), "lower warmup_num_steps or raise total_num_steps");
      settings.note(message + ": the rate never decays; set \"scheduler.params.warmup_num_steps\"");
    }
    if (draft.steps && *draft.steps > scheduler.total_num_steps) {
      settings.note(fmt::format("the schedule ends at step {} of {}: the rate stays at its end value",
                                scheduler.total_num_steps, *draft.steps));
    }
  }
  if (scheduler.type == SchedulerType::kWarmup || scheduler.type == SchedulerType::kWarmupDecay) {
    const bool decay = scheduler.type == SchedulerType::kWarmupDecay;
    scheduler.warmup_max_lr = draft.warmup_max_lr.value_or(decay ? 1e-3 : draft.run.optimizer.hyper.lr);
    if (draft.warmup_max_lr.is_auto())
      settings.derive(kMax, scheduler.warmup_max_lr, decay ? "DeepSpeed's default" : "optimizer.params.lr");
    if (scheduler.warmup_min_lr > scheduler.warmup_max_lr) {
      return settings.fail(
          "scheduler.params.warmup_min_lr",
          fmt::format("warmup_min_lr {} is above warmup_max_lr {}", scheduler.warmup_min_lr, scheduler.warmup_max_lr),
          "swap or lower it");
    }
    if (settings.given("optimizer.params.lr") && scheduler.warmup_max_lr != draft.run.optimizer.hyper.lr) {
      settings.note(
          fmt::format("the scheduler's rates take the place of optimizer.params.lr {}", draft.run.optimizer.hyper.lr));
    }
  }
  return {};
}

Result<void> finish_offload(Settings& settings, const std::string& section, const ZeroConfig& zero,
                            const OffloadConfig& offload) {
  const std::string path_key = section + ".nvme_path";
  const std::string device_key = section + ".device";
  const bool weights = section == kParam;
  const std::int32_t needed = offload.device == OffloadDevice::kNone              ? 0
                              : weights || offload.device == OffloadDevice::kNvme ? 3
                                                                                  : 1;
  if (zero.stage < needed) {
    return settings.fail(
        settings.given("zero_optimization.stage") ? "zero_optimization.stage" : device_key,
        fmt::format("{} {} needs zero_optimization.stage {}{}; it is {}", device_key,
                    to_json_text(settings.at(device_key).value), needed, needed == 3 ? "" : " or more", zero.stage),
        fmt::format("set \"stage\": 3"));
  }
  if (offload.device != OffloadDevice::kNvme) {
    if (settings.given(path_key) && !offload.nvme_paths.empty()) {
      settings.note(fmt::format("\"{}\" is not used: \"device\" is not nvme", path_key));
    }
    return {};
  }
  if (offload.nvme_paths.empty()) {
    return settings.fail(device_key, fmt::format("\"{}\" is missing: the device is nvme", path_key),
                         "add \"nvme_path\": a folder on the drive, or a list of folders; there is no default");
  }
  std::set<std::string> seen;
  for (const std::string& path : offload.nvme_paths) {
    const std::filesystem::path whole = std::filesystem::path(path + "/").lexically_normal();
    if (!seen.insert(whole.string()).second) {
      return settings.fail(path_key, fmt::format("\"{}\" names \"{}\" twice", path_key, path),
                           "name each drive once; a second file on one drive makes nothing faster");
    }
  }
  return {};
}

Result<void> finish_zero(Draft& draft, Settings& settings) {
  ZeroConfig& zero = draft.run.zero;
  const auto old_name = [&](const std::optional<bool>& given, const char* key, const char* section,
                            OffloadConfig& offload) -> Result<void> {
    if (!given) return {};
    const std::string device = std::string(section) + ".device";
    if (settings.given(device)) {
      return settings.fail(key, fmt::format("\"{}\" and \"{}\" are both given", key, device), "keep the second");
    }
    offload.device = *given ? OffloadDevice::kCpu : OffloadDevice::kNone;
    settings.derive(device, std::string(*given ? "cpu" : "none"), key);
    return {};
  };
  HEADRACE_RETURN_IF_ERROR(old_name(draft.cpu_offload, "zero_optimization.cpu_offload", kOptimizer, zero.optimizer));
  HEADRACE_RETURN_IF_ERROR(
      old_name(draft.cpu_offload_param, "zero_optimization.cpu_offload_param", kParam, zero.parameters));
  HEADRACE_RETURN_IF_ERROR(finish_offload(settings, kParam, zero, zero.parameters));
  return finish_offload(settings, kOptimizer, zero, zero.optimizer);
}

// Bytes of weights and optimizer state of so many parameters (the formats' table).
std::int64_t state_bytes(const RunConfig& run, std::int64_t parameters) {
  const std::int64_t absent = cpu_adam::kMostMoments - num_moments(run);  // planes of fp32
  return parameters * (dtype_bytes(run.weights_dtype) - 4 * absent) +
         cpu_adam::state_planes(run.state_format, run.weights_dtype, parameters).bytes;
}

// Of two names for one thing: an override beats the file; both in one place are an error.
Result<bool> first_counts(const Settings& settings, const std::string& first, const std::string& second) {
  if (!settings.given(second)) return true;
  if (!settings.given(first)) return false;
  const SourceKind a = settings.at(first).source.kind;
  const SourceKind b = settings.at(second).source.kind;
  if (a != b) return a == SourceKind::kOverride;
  return settings.fail(second, fmt::format("\"{}\" and \"{}\" set the same thing", first, second), "keep one of them");
}

Result<void> finish_tile(Draft& draft, Settings& settings) {
  constexpr std::int64_t kStep = 4096;               // elements: the plan's unit, and whole norm chunks
  constexpr std::int64_t kNoTiling = 1'000'000'000;  // DeepSpeed's default, in most configs that people paste
  constexpr const char* kSubGroup = "zero_optimization.sub_group_size";
  HEADRACE_TRY(const bool native, first_counts(settings, "headrace.tile_bytes", kSubGroup));
  std::int64_t elements = 0;
  if (native && !draft.tile_bytes.is_auto()) {
    elements = std::max<std::int64_t>(1, draft.tile_bytes.value() / state_bytes(draft.run, kStep)) * kStep;
  } else if (!native && !draft.sub_group_size.is_auto()) {
    if (!cpu_adam::is_elementwise(draft.run.optimizer.kind)) {
      settings.note(fmt::format("\"{}\" has no effect with {}: its tile is a unit", kSubGroup,
                                cpu_adam::optimizer_name(draft.run.optimizer.kind)));
    } else if (draft.sub_group_size.value() == kNoTiling) {
      settings.note(fmt::format("\"{}\" 1e9 is DeepSpeed's default and is taken as auto", kSubGroup));
    } else {
      elements = draft.sub_group_size.value();
    }
  }
  if (elements > 0) draft.run.tile_elements = std::max(kStep, elements / kStep * kStep);
  return {};
}

// A share of what is not left to the next step.
Result<void> finish_delayed_fraction(const Draft& draft, const Settings& settings) {
  constexpr const char* kKey = "headrace.schedule.delayed_fraction";
  const ScheduleConfig& schedule = draft.run.schedule;
  if (schedule.delayed_fraction.is_auto()) return {};
  const double fraction = schedule.delayed_fraction.value();
  const bool is_auto = schedule.update.is_auto();
  const bool into_forward = !is_auto && schedule.update.value() == UpdatePolicy::kIntoForward;
  if (into_forward && fraction == 0)
    return settings.fail(kKey, "\"into_forward\" with a delayed_fraction of 0 leaves nothing to the next step",
                         "use \"update\": \"after_backward\", or a fraction above 0");
  if (is_auto || into_forward || fraction == 0) return {};
  return settings.fail(kKey,
                       fmt::format("delayed_fraction {} is of \"update\": \"into_forward\", and the update is {}",
                                   fraction, to_json_text(settings.at("headrace.schedule.update").value)),
                       "leave it out, or set \"update\": \"into_forward\"");
}

// An update before the norm is known must be able to be taken back. (fp16 needs two slots anyhow.)
Result<void> finish_update(const Draft& draft, const Settings& settings) {
  const RunConfig& run = draft.run;
  const bool early = !run.schedule.update.is_auto() && run.schedule.update.value() == UpdatePolicy::kInBackward;
  if (!early || run.slots != 1 || run.gradient_clipping <= 0) return {};
  return settings.fail(
      "headrace.schedule.update",
      fmt::format("\"in_backward\" updates before it is known whether gradients are clipped to {}, and "
                  "with \"slots\": 1 nothing is left to go back to",
                  run.gradient_clipping),
      "set \"slots\": 2, or \"update\": \"after_backward\"");
}

Result<void> finish_io(Draft& draft, Settings& settings) {
  IoConfig& io = draft.run.io;
  constexpr const char* kBlock = "headrace.io.block_bytes";
  constexpr const char* kInFlight = "headrace.io.in_flight_bytes";
  constexpr Bytes kDeepSpeedBlock = kMiB;
  HEADRACE_TRY(const bool native_block, first_counts(settings, kBlock, "aio.block_size"));
  if (!native_block && draft.aio_block_size) {
    io.block_bytes = *draft.aio_block_size;
    settings.derive(kBlock, *draft.aio_block_size, "aio.block_size");
  }
  HEADRACE_TRY(const bool native_depth, first_counts(settings, kInFlight, "aio.queue_depth"));
  if (!native_depth && draft.aio_queue_depth) {
    const Bytes block = io.block_bytes.value_or(kDeepSpeedBlock);
    const Bytes bytes = std::min(*draft.aio_queue_depth * draft.aio_threads.value_or(1), 64 * kGiB / block) * block;
    io.in_flight_bytes = bytes;
    settings.derive(kInFlight, bytes, "aio.queue_depth × block_size × intra_op_parallelism");
  }
  if (!io.block_bytes.is_auto() && io.block_bytes.value() % 4096 != 0) {
    return settings.fail(native_block ? kBlock : "aio.block_size",
                         fmt::format("a block of {} bytes is not a multiple of 4096", io.block_bytes.value()),
                         fmt::format("set {}", round_up(io.block_bytes.value(), 4096)));
  }
  if (!io.block_bytes.is_auto() && !io.in_flight_bytes.is_auto() &&
      io.in_flight_bytes.value() < io.block_bytes.value()) {
    return settings.fail(kInFlight,
                         fmt::format("{} {} is less than one block of {}", kInFlight,
                                     format_bytes(io.in_flight_bytes.value()), format_bytes(io.block_bytes.value())),
                         "raise it, or lower headrace.io.block_bytes");
  }
  return {};
}

}  // namespace

Result<void> finish(Draft& draft, Settings& settings, const World& world) {
  if (!draft.steps && settings.purpose() == Purpose::kTrain) {
    return settings.fail("headrace.steps", "\"headrace.steps\" is missing: the run has no end",
                         "add \"headrace\": {\"steps\": 200, …}, or steps=200 as an argument");
  }
  draft.run.steps = draft.steps.value_or(0);
  HEADRACE_RETURN_IF_ERROR(finish_batch(draft, settings, world));
  HEADRACE_RETURN_IF_ERROR(finish_precision(draft, settings));
  HEADRACE_RETURN_IF_ERROR(finish_gradients(draft, settings));
  HEADRACE_RETURN_IF_ERROR(finish_optimizer(draft, settings, draft.run.optimizer));
  HEADRACE_RETURN_IF_ERROR(finish_scheduler(draft, settings));
  HEADRACE_RETURN_IF_ERROR(finish_zero(draft, settings));
  HEADRACE_RETURN_IF_ERROR(finish_tile(draft, settings));
  HEADRACE_RETURN_IF_ERROR(finish_update(draft, settings));
  HEADRACE_RETURN_IF_ERROR(finish_delayed_fraction(draft, settings));
  return finish_io(draft, settings);
}

}  // namespace headrace::config
