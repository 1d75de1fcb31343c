// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/place.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>

namespace headrace::runtime::planning {

namespace {

// Up to here every buffer is fitted against all placed ones (tightest); beyond, a sweep over time keeps the compiler
// fast.
constexpr std::size_t kMaxFittedBuffers = 1500;

using Order = std::vector<std::size_t>;

struct Placed {
  Bytes begin = 0, end = 0;
  Life life;
};

// Without a branch that cannot be foreseen: most of a compilation is spent here.
std::size_t find_beside(const std::vector<Placed>& placed, const Life& life, std::vector<std::size_t>& beside) {
  std::size_t count = 0;
  const unsigned life_wraps = life.wraps() ? 1 : 0;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const Life& other = placed[i].life;
    const unsigned ends_later = other.end >= life.begin ? 1 : 0, begins_earlier = other.begin <= life.end ? 1 : 0;
    const unsigned wrap = life_wraps + (other.wraps() ? 1 : 0);  // of the two
    beside[count] = i;
    count += ends_later + begins_earlier + wrap >= 2 ? 1 : 0;
  }
  return count;
}

// Takes buffers in the given order; each goes into the tightest gap between the buffers that live with it.
Bytes fit(std::vector<Buffer>& buffers, const std::vector<Life>& lives, const Order& order, Bytes base) {
  Bytes top = base;
  std::vector<Placed> placed;  // by begin
  placed.reserve(order.size());
  std::vector<std::size_t> beside(order.size());  // of them, those that live with the buffer
  for (const std::size_t index : order) {
    Buffer& buffer = buffers[index];
    const Life life = lives[index];
    Bytes best = -1, best_gap = 0, end = base;
    const std::size_t count = find_beside(placed, life, beside);
    for (std::size_t i = 0; i < count; ++i) {
      const Placed& other = placed[beside[i]];
      const Bytes gap = other.begin - end;
      if (gap >= buffer.bytes && (best < 0 || gap < best_gap)) {
        best = end;
        best_gap = gap;
      }
      end = std::max(end, other.end);
    }
    buffer.offset = best >= 0 ? best : end;
    top = std::max(top, buffer.offset + buffer.bytes);
    const auto position = std::upper_bound(placed.begin(), placed.end(), buffer.offset,
                                           [](Bytes offset, const Placed& other) { return offset < other.begin; });
    placed.insert(position, {buffer.offset, buffer.offset + buffer.bytes, life});
  }
  return top;
}

// A heap as it would run: blocks are given back when their life ends, the tightest free block is taken.
class Heap {
 public:
  explicit Heap(Bytes base) : top_(base) {}

  Bytes take(Bytes bytes) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
    if (best == free_.end()) {
      Bytes offset = top_;
      if (!free_.empty()) {  // grow the last free block when it touches the top
        const auto last = std::prev(free_.end());
        if (last->first + last->second == top_) {
          offset = last->first;
          free_.erase(last);
        }
      }
      top_ = offset + bytes;
      return offset;
    }
    const Bytes offset = best->first, left = best->second - bytes;
    free_.erase(best);
    if (left > 0) free_[offset + bytes] = left;
    return offset;
  }

  void give_back(Bytes offset, Bytes bytes) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        previous->second += bytes;
        return;
      }
    }
    free_[offset] = bytes;
  }

  [[nodiscard]] Bytes top() const noexcept { return top_; }

 private:
  std::map<Bytes, Bytes> free_;  // offset → bytes
  Bytes top_;
};

Bytes sweep(std::vector<Buffer>& buffers, const std::vector<Life>& lives, Order order, Bytes base) {
  // What lives into the next step is there at both ends: it gets a place of its own.
  const auto wraps_end =
      std::stable_partition(order.begin(), order.end(), [&](std::size_t i) { return lives[i].wraps(); });
  for (auto it = order.begin(); it != wraps_end; ++it) {
    buffers[*it].offset = base;
    base += buffers[*it].bytes;
  }
  order.erase(order.begin(), wraps_end);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lives[a].begin != lives[b].begin ? lives[a].begin < lives[b].begin : a < b;
  });
  using Ending = std::pair<std::int64_t, std::size_t>;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> alive;
  Heap heap(base);
  for (const std::size_t index : order) {
    while (!alive.empty() && alive.top().first < lives[index].begin) {
      const Buffer& done = buffers[alive.top().second];
      heap.give_back(done.offset, done.bytes);
      alive.pop();
    }
    buffers[index].offset = heap.take(buffers[index].bytes);
    alive.emplace(lives[index].end, index);
  }
  return heap.top();
}

}  // namespace

Bytes place(std::vector<Buffer>& buffers, const std::vector<Life>& lives) {
  Bytes base = 0;
  Order order;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].held) {
      order.push_back(i);
      continue;
    }
    buffers[i].offset = base;
    base += buffers[i].bytes;
  }
  if (order.size() > kMaxFittedBuffers) return sweep(buffers, lives, std::move(order), base);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  return fit(buffers, lives, order, base);
}

PeakLoad peak_load(const std::vector<Buffer>& buffers, const std::vector<Life>& lives) {
  std::map<std::int64_t, Bytes> changes;
  Bytes held = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].held) {
      held += buffers[i].bytes;
    } else {
      changes[lives[i].begin] += buffers[i].bytes;
      changes[lives[i].end + 1] -= buffers[i].bytes;
      if (lives[i].wraps()) changes[std::numeric_limits<std::int64_t>::min()] += buffers[i].bytes;
    }
  }
  PeakLoad peak{0, held};
  Bytes load = held;
  for (const auto& [time, change] : changes) {
    load += change;
    if (load > peak.bytes) peak = {time, load};
  }
  return peak;
}

}  // namespace headrace::runtime::planning
