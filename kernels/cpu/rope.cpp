// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/row_kernels.h"

namespace headrace::kernels {
namespace {

constexpr std::int64_t kTaskElements = 16384;  // 64 KiB of rows a task

}  // namespace

double rope_inverse_frequency(const RopeFrequencies& frequencies, std::int64_t pair, std::int64_t head_dim) {
  const double inverse = std::pow(frequencies.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  if (!frequencies.scaled) return inverse;
  const double wavelength = 2.0 * std::numbers::pi / inverse;
  if (wavelength > frequencies.original_max_position / frequencies.low_freq_factor) return inverse / frequencies.factor;
  if (wavelength < frequencies.original_max_position / frequencies.high_freq_factor) return inverse;
  const double smooth = (frequencies.original_max_position / wavelength - frequencies.low_freq_factor) /
                        (frequencies.high_freq_factor - frequencies.low_freq_factor);
  return (1.0 - smooth) * inverse / frequencies.factor + smooth * inverse;
}

RopeTable make_rope_table(const RopeFrequencies& frequencies, std::int64_t time, std::int64_t head_dim) {
  RopeTable table;
  table.time = time;
  table.head_dim = head_dim;
  const std::int64_t half = head_dim / 2;
  table.cosine.resize(static_cast<std::size_t>(time * half));
  table.sine.resize(static_cast<std::size_t>(time * half));
  for (std::int64_t pair = 0; pair < half; ++pair) {
    const double inverse = rope_inverse_frequency(frequencies, pair, head_dim);
    for (std::int64_t position = 0; position < time; ++position) {
      const double angle = static_cast<double>(position) * inverse;
      table.cosine[static_cast<std::size_t>(position * half + pair)] = static_cast<float>(std::cos(angle));
      table.sine[static_cast<std::size_t>(position * half + pair)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

void rope(const Parallel& parallel, const RopeTable& table, float* x, std::int64_t rows, std::int64_t heads,
          Turn turn) {
  const RowKernels& kernels = row_kernels();
  const std::int64_t width = heads * table.head_dim;
  const std::int64_t half = table.head_dim / 2;
  const float sign = turn == Turn::kForward ? 1.0F : -1.0F;
  const std::int64_t step = std::clamp<std::int64_t>(kTaskElements / width, 1, 64);
  parallel.for_each(ceil_div(rows, step), [&](std::int64_t task) {
    for (std::int64_t row = task * step; row < std::min(rows, (task + 1) * step); ++row) {
      const auto at = static_cast<std::size_t>(row % table.time * half);
      for (std::int64_t head = 0; head < heads; ++head) {
        float* first = x + row * width + head * table.head_dim;
        kernels.rotate(first, first + half, table.cosine.data() + at, table.sine.data() + at, sign, half);
      }
    }
  });
}

void rope_reference(const RopeFrequencies& frequencies, std::int64_t time, std::int64_t head_dim, float* x,
                    std::int64_t rows, std::int64_t heads, Turn turn) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t pair = 0; pair < half; ++pair) {
        const double angle = static_cast<double>(row % time) * rope_inverse_frequency(frequencies, pair, head_dim);
        const double cosine = std::cos(angle);
        const double sine = turn == Turn::kForward ? std::sin(angle) : -std::sin(angle);
        float& a = x[(row * heads + head) * head_dim + pair];
        float& b = x[(row * heads + head) * head_dim + pair + half];
        const auto u = static_cast<double>(a);
        const auto v = static_cast<double>(b);
        a = static_cast<float>(u * cosine - v * sine);
        b = static_cast<float>(v * cosine + u * sine);
      }
    }
  }
}

}  // namespace headrace::kernels
