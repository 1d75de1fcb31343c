// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/storage_pace.h"

#include <cmath>

#include "runtime/profile/storage.h"

namespace headrace::profile {

Pace pace_of(bool quick, std::size_t paths) {
  Pace pace;
  // With several paths each is also measured alone: everything is a little shorter then.
  const double scale = paths > 1 ? 0.7 : 1.0;
  if (quick) {
    pace.blocks = {kMiB, 4 * kMiB};
    pace.in_flight = {8 * kMiB, 16 * kMiB};
    pace.sweep_seconds = 0.12 * scale;
    pace.repeat_seconds = 0.3 * scale;
    pace.fio_seconds = 0.3 * scale;
    pace.pages_seconds = 0.12 * scale;
    pace.layout_seconds = 1.0;
    pace.repeats = 3;
    pace.fio_repeats = 1;
    pace.pages_repeats = 2;
    pace.most_seconds = paths > 1 ? 8 : 10;
    pace.verify_seconds = 1.5;
    pace.fio = {{"io_uring", 4 * kMiB, 32 * kMiB, true}, {"io_uring", kMiB, 8 * kMiB, true}};
    return pace;
  }
  pace.blocks = {256 * kKiB, kMiB, 2 * kMiB, 4 * kMiB};
  pace.in_flight = {4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB};
  pace.sweep_seconds = 0.25 * scale;
  pace.repeat_seconds = 1.0 * scale;
  pace.fio_seconds = 1.0 * scale;
  pace.pages_seconds = 0.5 * scale;
  pace.layout_seconds = 20;
  pace.repeats = 5;
  pace.fio_repeats = 5;
  pace.pages_repeats = 3;
  pace.most_seconds = 300;
  pace.verify_seconds = INFINITY;
  for (const char* engine : {"io_uring", "libaio"}) {
    for (const Bytes block : {kMiB, 4 * kMiB}) {
      for (const Bytes flight : {8 * kMiB, 32 * kMiB}) pace.fio.push_back({engine, block, flight, true});
    }
  }
  pace.fio.push_back({"io_uring", 4 * kMiB, 32 * kMiB, false});
  return pace;
}

Writing writing_of(const Pace& pace, std::size_t paths, bool has_fio) {
  Writing writing;
  writing.add(2 * static_cast<int>(pace.blocks.size() * pace.in_flight.size()), pace.sweep_seconds);
  writing.add(kConfirmTurns * 2, 2 * pace.sweep_seconds);
  writing.add(pace.repeats * 2, pace.repeat_seconds);
  writing.add(pace.pages_repeats * 2, pace.pages_seconds);
  writing.add(1, kLatencySeconds);
  if (paths > 1) {
    writing.add(static_cast<int>(paths) * kAloneRepeats * 2, pace.repeat_seconds);
    writing.add(static_cast<int>(paths), kLatencySeconds);
  }
  // fio mixes by chance: what it writes then may be all of twice a share.
  if (has_fio) writing.seconds += (static_cast<double>(pace.fio.size()) + 3 * pace.fio_repeats) * pace.fio_seconds;
  return writing;
}

double planned_storage_seconds(const StorageOptions& options, std::size_t paths, bool has_fio) {
  const Pace pace = pace_of(options.quick, paths);
  const auto points = static_cast<double>(pace.blocks.size() * pace.in_flight.size());
  double seconds = 0.75 * pace.layout_seconds + points * 3 * pace.sweep_seconds + kLatencySeconds +
                   pace.repeats * 3 * pace.repeat_seconds + pace.pages_repeats * 4 * pace.pages_seconds;
  if (paths > 1) seconds += static_cast<double>(paths) * (kLatencySeconds + kAloneRepeats * 3 * pace.repeat_seconds);
  if (has_fio)
    seconds += (2 * static_cast<double>(pace.fio.size()) + 3 * pace.fio_repeats) * (pace.fio_seconds + kFioStart);
  return seconds;
}

}  // namespace headrace::profile
