// SPDX-License-Identifier: Apache-2.0
// Linear layers of a unit: where weight and bias stand in its flat space, and the three products that training makes of
// them. Used by the units of models/ only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/parallel.h"
#include "runtime/unit.h"

namespace headrace::models {

// Hands out runs of a buffer at 64-byte boundaries. With a null base it only counts, so that the same code gives the
// size and the places.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  [[nodiscard]] float* floats(std::int64_t elements) {
    return reinterpret_cast<float*>(bytes(elements * Bytes{sizeof(float)}));
  }
  [[nodiscard]] std::byte* bytes(Bytes count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count, 64);
    return at;
  }
  // Both carve from the same place: what the first hands out is dead before the second's is written.
  template <class First, class Second>
  void overlay(const First& first, const Second& second) {
    Carver one = *this;
    Carver other = *this;
    first(one);
    second(other);
    used_ = std::max(one.used_, other.used_);
  }
  [[nodiscard]] Bytes used() const noexcept { return used_; }

 private:
  std::byte* base_;
  Bytes used_ = 0;
};

// A unit's weights and its gradient, both as flat spaces.
struct FlatWeights {
  const std::byte* base = nullptr;
  DType dtype = DType::kFp32;
  [[nodiscard]] const void* at(std::int64_t offset) const { return base + offset * dtype_bytes(dtype); }
};
struct FlatGradient {
  float* base = nullptr;
  bool accumulate = false;
};

enum class Stored : std::uint8_t { kOutIn, kInOut };  // Llama's Linear; GPT-2's Conv1D
inline constexpr std::int64_t kNone = -1;

struct LinearSlots {
  std::int64_t in = 0, out = 0;
  Stored stored = Stored::kOutIn;
  std::int64_t weight = kNone;  // offset in the flat space
  std::int64_t bias = kNone;
};
struct NormSlots {
  std::int64_t weight = kNone;
  std::int64_t bias = kNone;
  [[nodiscard]] kernels::NormParameters of(const FlatWeights& weights) const {
    return {weights.at(weight), bias == kNone ? nullptr : weights.at(bias), weights.dtype};
  }
};

struct Rows {
  const kernels::Parallel& parallel;
  std::int64_t count = 0;
};
// y [rows, out] = (accumulate ? y : 0) + x · W + bias
void linear_forward(const Rows& rows, const LinearSlots& linear, const FlatWeights& weights, const float* x, float* y,
                    bool accumulate);
// d_x [rows, in] = (accumulate ? d_x : 0) + d_y · Wᵀ
void linear_input_gradient(const Rows& rows, const LinearSlots& linear, const FlatWeights& weights, const float* d_y,
                           float* d_x, bool accumulate);
// The weight's and bias's gradients.
void linear_weight_gradient(const Rows& rows, const LinearSlots& linear, const FlatGradient& gradient, const float* d_y,
                            const float* x);

// Zeros what lies between and behind the tensors of a flat space.
void zero_padding(const kernels::Parallel& parallel, const runtime::UnitInfo& unit, float* gradient);

// Tensors of a unit being listed; offsets are known after finish().
class UnitBuilder {
 public:
  explicit UnitBuilder(std::string name) { unit_.name = std::move(name); }
  void matrix(std::string name, std::int64_t rows, std::int64_t columns, double deviation);
  // A table of vectors, or the head's: see TensorInfo::embedding.
  void embedding(std::string name, std::int64_t rows, std::int64_t columns, double deviation);
  void vector(std::string name, std::int64_t elements, runtime::InitRule::Kind kind);
  [[nodiscard]] runtime::UnitInfo finish();

 private:
  runtime::UnitInfo unit_;
};
// Offset of the tensor whose name ends with ".`suffix`", or kNone.
[[nodiscard]] std::int64_t offset_of(const runtime::UnitInfo& unit, const std::string& suffix);

}  // namespace headrace::models
