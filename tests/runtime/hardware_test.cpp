// SPDX-License-Identifier: Apache-2.0
// Machines as files, what they mean for one rank, and how a model's states are divided: against sums by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <cstdlib>
#include <fstream>

#include "models/model.h"
#include "models/presets.h"
#include "models/trainer/hardware_file.h"
#include "plan_support.h"
#include "runtime/plan/compare.h"
#include "runtime/plan/hardware.h"
#include "runtime/plan/simulate.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {
namespace {

using ::testing::HasSubstr;

std::string source_folder() {
  const char* const folder = std::getenv("HEADRACE_SOURCE_DIR");
  return folder != nullptr ? folder : ".";
}

Hardware example(const std::string& name) {
  Result<Hardware> hardware = models::read_hardware_file(source_folder() + "/examples/hardware/" + name);
  EXPECT_TRUE(hardware.ok()) << (hardware.ok() ? "" : hardware.error().to_string());
  return hardware.ok() ? std::move(hardware).value() : Hardware();
}

Result<Hardware> from_text(const std::string& text) {
  const std::string path = ::testing::TempDir() + "hardware_test.json";
  std::ofstream(path) << text;
  return models::read_hardware_file(path);
}

constexpr const char* kGood = R"({
  "cores": 2,
  "compute": [{"dtype": "bf16", "flops_per_s": 1e11}],
  "optimizer": [{"format": "split", "parameters_per_s": 1e9}],
  "gradients": {"elements_per_s": 2e9},
  "memory": {"copy_bytes_per_s": 1e10},
  "storage": [{"path": "a", "read": {"bw_bytes": 2e9}, "write": {"bw_bytes": 1e9}, "mixed": {"bw_bytes": 2.5e9},
               "cpu_seconds_per_byte": 1e-10}]
})";

std::string replaced(std::string from, std::string to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(HardwareFile, GivesRatesPerOperation) {
  const Result<Hardware> hardware = from_text(kGood);
  ASSERT_TRUE(hardware.ok()) << hardware.error().to_string();
  EXPECT_FALSE(hardware->is_elsewhere());
  PlanInput input = make_input(make_transformer({}));
  for (UnitInfo& unit : input.model.units) unit.forward_flops = 1e9;
  const Result<Machine> machine = machine_for(*hardware, input, {});
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  EXPECT_DOUBLE_EQ(machine->rates.forward_seconds[1], 0.01);
  EXPECT_DOUBLE_EQ(machine->rates.backward_seconds[1], 0.02);
  EXPECT_DOUBLE_EQ(machine->rates.backward_seconds.back(), 0.03);  // its forward products too
  EXPECT_DOUBLE_EQ(machine->rates.mixed_bytes_per_s, 2.5e9);
  EXPECT_DOUBLE_EQ(machine->rates.update_seconds_per_element, 1e-9);
}

// Five steps of three products for a matrix, AdamW for the embedding and what is no matrix.
TEST(HardwareFile, MuonsMatricesHaveARateOfTheirOwn) {
  PlanInput input = make_input(make_transformer({}));
  input.optimizer = cpu_adam::OptimizerKind::kMuon;
  input.moments = 1;
  for (UnitInfo& unit : input.model.units) {
    unit.forward_flops = 1e9;
    unit.tensors[0].shape = {unit.tensors[0].elements / 64, 64};
    unit.tensors[0].embedding = unit.name == "embedding";
  }
  input.tile_elements = whole_unit_tile(input.model);
  const auto m = 64.0, n = static_cast<double>(input.model.units[1].tensors[0].elements) / 64;
  ASSERT_GT(n, m);
  const double flops = 5 * (4 * m * m * n + 2 * m * m * m);
  EXPECT_DOUBLE_EQ(update_work(input, 1, 0).product_flops, flops);
  EXPECT_DOUBLE_EQ(update_work(input, 1, 0).elements, 0);
  EXPECT_DOUBLE_EQ(update_work(input, 0, 0).product_flops, 0);
  Rates rates;
  rates.forward_seconds.assign(input.model.units.size(), 0.01);
  rates.backward_seconds.assign(input.model.units.size(), 0.02);
  rates.update_seconds_per_element = 3e-9;
  rates.update_seconds_per_product_flop = 2e-11;
  rates.gradient_out_seconds_per_element = 1e-9;
  rates.copy_bytes_per_s = rates.read_bytes_per_s = rates.write_bytes_per_s = 1e9;
  rates.mixed_bytes_per_s = 2e9;
  rates.io_cpu_seconds_per_byte = 2e-10;
  rates.cores = 2;
  const Result<Hardware> hardware = from_text(models::format_hardware(rates, input, {"a"}));
  ASSERT_TRUE(hardware.ok()) << hardware.error().to_string();
  const Result<Machine> machine = machine_for(*hardware, input, {1, 1, {"a"}});
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  Plan plan;
  plan.input = input;
  Operation update;
  update.kind = OperationKind::kUpdate;
  update.lane = Lane::kCpuOptimizer;
  update.tile = 0;
  for (const auto& [unit, seconds] :
       {std::pair{0, 3e-9 * static_cast<double>(input.model.units[0].flat_elements)}, {1, flops * 2e-11}}) {
    update.unit = unit;
    EXPECT_NEAR(cost_of(plan, update, machine->rates).seconds, seconds, 1e-9 * seconds) << unit;
  }
  EXPECT_THAT(machine_for(*from_text(kGood), input, {}).error().message, HasSubstr("fp32 muon"));
}

TEST(HardwareFile, ReadsWhatARunWrites) {
  PlanInput input = make_input(make_transformer({}));
  Rates rates;
  for (UnitInfo& unit : input.model.units) {
    unit.forward_flops = 1e9;
    rates.forward_seconds.push_back(0.01);
    rates.backward_seconds.push_back(unit.fused_loss ? 0.06 : 0.04);
  }
  rates.update_seconds_per_element = 3e-9;
  rates.gradient_out_seconds_per_element = 1e-9;
  rates.copy_bytes_per_s = 1e10;
  rates.read_bytes_per_s = 1.1e9;
  rates.write_bytes_per_s = 0.7e9;
  rates.mixed_bytes_per_s = 1.9e9;  // a short sample: more than both alone
  rates.io_cpu_seconds_per_byte = 2e-10;
  rates.cores = 3;
  const Result<Hardware> hardware = from_text(models::format_hardware(rates, input, {"a", "b"}));
  ASSERT_TRUE(hardware.ok()) << hardware.error().to_string();
  const Result<Machine> machine = machine_for(*hardware, input, {1, 1, {"a", "b"}});
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  const Rates& again = machine->rates;
  for (std::size_t u = 0; u < rates.forward_seconds.size(); ++u) {
    EXPECT_NEAR(again.forward_seconds[u], rates.forward_seconds[u], 1e-9) << u;
    EXPECT_NEAR(again.backward_seconds[u], rates.backward_seconds[u], 1e-9) << u;
  }
  EXPECT_DOUBLE_EQ(again.update_seconds_per_element, rates.update_seconds_per_element);
  EXPECT_DOUBLE_EQ(again.gradient_out_seconds_per_element, rates.gradient_out_seconds_per_element);
  EXPECT_EQ(again.copy_bytes_per_s, rates.copy_bytes_per_s);
  EXPECT_EQ(again.read_bytes_per_s, rates.read_bytes_per_s);
  EXPECT_EQ(again.write_bytes_per_s, rates.write_bytes_per_s);
  EXPECT_EQ(again.mixed_bytes_per_s, rates.read_bytes_per_s + rates.write_bytes_per_s);
  EXPECT_EQ(again.io_cpu_seconds_per_byte, rates.io_cpu_seconds_per_byte);
  EXPECT_EQ(again.cores, 3);
}

TEST(HardwareFile, OfAMachineWithDevicesIsNotTrainedWith) {
  const std::string file = source_folder() + "/examples/hardware/gh200.json";
  const Result<Rates> rates = models::read_hardware(file, make_input(make_transformer({})));
  ASSERT_FALSE(rates.ok());
  EXPECT_EQ(rates.error().code, ErrorCode::kConfig);
  EXPECT_THAT(rates.error().message, HasSubstr("gh200.json: device"));
}

TEST(HardwareFile, ThatIsMissingIsAFaultOfTheConfiguration) {
  const Result<Hardware> hardware = models::read_hardware_file("none.json");
  ASSERT_FALSE(hardware.ok());
  EXPECT_EQ(hardware.error().code, ErrorCode::kConfig);
  EXPECT_THAT(hardware.error().hint, HasSubstr(std::filesystem::current_path().string()));
}

struct BadFile {
  const char* what;
  std::string text;
  const char* message;
};

TEST(HardwareFile, RefusesWhatIsMissingUnknownZeroAbsurdOrOfAnotherVersion) {
  const std::vector<BadFile> files{
      {"zero", replaced("\"flops_per_s\": 1e11", "\"flops_per_s\": 0"), "compute[0].flops_per_s is 0"},
      {"negative", replaced("\"write\": {\"bw_bytes\": 1e9", "\"write\": {\"bw_bytes\": -1"),
       "storage[0].write.bw_bytes"},
      {"absurd", replaced("\"read\": {\"bw_bytes\": 2e9", "\"read\": {\"bw_bytes\": 2e22"),
       "storage[0].read.bw_bytes is 2e22"},
      {"a size for a rate", replaced("\"copy_bytes_per_s\": 1e10", "\"copy_bytes_per_s\": 12"),
       "memory.copy_bytes_per_s"},
      {"missing", replaced("\"cores\": 2,", ""), "cores is missing"},
      {"missing in storage", replaced("\"mixed\": {\"bw_bytes\": 2.5e9},", ""), "storage[0].mixed is missing"},
      {"unknown", replaced("\"cores\": 2", "\"cores\": 2, \"gradeints\": {}"), "did you mean \"gradients\""},
      {"unknown inside", replaced("\"read\": {", "\"read\": {\"speed\": 1, "), "storage[0].read.speed is not known"},
      {"version", replaced("\"cores\": 2", "\"cores\": 2, \"version\": 7"), "version is 7"},
      {"text", replaced("1e11", "\"fast\""), "is not a number"},
      {"no array", replaced("[{\"format\": \"split\", \"parameters_per_s\": 1e9}]", "1e9"), "optimizer is no array"},
      {"no array of drives", replaced("\"storage\": [", "\"storage\": 1, \"source\": ["), "storage is no array"},
      {"devices on this machine",
       replaced("\"cores\": 2", R"("cores": 2, "device": {"memory_bytes": 1e9, "flops_per_s": {"bf16": 1e12}})"),
       "host.memory_bytes is missing"},
      {"more mixed than both", replaced("2.5e9", "3.5e9"), "more than read and write together"},
  };
  for (const BadFile& file : files) {
    const Result<Hardware> hardware = from_text(file.text);
    ASSERT_FALSE(hardware.ok()) << file.what;
    EXPECT_EQ(hardware.error().code, ErrorCode::kConfig) << file.what;
    EXPECT_THAT(hardware.error().message, HasSubstr(file.message)) << file.what;
    EXPECT_THAT(hardware.error().message, HasSubstr("hardware_test.json")) << file.what;
  }
}

TEST(HardwareFile, WhatAJobNeedsIsNamed) {
  const Result<Hardware> hardware = from_text(kGood);
  ASSERT_TRUE(hardware.ok());
  PlanInput input = make_input(make_transformer({}));
  input.weights_dtype = DType::kFp32;
  input.state_format = cpu_adam::StateFormat::kFp32;
  const Result<Machine> machine = machine_for(*hardware, input, {});
  ASSERT_FALSE(machine.ok());
  EXPECT_THAT(machine.error().message, HasSubstr("fp32"));
  input = make_input(make_transformer({}));
  EXPECT_THAT(machine_for(*hardware, input, {2, 1, {}}).error().message, HasSubstr("network.inter_bytes_per_s"));
  EXPECT_THAT(machine_for(*hardware, input, {1, 2, {}}).error().message, HasSubstr("2 ranks"));
}

TEST(HardwareFile, EveryExampleIsGoodAndPlans) {
  for (const char* name :
       {"8xa100-80.json", "8xh100-8nvme.json", "dgx2-v100.json", "ethernet-4x4090.json", "gh200.json", "vm-2cores.json",
        "workstation-4090-1nvme.json", "workstation-4090-4nvme.json"}) {
    const Hardware hardware = example(name);
    EXPECT_TRUE(hardware.is_elsewhere()) << name;
    const Result<Machine> machine =
        machine_for(hardware, make_input(make_transformer({})), {1, std::max(1, hardware.device.count), {}});
    EXPECT_TRUE(machine.ok()) << name << (machine.ok() ? "" : machine.error().message);
  }
}

TEST(MachineFor, RanksOfAMachineShareItsHostAndDisks) {
  const Hardware hardware = example("8xh100-8nvme.json");
  const PlanInput input = make_input(make_transformer({}));
  const Result<Machine> one = machine_for(hardware, input, {1, 1, {}});
  const Result<Machine> eight = machine_for(hardware, input, {4, 8, {}});
  ASSERT_TRUE(one.ok() && eight.ok());
  EXPECT_DOUBLE_EQ(eight->rates.read_bytes_per_s * 8, one->rates.read_bytes_per_s);
  EXPECT_DOUBLE_EQ(eight->endurance_bytes * 8, one->endurance_bytes);
  EXPECT_DOUBLE_EQ(eight->rates.update_seconds_per_element, one->rates.update_seconds_per_element * 8);
  EXPECT_DOUBLE_EQ(eight->rates.copy_bytes_per_s, one->rates.copy_bytes_per_s);  // a link of its own
  EXPECT_EQ(eight->collectives.world_size, 32);
  EXPECT_EQ(eight->collectives.weights_bytes[1], input.model.units[1].flat_elements * 2);
}

// A ring of n passes on (n-1)/n of the bytes.
TEST(Collectives, TakeTheTimeOfTheirFormula) {
  Network network;
  network.ranks_per_node = 4;
  network.intra_bytes_per_s = 100;
  EXPECT_DOUBLE_EQ(collective_seconds(400, 1, network), 0);
  EXPECT_DOUBLE_EQ(collective_seconds(400, 4, network), 3);  // 300 bytes at 100
  network.inter_bytes_per_s = 10;
  // Two machines of four: half of the bytes come from the other one, a quarter of that over each rank's adapter.
  EXPECT_DOUBLE_EQ(collective_seconds(400, 8, network), 5);
  network.latency_seconds = 1;
  EXPECT_DOUBLE_EQ(collective_seconds(400, 8, network), 5 + 3);  // a tree has 2 + 1 hops, the ring 3 + 1
  EXPECT_DOUBLE_EQ(barrier_seconds(8, network), 6);
}

TEST(Simulate, CollectivesStandBetweenWeightsAndTheirUse) {
  PlanInput input = make_input(make_transformer({}));
  input.force_copies = input.separate_device = true;
  const ModelInfo whole = input.model;
  const Result<Machine> machine = machine_for(example("8xh100-8nvme.json"), input, {1, 8, {}});
  ASSERT_TRUE(machine.ok());
  input.model = rank_model(whole, machine->collectives, DType::kBf16, DType::kBf16);
  const Result<Plan> plan = compile_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  ASSERT_TRUE(check_plan(*plan).ok()) << check_plan(*plan).error().message;
  const Result<Simulation> simulation = simulate(*plan, machine->rates, machine->collectives);
  ASSERT_TRUE(simulation.ok()) << simulation.error().message;
  int gathers = 0, scatters = 0;
  for (const CollectiveTime& collective : simulation->collectives) {
    const CollectiveUse& use = collective.use;
    (use.is_gather ? gathers : scatters) += 1;
    if (use.is_gather) {
      EXPECT_LE(collective.time.end, simulation->times[static_cast<std::size_t>(use.first)].start + 1e-12);
    } else {
      EXPECT_GE(collective.time.start, simulation->times[static_cast<std::size_t>(use.last)].end - 1e-12);
    }
  }
  EXPECT_EQ(gathers, 5 + 6);  // forward of all but the fused head, backward of all
  EXPECT_EQ(scatters, 6);
}

TEST(RankModel, DividesStateAndGathersIntoTheWorkspace) {
  const ModelInfo whole = make_transformer({});
  Collectives collectives;
  collectives.world_size = 8;
  const ModelInfo share = rank_model(whole, collectives, DType::kBf16, DType::kBf16);
  const UnitInfo &before = whole.units[1], &after = share.units[1];
  EXPECT_EQ(after.flat_elements, partition_range(before.flat_elements, 0, 8).padded_elements);
  EXPECT_EQ(after.forward_workspace_bytes, before.forward_workspace_bytes + 2 * 2 * before.flat_elements);
  EXPECT_EQ(after.backward_workspace_bytes, before.backward_workspace_bytes + (2 * 2 + 4 + 2) * before.flat_elements);
  collectives.units_in_flight = 1;
  const ModelInfo tight = rank_model(whole, collectives, DType::kBf16, DType::kBf16);
  EXPECT_EQ(tight.units[1].backward_workspace_bytes, before.backward_workspace_bytes + (2 + 4) * before.flat_elements);
  EXPECT_EQ(rank_model(whole, {}, DType::kBf16, DType::kBf16).units[1].flat_elements, before.flat_elements);
}

PlanInput preset_input(const char* name, std::int64_t sequence) {
  const Result<models::ModelConfig> config = models::preset(name);
  EXPECT_TRUE(config.ok());
  PlanInput input = make_input(models::Model(*config, DType::kBf16, 1, sequence).info());
  return input;
}

// ZeRO's claims for mixed precision with Adam: 2 + 2 + 12 bytes per parameter, divided by stage.
TEST(ZeroMemory, SavesFourEightAndNTimes) {
  PlanInput input = preset_input("llama-8b", 128);
  input.state_format = cpu_adam::StateFormat::kFp32;
  const int ranks = 1024;
  const double none = zero_memory(input, 0, ranks).total();
  EXPECT_NEAR(none / 8.03e9, 16, 0.05);
  EXPECT_NEAR(none / zero_memory(input, 1, ranks).total(), 4, 0.02);
  EXPECT_NEAR(none / zero_memory(input, 2, ranks).total(), 8, 0.1);
  EXPECT_NEAR(none / zero_memory(input, 3, ranks).total(), ranks, 1e-6);
}

// docs/planning.md adds this table up by hand.
TEST(ATrillionParameters, AddUpByHandOnFourMachines) {
  PlanInput input = preset_input("1t", 1024);
  const double h = 25'600, layers = 128, vocab = 50'257, positions = 1'024;
  const double block = 12 * h * h + 13 * h;
  const double parameters = layers * block + (vocab + positions) * h + 2 * h;
  double elements = 0;
  for (const UnitInfo& unit : input.model.units)
    for (const TensorInfo& tensor : unit.tensors) elements += static_cast<double>(tensor.elements);
  EXPECT_EQ(elements, parameters);
  EXPECT_NEAR(parameters, 1.00799e12, 1e7);

  const Hardware hardware = example("8xh100-8nvme.json");
  input.tile_elements = 7'688'192;  // 4096 tiles or so per rank, as `headrace plan` takes for such a model
  input.force_copies = input.separate_device = true;
  input.micro_batches = 1;
  input.group_size = 1;
  input.host_budget = hardware.host_memory_bytes / 10 * 9 / 8;
  input.device_budget = hardware.device.memory_bytes / 10 * 9;
  Result<Machine> machine = machine_for(hardware, input, {4, 8, {}});
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  machine->collectives.units_in_flight = 1;
  input.model = rank_model(input.model, machine->collectives, DType::kBf16, DType::kBf16);
  const Result<Plan> plan = compile_plan(input);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  // One slot: 12 bytes per parameter. On NVMe two slots, each tile with trailers of 4 KiB.
  EXPECT_NEAR(static_cast<double>(plan->state_bytes) / (12 * parameters / 32), 1, 0.001);
  EXPECT_NEAR(static_cast<double>(plan->nvme_state_bytes) / (24 * parameters / 32), 1, 0.002);
  EXPECT_LT(static_cast<double>(plan->nvme_state_bytes) * 8, hardware.storage[0].capacity_bytes);
  // The device at its fullest: a block's weights and its gradient in fp32.
  EXPECT_GT(static_cast<double>(plan->device_slab_bytes), (2 + 4) * block);
  const Result<Simulation> simulation = simulate(*plan, machine->rates, machine->collectives);
  ASSERT_TRUE(simulation.ok());
  EXPECT_GE(simulation->step_seconds, bound_of(*plan, machine->rates, machine->collectives).seconds() * (1 - 1e-9));
}

TEST(Rules, MoveTheBytesThatTheirSourcesState) {
  PlanInput input = make_input(make_transformer({4, 8'192, 81'920, 8'192}));
  input.micro_batches = 4;
  double parameters = 0;
  for (UnitInfo& unit : input.model.units) {
    parameters += static_cast<double>(unit.flat_elements);
    unit.forward_flops = 1e9;
  }
  const Result<Machine> machine = machine_for(example("workstation-4090-1nvme.json"), input, {});
  ASSERT_TRUE(machine.ok());
  const auto bytes_of = [&](const char* name) {
    const Result<Comparison> comparison = simulate_rules(*find_rules(name), input, *machine);
    EXPECT_TRUE(comparison.ok());
    EXPECT_NEAR(comparison->forward_seconds + comparison->backward_seconds + comparison->update_seconds,
                comparison->step_seconds, 1e-12);
    return std::pair{comparison->read_bytes / parameters, comparison->written_bytes / parameters};
  };
  const double head = 8'192 / parameters;  // the head has no forward visit: 2 bytes fewer for each micro-batch
  EXPECT_NEAR(bytes_of("zero-infinity").first, 4 * 4 + 16 - 4 * 2 * head, 0.01);  // 4 M + 16
  EXPECT_NEAR(bytes_of("zero-infinity").second, 18, 0.01);
  EXPECT_NEAR(bytes_of("zero-infinity-optimizer").first, 16, 0.01);
  EXPECT_NEAR(bytes_of("greedysnake").first, 4 + 12 - 2 * head, 0.01);
  EXPECT_NEAR(bytes_of("greedysnake").second, 14, 0.01);
  EXPECT_NEAR(bytes_of("lohan").second, 14, 0.01);
  EXPECT_FALSE(find_rules("zero-infinty").ok());
}

TEST(Rules, UpdateEveryParameterOnce) {
  PlanInput input = make_input(make_transformer({4, 8'192, 40'960, 8'192}));
  double parameters = 0;
  for (const UnitInfo& unit : input.model.units) parameters += static_cast<double>(unit.flat_elements);
  Result<Machine> machine = machine_for(example("workstation-4090-1nvme.json"), input, {});
  ASSERT_TRUE(machine.ok());
  machine->rates.update_seconds_per_element = 1;  // nothing else counts
  machine->rates.memory_bytes_per_s = 0;
  for (const Rules& rules : known_rules()) {
    const Result<Comparison> comparison = simulate_rules(rules, input, *machine);
    ASSERT_TRUE(comparison.ok()) << rules.name;
    EXPECT_NEAR(comparison->step_seconds / parameters, 1, 1e-4) << rules.name;
  }
}

// One queue serves both directions, so the next unit's weights must be in it before this unit's update.
TEST(Rules, UpdateBesideTheComputationOfTheNextUnit) {
  PlanInput input = make_input(make_transformer({16, 8'192, 819'200, 8'192}));
  for (UnitInfo& unit : input.model.units) unit.forward_flops = 1e12;
  const Result<Machine> machine = machine_for(example("workstation-4090-4nvme.json"), input, {});
  ASSERT_TRUE(machine.ok());
  double products = 0;
  for (std::size_t u = 0; u < input.model.units.size(); ++u)
    products += 2 * machine->rates.forward_seconds[u] + machine->rates.backward_seconds[u];
  const Comparison hidden = *simulate_rules(*find_rules("lohan"), input, *machine);
  EXPECT_LT(hidden.step_seconds, 1.02 * products);
}

TEST(Rules, AreSlowerWhereTheyWaitMore) {
  PlanInput input = make_input(make_transformer({8, 8'192, 819'200, 8'192}));
  input.micro_batches = 8;
  for (UnitInfo& unit : input.model.units) unit.forward_flops = 1e10;
  const Result<Machine> machine = machine_for(example("workstation-4090-1nvme.json"), input, {});
  ASSERT_TRUE(machine.ok());
  const double horizontal = simulate_rules(*find_rules("zero-infinity"), input, *machine)->step_seconds;
  const double vertical = simulate_rules(*find_rules("greedysnake"), input, *machine)->step_seconds;
  EXPECT_LT(vertical, horizontal);
}

}  // namespace
}  // namespace headrace::runtime
