// SPDX-License-Identifier: Apache-2.0
// The virtual clock against what can be worked out by hand, and against its own promises on random plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "plan_support.h"
#include "runtime/plan/simulate.h"
#include "runtime/plan/trace.h"

namespace headrace::runtime {
namespace {

constexpr double kNear = 1e-9;

// A plan of bare operations: rates are told by the operations' units and bytes.
Operation operation(OperationKind kind, Lane lane, UnitId unit, Bytes bytes, std::vector<OperationId> dependencies) {
  Operation op;
  op.kind = kind;
  op.lane = lane;
  op.unit = unit;
  op.bytes = bytes;
  op.dependencies = std::move(dependencies);
  return op;
}
Operation read(Bytes bytes, std::vector<OperationId> dependencies = {}) {
  return operation(OperationKind::kReadWeights, Lane::kNvmeRead, 0, bytes, std::move(dependencies));
}
Operation write(Bytes bytes, std::vector<OperationId> dependencies = {}) {
  return operation(OperationKind::kWriteState, Lane::kNvmeWrite, 0, bytes, std::move(dependencies));
}
Operation forward(UnitId unit, std::vector<OperationId> dependencies = {}) {
  return operation(OperationKind::kForward, Lane::kCompute, unit, 0, std::move(dependencies));
}

Plan bare_plan(std::vector<Operation> operations) {
  Plan plan;
  plan.input = make_input(make_transformer({2, 8'192, 8'192, 8'192}));
  plan.operations = std::move(operations);
  for (const Operation& op : plan.operations) {
    if (op.lane == Lane::kNvmeRead) plan.read_bytes_per_step += op.bytes;
    if (op.lane == Lane::kNvmeWrite) plan.write_bytes_per_step += op.bytes;
  }
  return plan;
}

// Units take 1, 2, 3, 4 seconds forward; the disk 100 bytes a second either way and 120 both ways.
Rates simple_rates() {
  Rates rates;
  rates.forward_seconds = {1, 2, 3, 4};
  rates.backward_seconds = {2, 4, 6, 8};
  rates.update_seconds_per_element = 1e-5;
  rates.gradient_out_seconds_per_element = 1e-6;
  rates.copy_bytes_per_s = 1e6;
  rates.read_bytes_per_s = rates.write_bytes_per_s = 100;
  rates.mixed_bytes_per_s = 120;
  rates.cores = 2;
  return rates;
}

Simulation simulated(const Plan& plan, const Rates& rates) {
  Result<Simulation> result = simulate(plan, rates);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? std::move(result).value() : Simulation();
}

TEST(Simulate, OneLaneServesInOrderAndDependenciesWait) {
  const Simulation simulation =
      simulated(bare_plan({forward(0), read(100), forward(1, {1}), forward(2)}), simple_rates());
  EXPECT_NEAR(simulation.times[2].start, 1, kNear);
  EXPECT_NEAR(simulation.times[3].start, 3, kNear);
  EXPECT_NEAR(simulation.step_seconds, 6, kNear);
  EXPECT_NEAR(simulation.critical_path_seconds, 6, kNear);
}

TEST(Simulate, BothDirectionsOfADiskShareTheMixedRate) {
  // 120 bytes a second together: each at 60 until the write's 60 bytes are done, then the read at 100.
  const Simulation simulation = simulated(bare_plan({read(160), write(60)}), simple_rates());
  EXPECT_NEAR(simulation.times[1].end, 1, kNear);
  EXPECT_NEAR(simulation.times[0].end, 2, kNear);
  EXPECT_NEAR(simulation.busy[static_cast<int>(Lane::kNvmeRead)], 2, kNear);
}

TEST(Simulate, ADirectionThatCannotUseItsHalfLeavesTheRest) {
  Rates rates = simple_rates();
  rates.write_bytes_per_s = 30;
  // The write moves 30 a second, so the read gets 90.
  const Simulation simulation = simulated(bare_plan({read(90), write(30)}), rates);
  EXPECT_NEAR(simulation.times[0].end, 1, kNear);
  EXPECT_NEAR(simulation.times[1].end, 1, kNear);
}

TEST(Simulate, LatencyDelaysCompletionButNotTheNextTransfer) {
  Rates rates = simple_rates();
  rates.read_latency_seconds = 0.5;
  const Simulation simulation = simulated(bare_plan({read(100), read(100)}), rates);
  EXPECT_NEAR(simulation.times[0].end, 1.5, kNear);
  EXPECT_NEAR(simulation.times[1].end, 2.5, kNear);
  EXPECT_NEAR(simulation.step_seconds, 2.5, kNear);
}

TEST(Simulate, TheCpuTimeOfInputSlowsWhatComputes) {
  Rates rates = simple_rates();
  rates.io_cpu_seconds_per_byte = 0.005;  // half a core at 100 bytes a second
  // Two cores less half a one for two threads: three quarters of full speed.
  const Simulation simulation = simulated(bare_plan({forward(2), read(400)}), rates);
  EXPECT_NEAR(simulation.times[0].end, 4, kNear);
  EXPECT_NEAR(simulation.times[1].end, 4, kNear);
}

TEST(Simulate, ThreadsOfTwoLanesGetEqualTime) {
  Plan plan = bare_plan({forward(1), operation(OperationKind::kUpdate, Lane::kCpuOptimizer, 1, 0, {})});
  plan.operations[1].tile = 0;
  Rates rates = simple_rates();
  rates.update_seconds_per_element = 1.0 / 8'192;  // one second
  const Simulation simulation = simulated(plan, rates);
  EXPECT_NEAR(simulation.times[1].end, 2, kNear);  // at half speed
  EXPECT_NEAR(simulation.times[0].end, 3, kNear);  // half speed for two seconds, full speed for one
  rates.machine_cores = 4;                         // room for both
  EXPECT_NEAR(simulated(plan, rates).step_seconds, 2, kNear);
}

TEST(Simulate, MemoryBandwidthSlowsWhoeverUsesIt) {
  Rates rates = simple_rates();
  rates.memory_bytes_per_s = 100;  // a read of 100 bytes a second asks for 200: moved and summed
  EXPECT_NEAR(simulated(bare_plan({read(100)}), rates).step_seconds, 2, kNear);
}

TEST(Simulate, OperationsWithoutWorkTakeNoTime) {
  const Simulation simulation =
      simulated(bare_plan({read(0), forward(0, {0}), operation(OperationKind::kNorm, Lane::kCpuOptimizer, -1, 0, {1}),
                           operation(OperationKind::kCommit, Lane::kNvmeWrite, -1, 0, {2})}),
                simple_rates());
  EXPECT_NEAR(simulation.step_seconds, 1, kNear);
}

TEST(Simulate, ALaneOrderThatDeadlocksIsFound) {
  const Result<Simulation> stuck = simulate(bare_plan({forward(0, {1}), read(10, {2}), forward(1)}), simple_rates());
  ASSERT_FALSE(stuck.ok());
  EXPECT_THAT(stuck.error().message, ::testing::HasSubstr("waits for ever"));
  const Result<Simulation> missing = simulate(bare_plan({forward(0, {7})}), simple_rates());
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, ::testing::HasSubstr("does not exist"));
}

TEST(WhereTimeWent, NamesWhatWasWaitedFor) {
  // First read 1 s, compute 1 s, second read began at 1 and takes 2 s: a wait of 1 s; a write of 1 s at the end.
  const Plan plan = bare_plan({read(100), forward(0, {0}), read(200), forward(1, {2}), write(100, {3})});
  const Simulation simulation = simulated(plan, simple_rates());
  const auto waited = where_time_went(plan, simulation.times, {}, simulation.step_seconds);
  ASSERT_EQ(waited.size(), 3U);
  double sum = 0;
  for (const Waited& wait : waited) {
    EXPECT_NEAR(wait.seconds, 1, kNear) << waiting_name(wait.waiting);
    sum += wait.seconds;
  }
  EXPECT_NEAR(sum + 3, simulation.step_seconds, kNear);  // three seconds of computing
}

TEST(WhereTimeWent, TellsAFullBufferFromASlowDisk) {
  // The read may begin only when the computation before is done.
  const Plan plan = bare_plan({forward(0), write(50, {0}), read(100, {1}), forward(1, {2})});
  const auto waited = where_time_went(plan, simulated(plan, simple_rates()).times, {}, 4.5);
  ASSERT_EQ(waited.size(), 2U);
  EXPECT_EQ(waited[0].waiting, Waiting::kRead);
  EXPECT_NEAR(waited[0].seconds, 1, kNear);
  EXPECT_EQ(waited[1].waiting, Waiting::kBuffer);
  EXPECT_NEAR(waited[1].seconds, 0.5, kNear);
}

PlanInput streamed_input(bool copies, Bytes budget) {
  PlanInput input = make_input(make_transformer({}));
  input.micro_batches = 3;
  input.force_copies = copies;
  if (budget > 0) input.host_budget = budget;
  return input;
}

TEST(Simulate, CompiledPlansTakeAtLeastTheirBoundAndNoMoreThanOneAfterAnother) {
  for (const bool copies : {false, true})
    for (const bool tight : {false, true}) {
      PlanInput input = streamed_input(copies, 0);
      if (tight) input.host_budget = smallest_host_budget(input);
      const Result<Plan> plan = compile_plan(input);
      ASSERT_TRUE(plan.ok());
      Rates rates = simple_rates();
      rates.forward_seconds.assign(input.model.units.size(), 0.5);
      rates.backward_seconds.assign(input.model.units.size(), 1.0);
      rates.read_bytes_per_s = rates.write_bytes_per_s = 3e5;
      rates.mixed_bytes_per_s = 4e5;
      rates.io_cpu_seconds_per_byte = 1e-6;
      const Simulation simulation = simulated(*plan, rates);
      EXPECT_GE(simulation.step_seconds, bound_of(*plan, rates).seconds() - kNear);
      EXPECT_GE(simulation.step_seconds, simulation.critical_path_seconds - kNear);
      double all = 0;
      for (const Operation& op : plan->operations) all += cost_of(*plan, op, rates).seconds;
      EXPECT_LE(simulation.step_seconds, 2 * all);  // sharing slows, it never loses work
      for (std::size_t i = 0; i < plan->operations.size(); ++i)
        for (const OperationId dependency : plan->operations[i].dependencies)
          EXPECT_LE(simulation.times[static_cast<std::size_t>(dependency)].end, simulation.times[i].start + kNear);
    }
}

TEST(Simulate, MorePrefetchIsFaster) {
  PlanInput input = streamed_input(false, 0);
  input.cache = false;
  Rates rates = simple_rates();
  rates.forward_seconds.assign(input.model.units.size(), 1.0);
  rates.backward_seconds.assign(input.model.units.size(), 2.0);
  rates.read_bytes_per_s = rates.write_bytes_per_s = rates.mixed_bytes_per_s = 1e5;
  const Result<Plan> roomy = compile_plan(input);
  input.host_budget = smallest_host_budget(input);
  const Result<Plan> tight = compile_plan(input);
  ASSERT_TRUE(roomy.ok() && tight.ok());
  EXPECT_LT(simulated(*roomy, rates).step_seconds, simulated(*tight, rates).step_seconds);
}

TEST(Simulate, ADeadlockInACompiledPlanIsFound) {
  Result<Plan> plan = compile_plan(streamed_input(false, 0));
  ASSERT_TRUE(plan.ok());
  Rates rates = simple_rates();
  rates.forward_seconds.assign(plan->input.model.units.size(), 0.1);
  rates.backward_seconds.assign(plan->input.model.units.size(), 0.2);
  // The first read waits for the commit, which waits for everything.
  plan->operations.front().dependencies.push_back(static_cast<OperationId>(plan->operations.size()) - 1);
  const Result<Simulation> stuck = simulate(*plan, rates);
  ASSERT_FALSE(stuck.ok());
  EXPECT_THAT(stuck.error().message, ::testing::HasSubstr("waits for ever"));
}

TEST(Simulate, TheSameInputGivesTheSameTimes) {
  const Result<Plan> plan = compile_plan(streamed_input(false, 0));
  ASSERT_TRUE(plan.ok());
  Rates rates = simple_rates();
  rates.forward_seconds.assign(plan->input.model.units.size(), 0.1);
  rates.backward_seconds.assign(plan->input.model.units.size(), 0.2);
  const Simulation a = simulated(*plan, rates), b = simulated(*plan, rates);
  for (std::size_t i = 0; i < a.times.size(); ++i) {
    EXPECT_EQ(a.times[i].start, b.times[i].start);
    EXPECT_EQ(a.times[i].end, b.times[i].end);
  }
}

TEST(MemoryOverTime, NeverExceedsTheSlabAndEndsWithWhatIsHeld) {
  const Result<Plan> plan = compile_plan(streamed_input(false, 0));
  ASSERT_TRUE(plan.ok());
  Rates rates = simple_rates();
  rates.forward_seconds.assign(plan->input.model.units.size(), 0.1);
  rates.backward_seconds.assign(plan->input.model.units.size(), 0.2);
  const Simulation simulation = simulated(*plan, rates);
  for (const Tier tier : {Tier::kHost, Tier::kDevice}) {
    const auto points = memory_over_time(*plan, simulation.times, tier);
    const Bytes slab = tier == Tier::kHost ? plan->host_slab_bytes : plan->device_slab_bytes;
    Bytes held = 0, most = 0;
    for (const Buffer& buffer : plan->buffers)
      if (buffer.held && buffer.tier == tier) held += buffer.bytes;
    for (const MemoryPoint& point : points) most = std::max(most, point.bytes);
    ASSERT_FALSE(points.empty());
    EXPECT_LE(most, slab);
    EXPECT_GT(most, 0);
    EXPECT_EQ(points.back().bytes, held);
  }
}

}  // namespace
}  // namespace headrace::runtime
