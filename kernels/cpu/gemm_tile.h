// SPDX-License-Identifier: Apache-2.0
// One small matrix product on the calling thread: what gemm(), attention and tests are made of. Internal to
// kernels/cpu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace headrace::kernels {

// While it lives, oneDNN (which runs on OpenMP) uses only the calling thread; the caller's setting comes back
// afterwards, so that a host program's own OpenMP code keeps its threads.
class SingleThreadedGemm {
 public:
  SingleThreadedGemm() noexcept;
  ~SingleThreadedGemm();
  SingleThreadedGemm(const SingleThreadedGemm&) = delete;
  SingleThreadedGemm& operator=(const SingleThreadedGemm&) = delete;

 private:
  int previous_;
};

template <class T>
struct TileOperand {
  const T* data;
  std::int64_t stride;
  bool transposed;
};

struct TileShape {
  std::int64_t m, n, k;
};

// c [m,n] = alpha · a [m,k] · b [k,n] + beta · c, row-major. A SingleThreadedGemm must be alive on this thread.
void gemm_tile(const TileShape& shape, float alpha, const TileOperand<float>& a, const TileOperand<float>& b,
               float beta, float* c, std::int64_t c_stride) noexcept;

// c [m,n] = (accumulate ? c : 0) + a · b of bf16 with fp32 sums. Runs (slowly) also on CPUs without bf16 instructions.
// `workspace` is oneDNN's; kGemmTileBf16WorkspaceBytes, 64-byte aligned.
inline constexpr std::int64_t kGemmTileBf16WorkspaceBytes = 2 * 1024 * 1024;
struct Bf16Tile {
  TileShape shape;
  TileOperand<Bf16> a, b;
  float* c;
  std::int64_t c_stride;
  bool accumulate;
};
void gemm_tile_bf16(const Bf16Tile& tile, std::span<std::byte> workspace);

}  // namespace headrace::kernels
