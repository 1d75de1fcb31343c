// SPDX-License-Identifier: Apache-2.0
// How long requests were in the kernel, as a histogram of logarithmic buckets: what the queue counts and what
// `headrace profile` takes its percentiles from. Not thread-safe; copies are values.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace headrace::io {

class LatencyHistogram {
 public:
  void add(std::int64_t ns) noexcept {
    ++buckets_[bucket_of(ns)];
    ++count_;
    sum_ns_ += static_cast<double>(ns);
  }
  void merge(const LatencyHistogram& other) noexcept {
    for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    sum_ns_ += other.sum_ns_;
  }
  // What was added after `earlier`, a former copy of this histogram.
  [[nodiscard]] LatencyHistogram since(const LatencyHistogram& earlier) const noexcept {
    LatencyHistogram result = *this;
    for (std::size_t i = 0; i < kBuckets; ++i) result.buckets_[i] -= earlier.buckets_[i];
    result.count_ -= earlier.count_;
    result.sum_ns_ -= earlier.sum_ns_;
    return result;
  }

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] double mean_ns() const noexcept { return count_ > 0 ? sum_ns_ / static_cast<double>(count_) : 0; }
  // The smallest time that at least `share` (0 … 1) of the requests did not exceed, rounded up by at most 1/64; 0 when
  // there are none.
  [[nodiscard]] std::int64_t percentile_ns(double share) const noexcept {
    if (count_ == 0) return 0;
    const auto wanted = std::max<std::int64_t>(
        1, static_cast<std::int64_t>(std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(count_))));
    std::int64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += buckets_[i];
      if (seen >= wanted) return upper_edge(i);
    }
    return upper_edge(kBuckets - 1);
  }

 private:
  // Each power of two has 64 buckets; times below 64 ns are exact, times of more than 2^41 ns (37 minutes) share the
  // last one.
  static constexpr std::size_t kShift = 6;
  static constexpr std::size_t kPerOctave = std::size_t{1} << kShift;
  static constexpr std::size_t kOctaves = 36;
  static constexpr std::size_t kBuckets = kOctaves * kPerOctave;

  static std::size_t bucket_of(std::int64_t ns) noexcept {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
    if (value < kPerOctave) return static_cast<std::size_t>(value);
    const auto octave = static_cast<std::size_t>(std::bit_width(value)) - kShift;  // ≥ 1
    return std::min(kBuckets - 1, octave * kPerOctave + static_cast<std::size_t>(value >> (octave - 1)) - kPerOctave);
  }
  static std::int64_t upper_edge(std::size_t bucket) noexcept {
    const std::size_t octave = bucket / kPerOctave;
    if (octave == 0) return static_cast<std::int64_t>(bucket);
    const std::size_t within = bucket % kPerOctave + kPerOctave;
    return static_cast<std::int64_t>((within + 1) << (octave - 1)) - 1;
  }

  std::array<std::int64_t, kBuckets> buckets_{};
  std::int64_t count_ = 0;
  double sum_ns_ = 0;
};

}  // namespace headrace::io
