// SPDX-License-Identifier: Apache-2.0
#include "models/files/convert.h"

#include <cstring>

#include "core/bytes.h"

namespace headrace::models {
namespace {

// memcpy, because safetensors data may lie at any byte.
template <class T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

float widen(float value) { return value; }
float widen(Bf16 value) { return to_fp32(value); }
float widen(Fp16 value) { return to_fp32(value); }

template <class From>
void convert_from(const std::byte* from, DType to_dtype, std::byte* to, std::int64_t elements) {
  switch (to_dtype) {
    case DType::kFp32:
      for (std::int64_t i = 0; i < elements; ++i) store(to, i, widen(load<From>(from, i)));
      return;
    case DType::kBf16:
      for (std::int64_t i = 0; i < elements; ++i) store(to, i, to_bf16(widen(load<From>(from, i))));
      return;
    case DType::kFp16:
      for (std::int64_t i = 0; i < elements; ++i) store(to, i, to_fp16(widen(load<From>(from, i))));
      return;
  }
}

}  // namespace

void convert_elements(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, std::int64_t elements) {
  if (elements == 0) return;
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(elements * dtype_bytes(from_dtype)));
    return;
  }
  switch (from_dtype) {
    case DType::kFp32: return convert_from<float>(from, to_dtype, to, elements);
    case DType::kBf16: return convert_from<Bf16>(from, to_dtype, to, elements);
    case DType::kFp16: return convert_from<Fp16>(from, to_dtype, to, elements);
  }
}

}  // namespace headrace::models
