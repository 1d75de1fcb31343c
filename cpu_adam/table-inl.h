// SPDX-License-Identifier: Apache-2.0
// Fills the function table of one SIMD target; included last inside that target's anonymous namespace.

template <WeightKind kWeights>
constexpr void fill_adamw(AdamWFn (&row)[kGradientKinds]) noexcept {
  row[0] = adamw_span<kWeights, GradientKind::kFp32>;
  row[1] = adamw_span<kWeights, GradientKind::kBf16>;
  row[2] = adamw_span<kWeights, GradientKind::kFp16>;
}

template <GradientKind kKind>
constexpr void fill_arrive(ArriveFn (&row)[2]) noexcept {
  row[0] = arrive_chunk<kKind, false>;
  row[1] = arrive_chunk<kKind, true>;
}

constexpr KernelTable make_table() noexcept {
  KernelTable table = {};
  fill_adamw<WeightKind::kFp32>(table.adamw[0]);
  fill_adamw<WeightKind::kBf16Master>(table.adamw[1]);
  fill_adamw<WeightKind::kFp16Master>(table.adamw[2]);
  fill_adamw<WeightKind::kSplit>(table.adamw[3]);
  table.adamw[4][0] = split_bf16_span<GradientKind::kFp32>;
  table.adamw[4][1] = split_bf16_span<GradientKind::kBf16>;
  table.adamw[4][2] = split_bf16_span<GradientKind::kFp16>;
  table.adamw[5][0] = compact_span<GradientKind::kFp32>;
  table.adamw[5][1] = compact_span<GradientKind::kBf16>;
  table.adamw[5][2] = compact_span<GradientKind::kFp16>;
  fill_arrive<GradientKind::kFp32>(table.arrive[0]);
  fill_arrive<GradientKind::kBf16>(table.arrive[1]);
  fill_arrive<GradientKind::kFp16>(table.arrive[2]);
  return table;
}
