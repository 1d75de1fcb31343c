// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/cost.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double over(double amount, double rate) { return amount > 0 && rate > 0 ? amount / rate : 0; }

Bytes copied_bytes(const Operation& op) {
  for (const BufferUse& use : op.uses)
    if (use.role == Role::kDestination || use.role == Role::kSource) return use.bytes;
  return 0;
}

double compute_seconds(const Operation& op, const Rates& rates) {
  HEADRACE_CHECK(at(op.unit) < rates.forward_seconds.size() && at(op.unit) < rates.backward_seconds.size(),
                 "there is a rate for every unit");
  if (op.kind == OperationKind::kForward) return rates.forward_seconds[at(op.unit)];
  return rates.backward_seconds[at(op.unit)] + (op.recompute ? rates.forward_seconds[at(op.unit)] : 0);
}

OperationCost compute_cost(const Operation& op, const Rates& rates) {
  OperationCost cost;
  cost.seconds = compute_seconds(op, rates);
  cost.threads = rates.has_device ? 0 : rates.cores;
  return cost;
}

// Reads gradient and state, writes state and weights.
OperationCost update_cost(const Plan& plan, const Operation& op, const Rates& rates) {
  OperationCost cost;
  const std::int64_t length = tile_length(plan.input, op.unit, op.tile);
  const auto state = optimizer_layout(plan.input, op.unit, op.tile).bytes;
  const UpdateWork work = update_work(plan.input, op.unit, op.tile);
  cost.seconds =
      work.elements * rates.update_seconds_per_element + work.product_flops * rates.update_seconds_per_product_flop;
  cost.threads = rates.cores;
  cost.memory_bytes = static_cast<double>(
      2 * state + length * (2 * dtype_bytes(plan.input.weights_dtype) + dtype_bytes(plan.input.gradient_dtype)));
  return cost;
}

OperationCost gradient_cost(const Plan& plan, const Operation& op, const Rates& rates) {
  OperationCost cost;
  const auto elements = static_cast<double>(plan.input.model.units[at(op.unit)].flat_elements);
  cost.seconds = elements * rates.gradient_out_seconds_per_element;
  cost.threads = rates.cores;
  const auto gradient = static_cast<double>(dtype_bytes(plan.input.gradient_dtype));
  cost.memory_bytes = elements * ((rates.has_device ? gradient : 4) + gradient * (op.first ? 1 : 2));
  if (rates.has_device) {  // the device rounds, and the link and the cores work hand in hand
    cost.latency = rates.link_latency_seconds;
    cost.seconds = std::max(cost.seconds, over(elements * gradient, rates.d2h_bytes_per_s));
    cost.threads =
        cost.seconds > 0 ? rates.cores * elements * rates.gradient_out_seconds_per_element / cost.seconds : 0;
  }
  return cost;
}

OperationCost copy_cost(const Operation& op, const Rates& rates) {
  OperationCost cost;
  const auto bytes = static_cast<double>(copied_bytes(op));
  const bool out = rates.has_device && op.lane == Lane::kDeviceToHost;
  cost.seconds = over(bytes, out ? rates.d2h_bytes_per_s : rates.copy_bytes_per_s);
  cost.threads = rates.has_device ? 0 : 1;
  cost.memory_bytes = rates.has_device ? bytes : 2 * bytes;
  cost.latency = rates.has_device ? rates.link_latency_seconds : 0;
  return cost;
}

// State that is set aside or put back: read and written once in host memory, by one thread.
OperationCost aside_cost(const Operation& op, const Rates& rates) {
  OperationCost cost;
  const double bytes = op.uses.empty() ? 0 : static_cast<double>(op.uses.front().bytes);
  cost.memory_bytes = 2 * bytes;
  cost.seconds = rates.has_device ? over(2 * bytes, rates.memory_bytes_per_s) : over(bytes, rates.copy_bytes_per_s);
  cost.threads = 1;
  return cost;
}

OperationCost disk_cost(const Operation& op, const Rates& rates, bool read) {
  OperationCost cost;
  cost.disk_bytes = op.bytes;
  cost.seconds = over(static_cast<double>(op.bytes), read ? rates.read_bytes_per_s : rates.write_bytes_per_s);
  cost.latency = read ? rates.read_latency_seconds : rates.write_latency_seconds;
  cost.memory_bytes = 2.0 * static_cast<double>(op.bytes);  // moved and summed
  return cost;
}

// max(R/B_r, W/B_w, (R+W)/B_mixed); the last only where mixing is no slower than taking turns, or than mixing while
// there is something of both and then going on alone.
double disk_seconds(double read, double written, const Rates& rates) {
  const double read_alone = over(read, rates.read_bytes_per_s), write_alone = over(written, rates.write_bytes_per_s);
  const double mixed = rates.mixed_bytes_per_s;
  double both = std::min(over(read + written, mixed), read_alone + write_alone);
  if (mixed > 0 && read > 0 && written > 0 && rates.read_bytes_per_s > 0 && rates.write_bytes_per_s > 0) {
    const auto [read_rate, write_rate] = mixed_rates(rates);
    const double together = std::min(read / read_rate, written / write_rate);
    both = std::min(both, together + over(read - together * read_rate, rates.read_bytes_per_s) +
                              over(written - together * write_rate, rates.write_bytes_per_s));
  }
  return std::max({read_alone, write_alone, both});
}

double kept_of(double& budget, double bytes) {
  const double kept = std::min(budget, bytes);
  budget -= kept;
  return kept;
}

// Computations that follow each other and belong to one visit of a unit.
struct ComputeStage {
  OperationId first = -1, last = -1;
};

std::vector<ComputeStage> compute_stages(const Plan& plan) {
  std::vector<ComputeStage> stages;
  const Operation* before = nullptr;
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& op = plan.operations[i];
    if (op.lane != Lane::kCompute) continue;
    const auto id = static_cast<OperationId>(i);
    if (before == nullptr || before->unit != op.unit || before->pass != op.pass || before->group != op.group)
      stages.push_back({id, id});
    stages.back().last = id;
    before = &op;
  }
  return stages;
}

}  // namespace

std::pair<double, double> mixed_rates(const Rates& rates) {
  const double read = rates.read_bytes_per_s, write = rates.write_bytes_per_s, both = rates.mixed_bytes_per_s;
  if (both <= 0 || read + write <= both) return {read, write};
  const double half = both / 2;
  if (read < half) return {read, both - read};
  if (write < half) return {both - write, write};
  return {half, half};
}

std::vector<CollectiveUse> collective_uses(const Plan& plan, const Collectives& collectives) {
  std::vector<CollectiveUse> uses;
  if (collectives.world_size <= 1) return uses;
  const std::vector<ComputeStage> stages = compute_stages(plan);
  const auto add = [&](std::int64_t index, bool is_gather) {
    if (index < 0 || index >= static_cast<std::int64_t>(stages.size())) return;
    const ComputeStage& stage = stages[at(index)];
    const Operation& op = plan.operations[at(stage.first)];
    if (!is_gather && op.kind != OperationKind::kBackward) return;
    std::vector<UnitId> units = plan.input.model.units[at(op.unit)].uses;
    units.insert(units.begin(), op.unit);
    for (const UnitId unit : units) {
      const Bytes bytes = (is_gather ? collectives.weights_bytes : collectives.gradient_bytes)[at(unit)];
      if (bytes > 0)
        uses.push_back({is_gather, unit, static_cast<std::int32_t>(index), stage.first, stage.last, bytes});
    }
  };
  for (std::int64_t s = -1; s < static_cast<std::int64_t>(stages.size()); ++s) {
    add(s + 1, true);
    add(s, false);
  }
  return uses;
}

OperationCost cost_of(const Plan& plan, const Operation& op, const Rates& rates) {
  switch (op.kind) {
    case OperationKind::kForward:
    case OperationKind::kBackward: return compute_cost(op, rates);
    case OperationKind::kUpdate: return update_cost(plan, op, rates);
    case OperationKind::kGradientOut: return gradient_cost(plan, op, rates);
    case OperationKind::kCopyToDevice:
    case OperationKind::kActivationOut:
    case OperationKind::kActivationIn: return copy_cost(op, rates);
    case OperationKind::kReadWeights:
    case OperationKind::kReadState:
    case OperationKind::kReadGradient:
    case OperationKind::kReadActivation: return disk_cost(op, rates, true);
    case OperationKind::kWriteState:
    case OperationKind::kWriteGradient:
    case OperationKind::kWriteActivation: return disk_cost(op, rates, false);
    case OperationKind::kCommit: {
      OperationCost cost;
      cost.seconds = rates.commit_seconds;
      return cost;
    }
    case OperationKind::kNorm: return {};
    default: return aside_cost(op, rates);
  }
}

double collective_seconds(Bytes bytes, int world_size, const Network& network) {
  if (world_size <= 1) return 0;
  const int local = std::clamp(network.ranks_per_node, 1, world_size);
  const int nodes = (world_size + local - 1) / local;
  const auto total = static_cast<double>(bytes);
  // Within a machine each rank takes in what it does not have, from its neighbours.
  const double intra = local > 1 ? over(total * (local - 1) / local, network.intra_bytes_per_s) : 0;
  // Between machines each of the `local` ranks brings its share of what other machines have.
  const double inter = nodes > 1 ? over(total * (nodes - 1) / nodes / local, network.inter_bytes_per_s) : 0;
  const double ring_hops = (local - 1) + (nodes - 1);
  const double tree_hops = std::ceil(std::log2(local)) + std::ceil(std::log2(nodes));
  return std::max(intra, inter) + std::min(ring_hops, tree_hops) * network.latency_seconds;
}

double barrier_seconds(int world_size, const Network& network) {
  return world_size <= 1 ? 0 : 2 * std::ceil(std::log2(world_size)) * network.latency_seconds;
}

double Bound::seconds() const noexcept {
  return std::max({cores_seconds, disk_seconds, device_seconds, h2d_seconds, d2h_seconds, network_seconds});
}

const char* Bound::resource() const noexcept {
  const double most = seconds();
  if (cores_seconds > disk_seconds && cores_seconds == most) return "cores";
  if (device_seconds > 0 && device_seconds == most) return "device";
  if (h2d_seconds > 0 && h2d_seconds == most) return "h2d";
  if (d2h_seconds > 0 && d2h_seconds == most) return "d2h";
  if (network_seconds > 0 && network_seconds == most) return "network";
  return "disk";
}

Bound bound_of(const Plan& plan, const Rates& rates) { return bound_of(plan, rates, {}); }

Bound bound_of(const Plan& plan, const Rates& rates, const Collectives& collectives) {
  Bound bound = bound_of(plan, plan.operations, plan.read_bytes_per_step, plan.write_bytes_per_step, rates);
  for (const CollectiveUse& use : collective_uses(plan, collectives))
    bound.network_seconds += collective_seconds(use.bytes, collectives.world_size, rates.network);
  return bound;
}

Bound bound_of(const Plan& plan, const std::vector<Operation>& operations, Bytes read_bytes, Bytes write_bytes,
               const Rates& rates) {
  Bound bound;
  for (const Operation& op : operations) {
    const OperationCost cost = cost_of(plan, op, rates);
    switch (op.kind) {
      case OperationKind::kForward:
      case OperationKind::kBackward: bound.compute_seconds += cost.seconds; break;
      case OperationKind::kUpdate: bound.optimizer_seconds += cost.seconds; break;
      case OperationKind::kGradientOut:
        bound.optimizer_seconds += cost.seconds * cost.threads / std::max(1, rates.cores);
        if (rates.has_device) bound.d2h_seconds += cost.seconds;
        break;
      case OperationKind::kActivationOut:
        (rates.has_device ? bound.d2h_seconds : bound.copy_seconds) += cost.seconds;
        break;
      case OperationKind::kActivationIn:
      case OperationKind::kCopyToDevice: bound.copy_seconds += cost.seconds; break;
      default: break;
    }
  }
  const auto read = static_cast<double>(read_bytes), written = static_cast<double>(write_bytes);
  const double cores = std::max({1, rates.cores, rates.machine_cores});
  const double threads_share = std::max(1, rates.cores) / cores;
  bound.io_cpu_seconds = (read + written) * rates.io_cpu_seconds_per_byte / cores;
  bound.cores_seconds = bound.optimizer_seconds * threads_share + bound.io_cpu_seconds;
  if (rates.has_device) {
    bound.device_seconds = bound.compute_seconds;
    bound.h2d_seconds = bound.copy_seconds;
  } else {
    bound.cores_seconds += bound.compute_seconds * threads_share + bound.copy_seconds / cores;
  }
  bound.disk_seconds = disk_seconds(read, written, rates);
  return bound;
}

TrafficFloor traffic_floor(const Plan& plan, Bytes kept_bytes) {
  double weights = 0, optimizer = 0;
  const PlanInput& input = plan.input;
  for (UnitId u = 0; u < static_cast<UnitId>(input.model.units.size()); ++u) {
    const UnitInfo& unit = input.model.units[at(u)];
    if (std::all_of(unit.tensors.begin(), unit.tensors.end(), [](const TensorInfo& t) { return t.frozen; })) continue;
    const std::int64_t elements = partition_range(unit.flat_elements, input.rank, input.world_size).padded_elements;
    weights += static_cast<double>(elements * dtype_bytes(input.weights_dtype));
    optimizer += static_cast<double>(optimizer_bytes(input, u, elements));
  }
  if (input.weights_home != Home::kNvme) weights = 0;
  if (input.optimizer_home != Home::kNvme) optimizer = 0;
  auto budget = static_cast<double>(std::max<Bytes>(0, kept_bytes));
  // Every interval from forward to backward spans the turn between them, every one from backward to forward the turn
  // between steps, an optimizer's both: a byte of memory saves at most two reads of weights, or one of state.
  TrafficFloor floor;
  floor.read_bytes = 2 * (weights - kept_of(budget, weights));
  floor.read_bytes += optimizer - kept_of(budget, optimizer);
  floor.write_bytes = weights + optimizer;
  return floor;
}

}  // namespace headrace::runtime
