// SPDX-License-Identifier: Apache-2.0
#include "cpu_adam/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace headrace::cpu_adam {
namespace {

constexpr OptimizerKind kAllKinds[] = {OptimizerKind::kAdamW,   OptimizerKind::kAdam, OptimizerKind::kLion,
                                       OptimizerKind::kAdagrad, OptimizerKind::kSgd,  OptimizerKind::kAdafactor,
                                       OptimizerKind::kMuon};
static_assert(std::size(kAllKinds) == kOptimizerKinds);

std::string lower(std::string_view word) {
  std::string result(word);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Insertions, deletions and substitutions that turn one into the other.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i));
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row[b.size()];
}

Error unknown_optimizer(std::string_view name) {
  constexpr std::size_t kLongest = 100;  // a longer word is no typing error, and the work grows with its length
  std::string known;
  const char* nearest = nullptr;
  int nearest_distance = 3;  // at most two letters differ
  for (const OptimizerKind kind : kAllKinds) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", optimizer_name(kind));
    const int distance = name.size() > kLongest ? 3 : edit_distance(lower(name), lower(optimizer_name(kind)));
    if (distance < nearest_distance) {
      nearest = optimizer_name(kind);
      nearest_distance = distance;
    }
  }
  return make_error(ErrorCode::kConfig,
                    fmt::format("unknown optimizer \"{}\"; there are {}", name.substr(0, kLongest), known),
                    nearest == nullptr ? std::string{} : fmt::format("did you mean \"{}\"?", nearest));
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += fmt::format("{}{}", text.size() == 1 ? "" : ", ", size);
  return text + "]";
}

}  // namespace

const char* optimizer_name(OptimizerKind kind) noexcept {
  switch (kind) {
    case OptimizerKind::kAdamW: return "AdamW";
    case OptimizerKind::kAdam: return "Adam";
    case OptimizerKind::kLion: return "Lion";
    case OptimizerKind::kAdagrad: return "Adagrad";
    case OptimizerKind::kSgd: return "SGD";
    case OptimizerKind::kAdafactor: return "Adafactor";
    case OptimizerKind::kMuon: return "Muon";
  }
  return "?";
}

Result<OptimizerKind> parse_optimizer(std::string_view name) {
  for (const OptimizerKind kind : kAllKinds) {
    if (lower(name) == lower(optimizer_name(kind))) return kind;
  }
  return unknown_optimizer(name);
}

bool is_elementwise(OptimizerKind kind) noexcept {
  return kind != OptimizerKind::kAdafactor && kind != OptimizerKind::kMuon;
}

OptimizerHyper default_hyper(OptimizerKind kind) noexcept {
  OptimizerHyper h;
  switch (kind) {
    case OptimizerKind::kAdamW: h.weight_decay = 0.01; break;
    case OptimizerKind::kLion:
      h.lr = 1e-4;
      h.beta2 = 0.99;
      break;
    case OptimizerKind::kAdagrad:
      h.lr = 1e-2;
      h.eps = 1e-10;
      break;
    case OptimizerKind::kAdafactor: h.lr = 1e-2; break;
    case OptimizerKind::kMuon:
      h.weight_decay = 0.1;
      h.momentum = 0.95;
      h.nesterov = true;
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kSgd: break;
  }
  return h;
}

AdamWHyper adamw_hyper(const OptimizerHyper& hyper) noexcept {
  AdamWHyper adamw;
  adamw.lr = hyper.lr;
  adamw.beta1 = hyper.beta1;
  adamw.beta2 = hyper.beta2;
  adamw.eps = hyper.eps;
  adamw.weight_decay = hyper.weight_decay;
  adamw.optimizer_step = hyper.optimizer_step;
  adamw.gradient_scale = hyper.gradient_scale;
  return adamw;
}

Result<void> validate_shape(OptimizerKind kind, std::span<const std::int64_t> shape) {
  const bool fits =
      is_elementwise(kind) || shape.size() == 2 || (kind == OptimizerKind::kAdafactor && shape.size() == 1);
  if (fits) return {};
  return make_error(ErrorCode::kConfig,
                    fmt::format("{} updates {} only, but this weight has the shape {}", optimizer_name(kind),
                                kind == OptimizerKind::kMuon ? "matrices" : "vectors and matrices", shape_text(shape)),
                    "give it to AdamW");
}

std::span<const char* const> moment_names(OptimizerKind kind, const OptimizerHyper& hyper) noexcept {
  static constexpr const char* kAdamNames[] = {"exp_avg", "exp_avg_sq"};
  static constexpr const char* kSumNames[] = {"sum"};
  static constexpr const char* kBufferNames[] = {"momentum_buffer"};
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam: return kAdamNames;
    case OptimizerKind::kLion: return std::span(kAdamNames).first(1);
    case OptimizerKind::kAdagrad: return kSumNames;
    case OptimizerKind::kSgd:
      if (hyper.momentum == 0) return {};
      return kBufferNames;
    case OptimizerKind::kMuon: return kBufferNames;
    case OptimizerKind::kAdafactor: return {};
  }
  return {};
}

int num_moments(OptimizerKind kind, const OptimizerHyper& hyper) noexcept {
  return static_cast<int>(moment_names(kind, hyper).size());
}

}  // namespace headrace::cpu_adam
