// SPDX-License-Identifier: Apache-2.0
// Part of the plan checker: which operation is surely complete before which other one starts, by the executor's rules
// alone. On the NVMe lanes operations start in order and end in any; on all other lanes one starts when the one before
// it is complete.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime::checking {

[[nodiscard]] std::string describe(const std::vector<Operation>& operations, OperationId id);
[[nodiscard]] Error fault(std::string message);

class Order {
 public:
  // Dependencies must point backwards.
  explicit Order(const std::vector<Operation>& operations);
  // `before` is complete when `after` starts, however long anything takes.
  [[nodiscard]] bool holds(OperationId before, OperationId after) const;

 private:
  using PerLane = std::array<std::int32_t, kNumLanes>;
  const std::vector<Operation>& operations_;
  std::vector<std::int32_t> position_;  // within the lane
  std::vector<PerLane> after_;          // per lane: the earliest position that starts only when this one is complete
};

// Lanes fit kinds, dependencies point backwards, buffers are where they may be, uses lie within buffers.
[[nodiscard]] Result<void> check_structure(const Plan& plan, const std::vector<Operation>& operations);
[[nodiscard]] Result<void> check_buffers(const Plan& plan);
// Any two operations that touch a common byte, one writing, are ordered.
[[nodiscard]] Result<void> check_conflicts(const Plan& plan, const std::vector<Operation>& operations,
                                           const Order& order);

}  // namespace headrace::runtime::checking
