// SPDX-License-Identifier: Apache-2.0
#include "io/latency.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace headrace::io {
namespace {

TEST(LatencyHistogram, PercentilesAreThoseOfTheSortedTimesWithinOneBucket) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> times(std::log(2e6), 1.5);
  LatencyHistogram histogram;
  std::vector<std::int64_t> all;
  for (int i = 0; i < 20'000; ++i) {
    all.push_back(static_cast<std::int64_t>(times(random)));
    histogram.add(all.back());
  }
  std::sort(all.begin(), all.end());
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(all.size()))) - 1;
    const std::int64_t exact = all[rank];
    EXPECT_GE(histogram.percentile_ns(share), exact) << share;
    EXPECT_LE(histogram.percentile_ns(share), exact + exact / 64 + 1) << share;
  }
  EXPECT_EQ(histogram.count(), 20'000);
}

TEST(LatencyHistogram, EveryTimeFromNothingToHoursHasABucket) {
  for (std::int64_t ns = 0; ns < 5000; ++ns) {
    LatencyHistogram histogram;
    histogram.add(ns);
    EXPECT_GE(histogram.percentile_ns(0.5), ns);
    EXPECT_LE(histogram.percentile_ns(0.5), ns + ns / 64);
  }
  for (int power = 6; power < 41; ++power) {
    LatencyHistogram histogram;
    const std::int64_t ns = (std::int64_t{1} << power) - 1;
    histogram.add(ns);
    EXPECT_EQ(histogram.percentile_ns(0.5), ns) << power;
  }
  LatencyHistogram histogram;
  histogram.add(-5);
  histogram.add(std::int64_t{1} << 62);
  EXPECT_EQ(histogram.percentile_ns(0.5), 0);
  EXPECT_GT(histogram.percentile_ns(1.0), std::int64_t{1} << 40);
}

TEST(LatencyHistogram, DifferencesAndSumsCountWhatTheyShould) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile_ns(0.99), 0);
  EXPECT_EQ(histogram.mean_ns(), 0);
  histogram.add(100);
  const LatencyHistogram earlier = histogram;
  histogram.add(1000);
  histogram.add(3000);
  const LatencyHistogram later = histogram.since(earlier);
  EXPECT_EQ(later.count(), 2);
  EXPECT_EQ(later.mean_ns(), 2000);
  LatencyHistogram both = earlier;
  both.merge(later);
  EXPECT_EQ(both.count(), 3);
  EXPECT_EQ(both.percentile_ns(1.0), histogram.percentile_ns(1.0));
}

}  // namespace
}  // namespace headrace::io
