// SPDX-License-Identifier: Apache-2.0
// What happens to a request after the kernel had it: counting, continuing, retrying, failing, verifying.
#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "core/check.h"
#include "core/hash.h"
#include "core/log.h"
#include "io/queue.h"

namespace headrace::io {
namespace {

// Interruptions and "try again" answers in a row. With the pauses below a request tries for about a second.
constexpr std::uint32_t kMaxRetries = 100;
constexpr std::uint32_t kMaxWithoutProgress = 2;

TimePoint::duration retry_pause(std::uint32_t num_retries) {
  return std::min(std::chrono::microseconds(50) * (1U << std::min(num_retries, 10U)),
                  std::chrono::microseconds(10'000));
}

double seconds_between(TimePoint from, TimePoint to) { return std::chrono::duration<double>(to - from).count(); }

std::string hint_for(int error_number, bool direct) {
  switch (error_number) {
    case ENOSPC: return "free space on that disk; the transfer can then be tried again";
    case EFBIG: return "raise the limit of file sizes: ulimit -f unlimited";
    case EINVAL:
    case EOPNOTSUPP:
      return direct ? "direct I/O may be refused there: set headrace.io.mode to \"auto\" or \"buffered\"" : "";
    default: return {};
  }
}

}  // namespace

void Queue::complete_due(TimePoint now) {
  while (!delayed_.empty() && delayed_.front().due <= now) {
    const IoCompletion completion = delayed_.front().completion;
    delayed_.pop_front();
    complete(completion, now);
  }
}

void Queue::complete(const IoCompletion& completion, TimePoint now) {
  const auto request_idx = static_cast<std::uint32_t>(completion.tag);
  HEADRACE_CHECK(completion.tag < requests_.size() && requests_[request_idx].in_kernel,
                 "a completion belongs to a request");
  Request& request = requests_[request_idx];
  File& file = files_[request.move->move.file];
  file.last_progress = now;
  file.stuck = false;
  if (request.lost) {
    request.in_kernel = request.lost = false;
    --lost_;
    finish_request(request_idx);
    return;
  }
  leave_kernel(request, now);
  if (completion.error_number != 0) {
    handle_error(request_idx, completion.error_number, now);
  } else {
    handle_bytes(request_idx, completion.bytes, now);
  }
}

void Queue::leave_kernel(Request& request, TimePoint now) {
  request.in_kernel = false;
  Direction& direction = direction_of(*request.move);
  direction.in_flight_bytes -= request.end - request.begin;
  --files_[request.move->move.file].in_flight;
  if (--direction.in_flight > 0) return;
  const double busy = seconds_between(direction.busy_since, now);
  const std::lock_guard lock(counters_mutex_);
  (&direction == &reads_ ? counters_.read_busy_seconds : counters_.write_busy_seconds) += busy;
}

void Queue::handle_error(std::uint32_t request_idx, int error_number, TimePoint now) {
  Request& request = requests_[request_idx];
  const bool again = error_number == EAGAIN || error_number == EINTR;
  if (again && request.num_retries < kMaxRetries) {
    const TimePoint not_before = error_number == EINTR ? now : now + retry_pause(request.num_retries);
    ++request.num_retries;
    retry(request_idx, not_before);
    return;
  }
  if ((error_number == EINVAL || error_number == EOPNOTSUPP) && moves_to_buffered(request, error_number)) {
    retry(request_idx, now);
    return;
  }
  const std::string reason = errno_text(error_number) + (again ? fmt::format(", {} times", kMaxRetries + 1) : "");
  fail(*request.move,
       transfer_error(request, request.begin - request.origin, reason, hint_for(error_number, request.direct)));
  finish_request(request_idx);
}

// A refused direct request moves its file, and only that file, to the page cache; every such request is then asked
// again.
bool Queue::moves_to_buffered(const Request& request, int error_number) {
  if (!request.direct || options_.mode != IoMode::kAuto) return false;
  const std::uint32_t file_idx = request.move->move.file;
  File& file = files_[file_idx];
  if (!file.file.direct) return true;
  file.file.direct = false;
  file.leaving_direct = true;
  file.leaving_reason = error_number;
  const std::lock_guard lock(counters_mutex_);
  direct_[file_idx] = 0;
  return true;
}

void Queue::retry(std::uint32_t request_idx, TimePoint not_before) {
  requests_[request_idx].not_before = not_before;
  retries_.push_back(request_idx);
  const std::lock_guard lock(counters_mutex_);
  ++counters_.retries;
}

void Queue::handle_bytes(std::uint32_t request_idx, Bytes moved, TimePoint now) {
  Request& request = requests_[request_idx];
  if (request.move->move.operation == IoOperation::kFlush) {
    finish_request(request_idx);
    return;
  }
  const Bytes wanted = request.end - request.begin;
  HEADRACE_CHECK(moved >= 0 && moved <= wanted, "a request moves no more than it was asked to");
  count_moved(request, moved, now);
  if (moved == wanted) {
    finish_request(request_idx);
    return;
  }
  // Direct I/O goes on at an aligned place only, so a ragged end is moved once more.
  const Bytes usable = moved / options_.alignment * options_.alignment;
  request.num_without_progress = usable > 0 ? 0 : request.num_without_progress + 1;
  if (request.num_without_progress >= kMaxWithoutProgress) {
    const bool read = request.move->move.operation == IoOperation::kRead;
    fail(*request.move, transfer_error(request, request.begin - request.origin + moved,
                                       read ? "the file ends there" : "no progress in two tries", {}));
    finish_request(request_idx);
    return;
  }
  request.begin += usable;
  request.num_retries = 0;
  request.not_before = now;
  retries_.push_back(request_idx);
  const std::lock_guard lock(counters_mutex_);
  ++counters_.short_transfers;
}

void Queue::count_moved(const Request& request, Bytes moved, TimePoint now) {
  const std::int64_t ns = std::chrono::nanoseconds(now - request.entered).count();
  const std::lock_guard lock(counters_mutex_);
  if (request.move->move.operation == IoOperation::kRead) {
    counters_.read_bytes += moved;
    ++counters_.read_requests;
    latencies_.read.add(ns);
  } else {
    counters_.written_bytes += moved;
    ++counters_.write_requests;
    latencies_.write.add(ns);
  }
}

void Queue::finish_request(std::uint32_t request_idx) {
  ActiveMove& move = *requests_[request_idx].move;
  requests_[request_idx] = {};
  free_requests_.push_back(request_idx);
  --move.outstanding;
  if (move.closed && move.outstanding == 0) end_move(move);
}

void Queue::close_move(ActiveMove& move) {
  move.closed = true;
  if (move.outstanding == 0) end_move(move);
}

// Everything of it was moved. What has to be hashed waits until the kernel has its next requests.
void Queue::end_move(ActiveMove& move) {
  const bool is_hashed =
      move.move.operation == IoOperation::kRead && move.move.check != MoveCheck::kNone && !move.batch->error;
  if (is_hashed) {
    unverified_.push_back(&move);
  } else {
    settle_move(move);
  }
}

void Queue::settle_move(ActiveMove& move) {
  Batch& batch = *move.batch;
  if (!batch.error && move.move.operation == IoOperation::kRead) verify(move);
  if (move.trailer_block != nullptr) free_trailers_.push_back(move.trailer_block);
  if (--batch.moves_left == 0) finish_batch(batch);
}

void Queue::verify(ActiveMove& move) {
  const Move& read = move.move;
  if (read.check == MoveCheck::kHash) hash_sink_ ^= xxh3_64({read.data, static_cast<std::size_t>(read.bytes)});
  if (read.check != MoveCheck::kTrailer) return;
  const auto refuse = [&](const std::string& what) {
    fail(move, make_error(ErrorCode::kIo,
                          fmt::format("{} at offset {} of {}: {}", describe(read), read.offset,
                                      files_[read.file].file.path, what),
                          "the bytes on disk are not the ones of this step"));
  };
  auto trailer = decode_trailer({move.trailer_block, static_cast<std::size_t>(options_.alignment)});
  if (!trailer.ok()) return refuse(trailer.error().message);
  Trailer wanted = read.trailer;
  wanted.payload_hash = xxh3_64({read.data, static_cast<std::size_t>(wanted.payload_bytes)});
  if (const std::string difference = first_difference(wanted, *trailer); !difference.empty()) refuse(difference);
}

void Queue::fail(ActiveMove& move, Error error) {
  Batch& batch = *move.batch;
  if (batch.error) {
    ++batch.more_errors;
  } else {
    batch.error = std::move(error);
  }
}

void Queue::finish_batch(Batch& batch) {
  tell(batch);
  live_.erase(batch.self);
}

void Queue::tell(Batch& batch) {
  if (batch.finished) return;
  batch.finished = true;
  std::optional<Error> error = batch.error;
  if (error && batch.more_errors > 0) error->message += fmt::format(" ({} more failures followed)", batch.more_errors);
  batch.ticket->finish(std::move(error));
}

void Queue::check_stalls(TimePoint now) {
  if (now != TimePoint::max()) {  // the disk went on while the process was stopped: it has its time from now
    const StallClock::Duration stopped = stall_clock_.gap(now);
    for (File& file : files_) file.last_progress = std::min(now, file.last_progress + stopped);
  }
  for (std::uint32_t file_idx = 0; file_idx < files_.size(); ++file_idx) {
    File& file = files_[file_idx];
    if (file.in_flight == 0) continue;
    if (now - file.last_progress >= options_.deadline) {
      give_up_on(file, file_idx);
    } else if (now - file.last_progress >= options_.stall_report && now - file.last_report >= options_.stall_report) {
      file.last_report = now;
      log_warn(fmt::format("no completion for {:.0f} s on {} ({} requests in flight)",
                           seconds_between(file.last_progress, now), file.file.path, file.in_flight));
    }
  }
  if (lost_ == depth_ && !broken_)
    break_down(make_error(ErrorCode::kIo, "every request of the I/O queue is stuck in the kernel"));
}

// Fails what is in flight on the file. The kernel keeps those buffers; the requests are taken back when they ever
// complete.
void Queue::give_up_on(File& file, std::uint32_t file_idx) {
  file.stuck = true;
  const TimePoint now = std::chrono::steady_clock::now();
  std::vector<Batch*> batches;
  for (Request& request : requests_) {
    if (!request.in_kernel || request.lost || request.move->move.file != file_idx) continue;
    const std::string reason =
        fmt::format("no completion within {:.3g} s", std::chrono::duration<double>(options_.deadline).count());
    fail(*request.move,
         transfer_error(request, request.begin - request.origin, reason,
                        "the disk does not answer and may still use the buffer: stop, and look at dmesg"));
    leave_kernel(request, now);
    request.in_kernel = request.lost = true;
    ++lost_;
    batches.push_back(request.move->batch);
  }
  for (Batch* batch : batches) tell(*batch);
}

// The backend itself failed: nothing more can be moved.
void Queue::break_down(Error error) {
  broken_ = error;
  for (Batch& batch : live_) {
    if (!batch.error) batch.error = error;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  for (Request& request : requests_) {
    if (!request.in_kernel || request.lost) continue;
    leave_kernel(request, now);
    request.in_kernel = request.lost = true;
    ++lost_;
  }
  for (Direction* direction : {&reads_, &writes_}) {
    while (!direction->moves.empty()) {
      ActiveMove& move = *direction->moves.front();
      direction->moves.pop_front();
      close_move(move);
    }
  }
  while (!retries_.empty()) {
    const std::uint32_t request_idx = retries_.front();
    retries_.pop_front();
    finish_request(request_idx);
  }
  for (Batch& batch : live_) tell(batch);
}

Error Queue::transfer_error(const Request& request, Bytes got, const std::string& reason, std::string hint) const {
  const Move& move = request.move->move;
  if (move.operation == IoOperation::kFlush) {
    return make_error(ErrorCode::kIo, fmt::format("flushing {}: {}", files_[move.file].file.path, reason),
                      std::move(hint));
  }
  return make_error(
      ErrorCode::kIo,
      fmt::format("{} at offset {} of {}: wanted {} bytes, got {}: {}", describe(move), move.offset + request.origin,
                  files_[move.file].file.path, request.end - request.origin, got, reason),
      std::move(hint));
}

std::string Queue::describe(const Move& move) const {
  const char* verb = move.operation == IoOperation::kRead    ? "reading"
                     : move.operation == IoOperation::kWrite ? "writing"
                                                             : "flushing";
  if (move.check != MoveCheck::kTrailer) return verb;
  return fmt::format("{} stream {} tile {} slot {}", verb, move.trailer.address.stream, move.trailer.address.tile,
                     move.trailer.address.slot);
}

}  // namespace headrace::io
