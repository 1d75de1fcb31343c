// SPDX-License-Identifier: Apache-2.0
// The settings of a run as plain structs: what the JSON config, the overrides and the defaults come to. Made once by
// read_config() (runtime/config/read_config.h), checked, and never changed after that; every part of the runtime reads
// it. Settings of the model and the data stand beside their users in models/config_fields.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/dtype.h"
#include "cpu_adam/optimizer.h"

namespace headrace::config {

// Either "auto" (the plan chooses) or a value. "auto", unset (std::optional) and zero are three different things.
template <class T>
class Auto {
 public:
  constexpr Auto() = default;                            // "auto"
  constexpr Auto(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] constexpr bool is_auto() const noexcept { return !value_.has_value(); }
  [[nodiscard]] constexpr const T& value() const { return value_.value(); }
  [[nodiscard]] constexpr T value_or(T other) const { return value_.value_or(std::move(other)); }
  friend constexpr bool operator==(const Auto& a, const Auto& b) { return a.value_ == b.value_; }

 private:
  std::optional<T> value_;
};

// Home tier of a state stream, in DeepSpeed's words: none = device, cpu = host memory.
enum class OffloadDevice : std::uint8_t { kNone, kCpu, kNvme };
enum class DecayScope : std::uint8_t { kMatrices, kAll };  // tensors of two and more dimensions, or every tensor
enum class WarmupType : std::uint8_t { kLog, kLinear };
enum class SchedulerType : std::uint8_t { kNone, kWarmup, kWarmupDecay, kWarmupCosine };
using cpu_adam::StateFormat;
enum class Durability : std::uint8_t { kProcess, kPower };
enum class UpdatePolicy : std::uint8_t { kAfterBackward, kInBackward, kIntoForward };
enum class ActivationPolicy : std::uint8_t { kKeep, kRecompute, kHost, kNvme };
enum class IoBackendKind : std::uint8_t { kUring, kLibaio, kThreads };
enum class IoMode : std::uint8_t { kDirect, kBuffered };
enum class IoStriping : std::uint8_t { kMeasured, kEqual };

// train_batch_size = micro_batch_size × accumulation_steps × world_size always holds.
struct BatchConfig {
  std::int64_t train_batch_size = 0;    // samples per step over all ranks
  std::int64_t micro_batch_size = 0;    // samples of one forward/backward on one rank
  std::int64_t accumulation_steps = 0;  // micro-batches per step and rank
  std::int32_t world_size = 1;
};

// Dynamic loss scaling, DeepSpeed's `fp16` section. loss_scale 0 = dynamic.
struct LossScaleConfig {
  double loss_scale = 0;
  std::int32_t initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  std::int32_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

struct OptimizerConfig {
  cpu_adam::OptimizerKind kind = cpu_adam::OptimizerKind::kAdamW;
  cpu_adam::OptimizerHyper hyper;  // what `kind` reads; optimizer_step and gradient_scale are the step's
  double beside_lr_factor = 1;     // Muon: the learning rate of what AdamW updates, over hyper.lr
};

// Learning rate over optimizer steps; lr_at() in runtime/config/schedule.h gives the number.
struct SchedulerConfig {
  SchedulerType type = SchedulerType::kNone;
  WarmupType warmup_type = WarmupType::kLog;
  std::int64_t warmup_num_steps = 1000;
  std::int64_t total_num_steps = 0;  // kWarmupDecay, kWarmupCosine
  double warmup_min_lr = 0;          // kWarmup, kWarmupDecay
  double warmup_max_lr = 1e-3;       // kWarmup, kWarmupDecay
  double warmup_min_ratio = 0;       // kWarmupCosine: fraction of optimizer.params.lr
  double cos_min_ratio = 1e-4;       // kWarmupCosine
};

struct OffloadConfig {
  OffloadDevice device = OffloadDevice::kNone;
  std::vector<std::string> nvme_paths;  // one volume per path; not empty when device is kNvme
};

struct ZeroConfig {
  std::int32_t stage = 0;
  OffloadConfig parameters;  // home of the weights
  OffloadConfig optimizer;   // home of the optimizer state
};

struct MemoryConfig {
  Auto<Bytes> device;  // the `cpu` device's arena or a GPU's memory
  Auto<Bytes> host;    // everything the process holds
  Auto<Bytes> nvme;    // over all paths
  bool cache = true;   // false: nothing of NVMe-home state stays in memory beyond its use
};

struct ScheduleConfig {
  Auto<std::int32_t> group_size;
  Auto<UpdatePolicy> update;
  Auto<double> delayed_fraction;  // of into_forward
  Auto<ActivationPolicy> activations;
  bool snake = true;
};

struct EvalConfig {
  std::int64_t every = 0;      // steps between evaluations; 0 = never
  Auto<std::int64_t> samples;  // auto = the whole validation part
};

struct IoConfig {
  Auto<IoBackendKind> backend;
  Auto<IoMode> mode;
  IoStriping striping = IoStriping::kMeasured;
  bool overwrite_devices = false;
  Auto<Bytes> block_bytes;
  Auto<Bytes> in_flight_bytes;
  Auto<std::int64_t> threads;  // of the `threads` backend
};

struct DebugConfig {
  std::uint64_t seed = 0;          // of the delays
  std::int64_t lane_delay_us = 0;  // largest random delay before each operation; 0 = none
  std::optional<Bytes> throttle;   // bytes per second that each I/O direction may move; unset = no limit
  std::string inject;              // faults for tests, read by the trainer; empty = none
};

struct RunConfig {
  std::string name;  // the config file's name without extension; the run folder's default name
  BatchConfig batch;
  double gradient_clipping = 1.0;      // 0 = off
  DType weights_dtype = DType::kFp32;  // bf16 or fp16 when that section is enabled
  LossScaleConfig loss_scale;          // used with fp16 only
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  ZeroConfig zero;

  // Everything below stands under "headrace".
  std::int64_t steps = 0;  // attempted global batches; ≥ 1
  std::uint64_t seed = 1;
  MemoryConfig memory;
  ScheduleConfig schedule;
  StateFormat state_format = StateFormat::kFp32;
  Durability durability = Durability::kProcess;
  std::int32_t slots = 2;
  Auto<std::int64_t> tile_elements;  // from tile_bytes, or DeepSpeed's sub_group_size; multiple of 4096
  Auto<std::int32_t> threads;
  bool force_copies = false;
  DType gradient_dtype = DType::kFp32;
  DecayScope decay = DecayScope::kMatrices;
  std::int32_t max_skipped_in_a_row = 5;
  EvalConfig eval;
  IoConfig io;
  DebugConfig debug;
  std::optional<std::string> hardware;  // file of measured rates
};

// Planes of moments that the state has. fp32 weights without any would have no state at all: they keep one of zeros.
[[nodiscard]] int num_moments(const RunConfig& run) noexcept;

}  // namespace headrace::config
