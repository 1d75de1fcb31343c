// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's keys that a config may carry although nothing here needs them, and those that would change results in a
// way that is not supported. Types, ranges and defaults are DeepSpeed's, except that a bucket of 0 elements is no
// bucket.
#include "runtime/config/run_fields.h"

namespace headrace::config {
namespace {

using T = FieldType;
constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
constexpr const char* kDoc = "A setting of DeepSpeed.";

struct Flag {
  const char* path;
  const char* default_json;
};
struct Count {
  const char* path;
  const char* default_json;
  std::int64_t smallest;
};

constexpr const char* kPlanned = "the plan moves and keeps what the memory budgets allow";
constexpr const char* kCollectives = "collectives are planned from the units of the model";
constexpr const char* kSteps = "the run prints and records every step";
constexpr const char* kActivations = "headrace.schedule.activations decides what is kept";
constexpr const char* kCheckpoint = "every step is a checkpoint; headrace checkpoint export writes whole weights";

void flags(FieldTable& table, std::initializer_list<Flag> keys, const char* why) {
  for (const Flag& key : keys) table.add(key.path, T::kBool, key.default_json, kDoc).or_null().no_effect(why);
}

void counts(FieldTable& table, std::initializer_list<Count> keys, const char* why) {
  for (const Count& key : keys) {
    table.add(key.path, T::kInteger, key.default_json, kDoc)
        .range(key.smallest, kMany)
        .or_auto()
        .or_null()
        .no_effect(why);
  }
}

void sections(FieldTable& table, std::initializer_list<const char*> paths, const char* why) {
  for (const char* path : paths) table.add(path, T::kSection, "", kDoc).no_effect(why);
}

void refused_flags(FieldTable& table, std::initializer_list<const char*> paths, const char* why) {
  for (const char* path : paths) table.add(path, T::kBool, "false", kDoc).or_null().refuse(why);
}

void refused_sections(FieldTable& table, std::initializer_list<const char*> paths, const char* why) {
  for (const char* path : paths) table.add(path, T::kSection, "", kDoc).refuse(why);
}

void add_top_level(FieldTable& table) {
  flags(table, {{"wall_clock_breakdown", "false"}, {"memory_breakdown", "false"}}, kSteps);
  counts(table, {{"steps_per_print", "", 1}}, kSteps);
  sections(table, {"tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger", "timers"}, kSteps);
  flags(table, {{"dump_state", "false"}}, "headrace config check prints every key with its source");
  flags(table,
        {{"zero_allow_untested_optimizer", "false"},
         {"zero_force_ds_cpu_optimizer", "true"},
         {"optimizer.legacy_fusion", "false"},
         {"optimizer.params.torch_adam", "false"},
         {"optimizer.params.fused", "true"}},
        "there is one implementation of the optimizer");
  flags(
      table,
      {{"disable_allgather", "false"}, {"sparse_gradients", "false"}, {"use_data_before_expert_parallelism", "false"}},
      kCollectives);
  flags(table, {{"dataloader_drop_last", "false"}}, "epochs run into each other, no batch is incomplete");
  flags(table, {{"graph_harvesting", "false"}}, "there are no CUDA graphs on this path");
  counts(table, {{"vocabulary_size", "", 1}}, "the model and the tokenizer say it");
  sections(table, {"autotuning"}, "headrace tune finds settings");
  sections(table, {"compile"}, "nothing is compiled at run time");
  sections(table, {"nebula", "datastates_ckpt"}, kCheckpoint);
  sections(table, {"hybrid_engine"}, "this is a trainer");
  table.add("communication_data_type", T::kChoice, "", kDoc)
      .one_of({"fp32", "fp16", "bf16"})
      .or_null()
      .refuse("gradients are reduced in headrace.gradient_dtype");
  table.add("seq_parallel_comm_data_type", T::kChoice, "\"fp32\"", kDoc)
      .one_of({"fp32", "fp16", "bf16"})
      .or_null()
      .no_effect("there is no sequence parallelism");
  refused_flags(table, {"prescale_gradients"}, "gradients are averaged in fp32 after they are summed");
  table.add("gradient_predivide_factor", T::kNumber, "1", kDoc)
      .number_range(0, 1e38)
      .above(0)
      .refuse("gradients are averaged in fp32 after they are summed");
  refused_flags(table, {"amp.enabled"}, "Apex AMP is not used; bf16.enabled is the usual choice");
  table.add("amp.opt_level", T::kText, "", kDoc).or_null().no_effect("only with amp.enabled");
  refused_sections(table, {"elasticity"}, "it chooses the batch size by the number of ranks");
  refused_sections(table,
                   {"curriculum_learning", "data_efficiency", "progressive_layer_drop", "eigenvalue",
                    "sparse_attention", "compression_training", "quantize_training", "tensor_parallel", "pipeline"},
                   "it changes what is trained");
  table.add("sequence_parallel_size", T::kInteger, "1", kDoc)
      .range(1, kMany)
      .refuse("there is no sequence parallelism");
}

void add_precision(FieldTable& table) {
  flags(table, {{"bf16.check_grad_overflow", "true"}}, "non-finite gradients always skip the step");
  flags(table, {{"bf16.immediate_grad_update", "false"}},
        "gradients are added to the accumulator as they are produced");
  refused_flags(
      table, {"bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states", "fp16.fp16_master_weights_and_grads"},
      "the master weights and moments are fp32");
  flags(table, {{"fp16.auto_cast", "false"}, {"fp16.fused_mode", "true"}},
        "inputs are token ids and there is one optimizer");
  refused_flags(table, {"optimizer.params.amsgrad"}, "the largest second moment is not kept");
  table.add("optimizer.params.bias_correction", T::kBool, "true", kDoc)
      .or_null()
      .refuse("bias correction is always on");
  table.add("optimizer.params.max_grad_norm", T::kNumber, "0", kDoc)
      .number_range(0, 1e38)
      .refuse("gradient_clipping is the key for it");
  table.add("scheduler.params.last_batch_iteration", T::kInteger, "-1", kDoc)
      .range(-1, kMany)
      .refuse("resuming restores the position in the schedule");
}

void add_fetching(FieldTable& table) {
  const auto both = [&](const char* name, const char* default_json,
                        std::int64_t smallest) {  // with and without "stage3_"
    const std::string zero = "zero_optimization.";
    table.add(zero + "stage3_" + name, T::kInteger, default_json, kDoc)
        .range(smallest, kMany)
        .or_auto()
        .no_effect(kPlanned);
    table.alias(zero + name, zero + "stage3_" + name, kDoc);
  };
  both("prefetch_bucket_size", "50000000", 1);
  both("param_persistence_threshold", "100000", 0);
  both("model_persistence_threshold", "9223372036854775807", 0);
  both("max_live_parameters", "1000000000", 1);
  both("max_reuse_distance", "1000000000", 0);
  both("module_granularity_threshold", "0", 0);
  both("partition_stream_chunk_size", "0", 0);
}

void add_zero(FieldTable& table) {
  counts(table,
         {{"zero_optimization.reduce_bucket_size", "500000000", 1},
          {"zero_optimization.allgather_bucket_size", "500000000", 1},
          {"zero_optimization.zero_hpz_partition_size", "1", 1},
          {"zero_optimization.mics_shard_size", "-1", -1}},
         kCollectives);
  flags(table,
        {{"zero_optimization.contiguous_gradients", "true"},
         {"zero_optimization.reduce_scatter", "true"},
         {"zero_optimization.use_multi_rank_bucket_allreduce", "true"},
         {"zero_optimization.allgather_partitions", "true"},
         {"zero_optimization.overlap_comm", ""},
         {"zero_optimization.round_robin_gradients", "false"},
         {"zero_optimization.stage3_use_all_reduce_for_fetch_params", "false"},
         {"zero_optimization.use_all_reduce_for_fetch_params", "false"},
         {"zero_optimization.stage3_allgather_sequential", "false"},
         {"zero_optimization.allgather_sequential", "false"},
         {"zero_optimization.mics_hierarchical_params_gather", "false"}},
        kCollectives);
  flags(table,
        {{"zero_optimization.stage3_gather_16bit_weights_on_model_save", "false"},
         {"zero_optimization.gather_16bit_weights_on_model_save", "false"},
         {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "false"},
         {"zero_optimization.load_from_fp32_weights", "true"},
         {"zero_optimization.elastic_checkpoint", "false"},
         {"zero_optimization.pipeline_loading_checkpoint", "false"}},
        kCheckpoint);
  flags(table,
        {{"zero_optimization.ignore_unused_parameters", "true"},
         {"zero_optimization.legacy_stage1", "false"},
         {"zero_optimization.memory_efficient_linear", "true"},
         {"zero_optimization.override_module_apply", "true"},
         {"zero_optimization.log_trace_cache_warnings", "false"},
         {"zero_optimization.enable_sanity_checks", "false"},
         {"zero_optimization.save_muon_momentum_buffer_in_memory", "false"},
         {"zero_optimization.cpu_offload_use_pin_memory", ""}},
        "it steers machinery of DeepSpeed that is not here");
  sections(table, {"zero_optimization.leaf_module"}, kPlanned);
  refused_flags(table,
                {"zero_optimization.zero_quantized_weights", "zero_optimization.zero_quantized_nontrainable_weights",
                 "zero_optimization.zero_quantized_gradients"},
                "quantised collectives change the weights");
  refused_sections(table, {"zero_optimization.zenflow", "zero_optimization.zeropp_loco_param"},
                   "it changes the updates");
}

void add_offload(FieldTable& table) {
  const std::string param = "zero_optimization.offload_param.";
  const std::string optimizer = "zero_optimization.offload_optimizer.";
  const auto count = [&](const std::string& path, const char* default_json) {
    table.add(path, T::kInteger, default_json, kDoc)
        .range(1, kMany)
        .or_auto()
        .or_null()
        .no_effect("buffers follow from headrace.memory.host");
  };
  const auto flag = [&](const std::string& path, const char* default_json, const char* why) {
    table.add(path, T::kBool, default_json, kDoc).or_null().no_effect(why);
  };
  count(param + "buffer_count", "5");
  count(param + "buffer_size", "100000000");
  count(param + "max_in_cpu", "1000000000");
  flag(param + "pin_memory", "true", "buffers are locked where the limits allow it");
  count(optimizer + "buffer_count", "4");
  flag(optimizer + "pin_memory", "true", "buffers are locked where the limits allow it");
  flag(optimizer + "pipeline_read", "false", "reads, updates and writes of tiles always overlap");
  flag(optimizer + "pipeline_write", "false", "reads, updates and writes of tiles always overlap");
  flag(optimizer + "fast_init", "false", "state is created on the drive tile by tile");
  flag(optimizer + "super_offload", "false", "the plan decides when each tile is updated");
  table.add(optimizer + "ratio", T::kNumber, "1", kDoc).number_range(0, 1).no_effect("the optimizer runs on the host");
  table.add(optimizer + "cpuadam_cores_perc", T::kNumber, "0.8", kDoc)
      .number_range(0, 1)
      .above(0)
      .no_effect("headrace.threads sets the cores");
}

void add_aio_and_activations(FieldTable& table) {
  for (const Flag& key : {Flag{"aio.single_submit", "false"}, Flag{"aio.overlap_events", "true"}}) {
    table.add(key.path, T::kBool, key.default_json, kDoc)
        .no_effect("requests are submitted in batches and refilled as they complete")
        .text_booleans = true;
  }
  table.add("aio.use_gds", T::kBool, "false", kDoc).no_effect("transfers go through host memory").text_booleans = true;
  flags(table,
        {{"activation_checkpointing.partition_activations", "false"},
         {"activation_checkpointing.cpu_checkpointing", "false"},
         {"activation_checkpointing.contiguous_memory_optimization", "false"},
         {"activation_checkpointing.synchronize_checkpoint_boundary", "false"},
         {"activation_checkpointing.profile", "false"}},
        kActivations);
  counts(table, {{"activation_checkpointing.number_checkpoints", "", 1}}, kActivations);
  table.add("checkpoint.tag_validation", T::kChoice, "\"Warn\"", kDoc)
      .one_of({"Ignore", "Warn", "Fail"})
      .no_effect(kCheckpoint);
  flags(table,
        {{"checkpoint.load_universal", "false"},
         {"checkpoint.use_node_local_storage", "false"},
         {"checkpoint.checkpoint_serialization", "true"},
         {"checkpoint.parallel_write.pipeline_stage", "false"}},
        kCheckpoint);
  sections(table, {"checkpoint.writer"}, kCheckpoint);
}

}  // namespace

void add_accepted_fields(FieldTable& table) {
  add_top_level(table);
  add_precision(table);
  add_fetching(table);
  add_zero(table);
  add_offload(table);
  add_aio_and_activations(table);
}

}  // namespace headrace::config
