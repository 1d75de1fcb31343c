// SPDX-License-Identifier: Apache-2.0
// Plans in which activations leave the device: their bytes, the memory that they free, when auto lets them, and what
// the checker says of planted faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "plan_fault.h"
#include "plan_support.h"
#include "runtime/plan/choose.h"

namespace headrace::runtime {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kOutput = 8'192, kSaved = 40'960, kTrailer = 4'096;

// Six blocks, eight micro-batches; 41 outputs of units would stay where groups are long.
PlanInput long_groups(ActivationPolicy activations, std::int32_t group_size = 8, bool copies = false) {
  PlanInput input = make_input(make_transformer({6, 20'480, 40'960, 20'480, kOutput, kSaved, 16'384, false}));
  input.state_format = cpu_adam::StateFormat::kSplit;
  input.micro_batches = 8;
  input.group_size = group_size;
  input.activations = activations;
  input.force_copies = copies;
  return input;
}

Plan smallest_plan(PlanInput input) {
  input.host_budget = smallest_host_budget(input);
  Result<Plan> plan = compile_plan(input);
  EXPECT_TRUE(plan.ok());
  EXPECT_EQ(message_of(check_plan(*plan)), "");
  return std::move(plan).value();
}

std::size_t count_of(const Plan& plan, OperationKind kind) {
  return static_cast<std::size_t>(std::count_if(plan.operations.begin(), plan.operations.end(),
                                                [&](const Operation& op) { return op.kind == kind; }));
}

Operation& find(Plan& plan, OperationKind kind, int skip = 0) {
  for (Operation& op : plan.operations)
    if (op.kind == kind && skip-- == 0) return op;
  ADD_FAILURE() << "the plan has no " << operation_kind_name(kind);
  return plan.operations.front();
}

// The output of the last block and of the one before it, or what the last saved, come back at once: 8 units are 6
// outputs with a stage in between, of the embedding and five blocks; all six blocks save with one in between.
TEST(Activations, MoveEachOutputAndAllThatWasSavedOutAndBackOnce) {
  for (const std::int32_t size : {1, 3, 8})
    for (const bool copies : {false, true}) {
      const Plan outputs = smallest_plan(long_groups(ActivationPolicy::kBoundaries, size, copies));
      EXPECT_EQ(count_of(outputs, OperationKind::kWriteActivation), 6U * 8);
      EXPECT_EQ(count_of(outputs, OperationKind::kReadActivation), 6U * 8);
      EXPECT_EQ(count_of(outputs, OperationKind::kActivationOut), copies ? 6U * 8 : 0U);
      EXPECT_EQ(count_of(outputs, OperationKind::kActivationIn), copies ? 6U * 8 : 0U);
      EXPECT_EQ(outputs.activation_read_bytes, 6 * 8 * (kOutput + kTrailer));
      EXPECT_EQ(outputs.activation_write_bytes, outputs.activation_read_bytes);
      EXPECT_EQ(outputs.memory[3].nvme, 6 * size * (kOutput + kTrailer));
      const Plan all = smallest_plan(long_groups(ActivationPolicy::kNvme, size, copies));
      EXPECT_EQ(all.activation_read_bytes, 6 * 8 * (kOutput + kTrailer) + 6 * 8 * (kSaved + kTrailer));
      EXPECT_EQ(all.activation_write_bytes, all.activation_read_bytes);
      EXPECT_EQ(count_of(all, OperationKind::kForward), 7U * 8);
      for (const Operation& op : all.operations) EXPECT_FALSE(op.recompute);
    }
}

TEST(Activations, OfAGroupOfEightNeedLessMemoryOnNvmeThanOutputsOfAGroupOfFourInMemory) {
  const Bytes in_memory = smallest_host_budget(long_groups(ActivationPolicy::kRecompute));
  const Bytes of_four = smallest_host_budget(long_groups(ActivationPolicy::kRecompute, 4));
  const Bytes on_nvme = smallest_host_budget(long_groups(ActivationPolicy::kBoundaries));
  EXPECT_LT(on_nvme, of_four);
  EXPECT_LT(3 * on_nvme, 2 * in_memory);
  EXPECT_EQ(smallest_host_budget(long_groups(ActivationPolicy::kAuto)), std::min(on_nvme, in_memory));
}

TEST(Activations, AutoTakesALongerGroupWhereThatMovesFewerBytes) {
  PlanInput input = long_groups(ActivationPolicy::kAuto, 0);
  input.model = make_transformer({6, 81'920, 409'600, 81'920, 8 * kOutput, 8 * kSaved, 16'384, false});
  input.cache = false;
  PlanInput pinned = input, memory = input;
  pinned.group_size = 8;
  pinned.activations = ActivationPolicy::kBoundaries;
  memory.activations = ActivationPolicy::kMemory;
  input.host_budget = memory.host_budget = std::max(smallest_host_budget(pinned), smallest_host_budget(memory));
  const Result<Plan> chosen = compile_plan(input);
  ASSERT_TRUE(chosen.ok());
  const Result<Plan> without = compile_plan(memory);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(chosen->input.group_size, 8);
  EXPECT_LT(without->input.group_size, 8);
  EXPECT_LT(chosen->read_bytes_per_step + chosen->write_bytes_per_step,
            without->read_bytes_per_step + without->write_bytes_per_step);
  EXPECT_THAT(chosen->memory[3].note, HasSubstr("on NVMe"));
}

TEST(Activations, StayInMemoryThatIsThere) {
  const Result<Plan> plan = compile_plan(long_groups(ActivationPolicy::kAuto));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->activation_read_bytes, 0);
  EXPECT_EQ(plan->memory[3].note, "");
}

TEST(Activations, GoToHostMemoryWhereThatIsAnotherOne) {
  PlanInput input = long_groups(ActivationPolicy::kHost, 8, true);
  input.separate_device = true;
  const Plan out = smallest_plan(input);
  EXPECT_EQ(out.activation_read_bytes, 0);
  EXPECT_EQ(count_of(out, OperationKind::kActivationOut), 12U * 8);
  EXPECT_EQ(count_of(out, OperationKind::kActivationIn), 12U * 8);
  input.activations = ActivationPolicy::kKeep;
  EXPECT_LT(out.device_slab_bytes, smallest_plan(input).device_slab_bytes / 2);
  const Plan same = smallest_plan(long_groups(ActivationPolicy::kHost));
  EXPECT_EQ(count_of(same, OperationKind::kActivationOut), 0U);
  EXPECT_THAT(same.memory[3].note, HasSubstr("host memory is the device's: they stay"));
}

// The device's own memory and the host's end at different rungs.
TEST(Activations, ThatFillTheDeviceLeaveTheHostToStateAndWhatIsLeftOfTheDeviceToWeights) {
  PlanInput input = long_groups(ActivationPolicy::kMemory, 2, true);
  input.separate_device = true;
  input.device_budget = compile_plan(input)->device_slab_bytes;
  const Result<Plan> roomy = compile_plan(input);
  ASSERT_TRUE(roomy.ok());
  EXPECT_EQ(roomy->read_bytes_per_step, 0);
  EXPECT_EQ(count_of(*roomy, OperationKind::kCopyToDevice), 8U);  // once per unit and step
  input.device_budget = roomy->device_slab_bytes - 1;
  const Result<Plan> tight = compile_plan(input);
  ASSERT_TRUE(tight.ok());
  EXPECT_EQ(message_of(check_plan(*tight)), "");
  EXPECT_LE(tight->device_slab_bytes, input.device_budget);
  EXPECT_GT(count_of(*tight, OperationKind::kCopyToDevice), 8U);
  EXPECT_EQ(tight->read_bytes_per_step, 0);  // all state stays in host memory
  PlanInput tighter = input;
  tighter.device_budget = roomy->device_slab_bytes / 2;
  const Result<Plan> again = compile_plan(tighter);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(message_of(check_plan(*again)), "");
  EXPECT_EQ(again->read_bytes_per_step, 0);
  EXPECT_TRUE(std::any_of(again->operations.begin(), again->operations.end(),
                          [](const Operation& op) { return op.recompute; }));
}

TEST(Activations, NeedAPathOnNvme) {
  PlanInput input = long_groups(ActivationPolicy::kNvme);
  input.can_spill = false;
  const Result<Plan> device = compile_plan(input);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().code, ErrorCode::kConfig);
  EXPECT_THAT(device.error().message, HasSubstr("block device"));
  input.can_spill = true;
  input.weights_home = input.optimizer_home = Home::kHost;
  const Result<Plan> none = compile_plan(input);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("no path"));
  input = long_groups(ActivationPolicy::kAuto);
  const Bytes with = smallest_host_budget(input);
  input.can_spill = false;
  EXPECT_LT(with, smallest_host_budget(input));
}

// A disk so fast that reading beats computing again, and one so slow that it does not.
TEST(Activations, AreReadOrComputedAgainByWhatIsFaster) {
  for (const bool fast : {true, false}) {
    PlanInput input = long_groups(ActivationPolicy::kAuto);
    Machine machine;
    Rates& rates = machine.rates;
    for (const UnitInfo& info : input.model.units) {
      rates.forward_seconds.push_back(info.fused_loss ? 0 : 1e-2);
      rates.backward_seconds.push_back(2e-2);
    }
    rates.update_seconds_per_element = rates.gradient_out_seconds_per_element = 1e-10;
    rates.copy_bytes_per_s = 1e10;
    rates.read_bytes_per_s = rates.write_bytes_per_s = fast ? 1e10 : 1e6;
    rates.mixed_bytes_per_s = rates.read_bytes_per_s;
    PlanInput most = input;
    most.activations = ActivationPolicy::kNvme;
    input.host_budget = smallest_host_budget(most) + 100'000;
    const Result<Choice> choice = choose_plan(input, machine);
    ASSERT_TRUE(choice.ok());
    EXPECT_EQ(message_of(check_plan(choice->plan)), "");
    const bool again = std::any_of(choice->plan.operations.begin(), choice->plan.operations.end(),
                                   [](const Operation& op) { return op.recompute; });
    EXPECT_EQ(again, !fast);
    const auto& saved = choice->plan.saved_tier;
    EXPECT_EQ(std::count(saved.begin(), saved.end(), Tier::kNvme), fast ? 6 : 0);
  }
}

TEST(Activations, FaultsOfTheirMovesAreNamed) {
  using Kind = OperationKind;
  expect_named(
      smallest_plan(long_groups(ActivationPolicy::kNvme, 4)),
      {{"a read that does not wait for the write", [](Plan& p) { find(p, Kind::kReadActivation).dependencies.clear(); },
        "before"},
       {"a read of another micro-batch", [](Plan& p) { find(p, Kind::kReadActivation).micro_batch ^= 1; }, ""},
       {"a read of another unit", [](Plan& p) { find(p, Kind::kReadActivation, 5).unit ^= 1; }, ""},
       {"a write of another unit", [](Plan& p) { find(p, Kind::kWriteActivation).unit ^= 1; }, ""},
       {"a write of another group", [](Plan& p) { find(p, Kind::kWriteActivation).group = 1; }, "another group"},
       {"fewer bytes", [](Plan& p) { find(p, Kind::kWriteActivation).bytes -= 4'096; }, "moves"},
       {"only the payload", [](Plan& p) { find(p, Kind::kReadActivation).uses[0].bytes -= 1; }, "instead of"},
       {"an output as what was saved",
        [](Plan& p) {
          for (BufferUse& use : find(p, Kind::kWriteActivation).uses) use.role = Role::kSaved;
        },
        ""},
       {"a total that is not the sum", [](Plan& p) { p.activation_read_bytes += 1; }, "activations"},
       {"a unit whose output stays", [](Plan& p) { p.boundary_tier[1] = Tier::kDevice; }, "does not go to NVMe"},
       {"a unit without leave", [](Plan& p) { p.input.activations = ActivationPolicy::kKeep; }, "without leave"},
       {"nothing but state on NVMe", [](Plan& p) { p.input.can_spill = false; }, "no room"},
       {"host memory that is the same",
        [](Plan& p) { std::fill(p.saved_tier.begin(), p.saved_tier.end(), Tier::kHost); }, "already"}});
  expect_named(
      smallest_plan(long_groups(ActivationPolicy::kNvme, 4, true)),
      {{"a copy twice", [](Plan& p) { find(p, Kind::kActivationIn, 1) = find(p, Kind::kActivationIn, 0); }, ""},
       {"a copy the other way",
        [](Plan& p) {
          Operation& op = find(p, Kind::kActivationOut);
          std::swap(op.uses[0].buffer, op.uses[1].buffer);
        },
        "between device and host"},
       {"a lane of the other direction", [](Plan& p) { find(p, Kind::kActivationOut).lane = Lane::kHostToDevice; },
        "lane"}});
}

}  // namespace
}  // namespace headrace::runtime
