// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/process.h"
#include "runtime/engine/stall.h"

namespace headrace::runtime {

namespace {

constexpr std::chrono::seconds kLook{1};          // how often a waiting lane looks for a stall
constexpr std::chrono::seconds kLongestLook{10};  // with no look for longer, the process was stopped

constexpr int index_of(Lane lane) { return static_cast<int>(lane); }
constexpr bool is_asynchronous(int lane) {
  return lane == static_cast<int>(Lane::kNvmeRead) || lane == static_cast<int>(Lane::kNvmeWrite);
}

}  // namespace

std::string describe(const Operation& operation) {
  std::string text = operation_kind_name(operation.kind);
  if (operation.unit >= 0) text += fmt::format(" unit {}", operation.unit);
  if (operation.tile >= 0) text += fmt::format(" tile {}", operation.tile);
  if (operation.micro_batch >= 0) text += fmt::format(" micro-batch {}", operation.micro_batch);
  return text;
}

Schedule::Schedule(const std::vector<Operation>& planned, const Plan* owner) : operations(&planned), plan(owner) {
  dependents.resize(planned.size());
  num_dependencies.resize(planned.size());
  for (std::size_t i = 0; i < planned.size(); ++i) {
    const auto id = static_cast<OperationId>(i);
    lanes[static_cast<std::size_t>(planned[i].lane)].push_back(id);
    num_dependencies[i] = static_cast<std::int32_t>(planned[i].dependencies.size());
    for (const OperationId dependency : planned[i].dependencies) {
      HEADRACE_CHECK(dependency >= 0 && dependency < id, "a dependency points forwards");
      dependents[static_cast<std::size_t>(dependency)].push_back(id);
    }
  }
}

Executor::Executor(Run run, Start start, ExecutorOptions options)
    : run_(std::move(run)), start_(std::move(start)), options_(options), stall_clock_(kLongestLook) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    const auto i = static_cast<std::size_t>(lane);
    sinks_[i] = {this, lane};
    lanes_[i].random.seed(options_.seed + static_cast<std::uint64_t>(lane));
    if (lane == index_of(Lane::kCompute) || lane == index_of(Lane::kCollective))
      continue;  // the driver's; no ranks yet
    lanes_[i].thread = std::thread([this, lane] { lane_loop(lane); });
  }
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (LaneState& lane : lanes_) lane.wake.notify_all();
  }
  for (LaneState& lane : lanes_)
    if (lane.thread.joinable()) lane.thread.join();
}

double Executor::now() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

void Executor::begin(const Schedule& schedule) {
  const std::lock_guard lock(mutex_);
  HEADRACE_CHECK(!error_.has_value(), "an executor that failed does not run again");
  const std::size_t count = schedule.operations->size();
  schedule_ = &schedule;
  pending_ = schedule.num_dependencies;
  is_done_.assign(count, 0);
  has_begun_.assign(count, 0);
  tickets_.resize(count);
  tickets_left_.assign(count, 0);
  spans_.assign(count, {});
  began_ = progress_ = Clock::now();
  ++run_number_;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    LaneState& lane = lanes_[i];
    lane.next = 0;
    lane.busy = 0;
    lane.done = schedule.lanes[i].empty();
    if (!lane.done) lane.wake.notify_all();
  }
}

void Executor::lane_loop(int lane) {
  const auto i = static_cast<std::size_t>(lane);
  set_thread_name(lane_name(static_cast<Lane>(lane)));
  std::unique_lock lock(mutex_);
  std::uint64_t last_run = 0;
  while (true) {
    lanes_[i].wake.wait(lock, [&] { return stopping_ || (run_number_ != last_run && !lanes_[i].done); });
    if (stopping_) return;
    last_run = run_number_;
    if (is_asynchronous(lane)) {
      run_asynchronous(lane, lock);
    } else {
      run_synchronous(lane, lock);
    }
    lanes_[i].done = true;
    all_done_.notify_all();
  }
}

bool Executor::wait_until_ready(int lane, OperationId id, std::unique_lock<std::mutex>& lock) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  while (!error_.has_value() && pending_[static_cast<std::size_t>(id)] > 0) {
    state.wake.wait_for(lock, kLook);
    if (pending_[static_cast<std::size_t>(id)] > 0)
      check_stall(&(*schedule_->operations)[static_cast<std::size_t>(id)]);
  }
  return !error_.has_value();
}

void Executor::run_synchronous(int lane, std::unique_lock<std::mutex>& lock) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  for (const OperationId id : schedule_->lanes[static_cast<std::size_t>(lane)]) {
    if (!wait_until_ready(lane, id, lock)) return;
    const Operation& operation = (*schedule_->operations)[static_cast<std::size_t>(id)];
    delay(lane, lock);
    spans_[static_cast<std::size_t>(id)].start = now();
    has_begun_[static_cast<std::size_t>(id)] = 1;
    progress_ = Clock::now();
    lock.unlock();
    Result<void> result = run_(operation);
    lock.lock();
    if (!result.ok()) return fail(std::move(result).error(), operation);
    mark_done(id);
    const OperationSpan& span = spans_[static_cast<std::size_t>(id)];
    state.busy += span.end - span.start;
  }
}

void Executor::run_asynchronous(int lane, std::unique_lock<std::mutex>& lock) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  const std::vector<OperationId>& order = schedule_->lanes[static_cast<std::size_t>(lane)];
  while (true) {
    if (!state.finished.empty()) {
      reap_one(lane, lock);
    } else if (state.in_flight == 0 && (error_.has_value() || state.next == order.size())) {
      return;
    } else if (!error_.has_value() && state.next < order.size() &&
               pending_[static_cast<std::size_t>(order[state.next])] == 0) {
      start_one(lane, order[state.next++], lock);
    } else {
      state.wake.wait_for(lock, kLook);
      if (state.finished.empty() && state.in_flight == 0 && !error_.has_value() && state.next < order.size() &&
          pending_[static_cast<std::size_t>(order[state.next])] > 0)
        check_stall(&(*schedule_->operations)[static_cast<std::size_t>(order[state.next])]);
    }
  }
}

void Executor::start_one(int lane, OperationId id, std::unique_lock<std::mutex>& lock) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  const auto i = static_cast<std::size_t>(id);
  const Operation& operation = (*schedule_->operations)[i];
  delay(lane, lock);
  spans_[i].start = now();
  has_begun_[i] = 1;
  progress_ = Clock::now();
  if (state.in_flight++ == 0) state.busy_since = Clock::now();
  lock.unlock();
  Result<std::vector<io::Ticket>> started =
      start_(operation, {&Executor::notify, &sinks_[static_cast<std::size_t>(lane)], static_cast<std::uint64_t>(id)});
  lock.lock();
  const bool is_finished = !started.ok() || started->empty();
  if (is_finished) {
    if (--state.in_flight == 0) state.busy += std::chrono::duration<double>(Clock::now() - state.busy_since).count();
    if (!started.ok()) return fail(std::move(started).error(), operation);
    return mark_done(id);
  }
  tickets_left_[i] = static_cast<std::int32_t>(started->size());
  tickets_[i] = std::move(*started);
}

void Executor::reap_one(int lane, std::unique_lock<std::mutex>& lock) {
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  const OperationId id = state.finished.front();
  const auto i = static_cast<std::size_t>(id);
  state.finished.pop_front();
  if (--tickets_left_[i] > 0) return;
  std::vector<io::Ticket> tickets = std::move(tickets_[i]);
  tickets_[i].clear();
  lock.unlock();
  std::optional<Error> error;
  for (io::Ticket& ticket : tickets) {
    Result<void> result = ticket.wait(io::TimePoint::max());  // notified: ready in a moment
    if (!result.ok() && !error.has_value()) error = std::move(result).error();
  }
  tickets.clear();
  lock.lock();
  if (--state.in_flight == 0) state.busy += std::chrono::duration<double>(Clock::now() - state.busy_since).count();
  if (error.has_value()) return fail(std::move(*error), (*schedule_->operations)[i]);
  mark_done(id);
}

void Executor::notify(void* context, std::uint64_t tag) noexcept {
  const auto* const sink = static_cast<const SinkContext*>(context);
  Executor& self = *sink->executor;
  const std::lock_guard lock(self.mutex_);
  LaneState& state = self.lanes_[static_cast<std::size_t>(sink->lane)];
  state.finished.push_back(static_cast<OperationId>(tag));
  state.wake.notify_all();
}

// With the lock held.
void Executor::mark_done(OperationId id) {
  const auto i = static_cast<std::size_t>(id);
  spans_[i].end = now();
  is_done_[i] = 1;
  progress_ = Clock::now();
  for (const OperationId dependent : schedule_->dependents[i])
    if (--pending_[static_cast<std::size_t>(dependent)] == 0)
      lanes_[static_cast<std::size_t>((*schedule_->operations)[static_cast<std::size_t>(dependent)].lane)]
          .wake.notify_all();
}

// With the lock held.
void Executor::fail(Error error, const Operation& operation) {
  if (error_.has_value()) {
    ++later_errors_;
    return;
  }
  error.message += fmt::format(" (in {})", describe(operation));
  error_ = std::move(error);
  for (LaneState& lane : lanes_) lane.wake.notify_all();
  all_done_.notify_all();
}

// With the lock held: fails the run when nothing has moved for too long. A driver that computes is moving.
void Executor::check_stall(const Operation* waiting) {
  const LaneState& compute = lanes_[static_cast<std::size_t>(index_of(Lane::kCompute))];
  const auto idle = stall_clock_.look(Clock::now(), progress_);
  if (idle < options_.stall_deadline || compute.in_flight > 0 || error_.has_value()) return;
  fail(make_error(ErrorCode::kFailed,
                  fmt::format("the step stands still: no operation began or ended for {:.0f} s; {}",
                              std::chrono::duration<double>(idle).count(),
                              describe_stall(*schedule_, *waiting, is_done_, has_begun_)),
                  "the last committed step is safe; start the same command again"),
       *waiting);
}

void Executor::delay(int lane, std::unique_lock<std::mutex>& lock) {
  if (options_.lane_delay_us <= 0) return;
  LaneState& state = lanes_[static_cast<std::size_t>(lane)];
  const auto limit = static_cast<std::uint64_t>(options_.lane_delay_us) + 1;
  const auto microseconds = static_cast<std::int64_t>(state.random() % limit);
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  lock.lock();
}

Result<OperationId> Executor::acquire_next() {
  std::unique_lock lock(mutex_);
  constexpr int kLane = index_of(Lane::kCompute);
  LaneState& state = lanes_[kLane];
  const std::vector<OperationId>& order = schedule_->lanes[kLane];
  HEADRACE_CHECK(state.next < order.size(), "the driver asks for more than the plan has");
  const OperationId id = order[state.next];
  if (!wait_until_ready(kLane, id, lock)) return make_error(ErrorCode::kFailed, "the step has failed");
  ++state.next;
  delay(kLane, lock);
  state.in_flight = 1;
  spans_[static_cast<std::size_t>(id)].start = now();
  has_begun_[static_cast<std::size_t>(id)] = 1;
  return id;
}

void Executor::complete(OperationId operation) {
  const std::lock_guard lock(mutex_);
  LaneState& state = lanes_[static_cast<std::size_t>(index_of(Lane::kCompute))];
  state.in_flight = 0;
  mark_done(operation);
  const OperationSpan& span = spans_[static_cast<std::size_t>(operation)];
  state.busy += span.end - span.start;
  state.done = state.next == schedule_->lanes[static_cast<std::size_t>(index_of(Lane::kCompute))].size();
}

void Executor::abort(Error error, OperationId operation) {
  const std::lock_guard lock(mutex_);
  lanes_[static_cast<std::size_t>(index_of(Lane::kCompute))].in_flight = 0;
  fail(std::move(error), (*schedule_->operations)[static_cast<std::size_t>(operation)]);
}

Result<RunTimes> Executor::finish() {
  std::unique_lock lock(mutex_);
  const auto finished = [&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneState& lane) {
      return lane.done || (error_.has_value() && !lane.thread.joinable());
    });
  };
  // Every lane ends by itself: its operations have deadlines, and check_stall() fails the run when nothing moves.
  while (!finished()) all_done_.wait_for(lock, kLook);
  if (error_.has_value()) {
    Error error = *error_;
    if (later_errors_ > 0) error.message += fmt::format("; {} more errors followed", later_errors_);
    return error;
  }
  RunTimes times;
  times.seconds = now();
  for (std::size_t i = 0; i < lanes_.size(); ++i) times.busy[i] = lanes_[i].busy;
  times.spans = spans_;
  return times;
}

RunTimes Executor::times_so_far() const {
  const std::lock_guard lock(mutex_);
  RunTimes times;
  times.seconds = now();
  for (std::size_t i = 0; i < lanes_.size(); ++i) times.busy[i] = lanes_[i].busy;
  times.spans = spans_;
  return times;
}

}  // namespace headrace::runtime
