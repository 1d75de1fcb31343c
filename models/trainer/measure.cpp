// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>

#include "core/check.h"
#include "runtime/engine/tile_room.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::models {

namespace {

using runtime::Engine;
using runtime::Operation;
using runtime::OperationKind;
using runtime::Rates;

constexpr int kRepeats = 3;                // fewer: one disturbed run decides; more: a slower start
constexpr double kEnoughSeconds = 1.0;     // stop repeating once a unit took this long
constexpr Bytes kSweepBytes = 192 * kMiB;  // beyond the caches where the slab is; else the slab itself
constexpr std::chrono::milliseconds kDiskBudget{1500};

// Shortest of a few runs after one that warms up: what the machine can do when nobody disturbs it.
double shortest_seconds(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = 0, total = 0;
  for (int i = 0; i <= kRepeats && (i < 2 || total < kEnoughSeconds); ++i) {
    const auto begin = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    total += seconds;
    if (i > 0) best = best > 0 ? std::min(best, seconds) : seconds;
  }
  return best;
}

void measure_units(Engine& engine, const Model& model, const kernels::Parallel& parallel, const MicroBatch& data,
                   Rates& rates) {
  const auto& units = model.info().units;
  rates.forward_seconds.assign(units.size(), 0);
  rates.backward_seconds.assign(units.size(), 0);
  // Units of one shape take one time.
  using Shape = std::tuple<std::int64_t, double, Bytes, bool>;
  std::map<std::pair<Shape, bool>, double> known;
  const auto& operations = engine.plan().operations;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const bool forward = operation.kind == OperationKind::kForward;
    if (!forward && operation.kind != OperationKind::kBackward) continue;
    const auto u = static_cast<std::size_t>(operation.unit);
    const Shape shape{units[u].flat_elements, units[u].forward_flops, units[u].output_bytes, units[u].fused_loss};
    double& seconds = (forward ? rates.forward_seconds : rates.backward_seconds)[u];
    const auto found = known.find({shape, forward});
    if (found != known.end()) {
      seconds = found->second;
      continue;
    }
    const runtime::ComputeLease lease = engine.lease_of(static_cast<runtime::OperationId>(i), operation);
    const UnitBuffers buffers = unit_buffers(lease);
    seconds = shortest_seconds([&] {
      if (forward) {
        model.forward(parallel, operation.unit, data, buffers);
      } else {
        model.backward(parallel, operation.unit, data, buffers, false);
      }
    });
    known[{shape, forward}] = seconds;
  }
}

// Sweeps the slab with one operation per piece, so that each piece comes from memory and not from a cache.
double seconds_per_element(std::span<std::byte> memory, Bytes piece_bytes, std::int64_t piece_elements,
                           const std::function<void(std::byte*)>& work) {
  const Bytes sweep = std::min<Bytes>(static_cast<Bytes>(memory.size()), kSweepBytes);
  const std::int64_t pieces = sweep / piece_bytes;
  if (pieces == 0) return 0;
  const double seconds = shortest_seconds([&] {
    for (std::int64_t i = 0; i < pieces; ++i) work(memory.data() + i * piece_bytes);
  });
  return seconds / static_cast<double>(pieces * piece_elements);
}

cpu_adam::OptimizerHyper usual_hyper(const runtime::PlanInput& input) {
  cpu_adam::OptimizerHyper hyper = cpu_adam::default_hyper(input.optimizer);
  if (input.moments > 0) hyper.momentum = 0.9;
  hyper.weight_decay = 0.1;
  return hyper;
}

// Optimizers of whole tensors take a unit at a time. On zeros, which cost what other values do.
class WholeUpdates {
 public:
  WholeUpdates(Engine& engine, std::span<std::byte> memory)
      : engine_(engine), input_(engine.plan().input), memory_(memory) {}

  // Muon: its matrices have a rate of their own, measured with the unit that has most of them.
  void measure(Rates& rates) const {
    const bool is_muon = input_.optimizer == cpu_adam::OptimizerKind::kMuon;
    const runtime::UnitId matrices = is_muon ? find([](const Work& work) { return work.product_flops; }) : -1;
    const runtime::UnitId plain = find([](const Work& work) { return work.product_flops > 0 ? 0 : work.elements; });
    if (plain >= 0) rates.update_seconds_per_element = seconds(plain) / work(plain).elements;
    if (matrices < 0) return;
    const Work both = work(matrices);
    const double beside = both.elements * rates.update_seconds_per_element;
    rates.update_seconds_per_product_flop = std::max(0.0, seconds(matrices) - beside) / both.product_flops;
    if (plain < 0) rates.update_seconds_per_element = kLittle;
  }

 private:
  using Work = runtime::UpdateWork;
  // Of the few elements beside the matrices, where no unit is without those.
  static constexpr double kLittle = 1e-9;

  [[nodiscard]] Work work(runtime::UnitId unit) const { return runtime::update_work(input_, unit, 0); }
  [[nodiscard]] const runtime::UnitInfo& info(runtime::UnitId unit) const {
    return input_.model.units[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] Bytes weight_bytes(runtime::UnitId unit) const {
    return round_up(info(unit).flat_elements * dtype_bytes(input_.weights_dtype), input_.alignment);
  }
  [[nodiscard]] Bytes state_bytes(runtime::UnitId unit) const {
    return round_up(runtime::optimizer_layout(input_, unit, 0).bytes, input_.alignment);
  }
  [[nodiscard]] Bytes piece_bytes(runtime::UnitId unit) const {
    return weight_bytes(unit) + state_bytes(unit) +
           round_up(info(unit).flat_elements * dtype_bytes(input_.gradient_dtype), input_.alignment);
  }

  // The unit with most of something that the memory holds; -1 if none has any of it.
  template <class Measure>
  [[nodiscard]] runtime::UnitId find(Measure amount) const {
    runtime::UnitId chosen = -1;
    for (runtime::UnitId u = 0; u < static_cast<runtime::UnitId>(input_.model.units.size()); ++u) {
      if (info(u).flat_elements == 0 || runtime::is_frozen(info(u))) continue;
      if (amount(work(u)) <= (chosen < 0 ? 0 : amount(work(chosen)))) continue;
      if (piece_bytes(u) <= static_cast<Bytes>(memory_.size())) chosen = u;
    }
    return chosen;
  }

  [[nodiscard]] double seconds(runtime::UnitId unit) const {
    const runtime::OptimizerLayout layout = runtime::optimizer_layout(input_, unit, 0);
    return seconds_per_element(memory_, piece_bytes(unit), 1, [&](std::byte* piece) { update(unit, layout, piece); });
  }

  void update(runtime::UnitId unit, const runtime::OptimizerLayout& layout, std::byte* piece) const {
    cpu_adam::OptimizerHyper hyper = usual_hyper(input_);
    hyper.newton_schulz_steps = input_.newton_schulz_steps;
    std::byte* const optimizer = piece + weight_bytes(unit);
    for (std::size_t i = 0; i < info(unit).tensors.size(); ++i) {
      const runtime::TensorInfo& tensor = info(unit).tensors[i];
      if (tensor.frozen) continue;
      runtime::StatePiece state{piece,   optimizer,     optimizer + state_bytes(unit),
                                &layout, tensor.offset, tensor.elements};
      state.first_element = tensor.offset;
      state.unit = unit;
      state.tensor = static_cast<int>(i);
      const Result<void> updated = engine_.updater().update(input_, state, hyper, 0);
      HEADRACE_CHECK(updated.ok(), "zeros can be updated");
    }
  }

  Engine& engine_;
  const runtime::PlanInput& input_;
  std::span<std::byte> memory_;
};

double update_seconds_per_element(Engine& engine, std::span<std::byte> memory) {
  const runtime::PlanInput& input = engine.plan().input;
  const Bytes alignment = input.alignment;
  const Bytes weight_bytes = dtype_bytes(input.weights_dtype), gradient_bytes = dtype_bytes(input.gradient_dtype);
  // A tile of the run, or as much of one as fits into the memory.
  std::int64_t length = input.tile_elements;
  const auto piece_of = [&](std::int64_t n) {
    return round_up(n * weight_bytes, alignment) + round_up(n * gradient_bytes, alignment) +
           round_up(runtime::optimizer_layout(input, n).bytes, alignment);
  };
  while (length > 4096 && piece_of(length) > static_cast<Bytes>(memory.size())) length /= 2;
  const runtime::OptimizerLayout layout = runtime::optimizer_layout(input, length);
  return seconds_per_element(memory, piece_of(length), length, [&](std::byte* piece) {
    std::byte* const optimizer = piece + round_up(length * weight_bytes, alignment);
    const runtime::StatePiece state{piece,   optimizer, optimizer + round_up(layout.bytes, alignment),
                                    &layout, 0,         length};
    const Result<void> updated = engine.updater().update(input, state, usual_hyper(input), 0);
    HEADRACE_CHECK(updated.ok(), "an elementwise update refuses nothing");
  });
}

void measure_arrivals(Engine& engine, std::span<std::byte> memory, Rates& rates) {
  const runtime::PlanInput& input = engine.plan().input;
  const Bytes alignment = input.alignment, gradient_bytes = dtype_bytes(input.gradient_dtype);
  std::int64_t length = input.tile_elements;
  const auto piece_of = [&](std::int64_t n) {
    return round_up(n * 4, alignment) + round_up(n * gradient_bytes, alignment);
  };
  while (length > 4096 && piece_of(length) > static_cast<Bytes>(memory.size())) length /= 2;
  std::vector<double> sums(static_cast<std::size_t>(ceil_div(length, cpu_adam::ParallelUpdater::kNormChunk)));
  std::vector<std::int64_t> non_finite(sums.size());
  rates.gradient_out_seconds_per_element = seconds_per_element(memory, piece_of(length), length, [&](std::byte* piece) {
    cpu_adam::ParallelUpdater::Arrival arrival;
    arrival.source = reinterpret_cast<const float*>(piece);
    arrival.destination = piece + round_up(length * 4, alignment);
    arrival.dtype = input.gradient_dtype;
    arrival.elements = length;
    engine.updater().gradients().arrive(arrival, sums, non_finite);
  });
}

}  // namespace

UnitBuffers unit_buffers(const runtime::ComputeLease& lease) {
  UnitBuffers buffers;
  buffers.weights = lease.weights;
  buffers.used_weights = lease.used_weights;
  buffers.input = lease.input;
  buffers.output = lease.output;
  buffers.output_gradient = lease.output_gradient;
  buffers.input_gradient = lease.input_gradient;
  buffers.saved = lease.saved;
  buffers.workspace = lease.workspace;
  buffers.gradient = lease.gradient;
  buffers.first = lease.first;
  buffers.used_gradients = lease.used_gradients;
  buffers.first_used = lease.first_used;
  return buffers;
}

Result<Rates> measure_rates(Engine& engine, const Model& model, const kernels::Parallel& parallel,
                            const MicroBatch& data) {
  Rates rates;
  rates.cores = parallel.threads();
  measure_units(engine, model, parallel, data, rates);
  std::span<std::byte> memory =
      engine.host_memory().size() >= engine.device_memory().size() ? engine.host_memory() : engine.device_memory();
  // What the units left behind is no state: plain zeros, so that the sweeps meet no NaN and no denormal numbers.
  std::memset(memory.data(), 0, memory.size());
  if (cpu_adam::is_elementwise(engine.plan().input.optimizer)) {
    rates.update_seconds_per_element = update_seconds_per_element(engine, memory);
  } else {
    WholeUpdates(engine, memory).measure(rates);
  }
  measure_arrivals(engine, memory, rates);
  const auto half = static_cast<std::int64_t>(memory.size() / 2);
  const double copy_seconds =
      shortest_seconds([&] { std::memcpy(memory.data(), memory.data() + half, static_cast<std::size_t>(half)); });
  rates.copy_bytes_per_s = copy_seconds > 0 ? static_cast<double>(half) / copy_seconds : 0;
  if (engine.nvme_store() != nullptr) {
    HEADRACE_TRY(const io::VolumeSet::Rates disk, engine.nvme_store()->volumes().measure(memory, kDiskBudget));
    rates.read_bytes_per_s = disk.read_bytes_per_s;
    rates.write_bytes_per_s = disk.write_bytes_per_s;
    rates.mixed_bytes_per_s = disk.mixed_bytes_per_s;
    rates.io_cpu_seconds_per_byte = disk.cpu_seconds_per_byte;
  }
  std::memset(engine.host_memory().data(), 0, engine.host_memory().size());
  if (!engine.device_memory().empty()) std::memset(engine.device_memory().data(), 0, engine.device_memory().size());
  return rates;
}

}  // namespace headrace::models
