// SPDX-License-Identifier: Apache-2.0
#include "io/queue.h"

#include <pthread.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/check.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/process.h"
#include "io/volume_file.h"

namespace headrace::io {
namespace {

constexpr std::size_t kReapBatch = 64;
// Memory for trailer blocks: each tile in flight holds one.
constexpr Bytes kTrailerMemory = 2 * kMiB;
constexpr std::size_t kMinTrailers = 8;
// Writes that are hashed before there is room for them in flight. Fewer: the disk waits for a hash; more: they hold
// trailer blocks.
constexpr std::size_t kHashedAhead = 4;

double seconds_of(const timespec& time) noexcept {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr std::chrono::seconds kLongestLook{10};  // with no look for longer, the process was stopped

// What the kernel may still use after it missed the deadline; reachable, so that it is no leak.
void keep_for_ever(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

Bytes aligned_block(const QueueOptions& options) noexcept {
  return std::max(options.block_bytes / options.alignment, Bytes{1}) * options.alignment;
}

}  // namespace

Queue::Queue(std::unique_ptr<IoBackend> backend, std::vector<QueueFile> files, const QueueOptions& options)
    : options_(options),
      backend_(std::move(backend)),
      stall_clock_(std::max<StallClock::Duration>(options.deadline / 2, kLongestLook)) {
  backend_name_ = backend_->capabilities().name;
  depth_ = backend_->capabilities().queue_depth;
  HEADRACE_CHECK(depth_ > 0, "a backend holds at least one request");
  for (QueueFile& file : files) {
    direct_.push_back(file.direct ? 1 : 0);
    files_.emplace_back().file = std::move(file);
  }
  requests_.resize(depth_);
  for (std::size_t i = depth_; i > 0; --i) free_requests_.push_back(static_cast<std::uint32_t>(i - 1));
  const std::size_t trailers =
      std::clamp(static_cast<std::size_t>(kTrailerMemory / options_.alignment), kMinTrailers, depth_ + kMinTrailers);
  trailer_memory_ = allocate_aligned(static_cast<Bytes>(trailers) * options_.alignment, options_.alignment);
  HEADRACE_CHECK(trailer_memory_ != nullptr, "there is memory for trailer blocks");
  for (std::size_t i = 0; i < trailers; ++i) {
    free_trailers_.push_back(trailer_memory_.get() + static_cast<Bytes>(i) * options_.alignment);
  }
  thread_ = std::thread([this] { run(); });
  pthread_getcpuclockid(thread_.native_handle(), &cpu_clock_);
}

Queue::~Queue() { stop(); }

bool Queue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (in_reap_) backend_->wake();
  }
  incoming_changed_.notify_all();
  if (thread_.joinable()) {
    const VolumeCounters last = counters();
    thread_.join();
    const std::lock_guard lock(counters_mutex_);
    counters_.cpu_seconds = last.cpu_seconds;
    if (!drained_) {
      keep_for_ever(std::shared_ptr<IoBackend>(std::move(backend_)));
      keep_for_ever(std::shared_ptr<std::byte>(trailer_memory_.release(), FreeDeleter{}));
      keep_for_ever(std::make_shared<std::vector<Request>>(std::move(requests_)));
      keep_for_ever(std::make_shared<std::list<Batch>>(std::move(live_)));
    }
  }
  return drained_;
}

Ticket Queue::submit(std::vector<Move> moves, CompletionSink sink) {
  if (moves.empty()) return finished_ticket(std::nullopt, sink);
  std::list<Batch> one;
  Batch& batch = one.emplace_back();
  batch.self = one.begin();
  batch.ticket = std::make_shared<TicketState>(sink);
  batch.moves_left = moves.size();
  batch.moves.reserve(moves.size());
  const Bytes block = aligned_block(options_);
  for (Move& move : moves) {
    ActiveMove& active = batch.moves.emplace_back();
    active.batch = &batch;
    active.total = move.bytes + (move.check == MoveCheck::kTrailer ? options_.alignment : 0);
    // Equal pieces: a trailer that does not fit the last block must not become a tiny request of its own.
    const Bytes pieces = std::max(ceil_div(active.total, block), Bytes{1});
    active.piece = round_up(ceil_div(active.total, pieces), options_.alignment);
    active.move = std::move(move);
  }
  Ticket ticket(batch.ticket);
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      incoming_.splice(incoming_.end(), one);
      if (in_reap_) backend_->wake();
    }
  }
  if (!one.empty()) {
    one.front().ticket->finish(make_error(ErrorCode::kIo, "cancelled: the volume set is closing"));
  } else {
    incoming_changed_.notify_one();
  }
  return ticket;
}

VolumeCounters Queue::counters() const {
  const std::lock_guard lock(counters_mutex_);
  VolumeCounters result = counters_;
  timespec time{};
  if (thread_.joinable() && ::clock_gettime(cpu_clock_, &time) == 0) result.cpu_seconds = seconds_of(time);
  return result;
}

Queue::Latencies Queue::latencies() const {
  const std::lock_guard lock(counters_mutex_);
  return latencies_;
}

bool Queue::is_direct(std::uint32_t file) const {
  const std::lock_guard lock(counters_mutex_);
  return direct_[file] != 0;
}

void Queue::run() {
  set_thread_name("headrace-io");
  const BlockFileSizeSignal blocked;
  TimePoint drain_until = TimePoint::max();
  for (;;) {
    take_incoming();
    const TimePoint now = std::chrono::steady_clock::now();
    complete_due(now);
    if (cancelling_) {
      cancel_unissued();
      while (!unverified_.empty()) hash_one();
      if (drain_until == TimePoint::max()) drain_until = now + options_.deadline;
      if (!has_work()) break;
      if (now >= drain_until || reads_.in_flight + writes_.in_flight == 0) {
        check_stalls(TimePoint::max());
        break;
      }
    }
    issue(now);
    check_stalls(now);
    wait(now, hash_one());
  }
  drained_ = backend_->in_flight() == 0;
  if (!drained_)
    log_error("the kernel has not given back requests of a volume that is being closed; their memory stays allocated");
}

void Queue::take_incoming() {
  std::list<Batch> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(incoming_);
    cancelling_ = stopping_;
  }
  for (Batch& batch : taken) {
    for (ActiveMove& move : batch.moves) direction_of(move).moves.push_back(&move);
  }
  live_.splice(live_.end(), taken);
  if (broken_) break_down(*broken_);
}

void Queue::cancel_unissued() {
  for (Direction* direction : {&reads_, &writes_}) {
    while (!direction->moves.empty()) {
      ActiveMove& move = *direction->moves.front();
      direction->moves.pop_front();
      if (!move.batch->error) move.batch->error = make_error(ErrorCode::kIo, "cancelled: the volume set is closing");
      close_move(move);
    }
  }
  while (!retries_.empty()) {
    const std::uint32_t request_idx = retries_.front();
    retries_.pop_front();
    Batch& batch = *requests_[request_idx].move->batch;
    if (!batch.error) batch.error = make_error(ErrorCode::kIo, "cancelled: the volume set is closing");
    finish_request(request_idx);
  }
}

// The direction with fewer bytes in flight, in turn when they are equal: a long queue of one never starves the other.
Queue::Direction& Queue::next_direction() noexcept {
  if (reads_.moves.empty()) return writes_;
  if (writes_.moves.empty()) return reads_;
  if (reads_.in_flight_bytes == writes_.in_flight_bytes) return served_last_ == &reads_ ? writes_ : reads_;
  return reads_.in_flight_bytes < writes_.in_flight_bytes ? reads_ : writes_;
}

void Queue::issue(TimePoint now) {
  if (broken_) return;
  std::vector<std::uint32_t> offered;
  bool has_room = true;
  for (std::size_t left = retries_.size(); left > 0; --left) {
    const std::uint32_t request_idx = retries_.front();
    retries_.pop_front();
    Request& request = requests_[request_idx];
    if (request.move->batch->error) {
      finish_request(request_idx);
    } else if (may_issue(request, now)) {
      offered.push_back(request_idx);
      enter_kernel(request, now);
    } else {
      has_room = has_room && request.not_before > now;
      retries_.push_back(request_idx);
    }
  }
  // What waits for room goes first: small requests must not slip past a large one for ever.
  while (has_room && (!reads_.moves.empty() || !writes_.moves.empty())) {
    std::uint32_t request_idx = 0;
    Direction& direction = next_direction();
    const ActiveMove& front = *direction.moves.front();
    // What is ready does not wait for the hash of what is not.
    if (!front.started && front.move.check != MoveCheck::kNone && front.move.operation == IoOperation::kWrite) {
      const std::size_t waiting = retries_.size();
      offer(offered);
      offered.clear();
      if (broken_ || retries_.size() > waiting) return;  // the backend is busy
    }
    const Cut cut = cut_request(direction, now, request_idx);
    if (cut == Cut::kWait) break;
    if (cut == Cut::kNothing) continue;
    served_last_ = &direction;
    offered.push_back(request_idx);
    enter_kernel(requests_[request_idx], now);
  }
  offer(offered);
}

void Queue::offer(std::vector<std::uint32_t>& offered) {
  if (offered.empty()) return;
  std::vector<IoRequest> requests;
  requests.reserve(offered.size());
  const TimePoint entered = std::chrono::steady_clock::now();  // after the hashing of what is written
  for (const std::uint32_t request_idx : offered) {
    Request& request = requests_[request_idx];
    request.entered = entered;
    const Move& move = request.move->move;
    requests.push_back({move.operation, files_[move.file].file.fd, move.offset + request.begin,
                        request.num_segments == 0 ? nullptr : request.segments, request.num_segments, request_idx});
  }
  auto accepted = backend_->submit(requests);
  if (!accepted.ok()) {
    put_back(offered, 0, std::chrono::steady_clock::now());
    break_down(std::move(accepted).error());
    return;
  }
  if (*accepted < offered.size())
    put_back(std::span(offered).subspan(*accepted), *accepted, std::chrono::steady_clock::now());
}

// The backend is busy. With nothing in flight that could make room it is asked again after a while, a bounded number of
// times.
void Queue::put_back(std::span<const std::uint32_t> refused, std::size_t accepted, TimePoint now) {
  const bool nothing_comes = accepted == 0 && backend_->in_flight() == 0 && !broken_;
  for (const std::uint32_t request_idx : refused) leave_kernel(requests_[request_idx], now);
  if (nothing_comes) {
    for (const std::uint32_t request_idx : refused) handle_error(request_idx, EAGAIN, now);
  } else {
    retries_.insert(retries_.begin(), refused.begin(), refused.end());
  }
}

bool Queue::may_issue(const Request& request, TimePoint now) {
  const Bytes bytes = request.end - request.begin;
  const Bytes in_flight = reads_.in_flight_bytes + writes_.in_flight_bytes;
  if (in_flight > 0 && in_flight + bytes > options_.in_flight_bytes) return false;
  File& file = files_[request.move->move.file];
  if (file.leaving_direct) {
    if (file.in_flight > 0) return false;
    file.leaving_direct = false;
    const int status = set_direct(file.file.fd, false);  // on failure the request fails again, and then for good
    log_warn(fmt::format("{}: direct I/O is refused ({}); this file goes on through the page cache{}", file.file.path,
                         errno_text(file.leaving_reason),
                         status == 0 ? "" : ", which is refused as well: " + errno_text(status)));
  }
  if (request.not_before > now) return false;
  return options_.throttle_bytes_per_s == 0 || bytes == 0 || throttled_until_ <= now;
}

void Queue::enter_kernel(Request& request, TimePoint now) {
  const Bytes bytes = request.end - request.begin;
  request.in_kernel = true;
  set_segments(request);
  Direction& direction = direction_of(*request.move);
  direction.in_flight_bytes += bytes;
  if (direction.in_flight++ == 0) direction.busy_since = now;
  File& file = files_[request.move->move.file];
  request.direct = file.file.direct;
  if (file.in_flight++ == 0) file.last_progress = file.last_report = now;
  if (options_.throttle_bytes_per_s > 0) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(options_.throttle_bytes_per_s);
    throttled_until_ = std::max(throttled_until_, now) +
                       std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  }
}

// Cuts the next request from the first move of a direction.
Queue::Cut Queue::cut_request(Direction& direction, TimePoint now, std::uint32_t& request_idx) {
  ActiveMove& move = *direction.moves.front();
  if (!move.batch->error && files_[move.move.file].stuck) {
    fail(move, make_error(ErrorCode::kIo, fmt::format("{}: {} does not answer", describe(move.move),
                                                      files_[move.move.file].file.path)));
  }
  if (move.batch->error) {
    direction.moves.pop_front();
    close_move(move);
    return Cut::kNothing;
  }
  if (free_requests_.empty()) return Cut::kWait;
  Request next;
  next.move = &move;
  next.origin = next.begin = move.issued;
  next.end = std::min(move.issued + move.piece, move.total);
  if (!may_issue(next, now)) return Cut::kWait;
  if (!move.started && start_move(move) == Cut::kWait) return Cut::kWait;
  request_idx = free_requests_.back();
  free_requests_.pop_back();
  requests_[request_idx] = next;
  move.issued = next.end;
  ++move.outstanding;
  if (move.issued == move.total) {
    direction.moves.pop_front();
    move.closed = true;
  }
  return Cut::kRequest;
}

// One hash, after all requests that have room were issued: the disk is busy meanwhile. False when nothing waits for it.
bool Queue::hash_one() {
  if (!unverified_.empty()) {
    ActiveMove& move = *unverified_.front();
    unverified_.pop_front();
    settle_move(move);
    return true;
  }
  for (std::size_t i = 0; i < std::min(kHashedAhead, writes_.moves.size()); ++i) {
    ActiveMove& move = *writes_.moves[i];
    if (!move.started && move.move.check != MoveCheck::kNone && !move.batch->error)
      return start_move(move) == Cut::kRequest;
  }
  return false;
}

Queue::Cut Queue::start_move(ActiveMove& move) {
  if (move.move.check == MoveCheck::kNone) {
    move.started = true;
    return Cut::kRequest;
  }
  if (move.move.check == MoveCheck::kTrailer) {
    if (free_trailers_.empty()) return Cut::kWait;
    move.trailer_block = free_trailers_.back();
    free_trailers_.pop_back();
  }
  if (move.move.operation == IoOperation::kWrite) {
    const Bytes hashed = move.move.check == MoveCheck::kTrailer ? move.move.trailer.payload_bytes : move.move.bytes;
    const std::uint64_t hash = xxh3_64({move.move.data, static_cast<std::size_t>(hashed)});
    if (move.trailer_block != nullptr) {
      move.move.trailer.payload_hash = hash;
      encode_trailer(move.move.trailer, {move.trailer_block, static_cast<std::size_t>(options_.alignment)});
    } else {
      hash_sink_ ^= hash;
    }
  }
  move.started = true;
  return Cut::kRequest;
}

void Queue::set_segments(Request& request) const noexcept {
  const ActiveMove& move = *request.move;
  request.num_segments = 0;
  if (request.begin < move.move.bytes) {
    const Bytes length = std::min(request.end, move.move.bytes) - request.begin;
    request.segments[request.num_segments++] = {move.move.data + request.begin, static_cast<std::size_t>(length)};
  }
  if (request.end > move.move.bytes) {
    const Bytes begin = std::max(request.begin, move.move.bytes) - move.move.bytes;
    const Bytes end = request.end - move.move.bytes;
    request.segments[request.num_segments++] = {move.trailer_block + begin, static_cast<std::size_t>(end - begin)};
  }
}

TimePoint Queue::next_event(TimePoint now) const noexcept {
  TimePoint next = TimePoint::max();
  if (reads_.in_flight + writes_.in_flight + lost_ > 0)
    next = now + std::min<TimePoint::duration>(options_.stall_report, options_.deadline) / 4;
  if (!delayed_.empty()) next = std::min(next, delayed_.front().due);
  for (const std::uint32_t request_idx : retries_) {
    if (requests_[request_idx].not_before > now) next = std::min(next, requests_[request_idx].not_before);
  }
  const bool has_unissued = !reads_.moves.empty() || !writes_.moves.empty() || !retries_.empty();
  if (has_unissued && throttled_until_ > now) next = std::min(next, throttled_until_);
  return next;
}

// Takes completions; waits for one unless there is more to do at once.
void Queue::wait(TimePoint now, bool busy) {
  const TimePoint until = next_event(now);
  std::unique_lock lock(mutex_);
  const auto changed = [this] { return !incoming_.empty() || stopping_ != cancelling_; };
  if (backend_->in_flight() == 0 || broken_) {
    if (busy) return;
    if (has_work() && until == TimePoint::max()) return;
    if (until == TimePoint::max()) {
      incoming_changed_.wait(lock, changed);  // idle: nothing is owed to anybody
    } else {
      incoming_changed_.wait_until(lock, until, changed);
    }
    return;
  }
  const std::size_t min_count = busy || changed() ? 0 : 1;
  in_reap_ = true;
  lock.unlock();
  std::array<IoCompletion, kReapBatch> completions;
  auto count = backend_->reap(completions, min_count, until);
  lock.lock();
  in_reap_ = false;
  lock.unlock();
  if (!count.ok()) {
    break_down(std::move(count).error());
    return;
  }
  const TimePoint done = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < *count; ++i) {
    if (options_.delay_us > 0) {
      delayed_.push_back({completions[i], done + std::chrono::microseconds(options_.delay_us)});
    } else {
      complete(completions[i], done);
    }
  }
}

}  // namespace headrace::io
