// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/read_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/runtime/config_support.h"

namespace headrace::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Overrides = std::vector<std::string>;

RunConfig run_of(std::string_view text, const Overrides& overrides = {}, const ReadOptions& options = {}) {
  const auto loaded = read(text, overrides, options);
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().to_string());
  return loaded.ok() ? loaded->config.run : RunConfig{};
}

Error error_of(std::string_view text, const Overrides& overrides = {}, const ReadOptions& options = {}) {
  const auto loaded = read(text, overrides, options);
  EXPECT_FALSE(loaded.ok()) << text << (overrides.empty() ? "" : overrides[0]);
  return loaded.ok() ? Error{} : loaded.error();
}

// The minimal config with members put before its own.
std::string with(std::string_view members) {
  return "{" + std::string(members) + ",\n" + std::string(kMinimal.substr(1));
}

std::string source_of(const LoadedConfig& config, std::string_view path) {
  for (const ResolvedKey& key : config.keys) {
    if (key.path == path) return key.value + " from " + key.source;
  }
  return "none";
}

bool has_note(const LoadedConfig& config, std::string_view part) {
  return std::any_of(config.notes.begin(), config.notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

TEST(ReadConfig, DefaultsAreDeepSpeedsAndOurs) {
  const auto loaded = read(kMinimal);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  const RunConfig& run = loaded->config.run;
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.gradient_clipping, 1.0);
  EXPECT_EQ(run.optimizer.hyper.lr, 1e-3);
  EXPECT_EQ(run.optimizer.hyper.beta1, 0.9);
  EXPECT_EQ(run.optimizer.hyper.beta2, 0.999);
  EXPECT_EQ(run.optimizer.hyper.eps, 1e-8);
  EXPECT_EQ(run.optimizer.hyper.weight_decay, 0);
  EXPECT_EQ(run.optimizer.kind, cpu_adam::OptimizerKind::kAdamW);
  EXPECT_EQ(run.scheduler.type, SchedulerType::kNone);
  EXPECT_EQ(run.weights_dtype, DType::kFp32);
  EXPECT_EQ(run.gradient_dtype, DType::kFp32);
  EXPECT_EQ(run.state_format, StateFormat::kFp32);
  EXPECT_EQ(run.zero.stage, 0);
  EXPECT_EQ(run.slots, 2);
  EXPECT_EQ(run.seed, 1U);
  EXPECT_EQ(run.max_skipped_in_a_row, 5);
  EXPECT_TRUE(run.memory.host.is_auto() && run.schedule.group_size.is_auto() && run.threads.is_auto() &&
              run.tile_elements.is_auto());
  EXPECT_TRUE(run.memory.cache && run.schedule.snake);
  EXPECT_FALSE(run.hardware.has_value());
  EXPECT_EQ(loaded->data.train, "corpus.txt");
  EXPECT_EQ(loaded->data.tokenizer, "bytes");
  EXPECT_EQ(loaded->model.preset, "llama-1m");
  EXPECT_TRUE(loaded->config.notes.empty());
}

TEST(ReadConfig, TheExampleConfigsLoad) {
  const char* source = std::getenv("HEADRACE_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "run by ctest";
  for (const char* name : {"llama-20m", "llama-1b", "nanogpt-char"}) {
    Loaded loaded;
    const FieldTable model = models::model_fields(loaded.model);
    const FieldTable data = models::data_fields(loaded.data);
    const FieldTable* tables[] = {&model, &data};
    const auto config = load_config(fmt::format("{}/examples/{}.json", source, name), {}, tables);
    ASSERT_TRUE(config.ok()) << config.error().to_string();
    EXPECT_EQ(config->run.name, name);
    EXPECT_TRUE(config->notes.empty()) << name << ": " << config->notes[0];
    const auto shape = models::resolve_model(loaded.model, 256);
    ASSERT_TRUE(shape.ok()) << shape.error().to_string();
    EXPECT_LE(models::sequence_length_of(loaded.data, *shape), shape->max_positions);
    if (std::string_view(name) != "nanogpt-char") continue;
    EXPECT_EQ(shape->architecture, models::Architecture::kGpt2);
    EXPECT_EQ(shape->inner, 512);
    EXPECT_EQ(shape->head_dim, 32);
    EXPECT_EQ(shape->vocab, 256);
    EXPECT_TRUE(shape->tied);
    EXPECT_EQ(loaded.data.validation_fraction, 0.1);
  }
}

TEST(ReadConfig, UnknownKeysNameTheNearest) {
  const Error error =
      error_of("{\n  \"train_batch_size\": 4,\n  \"zero_optimization\": {\"stage\": 3,\n    \"offload_parm\": {}}\n}");
  EXPECT_EQ(error.to_string(),
            "run.json:4:5: unknown key \"zero_optimization.offload_parm\"; did you mean \"offload_param\"?");
  EXPECT_EQ(exit_code(error.code), 3);
  EXPECT_THAT(error_of(with(R"("gradient_clipp1ng": 1)")).message, HasSubstr("did you mean \"gradient_clipping\"?"));
  EXPECT_THAT(error_of(with(R"("optimizer": {"params": {"betaz": [0.9, 0.9]}})")).message,
              HasSubstr("did you mean \"betas\"?"));
  EXPECT_THAT(error_of(with(R"("xyzzy": 1)")).message, HasSubstr("unknown key \"xyzzy\""));
  EXPECT_THAT(error_of(with(R"("bf16": {"xyzzy": 1})")).hint, HasSubstr("enabled"));
}

TEST(ReadConfig, KeysInTheWrongPlaceAreSentHome) {
  EXPECT_THAT(error_of(with(R"("zero_optimization": {"aio": {"block_size": 1}})")).message,
              HasSubstr("\"aio\" belongs at the top level"));
  EXPECT_THAT(error_of(with(R"("offload_param": {"device": "cpu"})")).message,
              HasSubstr("\"offload_param\" belongs under \"zero_optimization\""));
  EXPECT_THAT(error_of(with(R"("steps": 3)")).message, HasSubstr("\"steps\" belongs under \"headrace\""));
  EXPECT_THAT(error_of(with(R"("optimizer": {"lr": 3})")).message,
              HasSubstr("\"lr\" belongs under \"optimizer.params\""));
  EXPECT_THAT(error_of(with(R"("headrace.steps": 3)")).message, HasSubstr("unknown key \"headrace.steps\""));
}

TEST(ReadConfig, KeysWithAnUnderscoreAreRemarks) {
  const auto loaded = read(with(R"("_why": {"any": ["thing"]}, "bf16": {"_x": 1, "enabled": true})"));
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_TRUE(has_note(loaded->config, "\"bf16._x\" starts with '_'"));
}

TEST(ReadConfig, SectionsAreObjects) {
  EXPECT_THAT(error_of(with(R"("zero_optimization": true)")).message,
              HasSubstr("\"zero_optimization\" is true or false; it takes an object"));
  EXPECT_TRUE(read(with(R"("scheduler": null, "zero_optimization": {"offload_param": null})")).ok());
  EXPECT_THAT(error_of("[1]").message, HasSubstr("a config is one object"));
  EXPECT_THAT(error_of(with(R"("bf16": {"enabled": {"x": 1}})")).message, HasSubstr("\"bf16.enabled\""));
}

TEST(ReadConfig, ErrorsPointAtTheValue) {
  const Error error = error_of("{\n  \"train_batch_size\": 4,\r\n\t\"optimizer\": {\"params\": {\"lr\": \"3e-4\"}}\n}");
  EXPECT_EQ(error.line, 3);
  EXPECT_EQ(error.column, 33);
  EXPECT_THAT(error.message, HasSubstr("\"optimizer.params.lr\" is \"3e-4\"; it takes a number ≥ 0"));
  EXPECT_EQ(error.hint, "write the number without quotes");
}

TEST(ReadConfig, AnyOneOrTwoOfTheBatchSizesAreEnough) {
  const auto batch = [](const char* members, std::int32_t world) {
    ReadOptions options;
    options.world_size = world;
    const std::string text = fmt::format(
        R"({{{}, "headrace": {{"steps": 1, "model": {{"preset": "llama-1m"}}, "data": {{"train": "t"}}}}}})", members);
    const BatchConfig b = run_of(text, {}, options).batch;
    EXPECT_EQ(b.world_size, world);
    return std::vector<std::int64_t>{b.train_batch_size, b.micro_batch_size, b.accumulation_steps};
  };
  EXPECT_THAT(
      batch(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4)", 2),
      ElementsAre(32, 4, 4));
  EXPECT_THAT(batch(R"("train_batch_size": 32, "train_micro_batch_size_per_gpu": 4)", 2), ElementsAre(32, 4, 4));
  EXPECT_THAT(batch(R"("train_batch_size": 32, "gradient_accumulation_steps": 4)", 2), ElementsAre(32, 4, 4));
  EXPECT_THAT(batch(R"("train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4)", 2),
              ElementsAre(32, 4, 4));
  EXPECT_THAT(batch(R"("train_batch_size": 32)", 2), ElementsAre(32, 16, 1));
  EXPECT_THAT(batch(R"("train_micro_batch_size_per_gpu": 4)", 2), ElementsAre(8, 4, 1));
  EXPECT_THAT(batch(R"("gradient_accumulation_steps": 4)", 2), ElementsAre(8, 1, 4));
  EXPECT_THAT(batch(R"("train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4)", 1), ElementsAre(4, 4, 1));
}

TEST(ReadConfig, BatchSizesThatDisagreeShowAllFourNumbersAndAFix) {
  ReadOptions options;
  options.world_size = 3;
  options.world_size_source = "--ranks 3";
  const Error all = error_of(with(R"("train_micro_batch_size_per_gpu": 5, "gradient_accumulation_steps": 7)"),
                             {"train_batch_size=32"}, options);
  EXPECT_THAT(all.message, AllOf(HasSubstr("32"), HasSubstr("5"), HasSubstr("7"), HasSubstr("world size 3 (--ranks 3)"),
                                 HasSubstr("= 105")));
  EXPECT_THAT(all.hint, HasSubstr("105"));
  const Error two = error_of(with(R"("train_micro_batch_size_per_gpu": 4)"), {"train_batch_size=32"}, options);
  EXPECT_THAT(two.message, HasSubstr("32 is not a multiple of train_micro_batch_size_per_gpu 4 × world size 3"));
  EXPECT_THAT(two.hint, HasSubstr("24 or 36"));
  EXPECT_THAT(error_of(R"({"headrace": {"steps": 1}})").message, HasSubstr("no batch size"));
  EXPECT_THAT(error_of(with(R"("train_micro_batch_size_per_gpu": 1e12, "gradient_accumulation_steps": 1e12)")).message,
              HasSubstr("samples"));
}

TEST(ReadConfig, PrecisionDecidesFormatAndGradients) {
  const RunConfig bf16 = run_of(kMinimal, {"bf16.enabled=true"});
  EXPECT_EQ(bf16.weights_dtype, DType::kBf16);
  EXPECT_EQ(bf16.state_format, StateFormat::kSplit);
  EXPECT_EQ(bf16.gradient_dtype, DType::kBf16);
  const RunConfig reference = run_of(kMinimal, {"bf16.enabled=true", "state_format=fp32", "gradient_dtype=fp32"});
  EXPECT_EQ(reference.state_format, StateFormat::kFp32);
  EXPECT_EQ(reference.gradient_dtype, DType::kFp32);
  const RunConfig fp16 = run_of(kMinimal, {"fp16.enabled=true"});
  EXPECT_EQ(fp16.weights_dtype, DType::kFp16);
  EXPECT_EQ(fp16.state_format, StateFormat::kFp32);
  EXPECT_EQ(run_of(with(R"("bfloat16": {"enabled": true})")).weights_dtype, DType::kBf16);
  EXPECT_THAT(error_of(kMinimal, {"bf16.enabled=true", "fp16.enabled=true"}).message, HasSubstr("both true"));
  EXPECT_THAT(error_of(kMinimal, {"state_format=split"}).message, HasSubstr("the weights are fp32"));
  EXPECT_THAT(error_of(kMinimal, {"gradient_dtype=bf16"}).message, HasSubstr("need bf16 weights"));
  EXPECT_THAT(error_of(kMinimal, {"fp16.enabled=true", "slots=1"}).message,
              HasSubstr("slots 1 cannot be used with fp16"));
  EXPECT_THAT(error_of(kMinimal, {"state_format=compact"}).message, HasSubstr("the weights are fp32"));
  EXPECT_EQ(run_of(kMinimal, {"bf16.enabled=true", "state_format=compact"}).state_format, StateFormat::kCompact);
  EXPECT_THAT(error_of(with(R"("bf16": {"enabled": true}, "bfloat16": {"enabled": true})")).message,
              HasSubstr("two names of one setting"));
  EXPECT_EQ(run_of(with(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"})")).gradient_dtype,
            DType::kFp32);
  EXPECT_THAT(
      error_of(kMinimal, {"bf16.enabled=true", "data_types.grad_accum_dtype=fp32", "gradient_dtype=bf16"}).message,
      HasSubstr("disagree"));
}

TEST(ReadConfig, OptimizersThatAreNotHereAreRefusedByName) {
  const Error lamb = error_of(kMinimal, {"optimizer.type=Lamb"});
  EXPECT_THAT(lamb.message, HasSubstr("\"Lamb\", which this version does not support"));
  EXPECT_THAT(lamb.hint, HasSubstr("\"AdamW\", \"Adam\""));
  EXPECT_EQ(error_of(kMinimal, {"optimizer.type=AdmW"}).hint, "did you mean \"AdamW\"?");
}

TEST(ReadConfig, SchedulersFillTheirTotals) {
  const std::string cosine = with(R"("scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2}})");
  EXPECT_EQ(run_of(cosine).scheduler.total_num_steps, 10);
  EXPECT_EQ(run_of(with(R"("optimizer": {"params": {"lr": 0.5}}, "scheduler": {"type": "WarmupLR"})"))
                .scheduler.warmup_max_lr,
            0.5);
  EXPECT_EQ(run_of(with(R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2}})"))
                .scheduler.warmup_max_lr,
            1e-3);
  EXPECT_THAT(error_of(cosine, {"scheduler.params.warmup_num_steps=11"}).message,
              HasSubstr("warm-up of 11 steps is longer than the whole schedule of 10"));
  EXPECT_THAT(error_of(cosine, {"scheduler.params.warmup_max_lr=0.1"}).message,
              HasSubstr("is no parameter of scheduler.type \"WarmupCosineLR\""));
  EXPECT_THAT(error_of(with(R"("scheduler": {"params": {"warmup_num_steps": 2}})")).hint,
              HasSubstr("name the scheduler"));
  EXPECT_THAT(error_of(kMinimal, {"scheduler.type=OneCycle"}).message, HasSubstr("does not support"));
  EXPECT_THAT(error_of(kMinimal, {"scheduler.type=WarmupLR", "scheduler.params.warmup_min_lr=1"}).message,
              HasSubstr("above warmup_max_lr"));
  const auto late = read(cosine, {"scheduler.params.total_num_steps=5"});
  ASSERT_TRUE(late.ok());
  EXPECT_TRUE(has_note(late->config, "the schedule ends at step 5 of 10"));
}

TEST(ReadConfig, OffloadNeedsItsStageAndItsPath) {
  const Error missing =
      error_of(kMinimal, {"zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme"});
  EXPECT_THAT(missing.message, HasSubstr("\"zero_optimization.offload_param.nvme_path\" is missing"));
  const Error optimizer = error_of(with(R"("zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme"}})"));
  EXPECT_THAT(optimizer.message, HasSubstr("\"zero_optimization.offload_optimizer.nvme_path\" is missing"));
  EXPECT_EQ(optimizer.line, 2);
  EXPECT_THAT(error_of(kMinimal, {"zero_optimization.offload_param.device=cpu"}).message,
              HasSubstr("needs zero_optimization.stage 3; it is 0"));
  EXPECT_THAT(
      error_of(kMinimal, {"zero_optimization.stage=2", "zero_optimization.offload_optimizer.device=nvme"}).message,
      HasSubstr("needs zero_optimization.stage 3; it is 2"));
  EXPECT_TRUE(read(kMinimal, {"zero_optimization.stage=1", "zero_optimization.offload_optimizer.device=cpu"}).ok());
  EXPECT_THAT(error_of(kMinimal, {"zero_optimization.stage=4"}).message, HasSubstr("a whole number from 0 to 3"));
  const RunConfig run = run_of(
      kMinimal,
      {"zero_optimization.stage=3", R"(zero_optimization.offload_param={"device":"nvme","nvme_path":["/a","/b"]})"});
  EXPECT_THAT(run.zero.parameters.nvme_paths, ElementsAre("/a", "/b"));
  EXPECT_THAT(
      error_of(kMinimal, {"zero_optimization.stage=3",
                          R"(zero_optimization.offload_param={"device":"nvme","nvme_path":["/a/x","/a/./x/"]})"})
          .message,
      HasSubstr("names \"/a/./x/\" twice"));
  const RunConfig old = run_of(with(R"("zero_optimization": {"stage": 2, "cpu_offload": true})"));
  EXPECT_EQ(old.zero.optimizer.device, OffloadDevice::kCpu);
  EXPECT_THAT(
      error_of(
          with(R"("zero_optimization": {"stage": 2, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}})"))
          .message,
      HasSubstr("both given"));
}

TEST(ReadConfig, ChoicesOfLaterVersionsAreRefusedByName) {
  const Error error = error_of(kMinimal, {"optimizer.type=Lamb"});
  EXPECT_EQ(error.code, ErrorCode::kConfig);
  EXPECT_THAT(error.message, HasSubstr("which this version does not support"));
  EXPECT_THAT(error.hint, HasSubstr("\"AdamW\""));
  EXPECT_EQ(run_of(kMinimal, {"schedule.activations=nvme"}).schedule.activations,
            Auto<ActivationPolicy>(ActivationPolicy::kNvme));
  EXPECT_EQ(run_of(kMinimal, {"schedule.update=after_backward"}).schedule.update,
            Auto<UpdatePolicy>(UpdatePolicy::kAfterBackward));
  EXPECT_EQ(run_of(kMinimal, {"schedule.update=into_forward", "headrace.slots=1"}).schedule.update,
            Auto<UpdatePolicy>(UpdatePolicy::kIntoForward));
}

TEST(ReadConfig, DeepSpeedsIoKeysAreTaken) {
  const auto loaded = read(with(
      R"("aio": {"block_size": 8388608, "queue_depth": 32, "thread_count": 2, "single_submit": "false", "overlap_events": "true"})"));
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_EQ(loaded->config.run.io.block_bytes, Auto<Bytes>(8 * kMiB));
  EXPECT_EQ(loaded->config.run.io.in_flight_bytes, Auto<Bytes>(512 * kMiB));
  EXPECT_TRUE(has_note(loaded->config, "\"aio.thread_count\" is taken as \"aio.intra_op_parallelism\""));
  EXPECT_TRUE(has_note(loaded->config, "\"aio.single_submit\" is text; taken as false"));
  EXPECT_TRUE(has_note(loaded->config, "\"aio.overlap_events\" is accepted and has no effect"));
  EXPECT_TRUE(read(with(R"("aio": {"num_threads": 8})")).ok());
  EXPECT_THAT(error_of(with(R"("aio": {"num_threads": 8, "intra_op_parallelism": 8})")).message,
              HasSubstr("two names of one setting"));
  EXPECT_THAT(error_of(with(R"("aio": {"block_size": 5000})")).message, HasSubstr("not a multiple of 4096"));
  EXPECT_THAT(error_of(kMinimal, {"aio.block_size=1MiB", "io.block_bytes=2MiB"}).message,
              HasSubstr("set the same thing"));
  EXPECT_EQ(run_of(with(R"("aio": {"block_size": 8388608})"), {"io.block_bytes=2MiB"}).io.block_bytes,
            Auto<Bytes>(2 * kMiB));
  EXPECT_THAT(error_of(kMinimal, {"io.block_bytes=2MiB", "io.in_flight_bytes=1MiB"}).message,
              HasSubstr("less than one block"));
}

TEST(ReadConfig, TilesComeInBytesOrElements) {
  EXPECT_EQ(run_of(kMinimal, {"tile_bytes=12MiB"}).tile_elements, Auto<std::int64_t>(1048576));
  EXPECT_EQ(run_of(kMinimal, {"bf16.enabled=true", "state_format=fp32", "tile_bytes=14MiB"}).tile_elements,
            Auto<std::int64_t>(1048576));
  EXPECT_EQ(run_of(kMinimal, {"tile_bytes=64KiB"}).tile_elements, Auto<std::int64_t>(4096));
  EXPECT_EQ(run_of(kMinimal, {"zero_optimization.sub_group_size=10000"}).tile_elements, Auto<std::int64_t>(8192));
  EXPECT_TRUE(run_of(kMinimal, {"zero_optimization.sub_group_size=1e9"}).tile_elements.is_auto());
  EXPECT_THAT(error_of(kMinimal, {"zero_optimization.sub_group_size=10000", "tile_bytes=1MiB"}).message,
              HasSubstr("set the same thing"));
}

TEST(ReadConfig, KeysThatWouldChangeResultsHaveOnlyTheirNeutralValue) {
  EXPECT_THAT(error_of(with(R"("zero_optimization": {"zero_quantized_weights": true})")).message,
              HasSubstr("is not supported: quantised"));
  EXPECT_TRUE(
      read(with(R"("zero_optimization": {"zero_quantized_weights": false}, "gradient_predivide_factor": 1.0)")).ok());
  EXPECT_THAT(error_of(with(R"("curriculum_learning": {"enabled": true})")).message, HasSubstr("not supported"));
  EXPECT_TRUE(read(with(R"("curriculum_learning": {"enabled": false}, "elasticity": null)")).ok());
  EXPECT_THAT(error_of(with(R"("optimizer": {"params": {"max_grad_norm": 1}})")).message,
              HasSubstr("gradient_clipping"));
}

TEST(ReadConfig, TakesAConfigAsItIsFoundOnTheWeb) {
  const auto loaded = read(with(
      R"("fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "bf16": {"enabled": true}, "gradient_clipping": 0.5, "steps_per_print": 2000, "wall_clock_breakdown": false,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}},
  "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 4, "fast_init": false},
    "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
    "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
  "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false, "overlap_events": true},
  "tensorboard": {"enabled": true, "output_path": "logs"})"));
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_THAT(loaded->config.run.zero.optimizer.nvme_paths, ElementsAre("/local_nvme"));
  for (const ResolvedKey& key : loaded->config.keys) {
    EXPECT_TRUE(key.use != FieldUse::kNoEffect || has_note(loaded->config, "\"" + key.path + "\" is"))
        << key.path << " is unused without a word";
  }
}

TEST(Overrides, TakeFullPathsJsonAndText) {
  const auto loaded =
      read(kMinimal, {"steps=20", "headrace.steps=30", "memory.host=160MiB", "optimizer.params.betas=[0.5, 0.6]",
                      "data.train=other file.txt", "model={\"preset\": \"llama-20m\"}", "gradient_clipping=0"});
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_EQ(loaded->config.run.steps, 30);  // the last wins
  EXPECT_EQ(loaded->config.run.memory.host, Auto<Bytes>(160 * kMiB));
  EXPECT_EQ(loaded->config.run.optimizer.hyper.beta2, 0.6);
  EXPECT_EQ(loaded->config.run.gradient_clipping, 0);
  EXPECT_EQ(loaded->data.train, "other file.txt");
  EXPECT_EQ(loaded->model.preset, "llama-20m");
}

TEST(Overrides, ErrorsNameTheArgument) {
  const auto message = [](const char* argument) { return error_of(kMinimal, {argument}).message; };
  EXPECT_THAT(message("memory.host=lots"),
              AllOf(HasSubstr("argument \"memory.host=lots\""), HasSubstr("\"headrace.memory.host\"")));
  EXPECT_THAT(message("stpes=5"), AllOf(HasSubstr("argument \"stpes=5\""), HasSubstr("did you mean \"steps\"?")));
  EXPECT_THAT(message("memory.hots=1GiB"), HasSubstr("did you mean \"memory.host\"?"));
  EXPECT_THAT(message("memroy.host=5"), HasSubstr("\"host\" belongs under \"headrace.memory\""));
  EXPECT_THAT(message("grdient_clipping=5"), HasSubstr("\"gradient_clipping\" belongs at the top level"));
  EXPECT_THAT(message("steps.x=5"), HasSubstr("unknown key \"headrace.steps.x\""));
  EXPECT_THAT(message("steps=NaN"), HasSubstr("\"headrace.steps\" is \"NaN\""));
  EXPECT_THAT(message("steps=1e400"), HasSubstr("\"headrace.steps\" is 1e400"));
  EXPECT_THAT(message("steps="), HasSubstr("\"headrace.steps\" is \"\""));
  EXPECT_THAT(message("memory=5"), HasSubstr("it takes an object"));
  EXPECT_EQ(error_of(kMinimal, {"steps"}).code, ErrorCode::kUsage);
  EXPECT_EQ(error_of(kMinimal, {"=5"}).code, ErrorCode::kUsage);
}

TEST(Sources, EveryValueKnowsWhereItCameFrom) {
  const auto loaded = read(kMinimal, {"memory.host=160MiB"});
  ASSERT_TRUE(loaded.ok());
  const LoadedConfig& config = loaded->config;
  EXPECT_EQ(source_of(config, "train_batch_size"), "4 from run.json:2");
  EXPECT_EQ(source_of(config, "headrace.memory.host"), "167772160 from override memory.host=160MiB");
  EXPECT_EQ(source_of(config, "gradient_clipping"), "1 from default");
  EXPECT_EQ(source_of(config, "train_micro_batch_size_per_gpu"),
            "4 from the other batch settings and world size 1 (one process)");
  EXPECT_EQ(source_of(config, "headrace.state_format"), "\"fp32\" from bf16 is off");
  EXPECT_EQ(source_of(config, "headrace.schedule.group_size"), "\"auto\" from default");
  LoadedConfig planned = config;
  resolve_auto(planned, "headrace.schedule.group_size", "4", "plan");
  EXPECT_EQ(source_of(planned, "headrace.schedule.group_size"), "4 from plan");
}

TEST(Fingerprint, SeparatesWhatChangesResults) {
  const LoadedConfig base = read(kMinimal)->config;
  const std::string print = fingerprint(base);
  for (const char* same : {"steps=99", "memory.host=1GiB", "memory.cache=false", "schedule.group_size=2",
                           "schedule.activations=keep", "threads=3", "io.block_bytes=1MiB", "durability=power",
                           "tile_bytes=1MiB", "eval.samples=3", "debug.lane_delay_us=7", "hardware=x"}) {
    const LoadedConfig changed = read(kMinimal, {same})->config;
    EXPECT_EQ(fingerprint(changed), print) << same;
    EXPECT_TRUE(check_resumable(print, changed).ok()) << same;
  }
  for (const char* other : {"seed=2", "train_batch_size=8", "gradient_accumulation_steps=2", "optimizer.params.lr=0.5",
                            "bf16.enabled=true", "decay=all", "data.train=x", "data.order=sequential", "model.layers=2",
                            "gradient_clipping=0", "scheduler.type=WarmupLR"}) {
    const auto difference = check_resumable(print, read(kMinimal, {other})->config);
    ASSERT_FALSE(difference.ok()) << other;
    EXPECT_EQ(difference.error().code, ErrorCode::kConfig);
  }
}

TEST(Fingerprint, ADifferenceNamesBothValuesAndThePlace) {
  const std::string print = fingerprint(read(kMinimal, {"seed=2"})->config);
  const auto file = check_resumable(print, read(with("\"bf16\": {\n\"enabled\": true}"), {"seed=2"})->config);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().to_string().substr(0, 30), "run.json:2:12: \"bf16.enabled\" ");
  EXPECT_THAT(file.error().message, HasSubstr("is true (run.json:2), but the run to resume was trained with false"));
  const auto other = check_resumable(print, read(kMinimal)->config);
  EXPECT_THAT(other.error().message,
              HasSubstr("\"headrace.seed\" is 1 (default), but the run to resume was trained with 2"));
  EXPECT_TRUE(check_resumable("", read(kMinimal)->config).ok());
}

TEST(Requirements, ARunNeedsStepsModelAndData) {
  EXPECT_THAT(error_of(R"({"train_batch_size": 1})").message, HasSubstr("\"headrace.steps\" is missing"));
  EXPECT_THAT(error_of(R"({"train_batch_size": 1, "headrace": {"steps": 1}})").message, HasSubstr("no model is given"));
  EXPECT_THAT(error_of(R"({"train_batch_size": 1, "headrace": {"steps": 1, "model": {"preset": "llama-1m"}}})").message,
              HasSubstr("nothing to train on"));
  ReadOptions plan;
  plan.purpose = Purpose::kPlan;
  EXPECT_EQ(run_of("{}", {}, plan).batch.train_batch_size, 1);
}

TEST(Requirements, ModelsHaveOneSource) {
  const auto model = [](const char* json) { return error_of(kMinimal, {std::string("model=") + json}).message; };
  EXPECT_THAT(model(R"({"preset": "llama-1m", "path": "x"})"), HasSubstr("a preset and a path"));
  EXPECT_THAT(model(R"({"path": "x", "layers": 2})"), HasSubstr("cannot change the shape"));
  EXPECT_THAT(model(R"({"architecture": "gpt2", "layers": 2, "heads": 2})"),
              HasSubstr("\"headrace.model.embed\" is missing"));
  EXPECT_THAT(model(R"({"preset": "llama-1m", "architecture": "gpt2"})"), HasSubstr("a preset and an architecture"));
  EXPECT_THAT(error_of(kMinimal, {"model.preset=lama-1m"}).hint, HasSubstr("did you mean \"llama-1m\"?"));
  EXPECT_THAT(error_of(kMinimal, {"eval.every=5"}).message, HasSubstr("no validation data"));
  EXPECT_THAT(error_of(kMinimal, {"data.validation=v", "data.validation_fraction=0.1"}).message,
              HasSubstr("a validation file and a validation_fraction"));
}

TEST(Requirements, ShapesFollowFromFewNumbers) {
  const auto shape = [](const char* json, std::int64_t vocab) {
    const auto loaded = read(kMinimal, {std::string("model=") + json});
    EXPECT_TRUE(loaded.ok()) << loaded.error().to_string();
    const auto model = models::resolve_model(loaded->model, vocab);
    EXPECT_TRUE(model.ok()) << model.error().to_string();
    return *model;
  };
  const models::ModelConfig llama = shape(R"({"architecture": "llama", "layers": 2, "heads": 4, "embed": 96})", 256);
  EXPECT_EQ(llama.inner, 256);
  EXPECT_EQ(llama.head_dim, 24);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_FALSE(llama.tied);
  const models::ModelConfig changed = shape(R"({"preset": "llama-1m", "layers": 2, "vocab": 300})", 256);
  EXPECT_EQ(changed.layers, 2);
  EXPECT_EQ(changed.vocab, 300);
  EXPECT_EQ(changed.embed, 128);
  EXPECT_EQ(shape(R"({"preset": "gpt2-124m"})", 0).vocab, 50257);
  EXPECT_EQ(shape(R"({"preset": "gpt2-124m"})", 256).vocab, 256);
}

TEST(LoadConfig, SaysWhatIsWrongWithTheFile) {
  EXPECT_THAT(load_config("/no/such.json", {}, {}).error().to_string(),
              HasSubstr("/no/such.json: cannot open the config: No such file"));
  EXPECT_THAT(load_config("/", {}, {}).error().message, HasSubstr("a folder"));
}

}  // namespace
}  // namespace headrace::config
