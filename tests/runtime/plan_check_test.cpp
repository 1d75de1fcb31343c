// SPDX-License-Identifier: Apache-2.0
// The checker finds what is planted in sound plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "plan_fault.h"
#include "plan_support.h"
#include "runtime/plan/check_order.h"

namespace headrace::runtime {
namespace {

using ::testing::HasSubstr;

// A tied transformer under memory pressure: streams, spills, recomputes, reuses bytes.
PlanInput tight_input(bool copies = false, UpdatePolicy update = UpdatePolicy::kAfterBackward) {
  PlanInput input = make_input(make_transformer({3, 20'480, 40'960, 20'480, 8'192, 40'960, 16'384, true}));
  input.state_format = cpu_adam::StateFormat::kSplit;
  input.micro_batches = 4;
  input.group_size = 2;
  input.eval_micro_batches = 3;
  input.force_copies = copies;
  input.update = update;
  input.can_clip = true;
  input.host_budget = smallest_host_budget(input) + 60'000;
  return input;
}
Plan sound(const PlanInput& input) {
  Result<Plan> plan = compile_plan(input);
  EXPECT_TRUE(plan.ok());
  EXPECT_EQ(message_of(check_plan(*plan)), "");
  return std::move(plan).value();
}
Operation& find(Plan& plan, OperationKind kind, int skip = 0) {
  for (Operation& op : plan.operations)
    if (op.kind == kind && skip-- == 0) return op;
  ADD_FAILURE() << "the plan has no " << operation_kind_name(kind);
  return plan.operations.front();
}
BufferUse& use_of(Operation& op, Role role) {
  for (BufferUse& use : op.uses)
    if (use.role == role) return use;
  ADD_FAILURE() << "no such use";
  return op.uses.front();
}
// Plans under pressure with early updates: all on NVMe with some of it held, and weights at home in memory.
std::vector<PlanInput> early_inputs() {
  std::vector<PlanInput> inputs;
  for (const bool copies : {false, true}) inputs.push_back(tight_input(copies, UpdatePolicy::kInBackward));
  inputs.push_back(inputs.front());
  inputs.back().host_budget += 300'000;
  inputs.push_back(inputs.front());
  inputs.back().can_clip = false;
  inputs.back().host_budget = kGiB;
  inputs.push_back(inputs.front());
  inputs.back().weights_home = Home::kHost;
  inputs.back().host_budget = smallest_host_budget(inputs.back());
  return inputs;
}
// The same with delayed updates.
std::vector<PlanInput> delayed_inputs() {
  std::vector<PlanInput> inputs = early_inputs();
  for (PlanInput& input : inputs) {
    input.update = UpdatePolicy::kIntoForward;
    input.host_budget = std::max(input.host_budget, smallest_host_budget(input));
  }
  inputs.push_back(inputs.front());
  inputs.back().state_format = cpu_adam::StateFormat::kFp32;  // no weights needed by the update
  inputs.back().host_budget = smallest_host_budget(inputs.back());
  inputs.push_back(inputs.front());
  inputs.back().model.units[1].tensors[0].frozen = true;  // read from disk in every pass
  inputs.back().host_budget = smallest_host_budget(inputs.back());
  for (const double fraction : {0.7, 0.3})  // the others are updated in their own step
    for (const Home home : {Home::kNvme, Home::kHost}) {
      inputs.push_back(inputs.front());
      inputs.back().delayed_fraction = fraction;
      inputs.back().weights_home = home;
      inputs.back().host_budget = smallest_host_budget(inputs.back());
    }
  return inputs;
}
// Activations on NVMe, with and without copies, and delayed updates beside them.
std::vector<PlanInput> activation_inputs() {
  std::vector<PlanInput> inputs;
  for (const bool copies : {false, true}) {
    inputs.push_back(tight_input(copies));
    inputs.back().activations = ActivationPolicy::kNvme;
    inputs.back().host_budget = smallest_host_budget(inputs.back()) + 10'000;
  }
  inputs.push_back(inputs.front());
  inputs.back().update = UpdatePolicy::kIntoForward;
  inputs.back().host_budget = smallest_host_budget(inputs.back());
  inputs.push_back(inputs[1]);
  inputs.back().activations = ActivationPolicy::kHost;
  inputs.back().host_budget = smallest_host_budget(inputs.back()) + 10'000;
  return inputs;
}
using List = std::vector<Operation> Plan::*;
constexpr std::array<List, 3> kDelayedLists = {&Plan::operations, &Plan::start_operations, &Plan::drain_operations};
// Removes an operation and renumbers dependencies.
void erase(std::vector<Operation>& operations, OperationId victim) {
  operations.erase(operations.begin() + victim);
  for (Operation& op : operations) {
    std::erase(op.dependencies, victim);
    for (OperationId& dependency : op.dependencies) dependency -= dependency > victim ? 1 : 0;
  }
}

// Drops each dependency of a list in turn.
void expect_every_dependency_is_needed(const Plan& plan, List list, int at_least) {
  int dropped = 0, implied = 0;
  const std::vector<Operation>& operations = plan.*list;
  for (std::size_t i = 0; i < operations.size(); ++i)
    for (std::size_t d = 0; d < operations[i].dependencies.size(); ++d, ++dropped) {
      Plan faulty = plan;
      auto& dependencies = (faulty.*list)[i].dependencies;
      const OperationId lost = dependencies[d];
      dependencies.erase(dependencies.begin() + static_cast<std::ptrdiff_t>(d));
      if (checking::Order(faulty.*list).holds(lost, static_cast<OperationId>(i))) {
        ++implied;  // another path says the same
        continue;
      }
      EXPECT_FALSE(check_plan(faulty).ok()) << checking::describe(operations, static_cast<OperationId>(i))
                                            << " without waiting for " << checking::describe(operations, lost);
    }
  EXPECT_GE(dropped, at_least);
  EXPECT_LE(implied, dropped / 10);
}

void expect_every_operation_is_needed(const Plan& plan, List list) {
  for (OperationId id = 0; id < static_cast<OperationId>((plan.*list).size()); ++id) {
    Plan faulty = plan;
    erase(faulty.*list, id);
    EXPECT_FALSE(check_plan(faulty).ok()) << "without " << checking::describe(plan.*list, id);
  }
}

TEST(CheckPlan, EveryDependencyIsNeeded) {
  for (const bool copies : {false, true})
    expect_every_dependency_is_needed(sound(tight_input(copies)), &Plan::operations, 100);
  for (const PlanInput& input : early_inputs()) {
    const Plan plan = sound(input);
    expect_every_dependency_is_needed(plan, &Plan::operations, 40);  // fewer where all is held
    expect_every_dependency_is_needed(plan, &Plan::redo_operations, 1);
  }
  for (const PlanInput& input : delayed_inputs()) {
    const Plan plan = sound(input);
    for (const List list : kDelayedLists) expect_every_dependency_is_needed(plan, list, 1);
  }
  for (const PlanInput& input : activation_inputs())
    expect_every_dependency_is_needed(sound(input), &Plan::operations, 100);
}

TEST(CheckPlan, EveryOperationIsNeeded) {
  for (const bool copies : {false, true})
    expect_every_operation_is_needed(sound(tight_input(copies)), &Plan::operations);
  for (const PlanInput& input : early_inputs()) {
    const Plan plan = sound(input);
    expect_every_operation_is_needed(plan, &Plan::operations);
    expect_every_operation_is_needed(plan, &Plan::redo_operations);
  }
  for (const PlanInput& input : delayed_inputs()) {
    const Plan plan = sound(input);
    for (const List list : kDelayedLists) expect_every_operation_is_needed(plan, list);
  }
  for (const PlanInput& input : activation_inputs()) expect_every_operation_is_needed(sound(input), &Plan::operations);
}

TEST(CheckPlan, NoBufferCanTakeThePlaceOfAnother) {
  const Plan plan = sound(tight_input());
  std::mt19937_64 random(20'260'301);
  int tried = 0;
  for (std::size_t i = 0; i < plan.operations.size(); ++i)
    for (std::size_t u = 0; u < plan.operations[i].uses.size(); ++u) {
      const BufferUse& use = plan.operations[i].uses[u];
      const bool is_scratch =
          use.role == Role::kWorkspace || (use.role == Role::kSaved && plan.operations[i].pass == Pass::kBackward);
      if (use.buffer == kNoBuffer || is_scratch) continue;
      Plan faulty = plan;
      const auto other = static_cast<BufferId>(random() % plan.buffers.size());
      const Buffer &from = plan.buffers[static_cast<std::size_t>(use.buffer)],
                   &to = plan.buffers[static_cast<std::size_t>(other)];
      if (from.tier == to.tier && from.offset == to.offset) continue;
      faulty.operations[i].uses[u].buffer = other;
      ++tried;
      EXPECT_FALSE(check_plan(faulty).ok()) << checking::describe(plan.operations, static_cast<OperationId>(i))
                                            << " use " << u << " in buffer " << other << " instead of " << use.buffer;
    }
  EXPECT_GT(tried, 300);
}

TEST(CheckPlan, MovedBuffersAreFound) {
  const Plan plan = sound(tight_input());
  int found = 0, moved = 0;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    Plan faulty = plan;
    faulty.buffers[b].offset = plan.buffers[b].offset >= 4'096 ? plan.buffers[b].offset - 4'096 : 4'096;
    ++moved;
    found += check_plan(faulty).ok() ? 0 : 1;
  }
  EXPECT_GT(found, moved / 2);  // some land on bytes that are free just then
  Plan faulty = plan;
  faulty.buffers[0].offset += 1;
  EXPECT_THAT(message_of(check_plan(faulty)), HasSubstr("aligned"));
  faulty = plan;
  faulty.buffers[0].offset = plan.host_slab_bytes;
  EXPECT_THAT(message_of(check_plan(faulty)), HasSubstr("slab"));
}

TEST(CheckPlan, PlantedFaultsAreNamed) {
  const Plan plan = sound(tight_input());
  const std::vector<Fault> faults = {
      {"a read of another unit", [](Plan& p) { find(p, OperationKind::kReadWeights, 1).unit = 0; }, "instead of"},
      {"a read of an equal unit",
       [](Plan& p) {
         auto& op = find(p, OperationKind::kReadWeights, 1);
         op.unit = op.unit == 2 ? 3 : 2;
       },
       ""},
      {"a micro-batch twice", [](Plan& p) { find(p, OperationKind::kForward, 0).micro_batch = 1; }, "twice"},
      {"a forward of the other pass", [](Plan& p) { find(p, OperationKind::kForward).pass = Pass::kBackward; }, "pass"},
      {"a first that adds", [](Plan& p) { find(p, OperationKind::kBackward, 0).first = false; }, ""},
      {"an addition that overwrites",
       [](Plan& p) {
         auto& op = find(p, OperationKind::kBackward, 1);
         op.first = true;
         use_of(op, Role::kAccumulator).read = false;
       },
       "first"},
      {"a used first that adds",
       [](Plan& p) {
         auto& op = find(p, OperationKind::kBackward, 0);
         op.first_used = false;
         use_of(op, Role::kUsedAccumulator).read = true;
       },
       "first"},
      {"recompute of what was not", [](Plan& p) { find(p, OperationKind::kBackward, 2).recompute ^= true; }, ""},
      {"a later group as the first", [](Plan& p) { find(p, OperationKind::kGradientOut, 5).first = true; }, "first"},
      {"a group as the last", [](Plan& p) { find(p, OperationKind::kGradientOut, 0).last = true; }, "last"},
      {"another tile", [](Plan& p) { find(p, OperationKind::kUpdate, 1).tile = 0; }, "twice"},
      {"a tile read as another", [](Plan& p) { find(p, OperationKind::kReadState, 1).tile = 0; }, "twice"},
      {"a tile written as another", [](Plan& p) { find(p, OperationKind::kWriteState, 1).tile = 0; }, "twice"},
      {"fewer bytes", [](Plan& p) { find(p, OperationKind::kReadWeights).bytes -= 4'096; }, "moves"},
      {"a smaller slab", [](Plan& p) { p.host_slab_bytes -= 4'096, p.host_peak_bytes -= 4'096; }, ""},
      {"a wrong peak", [](Plan& p) { p.host_peak_bytes += 1; }, "peak"},
      {"a budget passed", [](Plan& p) { p.input.host_budget = p.host_peak_bytes - 1; }, "exceed"},
      {"a table that does not add up", [](Plan& p) { p.memory[2].host += 1; }, "adds up"},
      {"a total that is not the sum", [](Plan& p) { p.read_bytes_per_step += 1; }, "read"},
      {"a wrong lane", [](Plan& p) { find(p, OperationKind::kUpdate).lane = Lane::kCompute; }, "lane"},
      {"a dependency forward", [](Plan& p) { p.operations[3].dependencies.push_back(9); }, "not before"},
      {"an evaluation that misses one", [](Plan& p) { p.eval_operations.pop_back(); }, "misses a micro-batch"},
      {"a spill of another group", [](Plan& p) { find(p, OperationKind::kWriteGradient).group = 1; }, "out of turn"},
      {"a use beyond its buffer", [](Plan& p) { find(p, OperationKind::kForward).uses[0].offset = 4'096; },
       "which has"},
  };
  for (const Fault& fault : faults) {
    Plan faulty = plan;
    fault.plant(faulty);
    const std::string message = message_of(check_plan(faulty));
    EXPECT_NE(message, "") << fault.name;
    EXPECT_THAT(message, HasSubstr(fault.message)) << fault.name;
  }
}

TEST(CheckPlan, FaultsOfEarlyUpdatesAreNamed) {
  const Plan plan = sound(early_inputs()[2]);
  const auto redo = [](Plan& p, OperationKind kind) -> Operation& {
    for (Operation& op : p.redo_operations)
      if (op.kind == kind) return op;
    ADD_FAILURE() << "the redo has no " << operation_kind_name(kind);
    return p.redo_operations.front();
  };
  const std::vector<Fault> faults = {
      {"a late plan with a redo", [](Plan& p) { p.input.update = UpdatePolicy::kAfterBackward; }, "norm"},
      {"no redo", [](Plan& p) { p.redo_operations.clear(); }, ""},
      {"a policy that is not resolved", [](Plan& p) { p.input.update = UpdatePolicy::kAuto; }, "resolved"},
      {"a tile updated again twice",
       [](Plan& p) {
         for (Operation& op : p.redo_operations)
           if (op.kind == OperationKind::kUpdate && op.tile == 1) op.tile = 0;
       },
       "twice"},
      {"a redo that computes", [&](Plan& p) { redo(p, OperationKind::kReadState).kind = OperationKind::kReadWeights; },
       "a redo does not do that"},
      {"a wrong total", [](Plan& p) { p.redo_read_bytes += 4'096; }, "redo"},
      {"fewer bytes", [&](Plan& p) { redo(p, OperationKind::kWriteState).bytes -= 4'096; }, "moves"},
      {"weights read after their update",
       [](Plan& p) {
         Operation read = find(p, OperationKind::kReadWeights, 1);
         for (auto op = p.operations.rbegin(); op != p.operations.rend(); ++op)
           if (op->kind == OperationKind::kUpdate) read.unit = op->unit;
         p.operations.insert(p.operations.end() - 1, read);
         p.operations.back().dependencies.clear();
       },
       ""},
  };
  for (const Fault& fault : faults) {
    Plan faulty = plan;
    fault.plant(faulty);
    const std::string message = message_of(check_plan(faulty));
    EXPECT_NE(message, "") << fault.name;
    EXPECT_THAT(message, HasSubstr(fault.message)) << fault.name;
  }
}

OperationId position_of(const Plan& plan, OperationKind kind) {
  const auto found = std::find_if(plan.operations.begin(), plan.operations.end(),
                                  [&](const Operation& op) { return op.kind == kind; });
  EXPECT_NE(found, plan.operations.end()) << operation_kind_name(kind);
  return static_cast<OperationId>(found - plan.operations.begin());
}
// No operation of this kind waits for the record of the step before any more.
void forget_commit(Plan& plan, OperationKind kind) {
  const OperationId commit = position_of(plan, OperationKind::kCommit);
  for (Operation& op : plan.operations)
    if (op.kind == kind) std::erase(op.dependencies, commit);
}
// The record of the step before comes right after the first operation of the backward pass.
void turn_before_commit(Plan& plan) {
  const OperationId commit = position_of(plan, OperationKind::kCommit),
                    turn = position_of(plan, OperationKind::kBackward);
  std::rotate(plan.operations.begin() + commit, plan.operations.begin() + commit + 1,
              plan.operations.begin() + turn + 1);
  for (Operation& op : plan.operations)
    for (OperationId& dependency : op.dependencies)
      dependency = dependency == commit ? turn : dependency - (dependency > commit && dependency <= turn ? 1 : 0);
}
TEST(CheckPlan, FaultsOfDelayedUpdatesAreNamed) {
  PlanInput input = delayed_inputs().front();
  input.host_budget = smallest_host_budget(input);
  const Plan plan = sound(input);
  ASSERT_TRUE(plan.gradient_spilled[1]);
  expect_named(
      plan, {{"a step after the backward pass with a drain",
              [](Plan& p) {
                p.input.update = UpdatePolicy::kAfterBackward;
                p.update_delayed.clear();
              },
              "nothing to start or to drain"},
             {"no drain", [](Plan& p) { p.drain_operations.clear(); }, "drain, unit 0 has a tile"},
             {"no first step", [](Plan& p) { p.start_operations.clear(); }, "misses a micro-batch"},
             {"a record without the last tile",
              [](Plan& p) {
                p.operations[static_cast<std::size_t>(position_of(p, OperationKind::kCommit))].dependencies.pop_back();
              },
              "may start before"},
             {"a record of nothing", [](Plan& p) { p.start_operations.push_back(p.drain_operations.back()); }, ""},
             {"a wrong total of the first step", [](Plan& p) { p.start_read_bytes += 4'096; }, "of the first step"},
             {"a wrong total of the drain", [](Plan& p) { p.drain_read_bytes += 4'096; }, "the drain's operations"},
             {"a drain that computes", [](Plan& p) { p.drain_operations.front().kind = OperationKind::kReadWeights; },
              "a drain does not"},
             {"another part of the gradient",
              [](Plan& p) {
                for (Operation& op : p.drain_operations)
                  if (op.kind == OperationKind::kUpdate && op.tile == 0) use_of(op, Role::kGradient).offset += 4'096;
              },
              ""}});
  // With weights at home in memory nothing but the record itself keeps what follows it behind it.
  input.weights_home = Home::kHost;
  input.host_budget = smallest_host_budget(input);
  const Plan spilled = sound(input);
  ASSERT_TRUE(spilled.gradient_spilled[1]);
  expect_named(spilled,
               {{"a spill over a gradient that is needed",
                 [](Plan& p) { forget_commit(p, OperationKind::kWriteGradient); }, "of the step before"},
                {"a record after the turn", turn_before_commit, "comes before the commit of the step before"}});
  // Where each visit reads its weights, they are those that the record makes current.
  PlanInput two = make_input(make_transformer({0, 4'096, 4'096, 4'096}));
  two.state_format = cpu_adam::StateFormat::kSplit;
  two.update = UpdatePolicy::kIntoForward;
  two.cache = false;
  expect_named(sound(two),
               {{"weights read before the record", [](Plan& p) { forget_commit(p, OperationKind::kReadWeights); },
                 "may not yet have made current"}});
}

TEST(CheckPlan, FaultsOfUpdatesThatAreDelayedInPartAreNamed) {
  PlanInput input = delayed_inputs().front();
  input.delayed_fraction = 0.5;
  input.host_budget = kGiB;
  input.cache = false;
  const Plan plan = sound(input);
  ASSERT_FALSE(plan.update_delayed.front());
  ASSERT_TRUE(plan.update_delayed.back());
  const auto units = static_cast<UnitId>(plan.update_delayed.size());
  // Operations of units that are updated after the norm, none of which may come before the record.
  const auto forget = [](Plan& p, OperationKind kind) {
    const OperationId commit = position_of(p, OperationKind::kCommit);
    for (Operation& op : p.operations)
      if (op.kind == kind && op.unit >= 0 && !p.update_delayed[static_cast<std::size_t>(op.unit)])
        std::erase(op.dependencies, commit);
  };
  expect_named(
      plan,
      {{"another list of units", [](Plan& p) { p.update_delayed.pop_back(); }, "another length"},
       {"a list under another policy",
        [](Plan& p) {
          p.input.update = UpdatePolicy::kAfterBackward;
          p.start_operations.clear();
          p.drain_operations.clear();
        },
        "another length"},
       {"a unit too many", [](Plan& p) { p.update_delayed.front() = true; }, ""},
       {"a unit too few", [units](Plan& p) { p.update_delayed[static_cast<std::size_t>(units) - 2] = false; }, ""},
       {"none", [units](Plan& p) { p.update_delayed.assign(static_cast<std::size_t>(units), false); },
        "asked for is a share"},
       {"another share", [](Plan& p) { p.input.delayed_fraction = 0.9; }, "asked for is a share"},
       {"a smaller share", [](Plan& p) { p.input.delayed_fraction = 0.1; }, "asked for is a share"},
       {"a drain of what was done", [](Plan& p) { p.drain_operations.front().unit = 0; }, "was done in the step"}});
  // With weights at home in memory nothing but the record itself keeps what follows it behind it.
  input.weights_home = Home::kHost;
  expect_named(sound(input), {{"state read before the record", [&](Plan& p) { forget(p, OperationKind::kReadState); },
                               "may start before"}});
}

// Gradients in memory live into the next step: nothing else may have their bytes until they are used there.
TEST(CheckPlan, AGradientInMemoryIsKeptUntilItsDelayedUpdate) {
  PlanInput input = delayed_inputs().front();
  input.host_budget = kGiB;
  input.cache = false;
  const Plan plan = sound(input);
  int tried = 0;
  for (const Operation& out : plan.operations) {
    if (out.kind != OperationKind::kGradientOut || !out.last) continue;
    for (const Operation& other : plan.operations) {
      if (other.kind != OperationKind::kReadWeights || other.unit == out.unit) continue;
      for (const BufferUse& use : out.uses) {
        if (use.role != Role::kGradient) continue;
        Plan faulty = plan;
        faulty.buffers[static_cast<std::size_t>(use.buffer)].offset =
            plan.buffers[static_cast<std::size_t>(other.uses.front().buffer)].offset;
        ++tried;
        EXPECT_FALSE(check_plan(faulty).ok()) << "gradient of unit " << out.unit << " over weights of " << other.unit;
      }
    }
  }
  EXPECT_GT(tried, 10);
}

TEST(CheckPlan, StateThatIsHeldMustHaveItsOwnBytes) {
  PlanInput input = tight_input();
  input.host_budget = kGiB;
  const Plan plan = sound(input);
  ASSERT_NE(plan.held_weights[0], kNoBuffer);
  Plan faulty = plan;
  faulty.buffers[static_cast<std::size_t>(plan.held_weights[0])].held = false;
  EXPECT_FALSE(check_plan(faulty).ok());
  faulty = plan;
  faulty.buffers[static_cast<std::size_t>(plan.held_weights[1])].offset =
      plan.buffers[static_cast<std::size_t>(plan.held_weights[2])].offset;
  EXPECT_THAT(message_of(check_plan(faulty)), HasSubstr("held buffers overlap"));
  faulty = plan;
  std::swap(faulty.held_weights[1], faulty.held_weights[2]);
  EXPECT_FALSE(check_plan(faulty).ok());
  faulty = plan;
  faulty.input.cache = false;
  EXPECT_THAT(message_of(check_plan(faulty)), HasSubstr("without leave"));
}

TEST(CheckPlan, TwoNvmeOperationsAreNotOrderedByTheirLane) {
  std::vector<Operation> operations(3);
  for (Operation& op : operations) op.kind = OperationKind::kReadWeights, op.lane = Lane::kNvmeRead;
  EXPECT_FALSE(checking::Order(operations).holds(0, 1));
  operations[1].dependencies = {0};
  EXPECT_TRUE(checking::Order(operations).holds(0, 1));
  EXPECT_TRUE(checking::Order(operations).holds(0, 2)) << "2 starts no earlier than 1";
  EXPECT_FALSE(checking::Order(operations).holds(1, 2));
  for (Operation& op : operations) op.kind = OperationKind::kForward, op.lane = Lane::kCompute;
  operations[1].dependencies.clear();
  EXPECT_TRUE(checking::Order(operations).holds(0, 2));
}

}  // namespace
}  // namespace headrace::runtime
