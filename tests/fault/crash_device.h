// SPDX-License-Identifier: Apache-2.0
// A disk in memory that remembers every write, flush and acknowledgement in order, and what may be left of them after a
// death at any instant: the states that recovery has to cope with. For tests.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "io/backends.h"
#include "io/io_backend.h"

namespace headrace::fault {

inline constexpr std::int64_t kSector = 512;  // what a disk writes whole
inline constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// What is on the disk, by file and sector; what is not there is zeros. Cheap to copy.
class Image {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  void put(ino_t file, std::int64_t offset, const Bytes& bytes, std::size_t first_sector, std::size_t last_sector) {
    for (std::size_t i = first_sector; i < last_sector; ++i)
      sectors_[{file, offset / kSector + static_cast<std::int64_t>(i)}] = {bytes, i * kSector};
  }
  void read(ino_t file, std::int64_t offset, std::span<std::byte> out) const {
    for (std::size_t at = 0; at < out.size(); at += kSector) {
      const auto found = sectors_.find({file, (offset + static_cast<std::int64_t>(at)) / kSector});
      if (found == sectors_.end()) {
        std::memset(out.data() + at, 0, kSector);
      } else {
        std::memcpy(out.data() + at, found->second.first->data() + found->second.second, kSector);
      }
    }
  }

  // The sectors of one file, as runs without holes.
  [[nodiscard]] std::map<std::int64_t, Bytes> runs() const {
    std::map<std::int64_t, std::vector<std::byte>> found;
    std::int64_t start = 0;
    std::int64_t next = -1;
    for (const auto& [place, bytes] : sectors_) {
      if (place.second != next) start = place.second * kSector;
      next = place.second + 1;
      const auto first = bytes.first->begin() + static_cast<std::ptrdiff_t>(bytes.second);
      found[start].insert(found[start].end(), first, first + kSector);
    }
    std::map<std::int64_t, Bytes> result;
    for (auto& [offset, bytes] : found)
      result[offset] = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return result;
  }

 private:
  std::map<std::pair<ino_t, std::int64_t>, std::pair<Bytes, std::size_t>> sectors_;
};

// What may become of a write that nothing has made durable.
enum class Fate : std::uint8_t { kWhole, kNone, kFirstHalf, kOnlyEnd, kHoleNearStart };
inline constexpr std::array kAllFates{Fate::kWhole, Fate::kNone, Fate::kFirstHalf, Fate::kOnlyEnd,
                                      Fate::kHoleNearStart};

struct Write {
  ino_t file = 0;
  std::int64_t offset = 0;
  Image::Bytes bytes;
  std::size_t submitted = 0;
  std::size_t completed = kNever;

  void apply(Image& image, Fate fate) const {
    const std::size_t sectors = bytes->size() / kSector;
    switch (fate) {
      case Fate::kWhole: image.put(file, offset, bytes, 0, sectors); break;
      case Fate::kNone: break;
      case Fate::kFirstHalf: image.put(file, offset, bytes, 0, (sectors + 1) / 2); break;
      case Fate::kOnlyEnd: image.put(file, offset, bytes, sectors - std::min<std::size_t>(sectors, 8), sectors); break;
      case Fate::kHoleNearStart:
        image.put(file, offset, bytes, 0, 1);
        image.put(file, offset, bytes, std::min<std::size_t>(sectors, 2), sectors);
        break;
    }
  }
};

struct Flush {
  ino_t file = 0;
  std::size_t submitted = 0;
  std::size_t completed = kNever;
};

struct Mark {
  std::size_t at = 0;
  std::uint64_t version = 0;
};

// Everything that happened, in order of one clock.
struct History {
  std::vector<Write> writes;
  std::vector<Flush> flushes;
  std::vector<Mark> acknowledged;
  std::size_t now = 0;

  [[nodiscard]] bool is_flushed(const Write& write, std::size_t at) const {
    return std::any_of(flushes.begin(), flushes.end(), [&](const Flush& flush) {
      return flush.file == write.file && write.completed < flush.submitted && flush.completed <= at;
    });
  }
};

enum class Death : std::uint8_t { kProcess, kPower };

// The writes that a death at `at` may have left in any state; the others are whole, or were not begun.
inline std::vector<std::size_t> undecided(const History& history, Death death, std::size_t at) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < history.writes.size(); ++i) {
    const Write& write = history.writes[i];
    if (write.submitted > at) continue;
    const bool safe = death == Death::kProcess ? write.completed <= at : history.is_flushed(write, at);
    if (!safe) result.push_back(i);
  }
  return result;
}

// The disk after a death at `at` where the undecided writes had these fates.
inline Image image_after(const History& history, std::size_t at, const std::map<std::size_t, Fate>& fates) {
  Image image;
  for (std::size_t i = 0; i < history.writes.size(); ++i) {
    if (history.writes[i].submitted > at) continue;
    const auto fate = fates.find(i);
    history.writes[i].apply(image, fate == fates.end() ? Fate::kWhole : fate->second);
  }
  return image;
}

// The history of a disk that survived a death at `at`, as its next user meets it: what is left counts as written. After
// the loss of power it is all on the medium; after the death of a process what was not flushed is still not.
inline History settled(const History& history, Death death, std::size_t at, const std::map<std::size_t, Fate>& fates) {
  constexpr std::size_t kWritten = 1;
  constexpr std::size_t kFlushed = 3;
  History result;
  std::map<ino_t, bool> files;
  for (const bool flushed : {true, false}) {  // the older writes first
    for (std::size_t i = 0; i < history.writes.size(); ++i) {
      const Write& write = history.writes[i];
      if (write.submitted > at) continue;
      if ((death == Death::kPower || history.is_flushed(write, at)) != flushed) continue;
      files[write.file] = true;
      const auto fate = fates.find(i);
      Image part;
      write.apply(part, fate == fates.end() ? Fate::kWhole : fate->second);
      for (const auto& [offset, bytes] : part.runs())
        result.writes.push_back({write.file, offset, bytes, 0, flushed ? kWritten : kFlushed + 1});
    }
  }
  for (const auto& [file, there] : files) result.flushes.push_back({file, kWritten + 1, kFlushed});
  for (const Mark& mark : history.acknowledged)
    if (mark.at <= at) result.acknowledged.push_back({kFlushed, mark.version});
  result.now = kFlushed + 2;
  return result;
}

// Thread-safe; shared by the test and the backends of its sessions.
class CrashDevice {
 public:
  explicit CrashDevice(Image image = {}, History history = {})
      : image_(std::move(image)), history_(std::move(history)) {}

  // Until then nothing is remembered: the trial of the backend is no part of the story.
  void record() {
    const std::lock_guard lock(mutex_);
    recording_ = true;
  }
  void acknowledge(std::uint64_t version) {
    const std::lock_guard lock(mutex_);
    history_.acknowledged.push_back({++history_.now, version});
  }
  [[nodiscard]] History history() {
    const std::lock_guard lock(mutex_);
    return history_;
  }

  struct Begun {
    io::IoCompletion completion;
    std::size_t write = kNever;
    std::size_t flush = kNever;
  };
  Begun begin(const io::IoRequest& request) {
    struct stat status {};
    if (::fstat(request.fd, &status) != 0) return {{request.tag, 0, errno}, kNever, kNever};
    const std::lock_guard lock(mutex_);
    Begun begun{{request.tag, 0, 0}, kNever, kNever};
    if (request.operation == io::IoOperation::kFlush) {
      if (recording_) {
        begun.flush = history_.flushes.size();
        history_.flushes.push_back({status.st_ino, ++history_.now, kNever});
      }
      return begun;
    }
    std::vector<std::byte> gathered;
    for (std::uint32_t i = 0; i < request.num_segments; ++i) {
      const iovec& segment = request.segments[i];
      auto* data = static_cast<std::byte*>(segment.iov_base);
      if (request.operation == io::IoOperation::kRead)
        image_.read(status.st_ino, request.offset + begun.completion.bytes, {data, segment.iov_len});
      else
        gathered.insert(gathered.end(), data, data + segment.iov_len);
      begun.completion.bytes += static_cast<std::int64_t>(segment.iov_len);
    }
    if (request.operation == io::IoOperation::kRead) return begun;
    const Write write{status.st_ino, request.offset, std::make_shared<const std::vector<std::byte>>(gathered),
                      recording_ ? ++history_.now : 0, kNever};
    write.apply(image_, Fate::kWhole);
    if (recording_) {
      begun.write = history_.writes.size();
      history_.writes.push_back(write);
    }
    return begun;
  }
  void complete(const Begun& begun) {
    const std::lock_guard lock(mutex_);
    if (begun.write != kNever) history_.writes[begun.write].completed = ++history_.now;
    if (begun.flush != kNever) history_.flushes[begun.flush].completed = ++history_.now;
  }

 private:
  std::mutex mutex_;
  Image image_;
  History history_;
  bool recording_ = false;
};

// Completes in an order that follows from the seed.
class CrashBackend final : public io::IoBackend {
 public:
  CrashBackend(std::shared_ptr<CrashDevice> device, std::uint64_t seed) : device_(std::move(device)), random_(seed) {}

  void wake() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }
  [[nodiscard]] io::IoCapabilities capabilities() const noexcept override { return {"crash", 16}; }

 protected:
  Result<std::size_t> do_submit(std::span<const io::IoRequest> requests) override {
    const std::size_t count = std::min(requests.size(), 16 - begun_.size());
    for (const io::IoRequest& request : requests.first(count)) begun_.push_back(device_->begin(request));
    return count;
  }
  Result<std::size_t> do_reap(std::span<io::IoCompletion> out, std::size_t min_count, io::TimePoint deadline) override {
    if (!out.empty() && !begun_.empty()) {  // one at a time: every order of completions has its instant between
      const std::size_t pick = random_() % begun_.size();
      device_->complete(begun_[pick]);
      out[0] = begun_[pick].completion;
      begun_.erase(begun_.begin() + static_cast<std::ptrdiff_t>(pick));
      return std::size_t{1};
    }
    std::unique_lock lock(mutex_);
    if (min_count > 0) changed_.wait_until(lock, deadline, [this] { return woken_; });
    woken_ = false;
    return std::size_t{0};
  }

 private:
  std::shared_ptr<CrashDevice> device_;
  std::mt19937_64 random_;
  std::vector<CrashDevice::Begun> begun_;  // of the owner thread
  std::mutex mutex_;                       // guards what follows
  std::condition_variable changed_;
  bool woken_ = false;
};

inline io::BackendSeam crash_seam(const std::shared_ptr<CrashDevice>& device, std::uint64_t seed) {
  return {{{"crash", [device, seed]() -> Result<std::unique_ptr<io::IoBackend>> {
              return std::unique_ptr<io::IoBackend>(std::make_unique<CrashBackend>(device, seed));
            }}}};
}

}  // namespace headrace::fault
