// SPDX-License-Identifier: Apache-2.0
#include <cpu_adam/adamw.h>

#include <cmath>
#include <cstdio>
#include <vector>

// One step of AdamW from zero moments moves every weight by lr against the sign of its gradient.
int main() {
  std::vector<float> weights(1000, 1.0F);
  std::vector<float> exp_avg(weights.size());
  std::vector<float> exp_avg_sq(weights.size());
  const std::vector<float> gradient(weights.size(), 0.5F);
  headrace::cpu_adam::AdamWArrays arrays;
  arrays.weights = weights.data();
  arrays.weights_dtype = headrace::DType::kFp32;
  arrays.exp_avg = exp_avg.data();
  arrays.exp_avg_sq = exp_avg_sq.data();
  arrays.gradient = gradient.data();
  arrays.elements = static_cast<std::int64_t>(weights.size());
  const headrace::cpu_adam::ParallelUpdater updater(2);
  updater.update(arrays, headrace::cpu_adam::StateFormat::kFp32, {});
  for (const float weight : weights) {
    if (std::abs(weight - 0.999F) > 1e-6F) return 1;
  }
  std::printf("target %s: every weight moved by the learning rate\n",
              headrace::cpu_adam::target_name(updater.target()));
}
