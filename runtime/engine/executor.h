// SPDX-License-Identifier: Apache-2.0
// Runs a list of planned operations on their lanes: one thread per lane that has work of its own, the driver's thread
// for the compute lane. Knows order, dependencies, errors, deadlines and times; what an operation does is the caller's.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/result.h"
#include "core/stall_clock.h"
#include "io/ticket.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime {

// Operations with what the lanes need to run them; made once per plan, immutable. Keeps pointers to its arguments.
struct Schedule {
  // `owner` gives units and buffers their names in errors.
  explicit Schedule(const std::vector<Operation>& planned, const Plan* owner = nullptr);

  const std::vector<Operation>* operations;
  const Plan* plan;
  std::array<std::vector<OperationId>, kNumLanes> lanes;
  std::vector<std::vector<OperationId>> dependents;
  std::vector<std::int32_t> num_dependencies;
};

struct OperationSpan {  // seconds since the run began
  double start = 0, end = 0;
};

struct RunTimes {
  double seconds = 0;
  std::array<double, kNumLanes> busy{};  // of an asynchronous lane: with at least one operation in flight
  std::vector<OperationSpan> spans;      // per operation
};

struct ExecutorOptions {
  std::chrono::milliseconds stall_deadline{600'000};  // without any operation starting or ending
  std::int64_t lane_delay_us = 0;                     // tests: each operation starts after a random delay up to this
  std::uint64_t seed = 0;
};

// One driver thread calls begin, acquire_next, complete and finish; the lanes have threads of their own.
class Executor {
 public:
  // Does a synchronous operation, on its lane's thread.
  using Run = std::function<Result<void>(const Operation&)>;
  // Starts an operation of an NVMe lane: each ticket's sink must be the given one. No tickets = it is done.
  using Start = std::function<Result<std::vector<io::Ticket>>(const Operation&, io::CompletionSink)>;

  Executor(Run run, Start start, ExecutorOptions options);
  ~Executor();  // stops and joins; nothing may be in flight
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void begin(const Schedule& schedule);
  // The next operation of the compute lane, once everything it depends on is done.
  [[nodiscard]] Result<OperationId> acquire_next();
  void complete(OperationId operation);
  // The driver gives up: the run fails with `error` unless it has failed already.
  void abort(Error error, OperationId operation);
  // Waits until every lane is done. The first error of any lane; later ones are counted in its message.
  [[nodiscard]] Result<RunTimes> finish();
  [[nodiscard]] RunTimes times_so_far() const;  // from any thread, within a run

 private:
  using Clock = std::chrono::steady_clock;
  struct LaneState {
    std::condition_variable wake;
    std::thread thread;
    std::size_t next = 0;              // position in the schedule's lane
    std::deque<OperationId> finished;  // notified by the I/O thread, not yet looked at
    std::int64_t in_flight = 0;
    double busy = 0;
    Clock::time_point busy_since{};
    bool done = true;
    std::mt19937_64 random;
  };
  struct SinkContext {
    Executor* executor = nullptr;
    int lane = 0;
  };

  void lane_loop(int lane);
  void run_synchronous(int lane, std::unique_lock<std::mutex>& lock);
  void run_asynchronous(int lane, std::unique_lock<std::mutex>& lock);
  void start_one(int lane, OperationId id, std::unique_lock<std::mutex>& lock);
  void reap_one(int lane, std::unique_lock<std::mutex>& lock);
  bool wait_until_ready(int lane, OperationId id, std::unique_lock<std::mutex>& lock);
  void mark_done(OperationId id);
  void fail(Error error, const Operation& operation);
  void check_stall(const Operation* waiting);
  void delay(int lane, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] double now() const;
  static void notify(void* context, std::uint64_t tag) noexcept;

  Run run_;
  Start start_;
  ExecutorOptions options_;
  mutable std::mutex mutex_;
  std::array<LaneState, kNumLanes> lanes_;
  std::array<SinkContext, kNumLanes> sinks_;
  std::condition_variable all_done_;
  const Schedule* schedule_ = nullptr;
  std::uint64_t run_number_ = 0;
  bool stopping_ = false;
  std::vector<std::int32_t> pending_;
  std::vector<char> is_done_, has_begun_;
  std::vector<std::vector<io::Ticket>> tickets_;  // of operations in flight
  std::vector<std::int32_t> tickets_left_;
  std::vector<OperationSpan> spans_;
  std::optional<Error> error_;
  std::int64_t later_errors_ = 0;
  Clock::time_point began_{};
  Clock::time_point progress_{};
  StallClock stall_clock_;
};

[[nodiscard]] std::string describe(const Operation& operation);  // "read_state unit 3 tile 7"

}  // namespace headrace::runtime
