// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "core/host_slab.h"
#include "core/topology.h"
#include "cpu_adam/adamw.h"
#include "cpu_adam/format_state.h"
#include "runtime/profile/compute.h"
#include "runtime/profile/storage.h"

namespace headrace::profile {
namespace {

using cpu_adam::ParallelUpdater;
using cpu_adam::StateFormat;

constexpr std::int64_t kTile = 512 * 1024;  // parameters of one update, as a tile of a few MiB has
constexpr Bytes kSweepBytes = 384 * kMiB;   // tiles are taken from that much memory in turn, not from a cache
constexpr StateFormat kFormats[] = {StateFormat::kSplit, StateFormat::kFp32, StateFormat::kSplitBf16,
                                    StateFormat::kCompact};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Sweeps the memory tile by tile, again and again; elements per second of each sweep after the first.
std::vector<double> sweep_rates(std::span<std::byte> memory, Bytes tile_bytes, double seconds,
                                const std::function<void(std::byte*)>& work) {
  const std::int64_t tiles = std::max<std::int64_t>(1, static_cast<std::int64_t>(memory.size()) / tile_bytes);
  std::vector<double> rates;
  const auto start = std::chrono::steady_clock::now();
  // Three sweeps after the first at least; on a busy machine one, where more would take half as long again.
  const auto goes_on = [&](int turn) {
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return turn < 2 || (turn < 4 && passed < 1.5 * seconds) || passed < seconds;
  };
  for (int turn = 0; goes_on(turn); ++turn) {
    const double took = seconds_of([&] {
      for (std::int64_t i = 0; i < tiles; ++i) work(memory.data() + i * tile_bytes);
    });
    if (turn > 0) rates.push_back(static_cast<double>(tiles * kTile) / took);
  }
  return rates;
}

std::vector<double> update_rates(const ParallelUpdater& updater, StateFormat format, std::span<std::byte> memory,
                                 double seconds) {
  std::memset(memory.data(), 0, memory.size());  // a fresh state: no special values
  const cpu_adam::StatePlanes planes = cpu_adam::state_planes(format, DType::kBf16, kTile);
  const Bytes weights = kTile * 2, gradient = kTile * 2;
  return sweep_rates(memory, weights + gradient + round_up(planes.bytes, 64), seconds, [&](std::byte* tile) {
    cpu_adam::AdamWArrays arrays;
    arrays.weights = tile;
    arrays.weights_dtype = DType::kBf16;
    arrays.gradient = tile + weights;
    arrays.gradient_dtype = DType::kBf16;
    arrays.elements = kTile;
    cpu_adam::point_at_state(arrays, format, planes, tile + weights + gradient, 0);
    cpu_adam::AdamWHyper hyper;
    hyper.weight_decay = 0.1;
    updater.update(arrays, format, hyper);
  });
}

std::vector<double> arrival_rates(const ParallelUpdater& updater, std::span<std::byte> memory, double seconds) {
  std::memset(memory.data(), 0, memory.size());
  std::vector<double> sums(static_cast<std::size_t>(ceil_div(kTile, ParallelUpdater::kNormChunk)));
  std::vector<std::int64_t> non_finite(sums.size());
  return sweep_rates(memory, kTile * 6, seconds, [&](std::byte* tile) {
    ParallelUpdater::Arrival arrival;
    arrival.source = reinterpret_cast<const float*>(tile);
    arrival.destination = tile + kTile * 4;
    arrival.dtype = DType::kBf16;
    arrival.elements = kTile;
    updater.arrive(arrival, sums, non_finite);
  });
}

}  // namespace

Result<OptimizerReport> measure_optimizer(double seconds, Progress& progress) {
  const Topology topology = detect_topology();
  OptimizerReport report;
  report.threads = topology.usable_cores;
  const Bytes most = topology.effective_memory_limit > 0 ? topology.effective_memory_limit / 8 : kSweepBytes;
  HEADRACE_TRY(const HostSlab slab, HostSlab::allocate(std::clamp<Bytes>(most, 16 * kMiB, kSweepBytes)));
  const ParallelUpdater updater(report.threads);
  report.target = cpu_adam::target_name(updater.target());
  const double share = seconds / (std::size(kFormats) + 1);
  for (const StateFormat format : kFormats) {
    const char* const name = cpu_adam::state_format_name(format);
    progress.step(std::string("optimizer, state format ") + name, share);
    OptimizerRate& rate = report.rates.emplace_back();
    rate.format = name;
    rate.samples = update_rates(updater, format, slab.bytes(), share);
    rate.parameters_per_s = median_of(rate.samples);
  }
  progress.step("gradients on their way to the optimizer", share);
  report.gradient_elements_per_s = median_of(arrival_rates(updater, slab.bytes(), share));
  return report;
}

}  // namespace headrace::profile
