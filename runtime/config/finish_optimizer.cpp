// SPDX-License-Identifier: Apache-2.0
// The optimizer's rules: each type has parameters and defaults of its own, and a parameter of another type is a
// mistake.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "runtime/config/finish_optimizer.h"

namespace headrace::config {
namespace {

using cpu_adam::OptimizerHyper;
using cpu_adam::OptimizerKind;

constexpr const char* kMode = "optimizer.params.adam_w_mode";

std::string key(std::string_view parameter) { return fmt::format("optimizer.params.{}", parameter); }

struct Parameters {
  OptimizerKind kind;
  std::vector<std::string_view> names;
};

std::span<const std::string_view> parameters_of(OptimizerKind kind) {
  static const std::vector<Parameters> kAll = {
      {OptimizerKind::kAdamW, {"lr", "betas", "eps", "weight_decay", "adam_w_mode"}},
      {OptimizerKind::kAdam, {"lr", "betas", "eps", "weight_decay", "adam_w_mode"}},
      {OptimizerKind::kLion, {"lr", "betas", "weight_decay"}},
      {OptimizerKind::kAdagrad, {"lr", "lr_decay", "eps", "weight_decay"}},
      {OptimizerKind::kSgd, {"lr", "momentum", "dampening", "nesterov", "weight_decay"}},
      {OptimizerKind::kAdafactor, {"lr", "beta2_decay", "eps1", "eps2", "clip_threshold", "weight_decay"}},
      {OptimizerKind::kMuon,
       {"lr", "muon_lr", "adam_lr", "momentum", "nesterov", "ns_steps", "adjust_lr_fn", "weight_decay", "betas",
        "eps"}}};
  for (const Parameters& parameters : kAll)
    if (parameters.kind == kind) return parameters.names;
  return {};
}

Result<void> check_parameters(const Settings& settings, OptimizerKind kind) {
  const std::span<const std::string_view> mine = parameters_of(kind);
  for (const std::string_view name :
       {"lr", "betas", "eps", "weight_decay", "adam_w_mode", "momentum", "dampening", "nesterov", "lr_decay", "muon_lr",
        "adam_lr", "ns_steps", "adjust_lr_fn", "beta2_decay", "eps1", "eps2", "clip_threshold"}) {
    if (!settings.given(key(name)) || std::find(mine.begin(), mine.end(), name) != mine.end()) continue;
    return settings.fail(key(name), fmt::format("{} has no parameter \"{}\"", cpu_adam::optimizer_name(kind), name),
                         fmt::format("its parameters: {}", fmt::join(mine, ", ")));
  }
  return {};
}

// What is given, and the type's defaults for the rest.
OptimizerHyper resolve(const Draft& draft, Settings& settings, OptimizerKind kind) {
  // AdamW's defaults are DeepSpeed's: those of the table.
  if (kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam) {
    OptimizerHyper hyper = draft.hyper;
    hyper.beta1 = draft.betas[0];
    hyper.beta2 = draft.betas[1];
    return hyper;
  }
  OptimizerHyper hyper = cpu_adam::default_hyper(kind);
  const std::span<const std::string_view> mine = parameters_of(kind);
  const std::string source = fmt::format("{}'s default", cpu_adam::optimizer_name(kind));
  const auto take = [&](std::string_view name, auto& value, const auto& given) {
    if (settings.given(key(name))) {
      value = given;
    } else if (std::find(mine.begin(), mine.end(), name) != mine.end()) {
      settings.derive(key(name), value, source);
    }
  };
  std::vector<double> betas = {hyper.beta1, hyper.beta2};
  take("lr", hyper.lr, draft.hyper.lr);
  take("betas", betas, draft.betas);
  take("eps", hyper.eps, draft.hyper.eps);
  take("weight_decay", hyper.weight_decay, draft.hyper.weight_decay);
  take("momentum", hyper.momentum, draft.hyper.momentum);
  take("dampening", hyper.dampening, draft.hyper.dampening);
  take("nesterov", hyper.nesterov, draft.hyper.nesterov);
  take("lr_decay", hyper.lr_decay, draft.hyper.lr_decay);
  // Their defaults in the table are the types' own.
  hyper.newton_schulz_steps = draft.hyper.newton_schulz_steps;
  hyper.muon_scale = draft.hyper.muon_scale;
  hyper.beta2_decay = draft.hyper.beta2_decay;
  hyper.eps1 = draft.hyper.eps1;
  hyper.eps2 = draft.hyper.eps2;
  hyper.clip_threshold = draft.hyper.clip_threshold;
  hyper.beta1 = betas[0];
  hyper.beta2 = betas[1];
  return hyper;
}

}  // namespace

namespace {

// Muon's rate and AdamW's beside it: DeepSpeed's three names for two numbers.
Result<void> finish_muon(const Draft& draft, const Settings& settings, OptimizerConfig& optimizer) {
  const double beside = draft.adam_lr.value_or(optimizer.hyper.lr);
  optimizer.hyper.lr = draft.muon_lr.value_or(optimizer.hyper.lr);
  if (optimizer.hyper.lr > 0) {
    optimizer.beside_lr_factor = beside / optimizer.hyper.lr;
  } else if (beside > 0) {
    return settings.fail(draft.muon_lr ? key("muon_lr") : key("lr"),
                         fmt::format("Muon's learning rate is 0 and AdamW's beside it {}", beside),
                         "use optimizer.type \"AdamW\", or a rate above 0");
  }
  if (Result<void> valid = cpu_adam::validate(OptimizerKind::kAdamW, optimizer.hyper); !valid.ok())
    return settings.fail("optimizer.type", "beside Muon: " + valid.error().message, valid.error().hint);
  return {};
}

// What such optimizers do to a unit's state cannot be cut into tiles, and is not taken back.
Result<void> check_whole_tensors(const Draft& draft, const Settings& settings, OptimizerKind kind) {
  const char* const name = cpu_adam::optimizer_name(kind);
  if (!draft.tile_bytes.is_auto())
    return settings.fail("headrace.tile_bytes", fmt::format("{} updates whole tensors, so its tile is a unit", name),
                         "leave it out");
  const Auto<UpdatePolicy>& update = draft.run.schedule.update;
  if (!update.is_auto() && update.value() == UpdatePolicy::kInBackward)
    return settings.fail("headrace.schedule.update", fmt::format("an early update of {} could not be taken back", name),
                         "use \"after_backward\"");
  if (!update.is_auto() && update.value() == UpdatePolicy::kIntoForward)
    return settings.fail("headrace.schedule.update",
                         fmt::format("an update of {} takes all cores and is not made beside the forward pass", name),
                         "use \"after_backward\"");
  if (draft.run.schedule.delayed_fraction.value_or(0) > 0)
    return settings.fail("headrace.schedule.delayed_fraction",
                         fmt::format("an update of {} takes all cores and is not made beside the forward pass", name),
                         "leave it out");
  if (draft.run.batch.world_size > 1)
    return settings.fail(
        "optimizer.type",
        fmt::format("{} updates whole tensors; {} ranks would each hold a part", name, draft.run.batch.world_size),
        "train on one rank, or use AdamW");
  return {};
}

}  // namespace

int num_moments(const RunConfig& run) noexcept {
  const int moments = cpu_adam::num_moments(run.optimizer.kind, run.optimizer.hyper);
  return moments == 0 && run.weights_dtype == DType::kFp32 ? 1 : moments;
}

Result<void> finish_optimizer(const Draft& draft, Settings& settings, OptimizerConfig& optimizer) {
  // DeepSpeed's "Adam" decouples weight decay unless told otherwise.
  optimizer.kind =
      draft.optimizer == OptimizerKind::kAdam && draft.adam_w_mode ? OptimizerKind::kAdamW : draft.optimizer;
  HEADRACE_RETURN_IF_ERROR(check_parameters(settings, draft.optimizer));
  optimizer.hyper = resolve(draft, settings, optimizer.kind);
  if (draft.optimizer == OptimizerKind::kAdamW && !draft.adam_w_mode)
    settings.note(fmt::format("\"{}\" is false but AdamW always decouples weight decay, as in DeepSpeed", kMode));
  if (Result<void> valid = cpu_adam::validate(optimizer.kind, optimizer.hyper); !valid.ok())
    return settings.fail("optimizer.type", valid.error().message, valid.error().hint);
  if (optimizer.kind == OptimizerKind::kMuon) HEADRACE_RETURN_IF_ERROR(finish_muon(draft, settings, optimizer));
  if (!cpu_adam::is_elementwise(optimizer.kind))
    HEADRACE_RETURN_IF_ERROR(check_whole_tensors(draft, settings, optimizer.kind));
  const bool narrow = draft.run.state_format != StateFormat::kFp32 && draft.run.state_format != StateFormat::kSplit;
  if (narrow && optimizer.kind != OptimizerKind::kAdamW) {
    return settings.fail(
        "headrace.state_format",
        fmt::format("headrace.state_format \"{}\" is for AdamW; the optimizer is {}",
                    cpu_adam::state_format_name(draft.run.state_format), cpu_adam::optimizer_name(optimizer.kind)),
        "use \"split\" or \"fp32\", or optimizer.type \"AdamW\"");
  }
  return {};
}

}  // namespace headrace::config
