// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>

#include "core/check.h"

namespace headrace::runtime {

namespace {

using NodeId = std::int32_t;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
constexpr std::size_t lane_index(Lane lane) { return static_cast<std::size_t>(lane); }
constexpr std::size_t kRead = lane_index(Lane::kNvmeRead), kWrite = lane_index(Lane::kNvmeWrite);
constexpr double kNever = std::numeric_limits<double>::infinity();
// Relative to an operation's work: what is left below this is rounding.
constexpr double kRounding = 1e-12;

// An operation of the plan or a collective.
struct Node {
  std::size_t lane = 0;
  OperationCost cost;
  std::int32_t waiting = 0;  // dependencies not yet done
  OperationTime time;
};

// What is to be simulated: nodes with who waits for whom, and their order on each lane.
class Graph {
 public:
  Graph(const Plan& plan, const Rates& rates, const std::vector<CollectiveUse>& uses, const Collectives& collectives)
      : plan_(plan) {
    const auto count = static_cast<NodeId>(plan.operations.size());
    nodes.reserve(at(count) + uses.size());
    for (const Operation& op : plan.operations) {
      Node node;
      node.lane = lane_index(op.lane);
      node.cost = cost_of(plan, op, rates);
      if (op.kind == OperationKind::kNorm) node.cost.seconds += barrier_seconds(collectives.world_size, rates.network);
      nodes.push_back(node);
      lanes[node.lane].push_back(static_cast<NodeId>(nodes.size()) - 1);
    }
    for (NodeId id = 0; id < count; ++id)
      for (const OperationId dependency : plan.operations[at(id)].dependencies) edges_.emplace_back(dependency, id);
    add_collectives(uses, rates, collectives);
    index_edges();
  }

  std::vector<Node> nodes;
  std::array<std::vector<NodeId>, kNumLanes> lanes;

  [[nodiscard]] std::pair<const NodeId*, const NodeId*> dependents(NodeId id) const {
    return {dependents_.data() + first_[at(id)], dependents_.data() + first_[at(id) + 1]};
  }
  [[nodiscard]] Result<void> check() const {
    for (const auto& [from, to] : edges_)
      if (from < 0 || from >= static_cast<NodeId>(nodes.size()))
        return make_error(ErrorCode::kFailed, fmt::format("operation {} waits for {}, which does not exist", to, from));
    return {};
  }

 private:
  void add_collectives(const std::vector<CollectiveUse>& uses, const Rates& rates, const Collectives& collectives);
  void index_edges();

  const Plan& plan_;
  std::vector<std::pair<NodeId, NodeId>> edges_;  // done before, waits
  std::vector<std::size_t> first_;
  std::vector<NodeId> dependents_;
};

// What brought the weights of each unit that a computation reads: the operation that last wrote their buffer.
std::vector<std::vector<std::pair<UnitId, OperationId>>> weight_writers(const Plan& plan) {
  std::vector<OperationId> last_writer(plan.buffers.size(), -1);
  std::vector<std::vector<std::pair<UnitId, OperationId>>> writers(plan.operations.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    for (const BufferUse& use : plan.operations[i].uses) {
      if (use.buffer == kNoBuffer) continue;
      const bool weights = use.role == Role::kWeights || use.role == Role::kUsedWeights;
      if (weights && plan.operations[i].lane == Lane::kCompute)
        writers[i].emplace_back(plan.buffers[at(use.buffer)].unit, last_writer[at(use.buffer)]);
      if (use.write) last_writer[at(use.buffer)] = static_cast<OperationId>(i);
    }
  }
  return writers;
}

void Graph::add_collectives(const std::vector<CollectiveUse>& uses, const Rates& rates,
                            const Collectives& collectives) {
  if (uses.empty()) return;
  const auto writers = weight_writers(plan_);
  std::vector<OperationId> stage_first, stage_last;
  for (const CollectiveUse& use : uses) {
    stage_first.resize(std::max(stage_first.size(), at(use.stage) + 1), -1);
    stage_last.resize(stage_first.size(), -1);
    stage_first[at(use.stage)] = use.first;
    stage_last[at(use.stage)] = use.last;
  }
  std::vector<std::vector<std::pair<std::int32_t, NodeId>>> scatters(plan_.input.model.units.size());
  for (const CollectiveUse& use : uses) {
    Node node;
    node.lane = lane_index(Lane::kCollective);
    node.cost.seconds = collective_seconds(use.bytes, collectives.world_size, rates.network);
    nodes.push_back(node);
    const auto id = static_cast<NodeId>(nodes.size()) - 1;
    lanes[node.lane].push_back(id);
    if (use.is_gather) {
      edges_.emplace_back(id, use.first);
      for (const auto& [unit, writer] : writers[at(use.first)])
        if (unit == use.unit && writer >= 0) edges_.emplace_back(writer, id);
      // It waits for the unit whose room it takes.
      const std::int32_t before = use.stage - collectives.units_in_flight;
      if (before >= 0 && stage_last[at(before)] >= 0) edges_.emplace_back(stage_last[at(before)], id);
    } else {
      edges_.emplace_back(use.last, id);
      scatters[at(use.unit)].emplace_back(plan_.operations[at(use.last)].group, id);
      // So does the gradient of a later one, which is summed where this one was.
      const std::size_t after = at(use.stage + collectives.units_in_flight);
      if (after < stage_first.size() && stage_first[after] >= 0) edges_.emplace_back(id, stage_first[after]);
    }
  }
  for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
    const Operation& op = plan_.operations[i];
    if (op.kind != OperationKind::kGradientOut) continue;
    for (const auto& [group, id] : scatters[at(op.unit)])
      if (group == op.group) edges_.emplace_back(id, static_cast<NodeId>(i));
  }
}

void Graph::index_edges() {
  first_.assign(nodes.size() + 1, 0);
  for (const auto& [from, to] : edges_) {
    if (from < 0 || from >= static_cast<NodeId>(nodes.size())) continue;  // check() says so
    ++first_[at(from) + 1];
    ++nodes[at(to)].waiting;
  }
  for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  dependents_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for (const auto& [from, to] : edges_)
    if (from >= 0 && from < static_cast<NodeId>(nodes.size())) dependents_[next[at(from)]++] = to;
}

// Threads asked for by several users of the cores, all served alike until each has what it asks for.
class CoreShare {
 public:
  explicit CoreShare(double cores) : cores_(cores) {}
  // `threads` of one user, each wanting `each` of a core.
  void ask(double threads, double each) {
    if (threads > 0 && each > 0) wants_.push_back({each, threads});
  }
  // What one thread gets at most.
  [[nodiscard]] double level() const {
    std::vector<std::pair<double, double>> wants = wants_;
    std::sort(wants.begin(), wants.end());
    double left = cores_, threads = 0;
    for (const auto& want : wants) threads += want.second;
    for (const auto& [each, count] : wants) {
      if (left >= each * threads) {
        left -= each * count;
        threads -= count;
      } else {
        return left / threads;
      }
    }
    return 1;
  }

 private:
  double cores_;
  std::vector<std::pair<double, double>> wants_;
};

class Clock {
 public:
  Clock(Graph& graph, const Rates& rates) : graph_(graph), rates_(rates) {
    for (std::size_t lane = 0; lane < graph.lanes.size(); ++lane) lanes_[lane].order = &graph.lanes[lane];
  }

  // True when everything has run.
  bool run() {
    while (true) {
      start_ready();
      if (left() == 0) return true;
      set_speeds();
      const double step = next_event();
      if (step == kNever) return false;
      advance(step);
    }
  }

  [[nodiscard]] double now() const noexcept { return now_; }
  [[nodiscard]] double busy(std::size_t lane) const noexcept { return lanes_[lane].busy; }
  [[nodiscard]] NodeId stuck(std::size_t lane) const {
    return lanes_[lane].next < lanes_[lane].order->size() ? (*lanes_[lane].order)[lanes_[lane].next] : -1;
  }

 private:
  struct LaneClock {
    const std::vector<NodeId>* order = nullptr;
    std::size_t next = 0;     // to start
    std::size_t serving = 0;  // being worked on: NVMe lanes start operations ahead of their service
    double work_left = 0;     // of the one served, in seconds alone
    double speed = 0;
    std::int32_t in_flight = 0;
    double busy = 0;
    [[nodiscard]] bool active() const noexcept { return serving < next; }
  };
  struct Late {  // served, but complete only after its latency
    double time = 0;
    NodeId node = -1;
    bool operator>(const Late& other) const noexcept {
      return time != other.time ? time > other.time : node > other.node;
    }
  };

  static bool is_asynchronous(std::size_t lane) { return lane == kRead || lane == kWrite; }

  [[nodiscard]] std::size_t left() const {
    std::size_t count = late_.size();
    for (const LaneClock& lane : lanes_) count += lane.order->size() - lane.serving;
    return count;
  }

  void start_ready() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        LaneClock& lane = lanes_[i];
        while (lane.next < lane.order->size() && (is_asynchronous(i) || (!lane.active() && lane.in_flight == 0))) {
          const NodeId id = (*lane.order)[lane.next];
          Node& node = graph_.nodes[at(id)];
          if (node.waiting > 0) break;
          node.time.start = now_;
          ++lane.in_flight;
          if (lane.next++ == lane.serving) lane.work_left = node.cost.seconds;
          moved = true;
          finish_empty(i);
        }
      }
    }
  }

  // Operations without work end where they start.
  void finish_empty(std::size_t i) {
    LaneClock& lane = lanes_[i];
    while (lane.active() && lane.work_left <= 0) finish_service(i);
  }

  void finish_service(std::size_t i) {
    LaneClock& lane = lanes_[i];
    const NodeId id = (*lane.order)[lane.serving++];
    if (lane.active()) lane.work_left = graph_.nodes[at((*lane.order)[lane.serving])].cost.seconds;
    const double latency = graph_.nodes[at(id)].cost.latency;
    if (latency > 0) {
      late_.push({now_ + latency, id});
    } else {
      complete(id);
    }
  }

  void complete(NodeId id) {
    Node& node = graph_.nodes[at(id)];
    node.time.end = now_;
    --lanes_[node.lane].in_flight;
    const auto [begin, end] = graph_.dependents(id);
    for (const NodeId* dependent = begin; dependent != end; ++dependent) --graph_.nodes[at(*dependent)].waiting;
  }

  [[nodiscard]] const OperationCost& served(std::size_t lane) const {
    return graph_.nodes[at((*lanes_[lane].order)[lanes_[lane].serving])].cost;
  }
  [[nodiscard]] bool moves_disk_bytes(std::size_t lane) const {
    return lanes_[lane].active() && served(lane).disk_bytes > 0;
  }

  // Bytes per second that the disk gives to each direction.
  [[nodiscard]] std::pair<double, double> disk_rates() const {
    const double read = moves_disk_bytes(kRead) ? rates_.read_bytes_per_s : 0;
    const double write = moves_disk_bytes(kWrite) ? rates_.write_bytes_per_s : 0;
    return read > 0 && write > 0 ? mixed_rates(rates_) : std::pair{read, write};
  }

  void set_speeds() {
    const auto [read, write] = disk_rates();
    lanes_[kRead].speed = moves_disk_bytes(kRead) && rates_.read_bytes_per_s > 0 ? read / rates_.read_bytes_per_s : 1;
    lanes_[kWrite].speed =
        moves_disk_bytes(kWrite) && rates_.write_bytes_per_s > 0 ? write / rates_.write_bytes_per_s : 1;
    CoreShare cores(std::max({1, rates_.cores, rates_.machine_cores}));
    const double io = std::min(1.0, (read + write) * rates_.io_cpu_seconds_per_byte);
    cores.ask(1, io);
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      if (!is_asynchronous(i) && lanes_[i].active()) cores.ask(served(i).threads, 1);
    const double level = cores.level();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      LaneClock& lane = lanes_[i];
      if (!lane.active()) continue;
      if (!is_asynchronous(i)) {
        lane.speed = served(i).threads > 0 ? level : 1;
      } else if (served(i).disk_bytes > 0 && io > level) {
        lane.speed *= level / io;
      }
    }
    share_memory();
  }

  void share_memory() {
    if (rates_.memory_bytes_per_s <= 0) return;
    double asked = 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      if (lanes_[i].active()) asked += memory_rate(i);
    if (asked <= rates_.memory_bytes_per_s) return;
    const double factor = rates_.memory_bytes_per_s / asked;
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      if (lanes_[i].active() && served(i).memory_bytes > 0) lanes_[i].speed *= factor;
  }
  [[nodiscard]] double memory_rate(std::size_t lane) const {
    const OperationCost& cost = served(lane);
    return cost.seconds > 0 ? lanes_[lane].speed * cost.memory_bytes / cost.seconds : 0;
  }

  [[nodiscard]] double next_event() const {
    double step = late_.empty() ? kNever : late_.top().time - now_;
    for (const LaneClock& lane : lanes_)
      if (lane.active() && lane.speed > 0) step = std::min(step, lane.work_left / lane.speed);
    return step;
  }

  void advance(double step) {
    const double before = now_;
    now_ += step;
    for (LaneClock& lane : lanes_)
      if (lane.in_flight > 0) lane.busy += now_ - before;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      LaneClock& lane = lanes_[i];
      if (!lane.active()) continue;
      lane.work_left -= step * lane.speed;
      if (lane.work_left <= kRounding * (served(i).seconds + step * lane.speed)) {
        finish_service(i);
        finish_empty(i);
      }
    }
    while (!late_.empty() && late_.top().time <= now_) {
      const NodeId id = late_.top().node;
      late_.pop();
      complete(id);
    }
  }

  Graph& graph_;
  const Rates& rates_;
  std::array<LaneClock, kNumLanes> lanes_;
  std::priority_queue<Late, std::vector<Late>, std::greater<>> late_;
  double now_ = 0;
};

// Dependencies point backwards, so one pass in order finds the longest chain. The order of a lane that does one thing
// at a time is part of it: dependencies which that implies are not listed.
double critical_path(const Plan& plan, const Graph& graph) {
  std::vector<double> end(plan.operations.size(), 0);
  std::array<double, kNumLanes> lane_end{};
  double longest = 0;
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const std::size_t lane = graph.nodes[i].lane;
    double start = lane == kRead || lane == kWrite ? 0 : lane_end[lane];
    for (const OperationId dependency : plan.operations[i].dependencies)
      if (at(dependency) < i) start = std::max(start, end[at(dependency)]);
    end[i] = start + graph.nodes[i].cost.seconds + graph.nodes[i].cost.latency;
    lane_end[lane] = end[i];
    longest = std::max(longest, end[i]);
  }
  return longest;
}

Error stuck_error(const Plan& plan, const Clock& clock) {
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) {
    const NodeId id = clock.stuck(lane);
    if (id < 0) continue;
    const bool is_operation = at(id) < plan.operations.size();
    return make_error(ErrorCode::kFailed,
                      fmt::format("the plan cannot go on: operation {} ({}) on lane {} waits for ever", id,
                                  is_operation ? operation_kind_name(plan.operations[at(id)].kind) : "collective",
                                  lane_name(static_cast<Lane>(lane))));
  }
  return make_error(ErrorCode::kFailed, "the plan cannot go on: an operation never ends, its rate is 0");
}

}  // namespace

Result<Simulation> simulate(const Plan& plan, const Rates& rates) { return simulate(plan, rates, {}); }

Result<Simulation> simulate(const Plan& plan, const Rates& rates, const Collectives& collectives) {
  const std::vector<CollectiveUse> uses = collective_uses(plan, collectives);
  Graph graph(plan, rates, uses, collectives);
  HEADRACE_RETURN_IF_ERROR(graph.check());
  Simulation simulation;
  simulation.critical_path_seconds = critical_path(plan, graph);
  Clock clock(graph, rates);
  if (!clock.run()) return stuck_error(plan, clock);
  simulation.step_seconds = clock.now();
  for (std::size_t lane = 0; lane < kNumLanes; ++lane) simulation.busy[lane] = clock.busy(lane);
  simulation.times.reserve(plan.operations.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i) simulation.times.push_back(graph.nodes[i].time);
  for (std::size_t i = 0; i < uses.size(); ++i)
    simulation.collectives.push_back({uses[i], graph.nodes[plan.operations.size() + i].time});
  return simulation;
}

}  // namespace headrace::runtime
