// SPDX-License-Identifier: Apache-2.0
// How long and how often the parts of the storage measurement run, and by when those have to begin that may be left
// out. Internal to profile.
#pragma once

#include <cstddef>
#include <vector>

#include "core/bytes.h"
#include "runtime/profile/fio.h"

namespace headrace::profile {

// How long and how often things are measured.
struct Pace {
  std::vector<Bytes> blocks, in_flight;
  double sweep_seconds = 0, repeat_seconds = 0, fio_seconds = 0, pages_seconds = 0, layout_seconds = 0;
  int repeats = 0, fio_repeats = 0, pages_repeats = 0;
  // What may be left out is left out in time for this: a busy machine or a slow disk must not make "quick" slow.
  double most_seconds = 0;
  double verify_seconds = 0;
  std::vector<FioSetting> fio;
};
[[nodiscard]] Pace pace_of(bool quick, std::size_t paths);

inline constexpr double kFioStart = 0.35;  // what a run of fio takes beside its measuring
inline constexpr double kLatencySeconds = 0.15;
// By which share of the time each part that may be left out has to begin.
inline constexpr double kConfirmBy = 0.5, kFioSweepBy = 0.65, kFioTurnBy = 0.75, kRepeatBy = 0.9;
inline constexpr int kConfirmTurns = 3;  // of the sweep's winner against the default
inline constexpr int kAloneRepeats = 3;  // of each of several paths

// The samples that write, by us or fio: the bytes that may be written are dealt out over their seconds, and each of
// ours writes a tile at least.
struct Writing {
  int samples = 0;  // ours
  double seconds = 0;
  void add(int count, double each) {
    samples += count;
    seconds += count * each;
  }
};
[[nodiscard]] Writing writing_of(const Pace& pace, std::size_t paths, bool has_fio);

}  // namespace headrace::profile
