// SPDX-License-Identifier: Apache-2.0
// What the AdamW tests share: guarded arrays at chosen misalignments, a state of any format, and the fp64 truth.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "cpu_adam/adamw.h"

namespace headrace::cpu_adam::testing {

enum class Kind { kFp32, kBf16Master, kFp16Master, kSplit };
inline constexpr Kind kAllKinds[] = {Kind::kFp32, Kind::kBf16Master, Kind::kFp16Master, Kind::kSplit};
inline constexpr DType kAllDTypes[] = {DType::kFp32, DType::kBf16, DType::kFp16};
inline constexpr Target kAllTargets[] = {Target::kScalar, Target::kAvx2, Target::kAvx512, Target::kNeon};

inline const char* kind_name(Kind kind) {
  constexpr const char* kNames[] = {"fp32", "bf16+master", "fp16+master", "split"};
  return kNames[static_cast<int>(kind)];
}
inline DType weights_dtype(Kind kind) {
  if (kind == Kind::kFp32) return DType::kFp32;
  return kind == Kind::kFp16Master ? DType::kFp16 : DType::kBf16;
}
inline StateFormat format_of(Kind kind) { return kind == Kind::kSplit ? StateFormat::kSplit : StateFormat::kFp32; }

// The targets this CPU has; a missing one is named, so that its absence is seen.
inline std::vector<Target> targets() {
  std::vector<Target> present;
  for (const Target target : kAllTargets) {
    if (target_available(target)) {
      present.push_back(target);
    } else {
      std::printf("[  SKIPPED ] target %s: not on this CPU\n", target_name(target));
    }
  }
  return present;
}

// n elements that start `offset` elements behind a 64-byte boundary, with guards on both sides.
template <class T>
class GuardedArray {
 public:
  GuardedArray() = default;
  GuardedArray(std::int64_t n, std::int64_t offset) : n_(n) {
    constexpr std::size_t kLine = 64 / sizeof(T);
    storage_.assign(static_cast<std::size_t>(n + offset) + 4 * kLine, T{});
    std::memset(static_cast<void*>(storage_.data()), kGuard, storage_.size() * sizeof(T));
    const auto misaligned = reinterpret_cast<std::uintptr_t>(storage_.data()) % 64 / sizeof(T);
    begin_ = kLine + (kLine - misaligned) % kLine + static_cast<std::size_t>(offset);
    for (std::int64_t i = 0; i < n; ++i) (*this)[i] = T{};
  }
  T* data() { return storage_.data() + begin_; }
  T& operator[](std::int64_t i) { return storage_[begin_ + static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const { return storage_[begin_ + static_cast<std::size_t>(i)]; }
  [[nodiscard]] bool guards_intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(storage_.data());
    const std::size_t first = begin_ * sizeof(T);
    const std::size_t last = (begin_ + static_cast<std::size_t>(n_)) * sizeof(T);
    for (std::size_t i = 0; i < storage_.size() * sizeof(T); ++i) {
      if ((i < first || i >= last) && bytes[i] != kGuard) return false;
    }
    return true;
  }
  [[nodiscard]] bool same_bits(const GuardedArray& other) const {
    return n_ == other.n_ &&
           (n_ == 0 || std::memcmp(&(*this)[0], &other[0], static_cast<std::size_t>(n_) * sizeof(T)) == 0);
  }

 private:
  static constexpr unsigned char kGuard = 0xA5;
  std::vector<T> storage_ = std::vector<T>(1);
  std::size_t begin_ = 0;
  std::int64_t n_ = 0;
};

struct Gradient {
  Gradient(DType type, std::int64_t n, std::int64_t offset)
      : dtype(type), wide(type == DType::kFp32 ? n : 0, offset), half(type == DType::kFp32 ? 0 : n, offset) {}
  void set(std::int64_t i, float value) {
    if (dtype == DType::kFp32) wide[i] = value;
    if (dtype == DType::kBf16) half[i] = to_bf16(value).bits;
    if (dtype == DType::kFp16) half[i] = to_fp16(value).bits;
  }
  [[nodiscard]] float at(std::int64_t i) const {
    if (dtype == DType::kFp32) return wide[i];
    return dtype == DType::kBf16 ? to_fp32(Bf16{half[i]}) : to_fp32(Fp16{half[i]});
  }
  void* data() { return dtype == DType::kFp32 ? static_cast<void*>(wide.data()) : static_cast<void*>(half.data()); }
  DType dtype;
  GuardedArray<float> wide;
  GuardedArray<std::uint16_t> half;
};

// Weights, master and moments in one of the formats.
struct State {
  State(Kind k, std::int64_t n, std::int64_t offset)
      : kind(k),
        elements(n),
        wide(k == Kind::kFp32 ? n : 0, offset),
        half(k == Kind::kFp32 ? 0 : n, offset),
        master(k == Kind::kBf16Master || k == Kind::kFp16Master ? n : 0, offset),
        remainder(k == Kind::kSplit ? n : 0, offset),
        exp_avg(n, offset),
        exp_avg_sq(n, offset) {}

  void set_master(std::int64_t i, float value) {
    if (kind == Kind::kFp32) {
      wide[i] = value;
    } else if (kind == Kind::kSplit) {
      const SplitMaster split = split_master(value);
      half[i] = split.hi;
      remainder[i] = split.lo;
    } else {
      master[i] = value;
      half[i] = expected_weight(value);
    }
  }
  [[nodiscard]] float master_at(std::int64_t i) const {
    if (kind == Kind::kFp32) return wide[i];
    return kind == Kind::kSplit ? join_master({half[i], remainder[i]}) : master[i];
  }
  [[nodiscard]] std::uint16_t expected_weight(float value) const {
    return kind == Kind::kFp16Master ? to_fp16(value).bits : split_master(value).hi;
  }
  AdamWArrays arrays(Gradient& gradient) {
    AdamWArrays a;
    a.weights = kind == Kind::kFp32 ? static_cast<void*>(wide.data()) : static_cast<void*>(half.data());
    a.weights_dtype = weights_dtype(kind);
    if (kind == Kind::kBf16Master || kind == Kind::kFp16Master) a.master = master.data();
    if (kind == Kind::kSplit) a.remainder = remainder.data();
    a.exp_avg = exp_avg.data();
    a.exp_avg_sq = exp_avg_sq.data();
    a.gradient = gradient.data();
    a.gradient_dtype = gradient.dtype;
    a.elements = elements;
    return a;
  }
  [[nodiscard]] bool guards_intact() const {
    return wide.guards_intact() && half.guards_intact() && master.guards_intact() && remainder.guards_intact() &&
           exp_avg.guards_intact() && exp_avg_sq.guards_intact();
  }
  [[nodiscard]] bool same_bits(const State& o) const {
    return wide.same_bits(o.wide) && half.same_bits(o.half) && master.same_bits(o.master) &&
           remainder.same_bits(o.remainder) && exp_avg.same_bits(o.exp_avg) && exp_avg_sq.same_bits(o.exp_avg_sq);
  }

  Kind kind;
  std::int64_t elements;
  GuardedArray<float> wide;
  GuardedArray<std::uint16_t> half;
  GuardedArray<float> master;
  GuardedArray<std::int16_t> remainder;
  GuardedArray<float> exp_avg;
  GuardedArray<float> exp_avg_sq;
};

// Weights up to 4, gradients over five decades, a few exact zeros.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  float weight() { return static_cast<float>(normal_(engine_)); }
  float gradient() {
    if (uniform_(engine_) < 0.02) return 0.0F;
    return static_cast<float>(normal_(engine_) * std::pow(10.0, -5.0 * uniform_(engine_)));
  }
  double uniform(double low, double high) { return low + (high - low) * uniform_(engine_); }
  std::int64_t below(std::int64_t limit) { return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(engine_); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

// The formula of the header in fp64, with the hyper-parameters as doubles.
struct Truth {
  double p, m, v;
  void step(double gradient, const AdamWHyper& h) {
    const double g = gradient * static_cast<double>(h.gradient_scale);
    const auto t = static_cast<double>(h.optimizer_step);
    p *= 1.0 - h.lr * h.weight_decay;
    m = h.beta1 * m + (1.0 - h.beta1) * g;
    v = h.beta2 * v + (1.0 - h.beta2) * g * g;
    p -= h.lr / (1.0 - std::pow(h.beta1, t)) * m / (std::sqrt(v) / std::sqrt(1.0 - std::pow(h.beta2, t)) + h.eps);
  }
};

// Spacing of fp32 at |value|.
inline double ulp_of(double value) {
  const float magnitude = std::max(std::abs(static_cast<float>(value)), 0x1p-126F);
  return static_cast<double>(std::nextafter(magnitude, INFINITY)) - static_cast<double>(magnitude);
}

// NaNs of several payloads, infinities, zeros, subnormal and extreme numbers.
inline constexpr std::uint32_t kOddBits[] = {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0xFFFFFFFFU, 0x7FFFFFFFU,
                                             0x7F800000U, 0xFF800000U, 0x00000001U, 0x80000001U, 0x80000000U,
                                             0x007FFFFFU, 0x7F7FFFFFU, 0xFF7FFFFFU, 0x00800000U, 0x7E800000U};

inline float odd_value(Random& random) { return std::bit_cast<float>(kOddBits[random.below(std::ssize(kOddBits))]); }

inline void fill(State& state, Random& random, bool odd_values) {
  for (std::int64_t i = 0; i < state.elements; ++i) {
    state.set_master(i, random.weight());
    state.exp_avg[i] = random.gradient();
    state.exp_avg_sq[i] = std::abs(random.gradient());
    if (!odd_values) continue;
    if (random.below(8) == 0) state.set_master(i, odd_value(random));
    if (random.below(8) == 0) state.exp_avg[i] = odd_value(random);
    if (random.below(8) == 0) state.exp_avg_sq[i] = odd_value(random);
  }
}

inline void fill(Gradient& gradient, std::int64_t n, Random& random, bool odd_values) {
  for (std::int64_t i = 0; i < n; ++i) {
    gradient.set(i, random.gradient());
    if (!odd_values || random.below(8) != 0) continue;
    if (gradient.dtype == DType::kFp32) {
      gradient.wide[i] = odd_value(random);
    } else {
      gradient.half[i] = static_cast<std::uint16_t>(random.below(65536));
    }
  }
}

inline std::string first_difference_of(const State& a, const State& b) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  for (std::int64_t i = 0; i < a.elements; ++i) {
    if (bits(a.master_at(i)) != bits(b.master_at(i))) return "master at " + std::to_string(i);
    if (bits(a.exp_avg[i]) != bits(b.exp_avg[i])) return "first moment at " + std::to_string(i);
    if (bits(a.exp_avg_sq[i]) != bits(b.exp_avg_sq[i])) return "second moment at " + std::to_string(i);
  }
  return "weights only";
}

// The largest error seen and where; printed when it goes out of scope.
class Worst {
 public:
  explicit Worst(std::string name) : name_(std::move(name)) {}
  Worst(const Worst&) = delete;
  Worst& operator=(const Worst&) = delete;
  ~Worst() {
    std::printf("[ WORST    ] %s: %.3f of the bound, %.2f ulp, %s\n", name_.c_str(), fraction_, ulp_, where_.c_str());
  }
  void see(double error, double bound, double truth, const std::string& where) {
    const double fraction = bound > 0 ? error / bound : (error > 0 ? INFINITY : 0.0);
    if (!(fraction > fraction_)) return;
    fraction_ = fraction;
    ulp_ = error / ulp_of(truth);
    where_ = where;
  }

 private:
  std::string name_;
  std::string where_ = "no error";
  double fraction_ = 0;
  double ulp_ = 0;
};

}  // namespace headrace::cpu_adam::testing
