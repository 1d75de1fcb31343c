// SPDX-License-Identifier: Apache-2.0
// A plan and its bound in words: the table of `headrace plan`, also the head of a run.
#pragma once

#include <string>

#include "models/trainer/setup.h"
#include "runtime/plan/compile.h"

namespace headrace::cli {

[[nodiscard]] std::int64_t parameters_of(const runtime::Plan& plan);  // elements of all tensors, each counted once
[[nodiscard]] std::string plan_text(const runtime::Plan& plan, const models::TrainingSetup& setup,
                                    const std::string& storage);
[[nodiscard]] std::string bound_text(const runtime::Bound& bound, const runtime::Plan& plan,
                                     const models::TrainingSetup& setup);
[[nodiscard]] std::string bound_text(const runtime::Bound& bound, const runtime::Plan& plan, double tokens);
// Of all ranks.
[[nodiscard]] double tokens_per_step(const runtime::Plan& plan, int world_size);
struct Prediction;  // plan_predict.h
// `prediction` is null where no rates are known.
[[nodiscard]] std::string plan_json(const runtime::Plan& plan, const models::TrainingSetup& setup,
                                    const Prediction* prediction);
// The document of a plan that does not fit.
[[nodiscard]] std::string misfit_json(const Error& error);

}  // namespace headrace::cli
