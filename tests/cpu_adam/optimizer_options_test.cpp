// SPDX-License-Identifier: Apache-2.0
// Options that the golden values do not cover (dampening, lr decay, floors, other betas), against stored results of
// torch.optim.
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "whole_tensor_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

OptimizerHyper read_hyper(OptimizerKind kind, const nlohmann::json& values) {
  OptimizerHyper h = default_hyper(kind);
  h.weight_decay = values.value("weight_decay", 0.0);
  h.lr = values.value("lr", h.lr);
  h.beta1 = values.value("beta1", h.beta1);
  h.beta2 = values.value("beta2", h.beta2);
  h.eps = values.value("eps", h.eps);
  h.momentum = values.value("momentum", h.momentum);
  h.dampening = values.value("dampening", h.dampening);
  h.nesterov = values.value("nesterov", h.nesterov);
  h.lr_decay = values.value("lr_decay", h.lr_decay);
  h.eps1 = values.value("eps1", h.eps1);
  h.eps2 = values.value("eps2", h.eps2);
  h.beta2_decay = values.value("beta2_decay", h.beta2_decay);
  h.clip_threshold = values.value("clip_threshold", h.clip_threshold);
  h.muon_scale = values.value("muon_scale", 0) == 0 ? MuonScale::kKellerJordan : MuonScale::kMatchRmsAdamW;
  return h;
}

// What an update of this kind may be away from torch's after all steps.
double bound_of(OptimizerKind kind, const OptimizerHyper& h, std::int64_t steps,
                const std::vector<std::int64_t>& shape) {
  if (kind != OptimizerKind::kMuon) return 5e-6;
  // torch's Newton-Schulz steps are in bf16: a few hundredths of an entry of the update, which are at most about one.
  return 0.03 * static_cast<double>(steps) * h.lr * muon_scale_of(h.muon_scale, shape[0], shape[1]);
}

void run_case(const nlohmann::json& c, Kind weights, Target target, Worst& worst) {
  const OptimizerKind kind = parse_optimizer(c.at("optimizer").get<std::string>()).value();
  const auto shape = c.at("shape").get<std::vector<std::int64_t>>();
  const auto param = c.at("param").get<std::vector<float>>();
  const auto result = c.at("result").get<std::vector<double>>();
  OptimizerHyper hyper = read_hyper(kind, c.at("hyper"));
  TensorState state(weights, shape.size() == 1 ? 1 : shape[0], shape.back(), shape.size() == 1);
  for (std::size_t i = 0; i < param.size(); ++i) state.state.set_master(static_cast<std::int64_t>(i), param[i]);
  Gradient gradient(DType::kFp32, state.elements(), 0);
  const ParallelOptimizer workers(2, target);
  for (const auto& values : c.at("grads")) {
    for (std::size_t i = 0; i < param.size(); ++i) gradient.set(static_cast<std::int64_t>(i), values[i].get<float>());
    const Result<void> updated = state.update(kind, workers, gradient, hyper);
    ASSERT_TRUE(updated.ok()) << updated.error().to_string();
    ++hyper.optimizer_step;
  }
  const double bound = bound_of(kind, hyper, hyper.optimizer_step - 1, shape);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double error = std::abs(static_cast<double>(state.state.master_at(static_cast<std::int64_t>(i))) - result[i]);
    const std::string where = c.at("name").get<std::string>() + " " + kind_name(weights) + " " + target_name(target) +
                              " i=" + std::to_string(i);
    worst.see(error, bound, result[i], where);
    ASSERT_LE(error, bound) << where << " want " << result[i];
  }
}

TEST(OptimizerOptions, results_of_torch_are_met_by_every_target_and_format) {
  const char* folder = std::getenv("HEADRACE_REFERENCE");
  ASSERT_NE(folder, nullptr) << "HEADRACE_REFERENCE names the folder of the reference files";
  std::ifstream in(std::string(folder) + "/optimizer_options.json");
  const nlohmann::json file = nlohmann::json::parse(in, nullptr, false);
  ASSERT_TRUE(file.is_object());
  ASSERT_EQ(file.at("cases").size(), 11);
  for (const auto& c : file.at("cases")) {
    Worst worst(c.at("name").get<std::string>());
    for (const Target target : targets()) {
      for (const Kind weights : kAllKinds) run_case(c, weights, target, worst);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
