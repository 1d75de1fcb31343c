// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

namespace headrace::runtime {
namespace {

struct Step {
  std::vector<Operation> operations;
  RunTimes times;

  OperationId add(OperationKind kind, Lane lane, OperationSpan span, std::vector<OperationId> dependencies = {}) {
    Operation operation;
    operation.kind = kind;
    operation.lane = lane;
    operation.unit = 1;
    operation.dependencies = std::move(dependencies);
    operations.push_back(operation);
    times.spans.push_back(span);
    return static_cast<OperationId>(operations.size()) - 1;
  }
};

double lost_to(const std::vector<std::pair<std::string, double>>& lost, const std::string& what) {
  for (const auto& [name, seconds] : lost)
    if (name == what) return seconds;
  return 0;
}

double sum_of(const std::vector<std::pair<std::string, double>>& lost) {
  return std::accumulate(lost.begin(), lost.end(), 0.0, [](double sum, const auto& item) { return sum + item.second; });
}

TEST(LostSeconds, GoToWhatTheNextOperationWaitedFor) {
  Step step;
  const auto weights = step.add(OperationKind::kReadWeights, Lane::kNvmeRead, {0, 2});
  step.add(OperationKind::kForward, Lane::kCompute, {2, 5}, {weights});
  const auto state = step.add(OperationKind::kReadState, Lane::kNvmeRead, {2, 6.5});
  const auto update = step.add(OperationKind::kUpdate, Lane::kCpuOptimizer, {6.5, 7}, {state});
  step.add(OperationKind::kWriteState, Lane::kNvmeWrite, {7, 8}, {update});
  step.add(OperationKind::kCommit, Lane::kNvmeWrite, {8, 8.25});
  step.times.seconds = 8.25;
  const auto lost = lost_seconds(step.operations, step.times);
  EXPECT_DOUBLE_EQ(lost_to(lost, "read_weights"), 2);
  EXPECT_DOUBLE_EQ(lost_to(lost, "read_state"), 1.5);
  EXPECT_DOUBLE_EQ(lost_to(lost, "write_state and commit at the end"), 1.25);
  EXPECT_EQ(lost.size(), 3U);
}

TEST(LostSeconds, AreNoneWhileEitherLaneWorks) {
  Step step;
  step.add(OperationKind::kBackward, Lane::kCompute, {0, 4});
  step.add(OperationKind::kUpdate, Lane::kCpuOptimizer, {3, 6});
  step.add(OperationKind::kBackward, Lane::kCompute, {5, 7});
  step.add(OperationKind::kReadState, Lane::kNvmeRead, {0, 7});
  step.times.seconds = 7;
  EXPECT_TRUE(lost_seconds(step.operations, step.times).empty());
}

TEST(LostSeconds, BetweenTwoOperationsOfTheCoresAreTheHandOver) {
  Step step;
  const auto backward = step.add(OperationKind::kBackward, Lane::kCompute, {0, 1});
  step.add(OperationKind::kGradientOut, Lane::kDeviceToHost, {1.5, 2}, {backward});
  step.add(OperationKind::kNorm, Lane::kCpuOptimizer, {2.25, 3});  // follows nothing but its lane
  step.times.seconds = 3;
  const auto lost = lost_seconds(step.operations, step.times);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_DOUBLE_EQ(lost_to(lost, "hand-over"), 0.75);
}

TEST(LostSeconds, AreSortedAndAddUpToTheStepLessTheUnionOfTheWork) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> gap(0, 0.5), length(0.1, 1);
    Step step;
    std::array<double, 2> free{};
    double read_end = 0;
    std::vector<std::pair<double, double>> busy;
    for (int i = 0; i < 40; ++i) {
      const double read_begin = read_end;
      read_end += length(random) / 2;
      const auto read = step.add(OperationKind::kReadState, Lane::kNvmeRead, {read_begin, read_end});
      double& lane = free[random() % 2];
      const double begin = std::max(lane, read_end) + gap(random);
      lane = begin + length(random);
      step.add(OperationKind::kUpdate, &lane == free.data() ? Lane::kCompute : Lane::kCpuOptimizer, {begin, lane},
               {read});
      busy.emplace_back(begin, lane);
    }
    step.times.seconds = std::max(free[0], free[1]) + 0.25;
    std::sort(busy.begin(), busy.end());
    double worked = 0, covered = 0;
    for (const auto& [begin, end] : busy) {
      worked += std::max(0.0, end - std::max(begin, covered));
      covered = std::max(covered, end);
    }
    const auto lost = lost_seconds(step.operations, step.times);
    EXPECT_NEAR(sum_of(lost), step.times.seconds - worked, 1e-9);
    for (std::size_t i = 1; i < lost.size(); ++i) EXPECT_GE(lost[i - 1].second, lost[i].second);
  }
}

TEST(LostSeconds, OfAStepWithoutOperationsAreAllOfIt) {
  Step step;
  step.times.seconds = 2;
  EXPECT_DOUBLE_EQ(sum_of(lost_seconds(step.operations, step.times)), 2);
}

TEST(TraceEvents, AreJsonWithTimesInMicrosecondsOnTheCommonClock) {
  Step step;
  step.add(OperationKind::kReadWeights, Lane::kNvmeRead, {0, 0.5});
  step.add(OperationKind::kReadState, Lane::kNvmeRead, {0.25, 1});  // overlaps the first
  step.add(OperationKind::kForward, Lane::kCompute, {0.5, 0.75}, {0});
  std::string text = "[";
  text += trace_events(step.operations, step.times, 1'000'000);
  text += ']';
  const auto events = nlohmann::json::parse(text);
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0]["ph"], "b");
  EXPECT_EQ(events[0]["name"], "read_weights unit 1");
  EXPECT_EQ(events[0]["cat"], "nvme_read");
  EXPECT_DOUBLE_EQ(events[0]["ts"].get<double>(), 1'000'000);
  EXPECT_EQ(events[1]["ph"], "e");
  EXPECT_DOUBLE_EQ(events[1]["ts"].get<double>(), 1'500'000);
  EXPECT_EQ(events[0]["id"], events[1]["id"]);
  EXPECT_NE(events[0]["id"], events[2]["id"]);
  EXPECT_EQ(events[4]["ph"], "X");
  EXPECT_DOUBLE_EQ(events[4]["ts"].get<double>(), 1'500'000);
  EXPECT_DOUBLE_EQ(events[4]["dur"].get<double>(), 250'000);
  EXPECT_EQ(events[4]["tid"], static_cast<int>(Lane::kCompute));
}

TEST(TraceEvents, OfNoOperationsAreNone) { EXPECT_EQ(trace_events({}, {}, 0), ""); }

}  // namespace
}  // namespace headrace::runtime
