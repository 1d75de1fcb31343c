// SPDX-License-Identifier: Apache-2.0
// One front for all optimizers on host memory: their names, hyper-parameters, the arrays each keeps, and the update of
// any span of elements in one pass (unscale × clip, decay, moments, master, compute weights). Adafactor and Muon need
// whole tensors and have entries of their own (adafactor.h, muon.h). Formulas and measured errors: docs/optimizers.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "core/result.h"
#include "cpu_adam/adamw.h"
#include "cpu_adam/format_state.h"

namespace headrace::cpu_adam {

enum class OptimizerKind : std::uint8_t { kAdamW, kAdam, kLion, kAdagrad, kSgd, kAdafactor, kMuon };
inline constexpr int kOptimizerKinds = 7;
[[nodiscard]] const char* optimizer_name(OptimizerKind kind) noexcept;  // "AdamW", "SGD", …
// Letter case does not matter. kConfig for an unknown name: the nearest known one, and all of them.
[[nodiscard]] Result<OptimizerKind> parse_optimizer(std::string_view name);
// False for Adafactor and Muon: their update of an element depends on the whole tensor.
[[nodiscard]] bool is_elementwise(OptimizerKind kind) noexcept;

// What the learning rate of a matrix is multiplied by, so that its size does not depend on the shape.
enum class MuonScale : std::uint8_t {
  kKellerJordan,   // sqrt(max(1, rows / columns))
  kMatchRmsAdamW,  // 0.2 · sqrt(max(rows, columns)): a learning rate tuned for AdamW fits
};

// All that any optimizer reads; each looks at its own numbers only. Start from default_hyper(kind).
struct OptimizerHyper {
  double lr = 1e-3;
  double weight_decay = 0.0;    // decoupled: AdamW, Lion, Adafactor, Muon; added to the gradient: Adam, Adagrad, SGD
  double beta1 = 0.9;           // AdamW, Adam, Lion
  double beta2 = 0.999;         // AdamW, Adam, Lion
  double eps = 1e-8;            // AdamW, Adam, Adagrad
  double lr_decay = 0.0;        // Adagrad: lr / (1 + (t-1) · lr_decay)
  double momentum = 0.0;        // SGD (0: no momentum buffer), Muon
  double dampening = 0.0;       // SGD
  bool nesterov = false;        // SGD, Muon
  double beta2_decay = -0.8;    // Adafactor: beta2 = 1 - t^beta2_decay
  double eps1 = 0x1p-23;        // Adafactor: floor of the root of the variance estimate
  double eps2 = 1e-3;           // Adafactor: floor of the weights' root mean square
  double clip_threshold = 1;    // Adafactor: largest root mean square of the update before lr (d)
  int newton_schulz_steps = 5;  // Muon
  std::array<double, 3> newton_schulz_coefficients = {3.4445, -4.7750, 2.0315};  // Muon
  double newton_schulz_eps = 1e-7;                                               // Muon: beside the Frobenius norm
  MuonScale muon_scale = MuonScale::kKellerJordan;                               // Muon
  std::int64_t optimizer_step = 1;  // t ≥ 1: this update's number for this tensor
  float gradient_scale = 1.0F;      // unscale × clip, applied to the gradient first
};
// Defaults of PyTorch (Lion: of its paper, with betas 0.9 and 0.99).
[[nodiscard]] OptimizerHyper default_hyper(OptimizerKind kind) noexcept;
// kConfig, naming the number and its bounds; looks at what `kind` reads.
[[nodiscard]] Result<void> validate(OptimizerKind kind, const OptimizerHyper& hyper);
// AdamW's own numbers; the seed of stochastic rounding is not among them and stays 0.
[[nodiscard]] AdamWHyper adamw_hyper(const OptimizerHyper& hyper) noexcept;
// Can this optimizer update a weight of this shape? kConfig where not: Muon takes matrices only, Adafactor vectors and
// matrices.
[[nodiscard]] Result<void> validate_shape(OptimizerKind kind, std::span<const std::int64_t> shape);

// The fp32 planes of state beside the master, one number for each element: AdamW and Adam {"exp_avg", "exp_avg_sq"},
// Lion {"exp_avg"}, Adagrad {"sum"}, SGD with momentum and Muon {"momentum_buffer"}. All start at 0. Empty for SGD
// without momentum and for Adafactor (its state is not one number for each element: adafactor.h).
inline constexpr int kMostMoments = 2;
[[nodiscard]] std::span<const char* const> moment_names(OptimizerKind kind, const OptimizerHyper& hyper) noexcept;
[[nodiscard]] int num_moments(OptimizerKind kind, const OptimizerHyper& hyper) noexcept;

// The weights of one tensor, or of a part of one, and its gradient: `elements` each, any alignment that the element
// type allows.
struct OptimizerArrays {
  void* weights = nullptr;  // weights_dtype; updated in place
  DType weights_dtype = DType::kBf16;
  float* master = nullptr;                        // kFp32 with 16-bit weights, else null
  std::int16_t* remainder = nullptr;              // kSplit, else null
  std::array<float*, kMostMoments> moments = {};  // in the order of moment_names(), null beyond
  const void* gradient = nullptr;                 // gradient_dtype; only read
  DType gradient_dtype = DType::kFp32;
  std::int64_t elements = 0;
};
// Points master, remainder and moments at element `at` of planes that begin at `state`, which is aligned to 4 bytes;
// sets nothing else. `planes` = state_planes(kFp32 or kSplit, …, num_moments(kind, hyper)); fp32 values go in and come
// out through narrow_state and widen_state of format_state.h.
void point_at_state(OptimizerArrays& arrays, const StatePlanes& planes, std::byte* state, std::int64_t at) noexcept;
[[nodiscard]] OptimizerArrays slice(const OptimizerArrays& arrays, std::int64_t begin, std::int64_t elements) noexcept;
// Also that the arrays do not overlap. `kind` must be elementwise.
[[nodiscard]] Result<void> validate(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format,
                                    const OptimizerHyper& hyper);

// Updates a span with an elementwise optimizer. One thread; never allocates, locks or throws; arguments must be valid.
// The same bits on every target and however the elements are cut into spans. Rounding of the stored weight, lr = 0 and
// non-finite values as adamw_update: an element's NaN or infinity stays with that element, and lr = 0 moves the moments
// and leaves the master's bits.
void update_span(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format, const OptimizerHyper& hyper,
                 Target target) noexcept;

// fp64 sum of squares and number of non-finite values of a gradient as it is stored, before any scale: chunks of
// ParallelUpdater::kNormChunk elements in order, so that the bits are those of ParallelUpdater::arrive.
struct GradientMeasure {
  double sum_of_squares = 0;
  std::int64_t non_finite = 0;
};

// update_span and measuring over a pool of `threads`, at most the CPUs of this process. Thread-safe.
class ParallelOptimizer {
 public:
  explicit ParallelOptimizer(int threads, Target target = best_target()) : updater_(threads, target) {}

  void update(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format, const OptimizerHyper& hyper) const;
  // For whoever has checked nothing yet: typed errors before anything changes. kNumeric, with how many, when the
  // gradient holds values that are not finite.
  [[nodiscard]] Result<void> checked_update(OptimizerKind kind, const OptimizerArrays& arrays, StateFormat format,
                                            const OptimizerHyper& hyper) const;
  [[nodiscard]] GradientMeasure measure(const void* gradient, DType dtype, std::int64_t elements) const;
  [[nodiscard]] Target target() const noexcept { return updater_.target(); }
  // See ParallelUpdater.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& body) const {
    updater_.for_each(count, body);
  }
  // AdamW in every state format and the arrival of gradients, on the same pool.
  [[nodiscard]] const ParallelUpdater& updater() const noexcept { return updater_; }

 private:
  ParallelUpdater updater_;
};

}  // namespace headrace::cpu_adam
