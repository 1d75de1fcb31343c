// SPDX-License-Identifier: Apache-2.0
// Fills the optimizer table of one SIMD target; included last inside that target's anonymous namespace.

template <class Rule, MasterKind kMaster>
constexpr void fill_gradients(OptimizerFn (&row)[kGradientKinds]) noexcept {
  row[0] = update_elements<Rule, kMaster, GradientKind::kFp32>;
  row[1] = update_elements<Rule, kMaster, GradientKind::kBf16>;
  row[2] = update_elements<Rule, kMaster, GradientKind::kFp16>;
}

template <class Rule>
constexpr void fill_rule(OptimizerFn (&rule)[kMasterKinds][kGradientKinds]) noexcept {
  fill_gradients<Rule, MasterKind::kWeights>(rule[0]);
  fill_gradients<Rule, MasterKind::kBesideBf16>(rule[1]);
  fill_gradients<Rule, MasterKind::kBesideFp16>(rule[2]);
  fill_gradients<Rule, MasterKind::kSplit>(rule[3]);
}

constexpr OptimizerTable make_optimizer_table() noexcept {
  OptimizerTable table = {};
  fill_rule<AdamRule>(table.update[0]);
  fill_rule<LionRule>(table.update[1]);
  fill_rule<AdagradRule>(table.update[2]);
  fill_rule<MomentumRule>(table.update[3]);
  fill_rule<StepRule>(table.update[4]);
  table.measure[0] = measure_chunk<GradientKind::kFp32>;
  table.measure[1] = measure_chunk<GradientKind::kBf16>;
  table.measure[2] = measure_chunk<GradientKind::kFp16>;
  return table;
}
