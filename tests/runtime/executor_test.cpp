// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>

namespace headrace::runtime {
namespace {

Operation operation(OperationKind kind, Lane lane, std::vector<OperationId> dependencies) {
  Operation result;
  result.kind = kind;
  result.lane = lane;
  result.dependencies = std::move(dependencies);
  return result;
}

// Finishes every asynchronous operation at once, notified from another thread would be the same hand-over.
Result<std::vector<io::Ticket>> finish_at_once(const Operation&, io::CompletionSink sink) {
  sink.notify(sink.context, sink.tag);
  std::vector<io::Ticket> tickets;
  tickets.emplace_back();
  return tickets;
}

Result<void> drive(Executor& executor, const Schedule& schedule) {
  for (std::size_t i = 0; i < schedule.lanes[static_cast<std::size_t>(Lane::kCompute)].size(); ++i) {
    HEADRACE_TRY(const OperationId id, executor.acquire_next());
    executor.complete(id);
  }
  return {};
}

TEST(Executor, RunsEveryOperationAfterItsDependencies) {
  std::mt19937 random(7);
  const Lane lanes[] = {Lane::kNvmeRead,     Lane::kNvmeWrite, Lane::kHostToDevice,
                        Lane::kDeviceToHost, Lane::kCompute,   Lane::kCpuOptimizer};
  std::vector<Operation> operations;
  for (OperationId i = 0; i < 400; ++i) {
    std::set<OperationId> dependencies;
    for (int d = 0; d < 3 && i > 0; ++d)
      dependencies.insert(static_cast<OperationId>(random() % static_cast<unsigned>(i)));
    operations.push_back(
        operation(OperationKind::kUpdate, lanes[random() % 6], {dependencies.begin(), dependencies.end()}));
  }
  const Schedule schedule(operations);
  ExecutorOptions options;
  options.lane_delay_us = 50;
  options.seed = 3;
  Executor executor([](const Operation&) { return Result<void>(); }, finish_at_once, options);
  for (int run = 0; run < 3; ++run) {
    executor.begin(schedule);
    ASSERT_TRUE(drive(executor, schedule).ok());
    const auto times = executor.finish();
    ASSERT_TRUE(times.ok());
    for (std::size_t i = 0; i < operations.size(); ++i) {
      EXPECT_GT(times->spans[i].end, 0.0) << "operation " << i << " did not run";
      for (const OperationId d : operations[i].dependencies)
        EXPECT_GE(times->spans[i].start, times->spans[static_cast<std::size_t>(d)].end) << i << " before " << d;
    }
  }
}

TEST(Executor, ReportsTheFirstErrorAndStopsEveryLane) {
  std::vector<Operation> operations;
  operations.push_back(operation(OperationKind::kReadState, Lane::kNvmeRead, {}));
  operations.push_back(operation(OperationKind::kUpdate, Lane::kCpuOptimizer, {0}));
  operations.push_back(operation(OperationKind::kWriteState, Lane::kNvmeWrite, {1}));
  operations.push_back(operation(OperationKind::kForward, Lane::kCompute, {2}));
  const Schedule schedule(operations);
  Executor executor([](const Operation&) -> Result<void> { return make_error(ErrorCode::kNumeric, "planted"); },
                    finish_at_once, {});
  executor.begin(schedule);
  EXPECT_FALSE(executor.acquire_next().ok());
  const auto times = executor.finish();
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.error().code, ErrorCode::kNumeric);
  EXPECT_NE(times.error().message.find("planted"), std::string::npos);
  EXPECT_NE(times.error().message.find("update"), std::string::npos);
}

TEST(Executor, AStartThatFailsIsTheError) {
  std::vector<Operation> operations;
  operations.push_back(operation(OperationKind::kReadWeights, Lane::kNvmeRead, {}));
  const Schedule schedule(operations);
  Executor executor([](const Operation&) { return Result<void>(); },
                    [](const Operation&, io::CompletionSink) -> Result<std::vector<io::Ticket>> {
                      return make_error(ErrorCode::kIo, "no such tile");
                    },
                    {});
  executor.begin(schedule);
  const auto times = executor.finish();
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.error().code, ErrorCode::kIo);
}

TEST(Executor, AStepThatStandsStillIsNamed) {
  std::vector<Operation> operations;
  operations.push_back(operation(OperationKind::kForward, Lane::kCompute, {}));
  operations.back().unit = 5;
  operations.push_back(operation(OperationKind::kGradientOut, Lane::kDeviceToHost, {0}));
  const Schedule schedule(operations);
  ExecutorOptions options;
  options.stall_deadline = std::chrono::milliseconds(50);
  Executor executor([](const Operation&) { return Result<void>(); }, finish_at_once, options);
  executor.begin(schedule);  // the driver never comes
  const auto times = executor.finish();
  ASSERT_FALSE(times.ok());
  EXPECT_NE(times.error().message.find("forward unit 5"), std::string::npos) << times.error().message;
}

TEST(Executor, AStepThatStandsStillSaysForWhichUnitAndBuffer) {
  Plan plan;
  for (const char* const name : {"embedding", "layers.0"}) {
    plan.input.model.units.emplace_back();
    plan.input.model.units.back().name = name;
  }
  Buffer buffer;
  buffer.kind = BufferKind::kAccumulator;
  buffer.tier = Tier::kDevice;
  buffer.unit = 1;
  buffer.offset = 8'192;
  buffer.bytes = 4'096;
  plan.buffers = {buffer, buffer};
  plan.operations.push_back(operation(OperationKind::kForward, Lane::kCompute, {}));
  plan.operations.back().unit = 0;
  plan.operations.push_back(operation(OperationKind::kBackward, Lane::kCompute, {}));
  plan.operations.back().unit = 1;
  plan.operations.back().uses = {{Role::kAccumulator, 1, 0, 4'096, true, false}};
  plan.operations.push_back(operation(OperationKind::kGradientOut, Lane::kDeviceToHost, {1}));
  plan.operations.back().unit = 1;
  plan.operations.back().uses = {{Role::kAccumulator, 1, 0, 4'096, false, true}};
  const Schedule schedule(plan.operations, &plan);
  ExecutorOptions options;
  options.stall_deadline = std::chrono::milliseconds(50);
  Executor executor([](const Operation&) { return Result<void>(); }, finish_at_once, options);
  executor.begin(schedule);
  const auto times = executor.finish();
  ASSERT_FALSE(times.ok());
  const std::string& message = times.error().message;
  EXPECT_NE(message.find("gradient_out unit 1 \"layers.0\" waits for backward unit 1 \"layers.0\" over buffer 1 "
                         "(accumulator of unit 1, 4 KiB at 8192 of the device slab)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("backward unit 1 \"layers.0\" on lane compute has not begun"), std::string::npos) << message;
}

}  // namespace
}  // namespace headrace::runtime
