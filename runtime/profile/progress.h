// SPDX-License-Identifier: Apache-2.0
// How far a measurement has come, for a line with the time that is left. One owner thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace headrace::profile {

struct ProgressEvent {
  std::string what;   // what is being measured: "storage: writing, block 4 MiB, 32 MiB in flight"
  std::string found;  // what is known so far, may be empty
  double share = 0;   // 0 … 1 of the planned time
  double seconds_left = 0;
};
using ProgressSink = std::function<void(const ProgressEvent&)>;  // may be empty

class Progress {
 public:
  Progress(ProgressSink sink, double planned_seconds) : sink_(std::move(sink)), planned_(planned_seconds) {}

  // The next piece begins; it is expected to take `seconds`.
  void step(const std::string& what, double seconds) {
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double share = planned_ > 0 ? std::min(done_ / planned_, 1.0) : 1.0;
    // What is left takes as much longer than planned as what is behind us did.
    const double pace = done_ > 0 ? std::max(elapsed / done_, 0.2) : 1.0;
    if (sink_) sink_({what, found_, share, std::max(planned_ - done_, 0.0) * pace});
    done_ += seconds;
  }
  void found(std::string text) { found_ = std::move(text); }

 private:
  ProgressSink sink_;
  double planned_;
  double done_ = 0;
  std::string found_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace headrace::profile
