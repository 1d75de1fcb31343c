// SPDX-License-Identifier: Apache-2.0
// Emits what moves activations off the device and back. Private to the compiler.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/emit.h"

namespace headrace::runtime::planning {

class ActivationEmitter {
 public:
  // Appends to `operations`, which must outlive it.
  ActivationEmitter(const EmitInput& input, std::vector<Operation>& operations);
  // What comes back just before the computation at this time.
  void bring(std::int64_t time);
  // What leaves just after the computation at this time.
  void take(std::int64_t time);

 private:
  using Moves = std::map<std::int64_t, std::vector<std::size_t>>;  // by time, positions in DeviceLayout::moves
  void out(std::size_t index);
  void read(std::size_t index);
  void in(std::size_t index);
  Operation& add(OperationKind kind, Lane lane, const ActivationMove& move);
  [[nodiscard]] BufferId device_buffer(const ActivationMove& move, bool back) const;
  // The operations that last wrote and read the place on disk.
  struct Place {
    OperationId write = -1, read = -1;
  };
  Place& place_of(const ActivationMove& move);

  const EmitInput& in_;
  std::vector<Operation>& operations_;
  Moves made_, read_, copied_;
  std::map<std::pair<UnitId, std::pair<StateStream, std::int32_t>>, Place> places_;
};

}  // namespace headrace::runtime::planning
