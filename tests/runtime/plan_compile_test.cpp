// SPDX-License-Identifier: Apache-2.0
// Small plans checked by hand, and the bytes per step against the formulas of the design.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "plan_support.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {
namespace {

using cpu_adam::StateFormat;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan compile_checked(const PlanInput& input) {
  Result<Plan> plan = compile_plan(input);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().to_string());
  if (!plan.ok()) return {};
  EXPECT_EQ(message_of(check_plan(*plan)), "");
  return std::move(plan).value();
}

std::vector<std::string> names(const std::vector<Operation>& operations) {
  std::vector<std::string> result;
  for (const Operation& op : operations) {
    std::string name = operation_kind_name(op.kind);
    if (op.unit >= 0) name += " " + std::to_string(op.unit);
    if (op.micro_batch >= 0) name += " m" + std::to_string(op.micro_batch);
    if (op.tile >= 0) name += " t" + std::to_string(op.tile);
    result.push_back(name);
  }
  return result;
}

std::vector<std::string> compute_order(const Plan& plan) {
  std::vector<std::string> result;
  for (const Operation& op : plan.operations)
    if (op.lane == Lane::kCompute)
      result.push_back((op.pass == Pass::kForward ? "f" : "b") + std::to_string(op.unit) + "m" +
                       std::to_string(op.micro_batch));
  return result;
}

std::size_t count_of(const std::vector<Operation>& operations, OperationKind kind) {
  return static_cast<std::size_t>(
      std::count_if(operations.begin(), operations.end(), [&](const Operation& op) { return op.kind == kind; }));
}

// Two units of one tile each, and a head with the loss.
PlanInput two_units() {
  ModelInfo model;
  model.units.push_back(make_unit("embedding", 4'096, 4'096, 0, 0));
  model.units.push_back(make_unit("head", 4'096, 0, 8'192, 4'096));
  model.units.back().fused_loss = true;
  PlanInput input = make_input(model);
  input.state_format = StateFormat::kSplit;
  input.tile_elements = 4'096;
  input.cache = false;
  return input;
}

TEST(CompilePlan, ASmallStepIsTheListThatOneWouldWrite) {
  const Plan plan = compile_checked(two_units());
  EXPECT_THAT(names(plan.operations),
              ElementsAre("read_weights 0", "read_weights 1", "read_weights 0", "forward 0 m0", "backward 1 m0",
                          "gradient_out 1", "read_state 0 t0", "read_state 1 t0", "backward 0 m0", "gradient_out 0",
                          "norm", "update 0 t0", "write_state 0 t0", "update 1 t0", "write_state 1 t0", "commit"));
  EXPECT_THAT(plan.operations[3].dependencies, ElementsAre(0));   // the embedding's weights
  EXPECT_THAT(plan.operations[4].dependencies, ElementsAre(1));   // the forward before it is on the same lane
  EXPECT_THAT(plan.operations[10].dependencies, ElementsAre(9));  // the last gradient is the last of its lane
  EXPECT_THAT(plan.operations[11].dependencies, ElementsAre(6));
  EXPECT_THAT(plan.operations[15].dependencies, ElementsAre(12, 14));  // the last write waits for the last update
  // 4,096 parameters: weights 8 KiB; optimizer 10 bytes each; every extent has a trailer.
  EXPECT_EQ(plan.operations[0].bytes, 8'192 + 4'096);
  EXPECT_EQ(plan.operations[6].bytes, (40'960 + 4'096) + (8'192 + 4'096));
  EXPECT_EQ(plan.read_bytes_per_step, 3 * 12'288 + 2 * 57'344);
  EXPECT_EQ(plan.write_bytes_per_step, 2 * 57'344);
  EXPECT_EQ(plan.state_bytes, 2 * 4'096 * 12);
  EXPECT_EQ(plan.nvme_state_bytes, 2 * 2 * 57'344);
}

TEST(CompilePlan, AnEarlyUpdateFollowsItsGradientAndTheRedoFollowsTheStep) {
  PlanInput input = two_units();
  input.update = UpdatePolicy::kInBackward;
  input.can_clip = true;
  const Plan plan = compile_checked(input);
  EXPECT_THAT(names(plan.operations),
              ElementsAre("read_weights 0", "read_weights 1", "read_weights 0", "forward 0 m0", "read_state 1 t0",
                          "read_state 0 t0", "backward 1 m0", "gradient_out 1", "backward 0 m0", "update 1 t0",
                          "write_state 1 t0", "gradient_out 0", "norm", "update 0 t0", "write_state 0 t0", "commit"));
  // Weights are still there from the backward pass; the redo reads them.
  EXPECT_EQ(plan.read_bytes_per_step, 3 * 12'288 + 2 * 45'056);
  EXPECT_EQ(plan.write_bytes_per_step, 2 * 57'344);
  EXPECT_THAT(names(plan.redo_operations),
              ElementsAre("read_state 1 t0", "read_state 0 t0", "update 1 t0", "write_state 1 t0", "update 0 t0",
                          "write_state 0 t0", "commit"));
  EXPECT_EQ(plan.redo_read_bytes, 2 * 57'344);
  EXPECT_EQ(plan.redo_write_bytes, 2 * 57'344);
  input.can_clip = false;  // with nothing held there is nothing to bring back
  EXPECT_THAT(names(compile_checked(input).redo_operations), ElementsAre("commit"));
  input.cache = true;
  EXPECT_THAT(names(compile_checked(input).redo_operations),
              ElementsAre("read_state 1 t0", "read_state 0 t0", "commit"));
}

TEST(CompilePlan, ADelayedUpdateComesBeforeTheFirstUseInTheNextStep) {
  PlanInput input = two_units();
  input.update = UpdatePolicy::kIntoForward;
  const Plan plan = compile_checked(input);
  // The state is read whole, the weights among it, and what the update leaves of them serves the forward pass.
  EXPECT_THAT(names(plan.operations),
              ElementsAre("read_state 0 t0", "read_state 1 t0", "update 0 t0", "write_state 0 t0", "update 1 t0",
                          "write_state 1 t0", "commit", "read_weights 0", "forward 0 m0", "backward 1 m0",
                          "gradient_out 1", "backward 0 m0", "gradient_out 0", "norm"));
  EXPECT_THAT(plan.operations[6].dependencies, ElementsAre(3, 5));
  EXPECT_THAT(plan.operations[7].dependencies, ElementsAre(6));  // the record makes what it reads the current version
  EXPECT_THAT(plan.operations[8].dependencies, ElementsAre(2));  // an update and nothing of the disk
  EXPECT_THAT(names(plan.start_operations),
              ElementsAre("read_weights 0", "read_weights 1", "read_weights 0", "forward 0 m0", "backward 1 m0",
                          "gradient_out 1", "backward 0 m0", "gradient_out 0", "norm"));
  EXPECT_THAT(names(plan.drain_operations),
              ElementsAre("read_state 0 t0", "read_state 1 t0", "update 0 t0", "write_state 0 t0", "update 1 t0",
                          "write_state 1 t0", "commit"));
  EXPECT_EQ(plan.read_bytes_per_step, 12'288 + 2 * 57'344);
  EXPECT_EQ(plan.write_bytes_per_step, 2 * 57'344);
  EXPECT_EQ(plan.start_read_bytes, 3 * 12'288);
  EXPECT_EQ(plan.start_write_bytes, 0);
  EXPECT_EQ(plan.drain_read_bytes, 2 * 57'344);
  EXPECT_EQ(plan.drain_write_bytes, 2 * 57'344);
}

TEST(CompilePlan, ADelayedOwnerIsUpdatedBeforeAnybodyWhoUsesItsTensors) {
  // Unit 2 uses the embedding while the record of its update is not yet written: one copy serves both.
  for (const bool copies : {false, true}) {
    PlanInput input = make_input(make_transformer({3, 20'480, 40'960, 20'480, 8'192, 40'960, 16'384, true}));
    input.model.units[2].uses = {0};
    input.update = UpdatePolicy::kIntoForward;
    input.force_copies = copies;
    input.cache = false;
    const Plan plan = compile_checked(input);
    std::vector<std::string> reads;
    for (const std::string& name : names(plan.operations))
      if (name == "read_weights 0" || name == "commit") reads.push_back(name);
    EXPECT_THAT(reads, ::testing::Contains("commit"));
    EXPECT_EQ(reads.front(), "commit");
  }
}

TEST(CompilePlan, AutoUpdatesEarlyWhereThatHidesTheDisk) {
  PlanInput input = make_input(make_transformer({}));
  input.state_format = StateFormat::kSplit;
  input.update = UpdatePolicy::kAuto;
  input.can_clip = true;
  EXPECT_EQ(compile_checked(input).input.update, UpdatePolicy::kInBackward);
  PlanInput tight = input;  // the tile buffers do not fit beside the backward pass
  tight.host_budget = smallest_host_budget(input);
  EXPECT_EQ(compile_checked(tight).input.update, UpdatePolicy::kAfterBackward);
  input.optimizer_home = Home::kHost;
  EXPECT_EQ(compile_checked(input).input.update, UpdatePolicy::kAfterBackward);
}

TEST(CompilePlan, StateAtHomeInMemoryHasASecondCopyUntilAnEarlyUpdateStands) {
  PlanInput input = make_input(make_transformer({}));
  input.weights_home = input.optimizer_home = Home::kHost;
  input.can_clip = true;
  const Plan late = compile_checked(input);
  input.update = UpdatePolicy::kInBackward;
  const Plan early = compile_checked(input);
  EXPECT_GE(early.host_peak_bytes, late.host_peak_bytes + early.state_bytes);
  input.host_budget = late.host_peak_bytes;
  const Result<Plan> none = compile_plan(input);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().hint, HasSubstr("second copy"));
  EXPECT_THAT(none.error().hint, HasSubstr("schedule.update=after_backward"));
}

TEST(CompilePlan, TheSmallestPlanHasTheBuffersOfItsLargestMoment) {
  PlanInput input = two_units();
  input.cache = true;
  input.host_budget = smallest_host_budget(input);
  const Plan plan = compile_checked(input);
  // Host: the update is the largest moment: two tile buffers (40 KiB optimizer + 8 KiB weights + 8 KiB spilled
  // gradient), or without spill two of 48 KiB and two gradients of 8 KiB: the same bytes, so nothing is spilled.
  EXPECT_EQ(plan.host_slab_bytes, 2 * (40'960 + 8'192) + 2 * 8'192);
  EXPECT_THAT(plan.gradient_spilled, ElementsAre(false, false));
  // Device: backward of the head: input, its gradient, accumulator, saved, workspace.
  EXPECT_EQ(plan.device_slab_bytes, 4'096 + 4'096 + 16'384 + 8'192 + 8'192);
  EXPECT_EQ(plan.host_peak_bytes, 1'000 + plan.host_slab_bytes + plan.device_slab_bytes);
  EXPECT_EQ(plan.host_peak_bytes, input.host_budget);
}

TEST(CompilePlan, OddUnitsTakeMicroBatchesInReverse) {
  PlanInput input = make_input(make_transformer({1, 4'096, 8'192, 4'096}));
  input.micro_batches = 3;
  input.group_size = 2;
  EXPECT_THAT(compute_order(compile_checked(input)),
              ElementsAre("f0m0", "f0m1", "f1m1", "f1m0", "b2m0", "b2m1", "b1m1", "b1m0", "b0m0", "b0m1",  //
                          "f0m2", "f1m2", "b2m2", "b1m2", "b0m2"));
  input.snake = false;
  input.group_size = 3;
  EXPECT_THAT(compute_order(compile_checked(input)),
              ElementsAre("f0m0", "f0m1", "f0m2", "f1m0", "f1m1", "f1m2", "b2m0", "b2m1", "b2m2", "b1m0", "b1m1",
                          "b1m2", "b0m0", "b0m1", "b0m2"));
}

TEST(CompilePlan, ATiedHeadStartsTheOwnersGradientAndTheOwnerEndsIt) {
  PlanInput input = make_input(make_transformer({1, 8'192, 8'192, 64, 4'096, 4'096, 4'096, true}));
  input.micro_batches = 2;
  input.group_size = 2;
  const Plan plan = compile_checked(input);
  std::vector<bool> first, first_used;
  for (const Operation& op : plan.operations) {
    if (op.kind == OperationKind::kBackward && op.unit == 0) first.push_back(op.first);
    if (op.kind == OperationKind::kBackward && op.unit == 2) first_used.push_back(op.first_used);
  }
  EXPECT_THAT(first_used, ElementsAre(true, false));
  EXPECT_THAT(first, ElementsAre(false, false));
}

// (weights, format, group size): bytes per parameter read once per visit, state read and written by the update.
struct FormatCase {
  const char* name;
  DType weights;
  StateFormat format;
  double weight, update_read, update_write;
};
class Formulas : public ::testing::TestWithParam<std::tuple<FormatCase, int>> {};

TEST_P(Formulas, BytesPerStepWithoutCacheAreThoseOfTheDesign) {
  const auto& [format, group_size] = GetParam();
  PlanInput input = make_input(make_transformer({3, 131'072, 262'144, 131'072}));
  input.tile_elements = 131'072;  // the scales of compact, a byte for 32 elements, fill whole blocks
  input.trailer_bytes = 0;
  input.cache = false;
  input.weights_dtype = format.weights;
  input.state_format = format.format;
  input.micro_batches = 6;
  input.group_size = group_size;
  const double groups = static_cast<double>(ceil_div(6, group_size));
  const double parameters = 131'072 + 3 * 262'144 + 131'072, head = 131'072;
  const double visits = format.weight * groups * (2 * parameters - head);  // the head's forward is part of its backward
  const double read = visits + format.update_read * parameters, written = format.update_write * parameters;
  const Plan plan = compile_checked(input);
  EXPECT_DOUBLE_EQ(static_cast<double>(plan.read_bytes_per_step), read);
  EXPECT_DOUBLE_EQ(static_cast<double>(plan.write_bytes_per_step), written);

  input.host_budget = smallest_host_budget(input);
  const Plan spilled = compile_checked(input);
  ASSERT_EQ(std::count(spilled.gradient_spilled.begin(), spilled.gradient_spilled.end(), true), 5);
  // bf16 gradients: 2gk over both directions; and the outputs of three units go to NVMe for each micro-batch.
  const double spill = 2 * groups * parameters + 3 * 6 * 8'192.0;
  EXPECT_DOUBLE_EQ(static_cast<double>(spilled.read_bytes_per_step), read + spill);
  EXPECT_DOUBLE_EQ(static_cast<double>(spilled.write_bytes_per_step), written + spill);

  // Early updates find the weights in memory; without a master they would have been read once more.
  const bool has_master = format.format == StateFormat::kFp32 && format.weights != DType::kFp32;
  input.host_budget = kGiB;
  input.update = UpdatePolicy::kInBackward;
  input.can_clip = true;
  const Plan early = compile_checked(input);
  EXPECT_DOUBLE_EQ(static_cast<double>(early.read_bytes_per_step),
                   read - (has_master ? 0 : format.weight * parameters));
  EXPECT_DOUBLE_EQ(static_cast<double>(early.write_bytes_per_step), written);
  EXPECT_DOUBLE_EQ(static_cast<double>(early.redo_read_bytes), format.update_read * parameters);
  EXPECT_DOUBLE_EQ(static_cast<double>(early.redo_write_bytes), written);

  // A delayed update's weights serve the forward pass, in every format: one visit reads none.
  input.update = UpdatePolicy::kIntoForward;
  for (const bool spills : {false, true}) {
    input.host_budget = spills ? smallest_host_budget(input) : kGiB;
    const Plan delayed = compile_checked(input);
    ASSERT_EQ(std::count(delayed.gradient_spilled.begin(), delayed.gradient_spilled.end(), true), spills ? 5 : 0);
    const double spilled_bytes = spills ? spill : 0;
    EXPECT_DOUBLE_EQ(static_cast<double>(delayed.read_bytes_per_step),
                     read - format.weight * parameters + spilled_bytes);
    EXPECT_DOUBLE_EQ(static_cast<double>(delayed.write_bytes_per_step), written + spilled_bytes);
    EXPECT_EQ(delayed.start_read_bytes + delayed.drain_read_bytes,
              delayed.read_bytes_per_step + static_cast<Bytes>(format.weight * parameters));
    EXPECT_EQ(delayed.start_write_bytes + delayed.drain_write_bytes, delayed.write_bytes_per_step);
  }
  // Of the units that are not delayed all is as after the backward pass.
  input.host_budget = kGiB;
  for (const double fraction : {0.75, 0.4, 0.01}) {
    input.delayed_fraction = fraction;
    const Plan some = compile_checked(input);
    const double share = delayed_share(some);
    EXPECT_GE(share, fraction);
    EXPECT_DOUBLE_EQ(static_cast<double>(some.read_bytes_per_step), read - share * format.weight * parameters);
    EXPECT_DOUBLE_EQ(static_cast<double>(some.write_bytes_per_step), written);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Design, Formulas,
    ::testing::Combine(::testing::Values(FormatCase{"split", DType::kBf16, StateFormat::kSplit, 2, 12, 12},
                                         FormatCase{"split_bf16", DType::kBf16, StateFormat::kSplitBf16, 2, 8, 8},
                                         FormatCase{"compact", DType::kBf16, StateFormat::kCompact, 2, 5 + 1.0 / 32,
                                                    5 + 1.0 / 32},
                                         FormatCase{"fp32", DType::kBf16, StateFormat::kFp32, 2, 12, 14},
                                         FormatCase{"bf16_off", DType::kFp32, StateFormat::kFp32, 4, 12, 12},
                                         FormatCase{"fp16", DType::kFp16, StateFormat::kFp32, 2, 12, 14}),
                       ::testing::Values(1, 2, 4, 6)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + "_group_" + std::to_string(std::get<1>(test.param));
    });

TEST(CompilePlan, PlentyOfMemoryReadsNothingAndStillWritesThrough) {
  PlanInput input = make_input(make_transformer({}));
  input.state_format = StateFormat::kSplit;
  input.micro_batches = 4;
  const Plan plan = compile_checked(input);
  EXPECT_EQ(plan.read_bytes_per_step, 0);
  EXPECT_GT(plan.write_bytes_per_step, 0);
  EXPECT_THAT(plan.memory[0].note, HasSubstr("all stay in host memory (written through)"));
  EXPECT_EQ(plan.memory[3].note, "");  // nothing is computed again
  EXPECT_EQ(plan.tile_buffers, 0);
}

TEST(CompilePlan, StateAtHomeInMemoryMovesNothing) {
  PlanInput input = make_input(make_transformer({}));
  input.weights_home = input.optimizer_home = Home::kHost;
  const Plan plan = compile_checked(input);
  EXPECT_EQ(plan.read_bytes_per_step + plan.write_bytes_per_step + plan.nvme_state_bytes, 0);
  EXPECT_EQ(count_of(plan.operations, OperationKind::kWriteState), 0U);
  EXPECT_EQ(plan.operations.back().kind, OperationKind::kCommit);
}

TEST(CompilePlan, WeightsOfTheTurnAreNotReadTwiceWithCache) {
  PlanInput input = make_input(make_transformer({2, 40'960, 40'960, 40'960}));
  input.activations = ActivationPolicy::kRecompute;
  input.host_budget = smallest_host_budget(input) + 400'000;
  const Plan cached = compile_checked(input);
  input.cache = false;
  const Plan uncached = compile_checked(input);
  EXPECT_EQ(count_of(uncached.operations, OperationKind::kReadWeights), 7U);
  EXPECT_LT(count_of(cached.operations, OperationKind::kReadWeights), 7U);
}

TEST(CompilePlan, ForcedCopiesComputeFromTheDevice) {
  PlanInput input = make_input(make_transformer({}));
  input.force_copies = true;
  const Plan plan = compile_checked(input);
  EXPECT_GT(count_of(plan.operations, OperationKind::kCopyToDevice), 0U);
}

TEST(CompilePlan, ADeviceBudgetLimitsTheDeviceAlone) {
  PlanInput input = make_input(make_transformer({}));
  input.micro_batches = 4;
  const Plan roomy = compile_checked(input);
  input.device_budget = roomy.device_slab_bytes / 2;
  const Plan tight = compile_checked(input);
  EXPECT_LE(tight.device_slab_bytes, input.device_budget);
  input.device_budget = 4'096;
  const Result<Plan> none = compile_plan(input);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kDoesNotFit);
  EXPECT_THAT(none.error().message, HasSubstr("device needs"));
  input.device_budget = none.error().smallest_device_bytes;
  input.host_budget = none.error().smallest_host_bytes;
  (void)compile_checked(input);
}

TEST(CompilePlan, WhatDoesNotFitNamesTheBudgetThatWorks) {
  PlanInput input = make_input(make_transformer({}));
  input.host_budget = kKiB;
  const Result<Plan> plan = compile_plan(input);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message, HasSubstr("does not fit: host needs "));
  EXPECT_THAT(plan.error().message, HasSubstr(", budget is 1 KiB"));
  EXPECT_THAT(plan.error().hint, HasSubstr("layers.0"));
  EXPECT_THAT(plan.error().hint, HasSubstr("works with: memory.host="));
}

TEST(CompilePlan, ContradictionsAreConfigErrors) {
  const PlanInput good = make_input(make_transformer({}));
  const auto code_of = [&](auto change) {
    PlanInput input = good;
    change(input);
    const Result<Plan> plan = compile_plan(input);
    return plan.ok() ? ErrorCode::kFailed : plan.error().code;
  };
  EXPECT_EQ(code_of([](PlanInput& in) { in.weights_dtype = DType::kFp32, in.state_format = StateFormat::kSplit; }),
            ErrorCode::kConfig);
  PlanInput compact = good;
  compact.weights_dtype = DType::kFp16;
  compact.state_format = StateFormat::kCompact;
  const Result<Plan> no_format = compile_plan(compact);
  ASSERT_FALSE(no_format.ok());
  EXPECT_THAT(no_format.error().message, HasSubstr("\"compact\" needs bf16 weights, these are fp16"));
  EXPECT_EQ(code_of([](PlanInput& in) { in.tile_elements = 5'000; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.micro_batches = 0; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.group_size = 2; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.world_size = 2; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.model.units.clear(); }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.model.units[1].uses = {1}; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.model.units[1].fused_loss = true; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) { in.alignment = 65'536; }), ErrorCode::kConfig);
  EXPECT_EQ(code_of([](PlanInput& in) {
              for (UnitInfo& unit : in.model.units) unit.tensors[0].frozen = true;
            }),
            ErrorCode::kConfig);
}

TEST(CompilePlan, OptimizersOfWholeTensorsHaveOneTileForAUnitAndNoEarlyUpdate) {
  PlanInput input = make_input(make_transformer({}));
  TensorInfo& matrix = input.model.units[1].tensors[0];
  matrix.shape = {160, 256};
  for (const cpu_adam::OptimizerKind kind : {cpu_adam::OptimizerKind::kMuon, cpu_adam::OptimizerKind::kAdafactor}) {
    input.optimizer = kind;
    input.tile_elements = 8'192;
    EXPECT_EQ(compile_plan(input).error().code, ErrorCode::kConfig);
    input.tile_elements = whole_unit_tile(input.model);
    EXPECT_EQ(input.tile_elements, 40'960);
    const Plan plan = compile_checked(input);
    EXPECT_EQ(count_of(plan.operations, OperationKind::kUpdate), 6U);
    const bool muon = kind == cpu_adam::OptimizerKind::kMuon;
    const OptimizerLayout block = optimizer_layout(plan.input, 1, 0), vector = optimizer_layout(plan.input, 0, 0);
    // 16 bits of the master; then a momentum for each, or a variance for each row and column.
    EXPECT_EQ(block.bytes, muon ? 40'960 * 6 : 40'960 * 2 + (160 + 256 + 32) * 4);
    EXPECT_EQ(block.exp_avg_sq, OptimizerLayout::kNone);
    EXPECT_EQ(vector.bytes, muon ? 20'480 * 10 : 20'480 * 6);
    EXPECT_EQ(update_workspace_bytes(plan.input) > 0, true);
    PlanInput early = input, ranks = input;
    early.update = UpdatePolicy::kInBackward;
    EXPECT_EQ(compile_plan(early).error().code, ErrorCode::kConfig);
    ranks.world_size = 2;
    EXPECT_EQ(compile_plan(ranks).error().code, ErrorCode::kConfig);
    PlanInput cube = input;
    cube.model.units[2].tensors[0].shape = {16, 16, 160};
    EXPECT_EQ(compile_plan(cube).ok(), muon);  // AdamW takes any shape
  }
}

TEST(CompilePlan, AFrozenUnitHasWeightsAndNothingElse) {
  PlanInput input = make_input(make_transformer({}));
  input.model.units[1].tensors[0].frozen = true;
  const Plan plan = compile_checked(input);
  for (const Operation& op : plan.operations)
    EXPECT_TRUE(op.unit != 1 || op.kind == OperationKind::kForward || op.kind == OperationKind::kBackward);
}

TEST(CompilePlan, TheEvaluationVisitsEveryMicroBatchAndFitsTheSlabs) {
  PlanInput input = make_input(make_transformer({}));
  input.eval_micro_batches = 7;
  input.host_budget = smallest_host_budget(input);
  const Plan plan = compile_checked(input);
  EXPECT_EQ(count_of(plan.eval_operations, OperationKind::kForward), 7U * 6U);
  EXPECT_LE(plan.host_peak_bytes, input.host_budget);
}

TEST(CompilePlan, TheSameInputGivesTheSamePlan) {
  PlanInput input = make_input(make_transformer({6, 20'480, 40'960, 20'480, 8'192, 40'960, 16'384, true}));
  input.micro_batches = 5;
  input.host_budget = smallest_host_budget(input) + 150'000;
  const Plan a = compile_checked(input), b = compile_checked(input);
  ASSERT_EQ(a.operations.size(), b.operations.size());
  ASSERT_EQ(a.buffers.size(), b.buffers.size());
  for (std::size_t i = 0; i < a.buffers.size(); ++i) ASSERT_EQ(a.buffers[i].offset, b.buffers[i].offset);
  for (std::size_t i = 0; i < a.operations.size(); ++i) {
    ASSERT_EQ(a.operations[i].kind, b.operations[i].kind);
    ASSERT_EQ(a.operations[i].dependencies, b.operations[i].dependencies);
    ASSERT_EQ(a.operations[i].uses.size(), b.operations[i].uses.size());
    for (std::size_t u = 0; u < a.operations[i].uses.size(); ++u)
      ASSERT_EQ(a.operations[i].uses[u].buffer, b.operations[i].uses[u].buffer);
  }
}

TEST(CompilePlan, TilesAreCutTheSameForAnyWorld) {
  PlanInput input = make_input(make_transformer({1, 20'480, 100'000, 20'480}));
  input.tile_elements = 4'096;
  input.world_size = 3;
  for (input.rank = 0; input.rank < 3; ++input.rank) {
    const PartitionRange range = partition_range(input.model.units[1].flat_elements, input.rank, 3);
    std::int64_t sum = 0;
    for (std::int64_t t = 0; t < num_tiles(input, 1); ++t) {
      EXPECT_EQ(tile_begin(input, 1, t), range.begin + sum);
      sum += tile_length(input, 1, t);
    }
    EXPECT_EQ(sum, range.padded_elements);
  }
}

TEST(OptimizerLayout, PlanesLieEndToEnd) {
  const OptimizerLayout split = cpu_adam::state_planes(StateFormat::kSplit, DType::kBf16, 100);
  EXPECT_EQ(std::tuple(split.remainder, split.master, split.exp_avg, split.exp_avg_sq, split.bytes),
            std::tuple(0, -1, 256, 768, 1'280));
  const OptimizerLayout master = cpu_adam::state_planes(StateFormat::kFp32, DType::kBf16, 128);
  EXPECT_EQ(std::tuple(master.remainder, master.master, master.exp_avg, master.exp_avg_sq, master.bytes),
            std::tuple(-1, 0, 512, 1'024, 1'536));
  const OptimizerLayout plain = cpu_adam::state_planes(StateFormat::kFp32, DType::kFp32, 64);
  EXPECT_EQ(std::tuple(plain.remainder, plain.master, plain.exp_avg, plain.exp_avg_sq, plain.bytes),
            std::tuple(-1, -1, 0, 256, 512));
}

}  // namespace
}  // namespace headrace::runtime
