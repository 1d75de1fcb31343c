// SPDX-License-Identifier: Apache-2.0
// Comparing fp32 results with a reference in units of the last place, for tests of kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace headrace::kernels {

using Values = std::vector<float>;

inline Values random_values(std::uint64_t seed, std::int64_t count, float deviation = 1.0F, float mean = 0.0F) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(mean, deviation);
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

struct WorstUlp {
  double ulps = 0;
  std::size_t index = 0;
  float got = 0, want = 0;
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out.precision(9);
    out << "worst error " << ulps << " ULP at [" << index << "]: got " << got << ", want " << want;
    return out.str();
  }
};

// Errors in ULPs of the larger of |want| and `scale`: results that cancel are judged by the size of what was added.
inline WorstUlp worst_ulp(const Values& got, const Values& want, float scale = 0.0F) {
  WorstUlp worst;
  if (got.size() != want.size()) worst.ulps = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const float size = std::max({std::abs(want[i]), scale, std::numeric_limits<float>::min()});
    const double unit = std::ldexp(1.0, std::ilogb(size) - 23);
    const double ulps = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) / unit;
    if (!(ulps <= worst.ulps)) worst = {ulps, i, got[i], want[i]};
  }
  return worst;
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace headrace::kernels
