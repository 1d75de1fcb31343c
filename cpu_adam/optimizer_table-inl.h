// SPDX-License-Identifier: Apache-2.0
// Fills the optimizer table of one SIMD target; included last inside that target's anonymous namespace.

template <class Rule, WeightKind kWeights>
constexpr void fill_gradients(OptimizerFn (&row)[kGradientKinds]) noexcept {
  row[0] = update_elements<Rule, kWeights, GradientKind::kFp32>;
  row[1] = update_elements<Rule, kWeights, GradientKind::kBf16>;
  row[2] = update_elements<Rule, kWeights, GradientKind::kFp16>;
}

template <class Rule>
constexpr void fill_rule(OptimizerFn (&rule)[kMasterKinds][kGradientKinds]) noexcept {
  fill_gradients<Rule, WeightKind::kFp32>(rule[0]);
  fill_gradients<Rule, WeightKind::kBf16Master>(rule[1]);
  fill_gradients<Rule, WeightKind::kFp16Master>(rule[2]);
  fill_gradients<Rule, WeightKind::kSplit>(rule[3]);
}

template <GradientKind kGradient, int kIndex>
constexpr void fill_passes(OptimizerTable& table) noexcept {
  table.measure[kIndex] = measure_chunk<kGradient>;
  table.square_row[kIndex] = square_row<kGradient>;
  table.factored_direction[kIndex] = factored_direction<kGradient>;
  table.variance_direction[kIndex] = variance_direction<kGradient>;
  table.momentum_update[kIndex] = momentum_update<kGradient>;
}

constexpr OptimizerTable make_optimizer_table() noexcept {
  OptimizerTable table = {};
  fill_rule<AdamRule>(table.update[0]);
  fill_rule<LionRule>(table.update[1]);
  fill_rule<AdagradRule>(table.update[2]);
  fill_rule<MomentumRule>(table.update[3]);
  fill_rule<StepRule>(table.update[4]);
  fill_passes<GradientKind::kFp32, 0>(table);
  fill_passes<GradientKind::kBf16, 1>(table);
  fill_passes<GradientKind::kFp16, 2>(table);
  table.master_squares[0] = master_squares<WeightKind::kFp32>;
  table.master_squares[1] = master_squares<WeightKind::kBf16Master>;
  table.master_squares[2] = master_squares<WeightKind::kFp16Master>;
  table.master_squares[3] = master_squares<WeightKind::kSplit>;
  return table;
}
