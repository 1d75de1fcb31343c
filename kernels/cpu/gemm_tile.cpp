// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_tile.h"

#include <array>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>

#include "core/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_blocks.h"

extern "C" {
// Of the OpenMP runtime that oneDNN is linked to. Declared here because clang has no omp.h without its own runtime.
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);
}

namespace headrace::kernels {

SingleThreadedGemm::SingleThreadedGemm() noexcept : previous_(omp_get_max_threads()) { omp_set_num_threads(1); }
SingleThreadedGemm::~SingleThreadedGemm() { omp_set_num_threads(previous_); }

void gemm_tile(const TileShape& shape, float alpha, const TileOperand<float>& a, const TileOperand<float>& b,
               float beta, float* c, std::int64_t c_stride) noexcept {
  const auto status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', shape.m, shape.n, shape.k, alpha,
                                 a.data, a.stride, b.data, b.stride, beta, c, c_stride);
  HEADRACE_CHECK(status == dnnl_success, "dnnl_sgemm refused its arguments");
}

namespace {

using dnnl::memory;

// oneDNN's shared cache of compiled primitives. Smaller: shapes are compiled again and again (milliseconds each).
// Larger: more resident code (a compiled bf16 product is about 100 KiB).
constexpr int kSharedPrimitives = 128;
// Primitives each thread keeps at hand so that a tile does not look into the shared cache (about 10 µs).
constexpr std::size_t kPrimitivesPerThread = 16;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine = [] {
    dnnl::set_primitive_cache_capacity(kSharedPrimitives);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

struct PrimitiveKey {
  std::int64_t m = 0, n = 0, k = 0, a_stride = 0, b_stride = 0, c_stride = 0;
  bool a_transposed = false, b_transposed = false, accumulate = false;
  bool operator==(const PrimitiveKey&) const = default;
};

struct CompiledTile {
  PrimitiveKey key;
  memory::desc a, b, c, workspace;
  dnnl::matmul primitive;
};

memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t stride, bool transposed,
                    memory::data_type type) {
  return {{rows, columns}, type, transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

CompiledTile compile(const PrimitiveKey& key) {
  CompiledTile tile;
  tile.key = key;
  tile.a = matrix(key.m, key.k, key.a_stride, key.a_transposed, memory::data_type::bf16);
  tile.b = matrix(key.k, key.n, key.b_stride, key.b_transposed, memory::data_type::bf16);
  tile.c = matrix(key.m, key.n, key.c_stride, false, memory::data_type::f32);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is shared between threads and grows
  if (key.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(tile.a, tile.b, tile.c), attributes, cpu_engine());
  tile.workspace = description.scratchpad_desc();
  tile.primitive = dnnl::matmul(description);
  return tile;
}

const CompiledTile& compiled(const PrimitiveKey& key) {
  thread_local std::array<std::unique_ptr<CompiledTile>, kPrimitivesPerThread> recent;
  thread_local std::size_t next = 0;
  for (const auto& tile : recent) {
    if (tile != nullptr && tile->key == key) return *tile;
  }
  auto& slot = recent[next];
  next = (next + 1) % kPrimitivesPerThread;
  slot = std::make_unique<CompiledTile>(compile(key));
  return *slot;
}

}  // namespace

void gemm_tile_bf16(const Bf16Tile& tile, std::span<std::byte> workspace) {
  const CompiledTile& program = compiled({tile.shape.m, tile.shape.n, tile.shape.k, tile.a.stride, tile.b.stride,
                                          tile.c_stride, tile.a.transposed, tile.b.transposed, tile.accumulate});
  HEADRACE_CHECK(program.workspace.get_size() <= workspace.size(),
                 "the bf16 product needs more workspace than it is given");
  thread_local dnnl::stream stream(cpu_engine());
  const auto argument = [](const memory::desc& description, const void* data) {
    return memory(description, cpu_engine(), const_cast<void*>(data));  // oneDNN has no read-only memory
  };
  program.primitive.execute(stream, {{DNNL_ARG_SRC, argument(program.a, tile.a.data)},
                                     {DNNL_ARG_WEIGHTS, argument(program.b, tile.b.data)},
                                     {DNNL_ARG_DST, argument(program.c, tile.c)},
                                     {DNNL_ARG_SCRATCHPAD, argument(program.workspace, workspace.data())}});
}

bool cpu_has_bf16_product() noexcept {
  const auto isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

const char* gemm_target() noexcept {
  const auto isa = dnnl::get_effective_cpu_isa();
  if (gemm_uses_bf16()) return isa == dnnl::cpu_isa::avx512_core_amx ? "bf16 amx" : "bf16 avx512_bf16";
  switch (isa) {
    case dnnl::cpu_isa::sse41: return "fp32 sse41";
    case dnnl::cpu_isa::avx: return "fp32 avx";
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx2_vnni: return "fp32 avx2";
    default: return "fp32 avx512";
  }
}

}  // namespace headrace::kernels
