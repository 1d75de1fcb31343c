// SPDX-License-Identifier: Apache-2.0
// What each planned operation does.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/check.h"
#include "runtime/engine/engine.h"
#include "runtime/plan/tensor_state.h"

namespace headrace::runtime {

std::byte* Engine::address(const BufferUse& use) noexcept {
  const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(use.buffer)];
  return (buffer.tier == Tier::kHost ? host_slab_.bytes() : device_slab_.bytes()).data() + buffer.offset + use.offset;
}

std::byte* Engine::address_of(const Operation& operation, Role role) noexcept {
  for (const BufferUse& use : operation.uses)
    if (use.role == role) return address(use);
  return nullptr;
}

Result<void> Engine::run(const Operation& operation) {
  if (!is_wanted(operation)) return {};
  switch (operation.kind) {
    case OperationKind::kCopyToDevice: {
      const std::byte* const source = address_of(operation, Role::kSource);
      std::byte* const destination = address_of(operation, Role::kDestination);
      for (const BufferUse& use : operation.uses)
        if (use.role == Role::kDestination) std::memcpy(destination, source, static_cast<std::size_t>(use.bytes));
      return {};
    }
    case OperationKind::kActivationOut:
    case OperationKind::kActivationIn: copy_activation(operation); return {};
    case OperationKind::kGradientOut: gradient_out(operation); return {};
    case OperationKind::kNorm: decide_update(); return {};
    case OperationKind::kUpdate: return update(operation);
    case OperationKind::kCopyState: return copy_state(operation);
    default: HEADRACE_CHECK(false, "not an operation of a synchronous lane"); return {};
  }
}

Result<std::vector<io::Ticket>> Engine::start(const Operation& operation, io::CompletionSink sink) {
  if (!is_wanted(operation)) return std::vector<io::Ticket>();
  switch (operation.kind) {
    case OperationKind::kReadWeights:
    case OperationKind::kReadState:
    case OperationKind::kReadGradient: return start_read(operation, sink);
    case OperationKind::kWriteState:
    case OperationKind::kWriteGradient: return start_write(operation, sink);
    case OperationKind::kReadActivation:
    case OperationKind::kWriteActivation: return start_activation(operation, sink);
    case OperationKind::kCommit: {
      redo_follows_ = !in_redo_ && must_redo();
      if (!redo_follows_) HEADRACE_RETURN_IF_ERROR(commit());
      return std::vector<io::Ticket>();
    }
    default: HEADRACE_CHECK(false, "not an operation of an NVMe lane"); return std::vector<io::Ticket>();
  }
}

// A spilled gradient is written once per group; the version tells the groups of a step apart.
std::uint64_t Engine::spill_version(const Operation& operation, bool write) const {
  const auto groups = static_cast<std::uint64_t>(ceil_div(plan_.input.micro_batches, plan_.input.group_size));
  const std::uint64_t step_base = settings_.step * groups;
  if (operation.kind == OperationKind::kReadState) return update_settings(operation.unit).step * groups + groups - 1;
  const auto group = static_cast<std::uint64_t>(operation.group);
  return step_base + (write ? group : group - 1);
}

namespace {

// All tiles of a unit-sized buffer, laid end to end at their element offsets.
void add_unit_tiles(const PlanInput& input, UnitId unit, StateStream stream, std::byte* data, Bytes element_bytes,
                    std::vector<TileMove>& moves) {
  for (std::int64_t tile = 0; tile < num_tiles(input, unit); ++tile)
    moves.push_back({{unit, stream, tile}, data + tile * input.tile_elements * element_bytes});
}

}  // namespace

Result<std::vector<io::Ticket>> Engine::start_read(const Operation& operation, io::CompletionSink sink) {
  const PlanInput& input = plan_.input;
  std::vector<io::Ticket> tickets;
  std::vector<TileMove> state, gradient;
  for (const BufferUse& use : operation.uses) {
    if (in_redo_ && !is_wanted_in_redo(operation, use)) continue;
    std::byte* const data = address(use);
    if (operation.kind == OperationKind::kReadWeights) {
      add_unit_tiles(input, operation.unit, StateStream::kWeights, data, dtype_bytes(input.weights_dtype), state);
    } else if (operation.kind == OperationKind::kReadGradient) {
      add_unit_tiles(input, operation.unit, StateStream::kGradient, data, dtype_bytes(input.gradient_dtype), gradient);
    } else if (use.role == Role::kGradient) {
      gradient.push_back({{operation.unit, StateStream::kGradient, operation.tile}, data});
    } else {
      const StateStream stream = use.role == Role::kWeights ? StateStream::kWeights : StateStream::kOptimizer;
      state.push_back({{operation.unit, stream, operation.tile}, data});
    }
  }
  if (!state.empty()) {
    HEADRACE_TRY(io::Ticket ticket, load_state(state, sink));
    tickets.push_back(std::move(ticket));
  }
  if (!gradient.empty()) {
    auto loaded = spill_->load(gradient, spill_version(operation, false), sink);
    HEADRACE_CHECK(loaded.ok(), "a spilled gradient is always loadable");
    tickets.push_back(std::move(loaded).value());
  }
  return tickets;
}

Result<std::vector<io::Ticket>> Engine::start_write(const Operation& operation, io::CompletionSink sink) {
  const PlanInput& input = plan_.input;
  std::vector<io::Ticket> tickets;
  std::vector<TileMove> moves;
  if (operation.kind == OperationKind::kWriteGradient) {
    add_unit_tiles(input, operation.unit, StateStream::kGradient, address_of(operation, Role::kGradient),
                   dtype_bytes(input.gradient_dtype), moves);
    HEADRACE_TRY(io::Ticket ticket, spill_->store(moves, spill_version(operation, true), sink));
    tickets.push_back(std::move(ticket));
    return tickets;
  }
  for (const BufferUse& use : operation.uses) {
    const StateStream stream = use.role == Role::kWeights ? StateStream::kWeights : StateStream::kOptimizer;
    moves.push_back({{operation.unit, stream, operation.tile}, address(use)});
  }
  HEADRACE_TRY(io::Ticket ticket, in_redo_ ? nvme_->store_again(moves, settings_.step, sink)
                                           : nvme_->store(moves, update_settings(operation.unit).step, sink));
  tickets.push_back(std::move(ticket));
  return tickets;
}

void Engine::gradient_out(const Operation& operation) {
  const auto u = static_cast<std::size_t>(operation.unit);
  const DType dtype = plan_.input.gradient_dtype;
  auto* const source = reinterpret_cast<float*>(address_of(operation, Role::kAccumulator));
  std::byte* const destination = address_of(operation, Role::kGradient);
  if (settings_.inject_nan && operation.last && operation.unit == 0)
    source[0] = std::numeric_limits<float>::quiet_NaN();
  std::size_t chunk = 0;
  for (const TensorInfo& tensor : plan_.input.model.units[u].tensors) {
    const auto chunks = static_cast<std::size_t>(ceil_div(tensor.elements, cpu_adam::ParallelUpdater::kNormChunk));
    cpu_adam::ParallelUpdater::Arrival arrival;
    arrival.source = source + tensor.offset;
    arrival.destination = destination + tensor.offset * dtype_bytes(dtype);
    arrival.dtype = dtype;
    arrival.add = !operation.first;
    arrival.elements = tensor.frozen ? 0 : tensor.elements;
    if (!tensor.frozen)
      updater_.gradients().arrive(arrival, std::span(chunk_sums_[u]).subspan(chunk, chunks),
                                  std::span(chunk_non_finite_[u]).subspan(chunk, chunks));
    chunk += chunks;
  }
  if (operation.last) judge_gradient(operation.unit);
}

// The exact global norm: fp64 sums of fixed chunks, added in the order of the model.
void Engine::decide_update() {
  double sum = 0;
  for (std::size_t u = 0; u < chunk_sums_.size(); ++u) {
    std::size_t chunk = 0;
    for (const TensorInfo& tensor : plan_.input.model.units[u].tensors) {
      const std::int64_t chunks = ceil_div(tensor.elements, cpu_adam::ParallelUpdater::kNormChunk);
      for (std::int64_t i = 0; i < chunks; ++i, ++chunk) {
        if (chunk_non_finite_[u][chunk] > 0) {
          if (outcome_.non_finite == 0) outcome_.non_finite_tensor = tensor.name;
          outcome_.non_finite += chunk_non_finite_[u][chunk];
        } else {
          sum += chunk_sums_[u][chunk];
        }
      }
    }
  }
  outcome_.grad_norm = std::sqrt(sum) / settings_.loss_scale;
  // A norm beyond fp64 has no clip factor: skipped like a non-finite element.
  outcome_.skipped = outcome_.non_finite > 0 || !std::isfinite(sum);
  outcome_.clip_factor = 1;
  if (!outcome_.skipped && settings_.clip_norm > 0 && outcome_.grad_norm > 0)
    outcome_.clip_factor = std::min(1.0, settings_.clip_norm / (outcome_.grad_norm + 1e-6));
  gradient_scale_ = static_cast<float>(outcome_.clip_factor / settings_.loss_scale);
  outcome_.optimizer_step = updates_before_ + (outcome_.skipped ? 0 : 1);
  if (outcome_.skipped || outcome_.clip_factor != 1) speculation_.miss();
}

Result<void> Engine::update(const Operation& operation) {
  const PlanInput& input = plan_.input;
  const StepSettings& settings = update_settings(operation.unit);
  const UnitInfo& unit = input.model.units[static_cast<std::size_t>(operation.unit)];
  const std::int64_t begin = tile_begin(input, operation.unit, operation.tile);
  const std::int64_t length = tile_length(input, operation.unit, operation.tile);
  const OptimizerLayout layout = optimizer_layout(input, operation.unit, operation.tile);
  std::byte* const weights = address_of(operation, Role::kWeights);
  std::byte* const optimizer = address_of(operation, Role::kOptimizer);
  const std::byte* const gradient = address_of(operation, Role::kGradient);
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const TensorInfo& tensor = unit.tensors[i];
    const std::int64_t first = std::max(begin, tensor.offset);
    const std::int64_t last = std::min(begin + length, tensor.offset + tensor.elements);
    if (first >= last || tensor.frozen) continue;
    StatePiece piece{weights, optimizer, gradient, &layout, first - begin, last - first};
    piece.first_element = first;
    piece.unit = operation.unit;
    piece.tensor = static_cast<int>(i);
    cpu_adam::OptimizerHyper hyper = settings.hyper;
    if (optimizer_of(input.optimizer, tensor) != input.optimizer) hyper.lr *= settings.beside_lr_factor;
    hyper.gradient_scale = is_pending(operation.unit) ? pending_->gradient_scale : gradient_scale_;
    if (!decays(tensor)) hyper.weight_decay = 0;
    HEADRACE_RETURN_IF_ERROR(updater_.update(input, piece, hyper, settings.rounding_seed));
  }
  // Tiles at home in host memory are updated where they are; the store learns their version.
  for (const auto& [stream, data] :
       {std::pair{StateStream::kWeights, weights}, std::pair{StateStream::kOptimizer, optimizer}}) {
    const Home home = stream == StateStream::kWeights ? input.weights_home : input.optimizer_home;
    if (home == Home::kNvme) continue;
    const TileMove move{{operation.unit, stream, operation.tile}, data};
    HEADRACE_TRY(const io::Ticket ticket, host_->store({&move, 1}, settings.step, {}));
    HEADRACE_CHECK(ticket.ready(), "host memory stores at once");
  }
  return {};
}

// What the step that is done adds to the record before it.
StepRecord Engine::next_record() {
  StepRecord record = record_;
  record.step = settings_.step;
  record.optimizer_step = outcome_.optimizer_step;
  record.samples_consumed = settings_.samples_consumed;
  record.skipped_steps += outcome_.skipped ? 1 : 0;
  record.skipped_in_a_row = outcome_.skipped ? record_.skipped_in_a_row + 1 : 0;
  if (settings_.loss_scaler != nullptr) {
    settings_.loss_scaler->after_step(outcome_.skipped);
    settings_.loss_scaler->save(record);
  }
  return record;
}

Result<void> Engine::commit() {
  if (is_delayed()) return commit_pending();
  StepRecord record = next_record();
  (in_redo_ ? redo_times_ : times_) = executor_->times_so_far();
  outcome_.early = speculation_.any_updated();
  outcome_.redone = in_redo_ && !outcome_.skipped;
  collect_times(outcome_, times_);
  if (settings_.metrics_row) record.metrics_row = settings_.metrics_row(outcome_);
  return write_record(std::move(record), !outcome_.skipped);
}

Result<void> Engine::write_record(StepRecord record, bool updated) {
  if (nvme_ != nullptr) {
    HEADRACE_RETURN_IF_ERROR(nvme_->commit_step(std::move(record), updated));
    record_ = nvme_->committed();
    return {};
  }
  if (updated) record.state_version = record.step;
  record_ = std::move(record);
  return {};
}

}  // namespace headrace::runtime
