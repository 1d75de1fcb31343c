// SPDX-License-Identifier: Apache-2.0
// Which tiles a shard has, with their payload sizes, and their positions as streams of an io::VolumeSet.
#pragma once

#include <cstdint>
#include <vector>

#include "io/volume_set.h"
#include "runtime/store/tier_store.h"

namespace headrace::runtime {

// Immutable. Streams stand in the order unit by unit, within a unit in the order of StateStream.
class ShardGeometry {
 public:
  enum class Kind : std::uint8_t {
    kTrained,    // rewritten by every update
    kFrozen,     // written once, version 0
    kTransient,  // spilled gradients and activations: live within one step
  };
  struct Stream {
    UnitId unit = 0;
    StateStream stream = StateStream::kWeights;
    std::int64_t tiles = 0;
    Bytes tile_payload_bytes = 0;
    Bytes last_tile_payload_bytes = 0;
    std::int32_t slots = 2;
    Kind kind = Kind::kTrained;
  };

  // The weights and optimizer streams whose home is NVMe in `input`.
  static ShardGeometry of_state(const PlanInput& input, std::int32_t slots);
  // Streams of one slot: the gradient of each spilled unit of the plan, and activations on NVMe, a tile for each
  // micro-batch of a group.
  static ShardGeometry of_spill(const Plan& plan);

  [[nodiscard]] const std::vector<Stream>& streams() const noexcept { return streams_; }
  [[nodiscard]] std::int64_t total_tiles() const noexcept { return total_tiles_; }
  [[nodiscard]] bool has(UnitId unit, StateStream stream) const noexcept;
  [[nodiscard]] std::uint32_t stream_index(UnitId unit, StateStream stream) const;       // CHECKs that it exists
  [[nodiscard]] std::int64_t tile_index(std::uint32_t stream, std::int64_t tile) const;  // over all streams
  [[nodiscard]] Bytes payload_bytes(std::uint32_t stream, std::int64_t tile) const;
  [[nodiscard]] io::VolumeGeometry volume_geometry(Bytes record_payload_bytes) const;

 private:
  static constexpr std::size_t kStreams = 5;  // of StateStream
  [[nodiscard]] static std::size_t key(UnitId unit, StateStream stream) noexcept {
    return static_cast<std::size_t>(unit) * kStreams + static_cast<std::size_t>(stream);
  }
  void add(Stream stream);

  std::vector<Stream> streams_;
  std::vector<std::int64_t> first_tile_;     // per stream
  std::vector<std::int32_t> index_by_unit_;  // unit · kStreams + stream → index or -1
  std::int64_t total_tiles_ = 0;
};

}  // namespace headrace::runtime
