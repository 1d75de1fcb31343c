// SPDX-License-Identifier: Apache-2.0
// The runtime's own keys: DeepSpeed's, and "headrace" without model and data. The values land in a Draft, whose rules
// between keys finish() applies to give the RunConfig. Used by read_config.cpp only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/config/field.h"
#include "runtime/config/run_config.h"
#include "runtime/config/settings.h"

namespace headrace::config {

// What the keys say, before the rules between them.
struct Draft {
  RunConfig run;
  Auto<std::int64_t> train_batch_size, micro_batch_size, accumulation_steps;
  bool bf16 = false, fp16 = false;
  cpu_adam::OptimizerKind optimizer = cpu_adam::OptimizerKind::kAdamW;
  cpu_adam::OptimizerHyper hyper;
  bool adam_w_mode = true;
  std::optional<double> muon_lr, adam_lr;
  std::vector<double> betas;
  Auto<std::int64_t> total_num_steps;
  Auto<double> warmup_max_lr;
  std::optional<bool> cpu_offload, cpu_offload_param;
  std::optional<std::string> grad_accum_dtype;
  Auto<DType> gradient_dtype;
  Auto<StateFormat> state_format;
  Auto<Bytes> tile_bytes;
  Auto<std::int64_t> sub_group_size;
  std::optional<std::int64_t> aio_block_size, aio_queue_depth, aio_threads;
  std::optional<std::int64_t> steps;
};

// `draft` must outlive the tables.
void add_deepspeed_fields(FieldTable& table, Draft& draft);
void add_native_fields(FieldTable& table, Draft& draft);
void add_accepted_fields(FieldTable& table);  // DeepSpeed's keys without effect here, or refused

struct World {
  std::int32_t size = 1;
  std::string source = "one process";
};
// Rules between keys; fills what "auto" and unset stand for where the config alone decides it.
[[nodiscard]] Result<void> finish(Draft& draft, Settings& settings, const World& world);

}  // namespace headrace::config
