// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/embedding.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "numeric_support.h"

namespace headrace::kernels {
namespace {

constexpr EmbeddingShape kShape{.vocab = 37, .width = 301, .time = 13};
constexpr std::int64_t kRows = 5 * 13;

std::vector<std::int32_t> random_ids() {
  std::mt19937_64 generator(1);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < kRows; ++i) ids.push_back(static_cast<std::int32_t>(generator() % 9));  // many repeat
  ids[0] = 36;
  return ids;
}

TEST(Embedding, gathers_rows_and_adds_positions_exactly) {
  const auto ids = random_ids();
  const Values tokens = random_values(2, kShape.vocab * kShape.width);
  const Values positions = random_values(3, kShape.time * kShape.width);
  Values out(static_cast<std::size_t>(kRows * kShape.width));
  for (const bool with_positions : {false, true}) {
    embedding_forward(Parallel(2), kShape, {tokens.data(), with_positions ? positions.data() : nullptr, DType::kFp32},
                      ids, out.data());
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kShape.width; ++i) {
        float want = tokens[static_cast<std::size_t>(ids[static_cast<std::size_t>(row)] * kShape.width + i)];
        if (with_positions) want += positions[static_cast<std::size_t>(row % kShape.time * kShape.width + i)];
        ASSERT_EQ(out[static_cast<std::size_t>(row * kShape.width + i)], want) << row << ',' << i;
      }
    }
  }
}

TEST(Embedding, widens_16_bit_rows_exactly) {
  const auto ids = random_ids();
  const Values values = random_values(4, kShape.vocab * kShape.width);
  std::vector<std::uint16_t> halves;
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    halves.clear();
    for (const float v : values) halves.push_back(dtype == DType::kBf16 ? to_bf16(v).bits : to_fp16(v).bits);
    Values out(static_cast<std::size_t>(kRows * kShape.width));
    embedding_forward(Parallel(1), kShape, {halves.data(), nullptr, dtype}, ids, out.data());
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kShape.width; ++i) {
        const std::uint16_t bits =
            halves[static_cast<std::size_t>(ids[static_cast<std::size_t>(row)] * kShape.width + i)];
        const float want = dtype == DType::kBf16 ? to_fp32(Bf16{bits}) : to_fp32(Fp16{bits});
        ASSERT_EQ(out[static_cast<std::size_t>(row * kShape.width + i)], want);
      }
    }
  }
}

TEST(Embedding, scatters_gradients_of_repeated_tokens_in_order) {
  const auto ids = random_ids();
  const Values d_out = random_values(5, kRows * kShape.width);
  Values want_tokens = random_values(6, kShape.vocab * kShape.width);
  Values want_positions = random_values(7, kShape.time * kShape.width);
  Values one_tokens = want_tokens;
  Values one_positions = want_positions;
  Values two_tokens = want_tokens;
  Values two_positions = want_positions;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < kShape.width; ++i) {
      const float d = d_out[static_cast<std::size_t>(row * kShape.width + i)];
      want_tokens[static_cast<std::size_t>(ids[static_cast<std::size_t>(row)] * kShape.width + i)] += d;
      want_positions[static_cast<std::size_t>(row % kShape.time * kShape.width + i)] += d;
    }
  }
  embedding_backward(Parallel(1), kShape, ids, d_out.data(), one_tokens.data(), one_positions.data());
  embedding_backward(Parallel(2), kShape, ids, d_out.data(), two_tokens.data(), two_positions.data());
  EXPECT_TRUE(same_bits(one_tokens, want_tokens) && same_bits(one_positions, want_positions));
  EXPECT_TRUE(same_bits(two_tokens, want_tokens) && same_bits(two_positions, want_positions));
  Values tokens_only = random_values(6, kShape.vocab * kShape.width);
  embedding_backward(Parallel(2), kShape, ids, d_out.data(), tokens_only.data(), nullptr);
  EXPECT_TRUE(same_bits(tokens_only, want_tokens));
}

TEST(EmbeddingDeathTest, refuses_ids_outside_the_vocabulary) {
  std::vector<std::int32_t> ids = {-1};
  const Values tokens(static_cast<std::size_t>(kShape.vocab * kShape.width));
  Values out(static_cast<std::size_t>(kShape.width));
  const EmbeddingTables tables{tokens.data(), nullptr, DType::kFp32};
  EXPECT_DEATH(embedding_forward(Parallel(1), kShape, tables, ids, out.data()), "vocabulary");
}

}  // namespace
}  // namespace headrace::kernels
