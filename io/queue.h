// SPDX-License-Identifier: Apache-2.0
// The owner thread of all I/O of a volume set: cuts moves into requests, keeps the bytes in flight bounded and both
// directions moving, continues short transfers, retries what may be retried, stamps and verifies trailers. Internal to
// io.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "core/stall_clock.h"
#include "io/io_backend.h"
#include "io/latency.h"
#include "io/layout.h"
#include "io/posix.h"
#include "io/ticket_state.h"
#include "io/volume_set.h"

namespace headrace::io {

enum class MoveCheck : std::uint8_t {
  kNone,
  kHash,     // the payload is hashed and the hash dropped: what a tile costs, for measuring
  kTrailer,  // a trailer block follows the extent; written from, or compared with, Move::trailer
};

// One contiguous range of one file. `data` has `bytes`, all aligned, and stays the caller's until the ticket is ready.
struct Move {
  IoOperation operation = IoOperation::kRead;
  std::uint32_t file = 0;
  std::int64_t offset = 0;
  std::byte* data = nullptr;
  Bytes bytes = 0;
  MoveCheck check = MoveCheck::kNone;
  Trailer trailer;                        // kTrailer: all but payload_hash
  std::shared_ptr<std::byte> keep_alive;  // optional owner of `data`, held until the kernel has given it back
};

struct QueueFile {
  int fd = -1;
  std::string path;
  bool direct = false;
};

struct QueueOptions {
  IoMode mode = IoMode::kAuto;
  Bytes block_bytes = kMiB;
  Bytes in_flight_bytes = kInFlightPerPath;
  Bytes alignment = kMinAlignment;
  std::chrono::milliseconds stall_report{10'000};
  std::chrono::milliseconds deadline{120'000};
  std::int64_t throttle_bytes_per_s = 0;
  std::int64_t delay_us = 0;
};

// submit(), counters(), latencies() and is_direct() are thread-safe; everything else belongs to the queue's own thread.
class Queue {
 public:
  Queue(std::unique_ptr<IoBackend> backend, std::vector<QueueFile> files, const QueueOptions& options);
  // Fails what the kernel has not begun with "cancelled" and waits, at most the deadline, for what it has.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  [[nodiscard]] Ticket submit(std::vector<Move> moves, CompletionSink sink);
  // Cancels, drains and ends the thread; false when the kernel kept requests beyond the deadline (then the backend, the
  // trailer blocks and the caller's buffers must stay allocated). submit() afterwards gives cancelled tickets.
  bool stop();

  [[nodiscard]] VolumeCounters counters() const;
  // From being offered to the backend until its completion was reaped, of each request that moved bytes.
  struct Latencies {
    LatencyHistogram read, write;
  };
  [[nodiscard]] Latencies latencies() const;
  [[nodiscard]] bool is_direct(std::uint32_t file) const;
  [[nodiscard]] const char* backend_name() const noexcept { return backend_name_; }

 private:
  struct Batch;
  struct ActiveMove {
    Move move;
    Batch* batch = nullptr;
    Bytes total = 0;              // extent and trailer block
    Bytes piece = 0;              // bytes of one request
    Bytes issued = 0;             // cut into requests so far
    std::size_t outstanding = 0;  // requests not finished
    std::byte* trailer_block = nullptr;
    bool started = false;  // has its trailer block and, when it is written, its hash
    bool closed = false;   // no more requests will be cut from it
  };
  struct Batch {
    std::vector<ActiveMove> moves;
    std::shared_ptr<TicketState> ticket;
    std::size_t moves_left = 0;
    std::optional<Error> error;
    std::int64_t more_errors = 0;
    bool finished = false;  // the ticket was told already (deadline)
    std::list<Batch>::iterator self;
  };
  struct Request {
    ActiveMove* move = nullptr;
    Bytes origin = 0;  // where the request began before short transfers were continued
    Bytes begin = 0;   // range of the move that is left
    Bytes end = 0;
    iovec segments[2] = {};
    std::uint32_t num_segments = 0;
    std::uint32_t num_retries = 0;
    std::uint32_t num_without_progress = 0;
    TimePoint not_before{};
    TimePoint entered{};  // when it was last offered to the backend
    bool in_kernel = false;
    bool direct = false;  // was offered while the file used direct I/O
    bool lost = false;    // given up at the deadline while the kernel still has it
  };
  struct File {
    QueueFile file;
    std::size_t in_flight = 0;
    TimePoint last_progress{};
    TimePoint last_report{};
    bool stuck = false;  // gave nothing back for the deadline; heals with the next completion
    int leaving_reason = 0;
    bool leaving_direct = false;  // waits for its requests in flight, then goes on through the page cache
  };
  struct Direction {
    std::deque<ActiveMove*> moves;
    Bytes in_flight_bytes = 0;
    std::size_t in_flight = 0;
    TimePoint busy_since{};
  };
  enum class Cut : std::uint8_t { kNothing, kRequest, kWait };
  struct Completed {
    IoCompletion completion;
    TimePoint due;
  };

  // queue.cpp
  void run();
  void take_incoming();
  void cancel_unissued();
  void issue(TimePoint now);
  void offer(std::vector<std::uint32_t>& offered);
  void put_back(std::span<const std::uint32_t> refused, std::size_t accepted, TimePoint now);
  Cut cut_request(Direction& direction, TimePoint now, std::uint32_t& request_idx);
  Cut start_move(ActiveMove& move);
  bool hash_one();
  [[nodiscard]] Direction& next_direction() noexcept;
  void set_segments(Request& request) const noexcept;
  [[nodiscard]] bool may_issue(const Request& request, TimePoint now);
  void enter_kernel(Request& request, TimePoint now);
  void wait(TimePoint now, bool busy);
  [[nodiscard]] TimePoint next_event(TimePoint now) const noexcept;
  [[nodiscard]] bool has_work() const noexcept { return !live_.empty(); }
  [[nodiscard]] Direction& direction_of(const ActiveMove& move) noexcept {
    return move.move.operation == IoOperation::kRead ? reads_ : writes_;
  }

  // queue_completion.cpp
  void complete(const IoCompletion& completion, TimePoint now);
  void complete_due(TimePoint now);
  void leave_kernel(Request& request, TimePoint now);
  void handle_error(std::uint32_t request_idx, int error_number, TimePoint now);
  void handle_bytes(std::uint32_t request_idx, Bytes moved, TimePoint now);
  bool moves_to_buffered(const Request& request, int error_number);
  void retry(std::uint32_t request_idx, TimePoint not_before);
  void finish_request(std::uint32_t request_idx);
  void close_move(ActiveMove& move);
  void end_move(ActiveMove& move);
  void settle_move(ActiveMove& move);
  void verify(ActiveMove& move);
  void fail(ActiveMove& move, Error error);
  void finish_batch(Batch& batch);
  void tell(Batch& batch);
  void check_stalls(TimePoint now);
  void give_up_on(File& file, std::uint32_t file_idx);
  void break_down(Error error);
  void count_moved(const Request& request, Bytes moved, TimePoint now);
  [[nodiscard]] Error transfer_error(const Request& request, Bytes got, const std::string& reason,
                                     std::string hint) const;
  [[nodiscard]] std::string describe(const Move& move) const;

  const QueueOptions options_;
  std::unique_ptr<IoBackend> backend_;
  const char* backend_name_ = "";
  std::size_t depth_ = 0;

  // Owned by the thread.
  StallClock stall_clock_;
  std::vector<File> files_;
  std::list<Batch> live_;
  Direction reads_;
  Direction writes_;
  const Direction* served_last_ = nullptr;
  std::vector<Request> requests_;  // [depth_]
  std::vector<std::uint32_t> free_requests_;
  std::deque<std::uint32_t> retries_;   // cut, not in the kernel
  std::deque<ActiveMove*> unverified_;  // read; the kernel gets its next requests before they are hashed
  std::deque<Completed> delayed_;       // options_.delay_us
  AlignedMemory trailer_memory_;
  std::vector<std::byte*> free_trailers_;
  TimePoint throttled_until_{};
  std::size_t lost_ = 0;
  std::uint64_t hash_sink_ = 0;
  std::optional<Error> broken_;
  bool cancelling_ = false;
  bool drained_ = true;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable incoming_changed_;
  std::list<Batch> incoming_;
  bool in_reap_ = false;
  bool stopping_ = false;

  mutable std::mutex counters_mutex_;  // guards what follows; taken after mutex_, never before
  VolumeCounters counters_;
  Latencies latencies_;
  std::vector<char> direct_;  // [files]

  clockid_t cpu_clock_{};
  std::thread thread_;
};

}  // namespace headrace::io
