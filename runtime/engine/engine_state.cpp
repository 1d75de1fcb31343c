// SPDX-License-Identifier: Apache-2.0
// State in, tile by tile: fresh state to its homes, held state to its buffers.
#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/dtype.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/state_updater.h"
#include "runtime/engine/tile_room.h"

namespace headrace::runtime {

namespace {

constexpr std::size_t kTilesInFlight = 3;  // fewer stalls on each write
// Tiles are made in pieces of so many elements: optimizers of whole tensors have tiles of whole units.
constexpr std::int64_t kPieceElements = 1 << 18;
static_assert(kPieceElements % cpu_adam::kCompactBlockElements == 0, "pieces share no scale");

// The master values of a tile: what the source says of each tensor, zero between tensors.
Result<void> fill_master(const UnitInfo& unit, std::int64_t begin, const TensorSource& source,
                         std::span<float> master) {
  std::fill(master.begin(), master.end(), 0.0F);
  const std::int64_t end = begin + static_cast<std::int64_t>(master.size());
  for (const TensorInfo& tensor : unit.tensors) {
    const std::int64_t first = std::max(begin, tensor.offset);
    const std::int64_t last = std::min(end, tensor.offset + tensor.elements);
    if (first >= last) continue;
    HEADRACE_RETURN_IF_ERROR(
        source(unit, tensor, first - tensor.offset,
               master.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first))));
  }
  return {};
}

}  // namespace

Result<void> Engine::initialise(const TensorSource& source) {
  const PlanInput& input = plan_.input;
  // The plan's slab holds nothing yet where all state is at home on NVMe. Else memory that the plan does not know of.
  const std::span<std::byte> slab = durable() ? host_slab_.bytes() : std::span<std::byte>();
  const Bytes room_bytes = TileRoom::bytes(input);
  std::vector<TileRoom> rooms;
  for (std::byte* memory = slab.data(); rooms.size() < kTilesInFlight; memory += room_bytes) {
    if (slab.data() + slab.size() - memory < room_bytes) break;
    rooms.emplace_back(input, memory);
  }
  const std::span<std::byte> used = slab.first(rooms.size() * static_cast<std::size_t>(room_bytes));
  if (rooms.empty()) rooms.emplace_back(input);
  std::vector<float> master, zeros;
  std::size_t turn = 0;
  std::optional<Error> error;
  const auto store_tile = [&](UnitId unit, std::int64_t tile) -> Result<void> {
    const UnitInfo& info = input.model.units[static_cast<std::size_t>(unit)];
    TileRoom& room = rooms[turn++ % rooms.size()];
    HEADRACE_RETURN_IF_ERROR(wait_all(room.tickets));
    const OptimizerLayout layout = optimizer_layout(input, unit, tile);
    std::memset(room.optimizer, 0, static_cast<std::size_t>(layout.bytes));
    const std::int64_t length = tile_length(input, unit, tile);
    for (std::int64_t at = 0; at < length; at += kPieceElements) {
      const std::int64_t piece = std::min(kPieceElements, length - at);
      master.resize(static_cast<std::size_t>(piece));
      zeros.resize(master.size());
      HEADRACE_RETURN_IF_ERROR(fill_master(info, tile_begin(input, unit, tile) + at, source, master));
      HEADRACE_RETURN_IF_ERROR(
          cpu_adam::narrow_state(master, zeros, zeros, input.state_format,
                                 state_arrays(input, layout, room.weights, room.optimizer, at, piece, zeros.data())));
    }
    const TileMove weights{{unit, StateStream::kWeights, tile}, room.weights};
    HEADRACE_TRY(io::Ticket first, store_of(StateStream::kWeights).store({&weights, 1}, 0, {}));
    room.tickets.push_back(std::move(first));
    if (is_frozen(info)) return {};
    const TileMove optimizer{{unit, StateStream::kOptimizer, tile}, room.optimizer};
    HEADRACE_TRY(io::Ticket second, store_of(StateStream::kOptimizer).store({&optimizer, 1}, 0, {}));
    room.tickets.push_back(std::move(second));
    return {};
  };
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()) && !error.has_value(); ++unit)
    for (std::int64_t tile = 0; tile < num_tiles(input, unit) && !error.has_value(); ++tile)
      if (auto stored = store_tile(unit, tile); !stored.ok()) error = std::move(stored).error();
  for (TileRoom& room : rooms)
    if (auto waited = wait_all(room.tickets); !waited.ok() && !error.has_value()) error = std::move(waited).error();
  if (!used.empty()) std::memset(used.data(), 0, used.size());
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
        moves.push_back(
            {{unit, StateStream::kOptimizer, tile}, base(plan_.held_optimizer[u][static_cast<std::size_t>(tile)])});
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
  HEADRACE_RETURN_IF_ERROR(drain());
  return runtime::visit_state(plan_.input, store_of(StateStream::kWeights), store_of(StateStream::kOptimizer),
                              record_.state_version, visit);
}

}  // namespace headrace::runtime
