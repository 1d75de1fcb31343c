// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/run_fields.h"

namespace headrace::config {
namespace {

using T = FieldType;
constexpr std::int64_t kMany =
    1'000'000'000'000;  // far beyond any sensible count, and products of two still fit 2^63 · 2^63

void add_batch(FieldTable& table, Draft& draft) {
  table
      .add("train_batch_size", T::kInteger, "\"auto\"",
           "Samples per step over all ranks: train_micro_batch_size_per_gpu × gradient_accumulation_steps × world "
           "size. One or "
           "two of the three are enough.")
      .range(1, kMany)
      .or_auto()
      .to(draft.train_batch_size);
  table
      .add("train_micro_batch_size_per_gpu", T::kInteger, "\"auto\"",
           "Samples of one forward and backward pass on one rank. Activation memory grows with it.")
      .range(1, kMany)
      .or_auto()
      .to(draft.micro_batch_size);
  table
      .add("gradient_accumulation_steps", T::kInteger, "\"auto\"",
           "Micro-batches per step and rank whose gradients are summed before the update.")
      .range(1, kMany)
      .or_auto()
      .to(draft.accumulation_steps);
  table
      .add("gradient_clipping", T::kNumber, "1.0",
           "Largest 2-norm of all gradients; larger gradients are scaled down to it. 0 turns clipping off.")
      .number_range(0, std::numeric_limits<double>::infinity())
      .to(draft.run.gradient_clipping);
}

void add_precision(FieldTable& table, Draft& draft) {
  LossScaleConfig& scale = draft.run.loss_scale;
  table
      .add("bf16.enabled", T::kBool, "false",
           "Weights in bf16 for forward and backward, fp32 master kept. With bf16 and fp16 off the weights are fp32.")
      .to(draft.bf16);
  table.alias("bfloat16.enabled", "bf16.enabled", "DeepSpeed's older name of bf16.enabled.");
  table.add("fp16.enabled", T::kBool, "false", "Weights in fp16 with an fp32 master and loss scaling.").to(draft.fp16);
  table.add("fp16.loss_scale", T::kNumber, "0", "Factor on the loss; 0 lets it adapt (dynamic loss scaling).")
      .number_range(0, 3e38)
      .to(scale.loss_scale);
  table.add("fp16.initial_scale_power", T::kInteger, "16", "Dynamic loss scaling starts at 2 to this power.")
      .range(0, 126)
      .to(scale.initial_scale_power);
  table.add("fp16.loss_scale_window", T::kInteger, "1000", "Steps without overflow after which the loss scale doubles.")
      .range(1, kMany)
      .to(scale.loss_scale_window);
  table.add("fp16.hysteresis", T::kInteger, "2", "Overflows before the loss scale is halved.")
      .range(1, 1'000'000)
      .to(scale.hysteresis);
  table.add("fp16.consecutive_hysteresis", T::kBool, "false", "A step without overflow refills the hysteresis.")
      .to(scale.consecutive_hysteresis);
  table.add("fp16.min_loss_scale", T::kNumber, "1", "The loss scale never falls below this.")
      .number_range(0, 3e38)
      .above(0)
      .to(scale.min_loss_scale);
  table.add("data_types.grad_accum_dtype", T::kChoice, "", "Type in which gradients are kept between micro-batches.")
      .one_of({"fp32", "bf16"}, {"fp16"})
      .or_null()
      .to(draft.grad_accum_dtype);
}

void add_whole_tensor_optimizers(FieldTable& table, Draft& draft) {
  const double inf = std::numeric_limits<double>::infinity();
  cpu_adam::OptimizerHyper& hyper = draft.hyper;
  table.add("optimizer.params.muon_lr", T::kNumber, "", "Takes the place of lr for the matrices that Muon updates.")
      .number_range(0, inf)
      .or_null()
      .to(draft.muon_lr);
  table.add("optimizer.params.adam_lr", T::kNumber, "", "Takes the place of lr for what AdamW updates beside Muon.")
      .number_range(0, inf)
      .or_null()
      .to(draft.adam_lr);
  table.add("optimizer.params.ns_steps", T::kInteger, "5", "Newton-Schulz steps. Muon.")
      .range(1, 99)
      .to(hyper.newton_schulz_steps);
  table
      .add("optimizer.params.adjust_lr_fn", T::kChoice, "\"original\"",
           "What lr is multiplied by for a matrix: original, sqrt(max(1, rows / columns)); match_rms_adamw, "
           "0.2 · sqrt(max(rows, columns)), with which a rate tuned for AdamW fits. Muon.")
      .to(hyper.muon_scale,
          {{"original", cpu_adam::MuonScale::kKellerJordan}, {"match_rms_adamw", cpu_adam::MuonScale::kMatchRmsAdamW}});
  table.add("optimizer.params.beta2_decay", T::kNumber, "-0.8", "The variances' beta2 is 1 - step ^ this. Adafactor.")
      .number_range(-1000, 0)
      .to(hyper.beta2_decay);
  table
      .add("optimizer.params.eps1", T::kNumber, "1.1920928955078125e-07",
           "Floor of the root of the variances. Adafactor.")
      .number_range(0, inf)
      .above(0)
      .to(hyper.eps1);
  table.add("optimizer.params.eps2", T::kNumber, "0.001", "Floor of the weights' root mean square. Adafactor.")
      .number_range(0, inf)
      .to(hyper.eps2);
  table
      .add("optimizer.params.clip_threshold", T::kNumber, "1",
           "Largest root mean square of an update before lr. Adafactor.")
      .number_range(1, inf)
      .to(hyper.clip_threshold);
}

void add_optimizer(FieldTable& table, Draft& draft) {
  const double inf = std::numeric_limits<double>::infinity();
  using cpu_adam::OptimizerKind;
  cpu_adam::OptimizerHyper& hyper = draft.hyper;
  Field& type = table.add(
      "optimizer.type", T::kChoice, "\"AdamW\"",
      "The update rule. AdamW decouples weight decay from the gradient; Adam does so too unless adam_w_mode is false. "
      "Each type has parameters and defaults of its own (docs/optimizers.md); the defaults below are AdamW's.");
  type.to(draft.optimizer, {{"AdamW", OptimizerKind::kAdamW},
                            {"Adam", OptimizerKind::kAdam},
                            {"Lion", OptimizerKind::kLion},
                            {"Adagrad", OptimizerKind::kAdagrad},
                            {"SGD", OptimizerKind::kSgd},
                            {"Adafactor", OptimizerKind::kAdafactor},
                            {"Muon", OptimizerKind::kMuon}});
  type.later_choices = {"Lamb", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"};
  table.add("optimizer.params.lr", T::kNumber, "0.001", "Learning rate; a scheduler's rates take its place.")
      .number_range(0, inf)
      .to(hyper.lr);
  table
      .add("optimizer.params.betas", T::kNumbers, "[0.9, 0.999]",
           "Decay rates of the first and second moment. AdamW, Adam, Lion, AdamW beside Muon.")
      .numbers(2)
      .number_range(0, 1)
      .below(1)
      .to(draft.betas);
  table
      .add("optimizer.params.eps", T::kNumber, "1e-8",
           "Added to the root of the second moment. AdamW, Adam, Adagrad, AdamW beside Muon.")
      .number_range(0, inf)
      .above(0)
      .to(hyper.eps);
  table
      .add("optimizer.params.weight_decay", T::kNumber, "0",
           "Decay per step, times the learning rate; Adam, Adagrad and SGD add it to the gradient.")
      .number_range(0, inf)
      .to(hyper.weight_decay);
  table
      .add("optimizer.params.adam_w_mode", T::kBool, "true",
           "With type Adam: true decouples weight decay, false adds it to the gradient (L2).")
      .to(draft.adam_w_mode);
  table
      .add("optimizer.params.momentum", T::kNumber, "0",
           "Decay rate of the momentum; 0 keeps no state of SGD. SGD, Muon.")
      .number_range(0, inf)
      .to(hyper.momentum);
  table.add("optimizer.params.dampening", T::kNumber, "0", "What the momentum leaves out of a gradient. SGD.")
      .number_range(0, 1)
      .to(hyper.dampening);
  table.add("optimizer.params.nesterov", T::kBool, "false", "Looks ahead by the momentum. SGD, Muon.")
      .to(hyper.nesterov);
  table.add("optimizer.params.lr_decay", T::kNumber, "0", "The rate falls as 1 / (1 + (step - 1) · lr_decay). Adagrad.")
      .number_range(0, inf)
      .to(hyper.lr_decay);
  add_whole_tensor_optimizers(table, draft);
}

void add_scheduler(FieldTable& table, Draft& draft) {
  SchedulerConfig& scheduler = draft.run.scheduler;
  Field& type = table.add("scheduler.type", T::kChoice, "\"none\"",
                          "Learning rate over the optimizer steps; none keeps optimizer.params.lr.");
  type.to(scheduler.type, {{"none", SchedulerType::kNone},
                           {"WarmupLR", SchedulerType::kWarmup},
                           {"WarmupDecayLR", SchedulerType::kWarmupDecay},
                           {"WarmupCosineLR", SchedulerType::kWarmupCosine}});
  type.later_choices = {"LRRangeTest", "OneCycle"};
  type.allows_null = false;
  table
      .add("scheduler.params.warmup_num_steps", T::kInteger, "1000",
           "Optimizer steps of the warm-up; fewer than 2 count as 2.")
      .range(1, kMany)
      .to(scheduler.warmup_num_steps);
  table.add("scheduler.params.warmup_type", T::kChoice, "\"log\"", "Shape of the warm-up.")
      .to(scheduler.warmup_type, {{"log", WarmupType::kLog}, {"linear", WarmupType::kLinear}});
  table
      .add("scheduler.params.total_num_steps", T::kInteger, "\"auto\"",
           "Optimizer step at which the decay ends; auto is headrace.steps. WarmupDecayLR and WarmupCosineLR.")
      .range(1, kMany)
      .or_auto()
      .to(draft.total_num_steps);
  table
      .add("scheduler.params.warmup_min_lr", T::kNumber, "0", "Learning rate at the start. WarmupLR and WarmupDecayLR.")
      .number_range(0, std::numeric_limits<double>::infinity())
      .to(scheduler.warmup_min_lr);
  table
      .add("scheduler.params.warmup_max_lr", T::kNumber, "\"auto\"",
           "Learning rate after the warm-up. auto is optimizer.params.lr with WarmupLR and DeepSpeed's 0.001 with "
           "WarmupDecayLR.")
      .number_range(0, std::numeric_limits<double>::infinity())
      .or_auto()
      .to(draft.warmup_max_lr);
  table
      .add("scheduler.params.warmup_min_ratio", T::kNumber, "0",
           "Learning rate at the start as a fraction of optimizer.params.lr. WarmupCosineLR.")
      .number_range(0, 1)
      .to(scheduler.warmup_min_ratio);
  table
      .add("scheduler.params.cos_min_ratio", T::kNumber, "0.0001",
           "Learning rate at the end as a fraction of optimizer.params.lr. WarmupCosineLR.")
      .number_range(0, 1)
      .to(scheduler.cos_min_ratio);
}

void add_offload(FieldTable& table, const std::string& section, const std::string& what, OffloadConfig& offload) {
  table
      .add(section + ".device", T::kChoice, "\"none\"",
           "Home of the " + what + ": none is the device, cpu host memory, nvme the folders of nvme_path.")
      .to(offload.device,
          {{"none", OffloadDevice::kNone}, {"cpu", OffloadDevice::kCpu}, {"nvme", OffloadDevice::kNvme}});
  table
      .add(section + ".nvme_path", T::kTexts, "",
           "Folder for the " + what + ", or a list of folders on different drives, over which tiles are striped.")
      .or_null()
      .may_change()
      .to(offload.nvme_paths);
}

void add_zero(FieldTable& table, Draft& draft) {
  ZeroConfig& zero = draft.run.zero;
  table
      .add("zero_optimization.stage", T::kInteger, "0",
           "What is partitioned over the ranks: 1 optimizer state, 2 gradients too, 3 weights too. Offload to nvme "
           "needs 3.")
      .range(0, 3)
      .to(zero.stage);
  add_offload(table, "zero_optimization.offload_param", "weights", zero.parameters);
  add_offload(table, "zero_optimization.offload_optimizer", "optimizer state", zero.optimizer);
  table.add("zero_optimization.cpu_offload", T::kBool, "", "DeepSpeed's older way to say offload_optimizer.device cpu.")
      .or_null()
      .to(draft.cpu_offload);
  table
      .add("zero_optimization.cpu_offload_param", T::kBool, "",
           "DeepSpeed's older way to say offload_param.device cpu.")
      .or_null()
      .to(draft.cpu_offload_param);
  table
      .add("zero_optimization.sub_group_size", T::kInteger, "\"auto\"",
           "Elements of a tile, as headrace.tile_bytes in bytes. DeepSpeed's default 1e9 counts as auto.")
      .range(1, kMany)
      .or_auto()
      .may_change()
      .to(draft.sub_group_size);
}

void add_aio(FieldTable& table, Draft& draft) {
  table.add("aio.block_size", T::kBytes, "", "DeepSpeed's name of headrace.io.block_bytes.")
      .range(4 * kKiB, kGiB)
      .may_change()
      .to(draft.aio_block_size);
  table
      .add("aio.queue_depth", T::kInteger, "",
           "Requests in flight per thread; with block_size and intra_op_parallelism it gives "
           "headrace.io.in_flight_bytes.")
      .range(1, 65536)
      .may_change()
      .to(draft.aio_queue_depth);
  table
      .add("aio.intra_op_parallelism", T::kInteger, "",
           "Threads that share one transfer in DeepSpeed; here it only scales queue_depth.")
      .range(1, 1024)
      .may_change()
      .to(draft.aio_threads);
  table.alias("aio.thread_count", "aio.intra_op_parallelism", "Older name of aio.intra_op_parallelism.");
  table.alias("aio.num_threads", "aio.intra_op_parallelism",
              "What DeepSpeed's tuner prints for aio.intra_op_parallelism.");
}

}  // namespace

void add_deepspeed_fields(FieldTable& table, Draft& draft) {
  add_batch(table, draft);
  add_precision(table, draft);
  add_optimizer(table, draft);
  add_scheduler(table, draft);
  add_zero(table, draft);
  add_aio(table, draft);
}

}  // namespace headrace::config
