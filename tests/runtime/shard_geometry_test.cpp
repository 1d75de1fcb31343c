// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/shard_geometry.h"

#include <gtest/gtest.h>

#include "runtime/plan/compile.h"
#include "tests/runtime/plan_support.h"
#include "tests/runtime/store_support.h"

namespace headrace::runtime {
namespace {

using Kind = ShardGeometry::Kind;

TEST(ShardGeometry, ListsTheStreamsOfStateUnitByUnitWithTheirPayloads) {
  const PlanInput input = make_store_input();
  const ShardGeometry geometry = ShardGeometry::of_state(input, 2);
  ASSERT_EQ(geometry.streams().size(), 7U);  // three trained units twice, the frozen one's weights
  std::int64_t tiles = 0;
  for (UnitId unit = 0; unit < 4; ++unit)
    for (const StateStream stream : {StateStream::kWeights, StateStream::kOptimizer}) {
      const bool expected = unit < 3 || stream == StateStream::kWeights;
      ASSERT_EQ(geometry.has(unit, stream), expected) << unit;
      if (!expected) continue;
      const std::uint32_t index = geometry.stream_index(unit, stream);
      const ShardGeometry::Stream& info = geometry.streams()[index];
      EXPECT_EQ(info.unit, unit);
      EXPECT_EQ(info.stream, stream);
      EXPECT_EQ(info.tiles, num_tiles(input, unit));
      EXPECT_EQ(info.kind, unit == 3 ? Kind::kFrozen : Kind::kTrained);
      EXPECT_EQ(info.slots, unit == 3 ? 1 : 2);
      for (std::int64_t tile = 0; tile < info.tiles; ++tile) {
        EXPECT_EQ(geometry.payload_bytes(index, tile), payload_bytes_of(input, {unit, stream, tile}));
        EXPECT_EQ(geometry.tile_index(index, tile), tiles++);
      }
    }
  EXPECT_EQ(geometry.total_tiles(), tiles);
  EXPECT_FALSE(geometry.has(0, StateStream::kGradient));
  EXPECT_FALSE(geometry.has(4, StateStream::kWeights));
}

TEST(ShardGeometry, KnownSizesByHand) {
  const PlanInput input = make_store_input();  // bf16 weights, split: 2 + 2 + 4 + 4 bytes an element
  const ShardGeometry geometry = ShardGeometry::of_state(input, 2);
  const std::uint32_t weights = geometry.stream_index(2, StateStream::kWeights);
  const std::uint32_t optimizer = geometry.stream_index(2, StateStream::kOptimizer);
  // 8257 elements lie in 8320 of the flat space: two tiles of 4096 and one of 128.
  EXPECT_EQ(geometry.streams()[weights].tiles, 3);
  EXPECT_EQ(geometry.payload_bytes(weights, 0), 4096 * 2);
  EXPECT_EQ(geometry.payload_bytes(weights, 2), 128 * 2);
  EXPECT_EQ(geometry.payload_bytes(optimizer, 1), 4096 * 10);
  EXPECT_EQ(geometry.payload_bytes(optimizer, 2), 128 * 10);
}

TEST(ShardGeometry, KeepsOnlyWhatIsAtHomeOnNvme) {
  PlanInput input = make_store_input();
  input.optimizer_home = Home::kHost;
  const ShardGeometry weights = ShardGeometry::of_state(input, 2);
  EXPECT_EQ(weights.streams().size(), 4U);
  EXPECT_TRUE(weights.has(3, StateStream::kWeights));
  EXPECT_FALSE(weights.has(0, StateStream::kOptimizer));
  input.weights_home = Home::kHost;
  const ShardGeometry none = ShardGeometry::of_state(input, 2);
  EXPECT_TRUE(none.streams().empty());
  EXPECT_EQ(none.total_tiles(), 0);
}

TEST(ShardGeometry, OneSlotAsTheSettingAsks) {
  const ShardGeometry geometry = ShardGeometry::of_state(make_store_input(), 1);
  for (const ShardGeometry::Stream& stream : geometry.streams()) EXPECT_EQ(stream.slots, 1);
}

TEST(ShardGeometry, TheVolumeGetsTheStreamsInTheirOrder) {
  const ShardGeometry geometry = ShardGeometry::of_state(make_store_input(), 2);
  const io::VolumeGeometry volume = geometry.volume_geometry(1234);
  EXPECT_EQ(volume.record_payload_bytes, 1234);
  ASSERT_EQ(volume.streams.size(), geometry.streams().size());
  for (std::size_t i = 0; i < volume.streams.size(); ++i) {
    EXPECT_EQ(volume.streams[i].stream, i);
    EXPECT_EQ(volume.streams[i].tiles, geometry.streams()[i].tiles);
    EXPECT_EQ(volume.streams[i].tile_payload_bytes, geometry.streams()[i].tile_payload_bytes);
    EXPECT_EQ(volume.streams[i].last_tile_payload_bytes, geometry.streams()[i].last_tile_payload_bytes);
    EXPECT_EQ(volume.streams[i].slots, geometry.streams()[i].slots);
  }
}

TEST(ShardGeometry, TheSpillHasTransientStreamsOfOneSlotForGradientsAndActivations) {
  PlanInput input = make_input(make_transformer({}));
  input.micro_batches = 4;
  input.group_size = 3;
  input.host_budget = smallest_host_budget(input);
  const auto plan = compile_plan(input);
  ASSERT_TRUE(plan.ok()) << text_of(plan);
  const ShardGeometry geometry = ShardGeometry::of_spill(*plan);
  std::size_t spilled = 0;
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    EXPECT_EQ(geometry.has(unit, StateStream::kGradient), plan->gradient_spilled[static_cast<std::size_t>(unit)]);
    if (!geometry.has(unit, StateStream::kGradient)) continue;
    ++spilled;
    const std::uint32_t index = geometry.stream_index(unit, StateStream::kGradient);
    const ShardGeometry::Stream& stream = geometry.streams()[index];
    EXPECT_EQ(stream.kind, Kind::kTransient);
    EXPECT_EQ(stream.slots, 1);
    EXPECT_EQ(geometry.payload_bytes(index, 0), tile_length(input, unit, 0) * dtype_bytes(input.gradient_dtype));
  }
  EXPECT_GT(spilled, 0U);  // the smallest budget has no room for all gradients …
  std::size_t outputs = 0;
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    const bool leaves = plan->boundary_tier[static_cast<std::size_t>(unit)] == Tier::kNvme;
    EXPECT_EQ(geometry.has(unit, StateStream::kBoundary), leaves);
    EXPECT_FALSE(geometry.has(unit, StateStream::kSaved));
    if (!leaves) continue;
    ++outputs;
    const std::uint32_t index = geometry.stream_index(unit, StateStream::kBoundary);
    EXPECT_EQ(geometry.streams()[index].tiles, 3);  // of a group
    EXPECT_EQ(geometry.streams()[index].slots, 1);
    EXPECT_EQ(geometry.streams()[index].kind, Kind::kTransient);
    EXPECT_EQ(geometry.payload_bytes(index, 2), 8'192);
  }
  EXPECT_GT(outputs, 0U);  // … nor for all outputs of units
  EXPECT_EQ(spilled + outputs, geometry.streams().size());
}

}  // namespace
}  // namespace headrace::runtime
