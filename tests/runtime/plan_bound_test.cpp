// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plan_support.h"

namespace headrace::runtime {
namespace {

Rates rates_for(const PlanInput& input) {
  Rates rates;
  rates.forward_seconds.assign(input.model.units.size(), 1.0);
  rates.backward_seconds.assign(input.model.units.size(), 2.0);
  rates.update_seconds_per_element = 1e-5;
  rates.gradient_out_seconds_per_element = 1e-6;
  rates.copy_bytes_per_s = 1e6;
  rates.read_bytes_per_s = 1e6;
  rates.write_bytes_per_s = 5e5;
  rates.mixed_bytes_per_s = 8e5;
  rates.io_cpu_seconds_per_byte = 1e-7;
  rates.cores = 2;
  return rates;
}

PlanInput streamed_input() {
  PlanInput input = make_input(make_transformer({2, 8'192, 8'192, 8'192}));
  input.cache = false;
  input.micro_batches = 2;
  input.activations = ActivationPolicy::kRecompute;
  return input;
}

TEST(BoundOf, AddsUpTheWorkOfEachResource) {
  const PlanInput input = streamed_input();
  const Result<Plan> plan = compile_plan(input);
  ASSERT_TRUE(plan.ok());
  const Bound bound = bound_of(*plan, rates_for(input));
  // 3 forward units, 4 backward units, 2 of them computed again, 2 micro-batches each.
  EXPECT_DOUBLE_EQ(bound.compute_seconds, 2 * (3 * 1.0 + 4 * 2.0 + 2 * 1.0));
  const double elements = 4 * 8'192;
  EXPECT_NEAR(bound.optimizer_seconds, elements * (1e-5 + 1e-6), 1e-9);  // one group: gradients leave once
  const double read = static_cast<double>(plan->read_bytes_per_step),
               written = static_cast<double>(plan->write_bytes_per_step);
  EXPECT_DOUBLE_EQ(bound.io_cpu_seconds, (read + written) * 1e-7 / 2);
  // Both at 4e5 until the writes are done, then the rest of the reads alone: faster than all of it at the mixed rate.
  ASSERT_GT(read, written);
  EXPECT_NEAR(bound.disk_seconds, std::max(written / 5e5, written / 4e5 + (read - written) / 1e6), 1e-12);
  EXPECT_STREQ(bound.resource(), "cores");
  EXPECT_DOUBLE_EQ(bound.seconds(), bound.cores_seconds);
}

TEST(BoundOf, TheDiskMixesOrTakesTurnsWhicheverIsFaster) {
  const PlanInput input = streamed_input();
  const Result<Plan> plan = compile_plan(input);
  ASSERT_TRUE(plan.ok());
  const double read = static_cast<double>(plan->read_bytes_per_step),
               written = static_cast<double>(plan->write_bytes_per_step);
  Rates rates = rates_for(input);
  rates.mixed_bytes_per_s = 2e5;
  EXPECT_DOUBLE_EQ(bound_of(*plan, rates).disk_seconds, read / 1e6 + written / 5e5);
  rates.mixed_bytes_per_s = 1.5e6;
  EXPECT_DOUBLE_EQ(bound_of(*plan, rates).disk_seconds, std::max(read / 1e6, written / 5e5));
}

TEST(BoundOf, TheDiskBoundsWhereItIsSlow) {
  const PlanInput input = streamed_input();
  const Result<Plan> plan = compile_plan(input);
  ASSERT_TRUE(plan.ok());
  Rates rates = rates_for(input);
  rates.read_bytes_per_s = 1e3;
  EXPECT_STREQ(bound_of(*plan, rates).resource(), "disk");
}

}  // namespace
}  // namespace headrace::runtime
