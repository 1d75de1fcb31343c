// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/state_reader.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "core/dtype.h"
#include "core/hash.h"
#include "runtime/engine/state_updater.h"
#include "runtime/engine/tile_room.h"

namespace headrace::runtime {

bool is_frozen(const UnitInfo& unit) noexcept {
  for (const TensorInfo& tensor : unit.tensors)
    if (!tensor.frozen) return false;
  return true;
}

Result<void> wait_all(std::vector<io::Ticket>& tickets) {
  std::optional<Error> error;
  for (io::Ticket& ticket : tickets) {
    Result<void> result = ticket.wait(io::TimePoint::max());  // the volume's own deadline bounds it
    if (!result.ok() && !error.has_value()) error = std::move(result).error();
  }
  tickets.clear();
  if (error.has_value()) return std::move(*error);
  return {};
}

Result<void> visit_state(const PlanInput& input, TierStore& weights, TierStore& optimizer, std::uint64_t state_version,
                         const StateVisitor& visit) {
  TileRoom room(input);
  std::vector<float> master, exp_avg, exp_avg_sq, absent;
  for (UnitId unit = 0; unit < static_cast<UnitId>(input.model.units.size()); ++unit) {
    const bool frozen = is_frozen(input.model.units[static_cast<std::size_t>(unit)]);
    for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile) {
      const std::int64_t length = tile_length(input, unit, tile);
      const OptimizerLayout layout = optimizer_layout(input, unit, tile);
      std::memset(room.optimizer, 0, static_cast<std::size_t>(layout.bytes));
      for (const StateStream stream : {StateStream::kWeights, StateStream::kOptimizer}) {
        if (frozen && stream == StateStream::kOptimizer) continue;
        const TileMove move{{unit, stream, tile}, stream == StateStream::kWeights ? room.weights : room.optimizer};
        HEADRACE_TRY(
            io::Ticket ticket,
            (stream == StateStream::kWeights ? weights : optimizer).load({&move, 1}, frozen ? 0 : state_version, {}));
        room.tickets.push_back(std::move(ticket));
        HEADRACE_RETURN_IF_ERROR(wait_all(room.tickets));
      }
      for (std::vector<float>* values : {&master, &exp_avg, &exp_avg_sq, &absent})
        values->resize(static_cast<std::size_t>(length));
      cpu_adam::widen_state(state_arrays(input, layout, room.weights, room.optimizer, 0, length, absent.data()),
                            input.state_format, master, exp_avg, exp_avg_sq);
      MomentPlanes moments{exp_avg, exp_avg_sq};
      if (!cpu_adam::is_elementwise(input.optimizer)) moments = moment_planes(layout, room.optimizer);
      HEADRACE_RETURN_IF_ERROR(visit(unit, tile_begin(input, unit, tile), master, moments.exp_avg, moments.exp_avg_sq));
    }
  }
  return {};
}

Result<void> read_unit_weights(const PlanInput& input, TierStore& weights, std::uint64_t state_version, UnitId unit,
                               std::byte* out) {
  std::vector<TileMove> moves;
  for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile)
    moves.push_back(
        {{unit, StateStream::kWeights, tile}, out + tile * input.tile_elements * dtype_bytes(input.weights_dtype)});
  const bool frozen = is_frozen(input.model.units[static_cast<std::size_t>(unit)]);
  std::vector<io::Ticket> tickets;
  HEADRACE_TRY(io::Ticket ticket, weights.load(moves, frozen ? 0 : state_version, {}));
  tickets.push_back(std::move(ticket));
  return wait_all(tickets);
}

Result<void> verify_tile(const PlanInput& input, TierStore& store, const TileId& id, std::uint64_t state_version) {
  TileRoom room(input);
  const bool frozen = is_frozen(input.model.units[static_cast<std::size_t>(id.unit)]);
  const TileMove move{id, id.stream == StateStream::kWeights ? room.weights : room.optimizer};
  HEADRACE_TRY(io::Ticket ticket, store.load({&move, 1}, frozen ? 0 : state_version, {}));
  room.tickets.push_back(std::move(ticket));
  return wait_all(room.tickets);
}

struct WeightsReader::Impl {
  Impl(const PlanInput& plan_input, TierStore& store, std::uint64_t version)
      : input(plan_input),
        weights(store),
        state_version(version),
        memory(input.tile_elements * dtype_bytes(input.weights_dtype), input.alignment) {}

  [[nodiscard]] Result<void> load(UnitId wanted_unit, std::int64_t wanted_tile) {
    if (unit == wanted_unit && tile == wanted_tile) return {};
    const bool frozen = is_frozen(input.model.units[static_cast<std::size_t>(wanted_unit)]);
    const TileMove move{{wanted_unit, StateStream::kWeights, wanted_tile}, memory.data.get()};
    std::vector<io::Ticket> tickets;
    HEADRACE_TRY(io::Ticket ticket, weights.load({&move, 1}, frozen ? 0 : state_version, {}));
    tickets.push_back(std::move(ticket));
    HEADRACE_RETURN_IF_ERROR(wait_all(tickets));
    unit = wanted_unit;
    tile = wanted_tile;
    return {};
  }
  [[nodiscard]] float element(std::int64_t i) const {
    const std::byte* const data = memory.data.get();
    switch (input.weights_dtype) {
      case DType::kFp32: return reinterpret_cast<const float*>(data)[i];
      case DType::kBf16: return to_fp32(reinterpret_cast<const Bf16*>(data)[i]);
      case DType::kFp16: return to_fp32(reinterpret_cast<const Fp16*>(data)[i]);
    }
    return 0;
  }

  const PlanInput& input;
  TierStore& weights;
  std::uint64_t state_version;
  AlignedBytes memory;
  UnitId unit = -1;  // of the tile in memory
  std::int64_t tile = -1;
};

WeightsReader::WeightsReader(const PlanInput& input, TierStore& weights, std::uint64_t state_version)
    : impl_(std::make_unique<Impl>(input, weights, state_version)) {}
WeightsReader::~WeightsReader() = default;

Result<void> WeightsReader::read(UnitId unit, const TensorInfo& tensor, std::int64_t first, std::span<float> out) {
  const std::int64_t begin = tensor.offset + first;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t at = begin + static_cast<std::int64_t>(i);
    const std::int64_t tile = at / impl_->input.tile_elements;
    if (unit != impl_->unit || tile != impl_->tile) HEADRACE_RETURN_IF_ERROR(impl_->load(unit, tile));
    out[i] = impl_->element(at - tile * impl_->input.tile_elements);
  }
  return {};
}

Result<std::uint64_t> state_digest(const std::function<Result<void>(const StateVisitor&)>& visit_all) {
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
  HEADRACE_RETURN_IF_ERROR(
      visit_all([&](UnitId unit, std::int64_t, std::span<const float> master, std::span<const float> exp_avg,
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
