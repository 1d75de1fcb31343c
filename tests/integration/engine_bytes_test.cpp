// SPDX-License-Identifier: Apache-2.0
// Bytes that a step really moves to and from the disk, for each parameter, against the table of state formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "runtime/plan/compile.h"
#include "tests/core/temporary_folder.h"
#include "tests/integration/gradient_driver.h"

namespace headrace::runtime {
namespace {

using cpu_adam::StateFormat;

constexpr std::int64_t kBlockElements = std::int64_t{3} << 20;

UnitInfo unit_of(const std::string& name, std::int64_t elements, Bytes output) {
  UnitInfo unit;
  unit.name = name;
  TensorInfo tensor;
  tensor.name = name;
  tensor.shape = {elements};
  unit.tensors = {tensor};
  lay_out(unit);
  unit.output_bytes = output;
  return unit;
}

struct Case {
  StateFormat format;
  DType weights;
  double read, write;  // for a parameter and step: weights twice, then the state; state and weights
};

// Nothing stays in memory, weights are read for the forward and the backward pass, updates are made in the latter.
constexpr Case kTable[] = {{StateFormat::kFp32, DType::kBf16, 4 + 12, 14},
                           {StateFormat::kSplit, DType::kBf16, 4 + 10, 12},
                           {StateFormat::kSplitBf16, DType::kBf16, 4 + 6, 8},
                           {StateFormat::kCompact, DType::kBf16, 4 + 3 + 1.0 / 32, 5 + 1.0 / 32},
                           {StateFormat::kFp32, DType::kFp32, 8 + 8, 12}};

Result<std::unique_ptr<Engine>> start(const Case& c, const std::string& folder) {
  PlanInput input;
  input.model.name = "blocks";
  input.model.tokens_per_micro_batch = 1;
  for (int i = 0; i < 3; ++i) input.model.units.push_back(unit_of("block" + std::to_string(i), kBlockElements, 4096));
  input.model.units.push_back(unit_of("loss", 64, 0));  // read once only: as small as can be
  input.model.units.back().fused_loss = true;
  input.weights_dtype = c.weights;
  input.gradient_dtype = DType::kBf16;
  input.state_format = c.format;
  input.update = UpdatePolicy::kInBackward;
  input.cache = false;
  input.tile_elements = std::int64_t{1} << 20;
  input.host_budget = kGiB;
  HEADRACE_TRY(Plan plan, compile_plan(input));
  HEADRACE_RETURN_IF_ERROR(check_plan(plan));
  EngineOptions options;
  options.nvme_paths = {folder};
  options.run_id = "test";
  options.threads = 2;
  HEADRACE_TRY(std::unique_ptr<Engine> engine, Engine::create(std::move(plan), options, StartMode::kFresh));
  HEADRACE_RETURN_IF_ERROR(
      engine->initialise([](const UnitInfo&, const TensorInfo&, std::int64_t, std::span<float> out) -> Result<void> {
        std::fill(out.begin(), out.end(), 0.5F);
        return {};
      }));
  HEADRACE_RETURN_IF_ERROR(engine->load_held());
  return engine;
}

TEST(EngineBytes, AStepMovesTheBytesOfTheTableForEachFormat) {
  const double parameters = 3.0 * static_cast<double>(kBlockElements);
  for (const Case& c : kTable) {
    SCOPED_TRACE(std::string(cpu_adam::state_format_name(c.format)) + ", " + dtype_name(c.weights) + " weights");
    const TemporaryFolder folder;
    auto engine = start(c, folder.path());
    ASSERT_TRUE(engine.ok()) << engine.error().to_string();
    for (std::uint64_t t = 1; t <= 2; ++t) {
      StepSettings settings;
      settings.step = t;
      settings.hyper.optimizer_step = static_cast<std::int64_t>(t);
      settings.samples_consumed = t;
      const auto outcome = drive_step(**engine, settings, [&](UnitId unit, float* gradient) {
        const UnitInfo& info = (*engine)->plan().input.model.units[static_cast<std::size_t>(unit)];
        std::fill_n(gradient, info.flat_elements, 0.01F);
      });
      ASSERT_TRUE(outcome.ok()) << outcome.error().to_string();
      ASSERT_FALSE(outcome->skipped);
      EXPECT_EQ(outcome->nvme_read_bytes, (*engine)->plan().read_bytes_per_step);
      const double read = static_cast<double>(outcome->nvme_read_bytes) / parameters;
      const double write = static_cast<double>(outcome->nvme_write_bytes) / parameters;
      EXPECT_NEAR(read, c.read, 0.01 * c.read);
      EXPECT_NEAR(write, c.write, 0.01 * c.write);
      if (t == 2)
        std::printf("%-10s %s weights: read %.3f (table %.3f), written %.3f (table %.3f) bytes per parameter\n",
                    cpu_adam::state_format_name(c.format), dtype_name(c.weights), read, c.read, write, c.write);
    }
  }
}

}  // namespace
}  // namespace headrace::runtime
