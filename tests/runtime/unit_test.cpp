// SPDX-License-Identifier: Apache-2.0
#include "runtime/unit.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace headrace::runtime {
namespace {

TensorInfo tensor(std::vector<std::int64_t> shape) {
  TensorInfo info;
  info.shape = std::move(shape);
  return info;
}

TEST(LayOut, starts_every_tensor_at_the_next_multiple_of_the_alignment) {
  UnitInfo unit;
  unit.tensors = {tensor({3}), tensor({8, 8}), tensor({5, 13}), tensor({})};
  lay_out(unit);
  EXPECT_EQ(unit.tensors[0].elements, 3);
  EXPECT_EQ(unit.tensors[0].offset, 0);
  EXPECT_EQ(unit.tensors[1].elements, 64);
  EXPECT_EQ(unit.tensors[1].offset, 64);
  EXPECT_EQ(unit.tensors[2].elements, 65);
  EXPECT_EQ(unit.tensors[2].offset, 128);
  EXPECT_EQ(unit.tensors[3].elements, 1) << "an empty shape is a scalar";
  EXPECT_EQ(unit.tensors[3].offset, 256);
  EXPECT_EQ(unit.flat_elements, 320);
}

TEST(LayOut, gives_an_empty_unit_an_empty_flat_space) {
  UnitInfo unit;
  lay_out(unit);
  EXPECT_EQ(unit.flat_elements, 0);
}

TEST(LayOut, keeps_sizes_beyond_32_bits) {
  UnitInfo unit;
  unit.tensors = {tensor({1 << 20, 1 << 13}), tensor({1})};
  lay_out(unit);
  EXPECT_EQ(unit.tensors[1].offset, std::int64_t{1} << 33);
  EXPECT_EQ(unit.flat_elements, (std::int64_t{1} << 33) + 64);
}

TEST(LayOutDeathTest, refuses_a_tensor_whose_elements_overflow) {
  UnitInfo unit;
  unit.tensors = {tensor({std::int64_t{1} << 40, std::int64_t{1} << 40})};
  EXPECT_DEATH(lay_out(unit), "fit 64 bits");
}

TEST(PartitionRange, cuts_the_flat_space_into_adjacent_ranges_of_one_padded_length) {
  for (const std::int64_t flat : {std::int64_t{0}, std::int64_t{64}, std::int64_t{320}, std::int64_t{64 * 1001}}) {
    for (const int world : {1, 2, 3, 7, 64}) {
      std::int64_t next = 0;
      const std::int64_t padded = partition_range(flat, 0, world).padded_elements;
      EXPECT_EQ(padded % kTensorAlignmentElements, 0);
      EXPECT_GE(padded * world, flat);
      for (int rank = 0; rank < world; ++rank) {
        const PartitionRange range = partition_range(flat, rank, world);
        EXPECT_EQ(range.begin, next) << flat << " elements, rank " << rank << " of " << world;
        EXPECT_LE(range.end - range.begin, padded);
        EXPECT_EQ(range.padded_elements, padded);
        next = range.end;
      }
      EXPECT_EQ(next, flat);
    }
  }
}

TEST(PartitionRange, leaves_late_ranks_empty_when_there_are_more_ranks_than_aligned_runs) {
  const PartitionRange last = partition_range(64, 3, 4);
  EXPECT_EQ(last.begin, 64);
  EXPECT_EQ(last.end, 64);
  EXPECT_EQ(last.padded_elements, 64);
}

TEST(PartitionRange, gives_one_rank_everything) {
  const PartitionRange all = partition_range(320, 0, 1);
  EXPECT_EQ(all.begin, 0);
  EXPECT_EQ(all.end, 320);
  EXPECT_EQ(all.padded_elements, 320);
}

}  // namespace
}  // namespace headrace::runtime
