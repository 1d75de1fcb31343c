// SPDX-License-Identifier: Apache-2.0
// State in and out, tile by tile: fresh state to its homes, held state to its buffers, current state to a visitor. Memory beyond
// the plan's slabs is bounded by kTilesInFlight tiles.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "core/check.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "runtime/engine/engine.h"

namespace headrace::runtime {

namespace {

constexpr std::size_t kTilesInFlight = 3;  // fewer stalls on each write; more costs memory that the plan does not know of
constexpr std::chrono::minutes kTileDeadline{10};

struct AlignedBytes {
  explicit AlignedBytes(Bytes bytes, Bytes alignment)
      : data(static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(alignment),
                                                        static_cast<std::size_t>(round_up(bytes, alignment))))) {
    HEADRACE_CHECK(data != nullptr, "out of memory for a tile");
  }
  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data;
};

// Room for one tile's weights and optimizer payloads.
struct TileRoom {
  explicit TileRoom(const PlanInput& input)
      : weights(input.tile_elements * dtype_bytes(input.weights_dtype), input.alignment),
        optimizer(optimizer_layout(input.state_format, input.weights_dtype, input.tile_elements).bytes, input.alignment) {}
  AlignedBytes weights, optimizer;
  std::vector<io::Ticket> tickets;
};

bool is_frozen(const UnitInfo& unit) {
  for (const TensorInfo& tensor : unit.tensors)
    if (!tensor.frozen) return false;
  return true;
}

void store_weight(DType dtype, float value, std::byte* weights, std::int64_t i, std::int16_t* remainder) {
  if (dtype == DType::kFp32) {
    reinterpret_cast<float*>(weights)[i] = value;
  } else if (dtype == DType::kFp16) {
    reinterpret_cast<std::uint16_t*>(weights)[i] = to_fp16(value).bits;
  } else {
    const SplitMaster split = split_master(value);
    reinterpret_cast<std::uint16_t*>(weights)[i] = split.hi;
    if (remainder != nullptr) remainder[i] = split.lo;
  }
}

// Fresh state of one tile from its master values.
void make_tile(const PlanInput& input, std::span<const float> master, TileRoom& room) {
  const auto length = static_cast<std::int64_t>(master.size());
  const OptimizerLayout layout = optimizer_layout(input.state_format, input.weights_dtype, length);
  std::byte* const optimizer = room.optimizer.data.get();
  std::memset(optimizer, 0, static_cast<std::size_t>(layout.bytes));
  auto* const remainder = layout.remainder >= 0 ? reinterpret_cast<std::int16_t*>(optimizer + layout.remainder) : nullptr;
  if (layout.master >= 0) std::memcpy(optimizer + layout.master, master.data(), master.size_bytes());
  for (std::int64_t i = 0; i < length; ++i)
    store_weight(input.weights_dtype, master[static_cast<std::size_t>(i)], room.weights.data.get(), i, remainder);
}

void read_master(const PlanInput& input, std::int64_t length, const TileRoom& room, std::vector<float>& master) {
  const OptimizerLayout layout = optimizer_layout(input.state_format, input.weights_dtype, length);
  const std::byte* const weights = room.weights.data.get();
  const std::byte* const optimizer = room.optimizer.data.get();
  master.resize(static_cast<std::size_t>(length));
  if (layout.master >= 0) {
    std::memcpy(master.data(), optimizer + layout.master, static_cast<std::size_t>(length) * sizeof(float));
    return;
  }
  if (input.weights_dtype == DType::kFp32) {
    std::memcpy(master.data(), weights, static_cast<std::size_t>(length) * sizeof(float));
    return;
  }
  HEADRACE_CHECK(layout.remainder >= 0, "16-bit weights without a master");
  const auto* const hi = reinterpret_cast<const std::uint16_t*>(weights);
  const auto* const lo = reinterpret_cast<const std::int16_t*>(optimizer + layout.remainder);
  for (std::int64_t i = 0; i < length; ++i) master[static_cast<std::size_t>(i)] = join_master({hi[i], lo[i]});
}

Result<void> wait_all(std::vector<io::Ticket>& tickets) {
  std::optional<Error> error;
  for (io::Ticket& ticket : tickets) {
    Result<void> result = ticket.wait(std::chrono::steady_clock::now() + kTileDeadline);
    HEADRACE_CHECK(ticket.ready(), "a tile move outlived the volume's own deadline");
    if (!result.ok() && !error.has_value()) error = std::move(result).error();
  }
  tickets.clear();
  if (error.has_value()) return std::move(*error);
  return {};
}

// The master values of a tile: what the source says of each tensor, zero between tensors.
Result<void> fill_master(const UnitInfo& unit, std::int64_t begin, const TensorSource& source, std::span<float> master) {
  std::fill(master.begin(), master.end(), 0.0F);
  const std::int64_t end = begin + static_cast<std::int64_t>(master.size());
  for (const TensorInfo& tensor : unit.tensors) {
    const std::int64_t first = std::max(begin, tensor.offset);
    const std::int64_t last = std::min(end, tensor.offset + tensor.elements);
    if (first >= last) continue;
    HEADRACE_RETURN_IF_ERROR(source(unit, tensor, first - tensor.offset,
                                    master.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first))));
  }
  return {};
}

}  // namespace

Result<void> Engine::initialise(const TensorSource& source) {
  const PlanInput& input = plan_.input;
  std::vector<TileRoom> rooms;
  for (std::size_t i = 0; i < kTilesInFlight; ++i) rooms.emplace_back(input);
  std::vector<float> master;
  std::size_t turn = 0;
  std::optional<Error> error;
  const auto store_tile = [&](UnitId unit, std::int64_t tile) -> Result<void> {
    const UnitInfo& info = input.model.units[static_cast<std::size_t>(unit)];
    TileRoom& room = rooms[turn++ % kTilesInFlight];
    HEADRACE_RETURN_IF_ERROR(wait_all(room.tickets));
    master.resize(static_cast<std::size_t>(tile_length(input, unit, tile)));
    HEADRACE_RETURN_IF_ERROR(fill_master(info, tile * input.tile_elements, source, master));
    make_tile(input, master, room);
    const TileMove weights{{unit, StateStream::kWeights, tile}, room.weights.data.get()};
    HEADRACE_TRY(io::Ticket first, store_of(StateStream::kWeights).store({&weights, 1}, 0, {}));
    room.tickets.push_back(std::move(first));
    if (is_frozen(info)) return {};
    const TileMove optimizer{{unit, StateStream::kOptimizer, tile}, room.optimizer.data.get()};
    HEADRACE_TRY(io::Ticket second, store_of(StateStream::kOptimizer).store({&optimizer, 1}, 0, {}));
    room.tickets.push_back(std::move(second));
    return {};
  };
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()) && !error.has_value(); ++unit)
    for (std::int64_t tile = 0; tile < num_tiles(input, unit) && !error.has_value(); ++tile)
      if (auto stored = store_tile(unit, tile); !stored.ok()) error = std::move(stored).error();
  for (TileRoom& room : rooms)
    if (auto waited = wait_all(room.tickets); !waited.ok() && !error.has_value()) error = std::move(waited).error();
  if (error.has_value()) return std::move(*error);
  if (nvme_ == nullptr) return {};
  HEADRACE_RETURN_IF_ERROR(nvme_->commit_step({}, true));
  record_ = nvme_->committed();
  return {};
}

Result<void> Engine::load_held() {
  const PlanInput& input = plan_.input;
  const auto base = [&](BufferId id) {
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
    return (buffer.tier == Tier::kHost ? host_slab_.bytes() : device_slab_.bytes()).data() + buffer.offset;
  };
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    std::vector<TileMove> moves;
    for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile) {
      if (input.weights_home == Home::kNvme && plan_.held_weights[u] != kNoBuffer)
        moves.push_back({{unit, StateStream::kWeights, tile},
                         base(plan_.held_weights[u]) + tile * input.tile_elements * dtype_bytes(input.weights_dtype)});
      if (input.optimizer_home == Home::kNvme && !plan_.held_optimizer[u].empty() &&
          plan_.held_optimizer[u][static_cast<std::size_t>(tile)] != kNoBuffer)
        moves.push_back({{unit, StateStream::kOptimizer, tile}, base(plan_.held_optimizer[u][static_cast<std::size_t>(tile)])});
    }
    if (moves.empty()) continue;
    std::vector<io::Ticket> tickets;
    HEADRACE_TRY(io::Ticket ticket, nvme_->load(moves, version_of(moves.front().id), {}));
    tickets.push_back(std::move(ticket));
    HEADRACE_RETURN_IF_ERROR(wait_all(tickets));
  }
  return {};
}

Result<void> Engine::visit_state(const StateVisitor& visit) {
  const PlanInput& input = plan_.input;
  TileRoom room(input);
  std::vector<float> master, exp_avg, exp_avg_sq;
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    const bool frozen = is_frozen(input.model.units[static_cast<std::size_t>(unit)]);
    for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile) {
      const std::int64_t length = tile_length(input, unit, tile);
      const OptimizerLayout layout = optimizer_layout(input.state_format, input.weights_dtype, length);
      std::memset(room.optimizer.data.get(), 0, static_cast<std::size_t>(layout.bytes));
      for (const StateStream stream : {StateStream::kWeights, StateStream::kOptimizer}) {
        if (frozen && stream == StateStream::kOptimizer) continue;
        const TileMove move{{unit, stream, tile},
                            stream == StateStream::kWeights ? room.weights.data.get() : room.optimizer.data.get()};
        HEADRACE_TRY(io::Ticket ticket, store_of(stream).load({&move, 1}, version_of(move.id), {}));
        room.tickets.push_back(std::move(ticket));
        HEADRACE_RETURN_IF_ERROR(wait_all(room.tickets));
      }
      read_master(input, length, room, master);
      const auto* const m = reinterpret_cast<const float*>(room.optimizer.data.get() + layout.exp_avg);
      const auto* const v = reinterpret_cast<const float*>(room.optimizer.data.get() + layout.exp_avg_sq);
      exp_avg.assign(m, m + length);
      exp_avg_sq.assign(v, v + length);
      HEADRACE_RETURN_IF_ERROR(visit(unit, tile * input.tile_elements, master, exp_avg, exp_avg_sq));
    }
  }
  return {};
}

Result<std::uint64_t> state_digest(Engine& engine) {
  std::array<Xxh3Stream, 3> planes;  // a unit's values, plane by plane, so that the tile size does not show
  Xxh3Stream whole;
  UnitId current = 0;
  const auto close_unit = [&] {
    for (Xxh3Stream& plane : planes) {
      const std::uint64_t digest = plane.digest();
      whole.update(std::as_bytes(std::span(&digest, 1)));
      plane = Xxh3Stream();
    }
  };
  HEADRACE_RETURN_IF_ERROR(engine.visit_state([&](UnitId unit, std::int64_t, std::span<const float> master,
                                                  std::span<const float> exp_avg,
                                                  std::span<const float> exp_avg_sq) -> Result<void> {
    if (unit != current) close_unit();
    current = unit;
    planes[0].update(std::as_bytes(master));
    planes[1].update(std::as_bytes(exp_avg));
    planes[2].update(std::as_bytes(exp_avg_sq));
    return {};
  }));
  close_unit();
  return whole.digest();
}

}  // namespace headrace::runtime
