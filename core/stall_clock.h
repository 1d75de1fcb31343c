// SPDX-License-Identifier: Apache-2.0
// Tells a watchdog that looks every second or so when the process itself stood still (SIGSTOP, Ctrl-Z, a frozen
// container, a suspended virtual machine): that time counts against nobody.
#pragma once

#include <algorithm>
#include <chrono>

namespace headrace {

// One owner, or under the owner's lock.
class StallClock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  // A gap between looks above `longest` is one in which nobody could have looked.
  explicit StallClock(Duration longest) : longest_(longest) {}

  // To be called at each look. Moves `progress`, the time when something was last done, behind a gap that just ended;
  // returns how long nothing has been done since.
  Duration look(TimePoint now, TimePoint& progress) {
    progress = std::min(now, progress + gap(now));
    return now - progress;
  }
  // The same for several marks: the length of the gap that this look ends, else zero.
  Duration gap(TimePoint now) {
    const Duration since = looked_ == TimePoint{} ? Duration::zero() : now - looked_;
    looked_ = now;
    return since > longest_ ? since : Duration::zero();
  }

 private:
  Duration longest_;
  TimePoint looked_{};
};

}  // namespace headrace
