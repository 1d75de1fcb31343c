// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>

#include "core/check.h"
#include "cpu_adam/optimizer_dispatch.h"

namespace headrace::cpu_adam {
namespace {

constexpr std::int64_t kPlaneElements = 64;  // planes are padded to a multiple: each begins at a line
constexpr const char* kRemainder = "remainder";
constexpr const char* kMaster = "master";

}  // namespace

Bytes OptimizerPlanes::element_bytes() const noexcept {
  Bytes bytes = 0;
  for (int k = 0; k < count; ++k) bytes += planes[static_cast<std::size_t>(k)].element_bytes;
  return bytes;
}

Bytes OptimizerPlanes::offset(int plane, std::int64_t length) const noexcept {
  Bytes offset = 0;
  for (int k = 0; k < plane; ++k) {
    offset += round_up(length, kPlaneElements) * planes[static_cast<std::size_t>(k)].element_bytes;
  }
  return offset;
}

Bytes OptimizerPlanes::bytes(std::int64_t length) const noexcept { return offset(count, length); }

Result<OptimizerPlanes> optimizer_planes(OptimizerKind kind, const OptimizerHyper& hyper, StateFormat format,
                                         DType weights_dtype) {
  if (format != StateFormat::kFp32 && format != StateFormat::kSplit) {
    return make_error(ErrorCode::kConfig, fmt::format("{} keeps its state in fp32 or split, not in state format {}",
                                                      optimizer_name(kind), static_cast<int>(format)));
  }
  if (format == StateFormat::kSplit && weights_dtype != DType::kBf16) {
    return make_error(ErrorCode::kConfig, fmt::format("{}: the split format keeps bf16 weights, not {}",
                                                      optimizer_name(kind), dtype_name(weights_dtype)));
  }
  OptimizerPlanes result;
  const auto add = [&](const char* name, Bytes bytes) {
    result.planes[static_cast<std::size_t>(result.count++)] = {name, bytes};
  };
  if (format == StateFormat::kSplit) {
    add(kRemainder, 2);
  } else if (weights_dtype != DType::kFp32) {
    add(kMaster, 4);
  }
  for (const char* name : moment_names(kind, hyper)) add(name, 4);
  return result;
}

void point_at_state(OptimizerArrays& arrays, const OptimizerPlanes& planes, std::byte* state, std::int64_t length,
                    std::int64_t at) noexcept {
  arrays.master = nullptr;
  arrays.remainder = nullptr;
  arrays.moments = {};
  std::size_t moment = 0;
  for (int k = 0; k < planes.count; ++k) {
    const OptimizerPlane& plane = planes.planes[static_cast<std::size_t>(k)];
    std::byte* const data = state + planes.offset(k, length) + at * plane.element_bytes;
    if (std::strcmp(plane.name, kRemainder) == 0) {
      arrays.remainder = reinterpret_cast<std::int16_t*>(data);
    } else if (std::strcmp(plane.name, kMaster) == 0) {
      arrays.master = reinterpret_cast<float*>(data);
    } else {
      arrays.moments[moment++] = reinterpret_cast<float*>(data);
    }
  }
}

void widen_master(const OptimizerArrays& a, StateFormat format, std::span<float> master) noexcept {
  HEADRACE_CHECK(std::ssize(master) == a.elements, "a master for each element");
  const MasterKind kind = master_kind(a.weights_dtype, format);
  if (kind == MasterKind::kSplit) {
    const auto* const weights = static_cast<const std::uint16_t*>(a.weights);
    for (std::size_t i = 0; i < master.size(); ++i) master[i] = join_master({weights[i], a.remainder[i]});
  } else if (!master.empty()) {
    std::memcpy(master.data(), kind == MasterKind::kWeights ? a.weights : a.master, master.size_bytes());
  }
}

void narrow_master(std::span<const float> master, StateFormat format, const OptimizerArrays& a) noexcept {
  HEADRACE_CHECK(std::ssize(master) == a.elements, "a master for each element");
  if (master.empty()) return;
  const MasterKind kind = master_kind(a.weights_dtype, format);
  if (kind == MasterKind::kWeights) {
    std::memcpy(a.weights, master.data(), master.size_bytes());
    return;
  }
  auto* const weights = static_cast<std::uint16_t*>(a.weights);
  for (std::size_t i = 0; i < master.size(); ++i) {
    const SplitMaster split = split_master(master[i]);
    weights[i] = kind == MasterKind::kBesideFp16 ? to_fp16(master[i]).bits : split.hi;
    if (kind == MasterKind::kSplit) a.remainder[i] = split.lo;
  }
  if (kind != MasterKind::kSplit) std::memcpy(a.master, master.data(), master.size_bytes());
}

}  // namespace headrace::cpu_adam
