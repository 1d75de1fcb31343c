// SPDX-License-Identifier: Apache-2.0
// An IoBackend whose files are memory: descriptors only say which file is meant, equal chunks share their bytes, so
// that files of many GiB cost what is different in them. With FaultBackend around it this is the backend that fails at
// will.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "io/backends.h"
#include "io/io_backend.h"

namespace headrace::io {

// The files by inode. Thread-safe; shared by the backends of one test, so that a closed file is found again.
class MemoryDevice {
 public:
  static constexpr std::size_t kChunk = 65'536;

  IoCompletion execute(const IoRequest& request) {
    struct stat status {};
    const int flags = ::fcntl(request.fd, F_GETFL);
    if (flags < 0 || ::fstat(request.fd, &status) != 0) return {request.tag, 0, EBADF};
    if (request.operation == IoOperation::kWrite && (flags & O_ACCMODE) == O_RDONLY) return {request.tag, 0, EBADF};
    const std::lock_guard lock(mutex_);
    File& file = files_[status.st_ino];
    file.size = std::max<std::int64_t>(file.size, status.st_size);
    if (request.operation == IoOperation::kFlush) return {request.tag, 0, 0};
    std::int64_t at = request.offset;
    for (std::uint32_t i = 0; i < request.num_segments; ++i) {
      std::span<std::byte> bytes(static_cast<std::byte*>(request.segments[i].iov_base), request.segments[i].iov_len);
      if (request.operation == IoOperation::kRead) {
        const std::int64_t left = std::max<std::int64_t>(file.size - at, 0);
        bytes = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(left)));
      }
      move(file, request.operation, bytes, at);
      at += static_cast<std::int64_t>(bytes.size());
    }
    if (request.operation == IoOperation::kWrite) file.size = std::max(file.size, at);
    return {request.tag, at - request.offset, 0};
  }

 private:
  using Chunk = std::vector<std::byte>;
  struct File {
    std::map<std::int64_t, std::shared_ptr<const Chunk>> chunks;
    std::int64_t size = 0;
  };

  void move(File& file, IoOperation operation, std::span<std::byte> bytes, std::int64_t at) {
    while (!bytes.empty()) {
      const std::int64_t index = at / static_cast<std::int64_t>(kChunk);
      const auto within = static_cast<std::size_t>(at % static_cast<std::int64_t>(kChunk));
      const std::span<std::byte> part = bytes.first(std::min(bytes.size(), kChunk - within));
      const auto found = file.chunks.find(index);
      if (operation == IoOperation::kRead) {
        if (found == file.chunks.end()) {
          std::memset(part.data(), 0, part.size());
        } else {
          std::memcpy(part.data(), found->second->data() + within, part.size());
        }
      } else if (part.size() == kChunk) {
        file.chunks[index] = shared(part);
      } else {
        Chunk chunk = found == file.chunks.end() ? Chunk(kChunk) : *found->second;
        std::memcpy(chunk.data() + within, part.data(), part.size());
        file.chunks[index] = shared(chunk);
      }
      bytes = bytes.subspan(part.size());
      at += static_cast<std::int64_t>(part.size());
    }
  }

  std::shared_ptr<const Chunk> shared(std::span<const std::byte> bytes) {
    std::weak_ptr<const Chunk>& known = unique_[xxh3_64(bytes)];
    std::shared_ptr<const Chunk> same = known.lock();
    if (same != nullptr && std::memcmp(same->data(), bytes.data(), kChunk) == 0) return same;
    same = std::make_shared<const Chunk>(bytes.begin(), bytes.end());
    known = same;
    return same;
  }

  std::mutex mutex_;
  std::map<ino_t, File> files_;
  std::unordered_map<std::uint64_t, std::weak_ptr<const Chunk>> unique_;
};

// Executes in submit, completes in reap.
class MemoryBackend final : public IoBackend {
 public:
  MemoryBackend(std::shared_ptr<MemoryDevice> device, std::size_t queue_depth)
      : device_(std::move(device)), queue_depth_(queue_depth) {}

  void wake() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }
  [[nodiscard]] IoCapabilities capabilities() const noexcept override { return {"memory", queue_depth_}; }

 protected:
  Result<std::size_t> do_submit(std::span<const IoRequest> requests) override {
    const std::size_t count = std::min(requests.size(), queue_depth_ - std::min(queue_depth_, in_flight()));
    for (const IoRequest& request : requests.first(count)) done_.push_back(device_->execute(request));
    return count;
  }
  Result<std::size_t> do_reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) override {
    std::size_t count = 0;
    for (; count < out.size() && !done_.empty(); ++count) {
      out[count] = done_.front();
      done_.pop_front();
    }
    std::unique_lock lock(mutex_);
    if (count < min_count) changed_.wait_until(lock, deadline, [this] { return woken_; });
    woken_ = false;
    return count;
  }

 private:
  std::shared_ptr<MemoryDevice> device_;
  const std::size_t queue_depth_;
  std::deque<IoCompletion> done_;  // of the owner thread
  std::mutex mutex_;               // guards what follows
  std::condition_variable changed_;
  bool woken_ = false;
};

inline BackendCandidate memory_candidate(std::shared_ptr<MemoryDevice> device) {
  return {"memory", [device]() -> Result<std::unique_ptr<IoBackend>> {
            return std::unique_ptr<IoBackend>(std::make_unique<MemoryBackend>(device, kQueueDepth));
          }};
}

}  // namespace headrace::io
