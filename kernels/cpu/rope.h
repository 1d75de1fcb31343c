// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al. 2021) in the half-split layout of Llama: element i of a head is paired with i +
// D/2. Angles are computed in fp64 once and kept as fp32 cosines and sines.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

// Llama 3's stretching of the long wavelengths; `scaled` false leaves theta^(-2i/D).
struct RopeFrequencies {
  double theta = 10000;
  bool scaled = false;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position = 8192;
};

// Immutable. cosine and sine are [time, head_dim / 2].
struct RopeTable {
  std::int64_t time = 0;
  std::int64_t head_dim = 0;
  std::vector<float> cosine;
  std::vector<float> sine;
};
[[nodiscard]] double rope_inverse_frequency(const RopeFrequencies& frequencies, std::int64_t pair,
                                            std::int64_t head_dim);
[[nodiscard]] RopeTable make_rope_table(const RopeFrequencies& frequencies, std::int64_t time, std::int64_t head_dim);

enum class Turn : std::uint8_t { kForward, kBackward };  // kBackward is the transpose: the gradient's way

// Turns x [rows, heads · head_dim] in place; row r stands at position r mod time.
void rope(const Parallel& parallel, const RopeTable& table, float* x, std::int64_t rows, std::int64_t heads, Turn turn);
void rope_reference(const RopeFrequencies& frequencies, std::int64_t time, std::int64_t head_dim, float* x,
                    std::int64_t rows, std::int64_t heads, Turn turn);  // scalar, fp64

}  // namespace headrace::kernels
