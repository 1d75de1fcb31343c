// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/vector_math.h"

namespace headrace::kernels {
namespace {

// Queries of a tile. Larger: more of the products falls above the diagonal; smaller: oneDNN is less efficient
// (measured).
constexpr std::int64_t kQueryBlock = 64;
// Keys of a tile; multiples of kQueryBlock, so that every query of a tile sees at least its first key.
constexpr std::int64_t kForwardKeyBlock = 256;
constexpr std::int64_t kBackwardKeyBlock = 128;
static_assert(kForwardKeyBlock % kQueryBlock == 0 && kBackwardKeyBlock % kQueryBlock == 0);
// Rows of a tile of scores are not a power of two apart, so that they do not share cache sets.
constexpr std::int64_t kForwardStride = kForwardKeyBlock + 16;
constexpr std::int64_t kBackwardStride = kBackwardKeyBlock + 16;

// One head's rows of one sequence in a strided matrix.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;
  [[nodiscard]] T* row(std::int64_t index) const noexcept { return data + index * stride; }
  [[nodiscard]] TileOperand<float> from(std::int64_t index, bool transposed) const noexcept {
    return {row(index), stride, transposed};
  }
};

template <class T>
HeadRows<T> rows_of(T* matrix, std::int64_t stride, const AttentionShape& shape, std::int64_t sequence,
                    std::int64_t head) {
  return {matrix + sequence * shape.time * stride + head * shape.head_dim, stride};
}

void check_shape(const AttentionShape& shape) {
  HEADRACE_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "query heads share key/value heads evenly");
  HEADRACE_CHECK(shape.q_stride >= shape.heads * shape.head_dim && shape.out_stride >= shape.heads * shape.head_dim &&
                     shape.k_stride >= shape.kv_heads * shape.head_dim &&
                     shape.v_stride >= shape.kv_heads * shape.head_dim,
                 "rows of the attention matrices do not overlap");
}

struct ForwardScratch {
  float scores[kQueryBlock * kForwardStride];
  float maxima[kQueryBlock];
  float sums[kQueryBlock];
  float corrections[kQueryBlock];
};
static_assert(sizeof(ForwardScratch) <= static_cast<std::size_t>(Parallel::kScratchBytes));

// Turns the scores of a tile into weights relative to the running maximum of their row, and brings what was summed so
// far (sums and rows of out) to the new maximum.
void rescale_tile(ForwardScratch& scratch, const HeadRows<float>& out, std::int64_t first_query, std::int64_t queries,
                  std::int64_t first_key, std::int64_t keys, std::int64_t head_dim) {
  const auto visible = [&](std::int64_t i) { return std::min(first_query + i - first_key + 1, keys); };
  for (std::int64_t i = 0; i < queries; ++i) {
    const float maximum = std::max(scratch.maxima[i], max_array(scratch.scores + i * kForwardStride, visible(i)));
    scratch.corrections[i] = scratch.maxima[i] - maximum;
    scratch.maxima[i] = maximum;
  }
  exp_array(scratch.corrections, scratch.corrections, queries);
  for (std::int64_t i = 0; i < queries; ++i) {
    float* row = scratch.scores + i * kForwardStride;
    const float sum = exp_minus_sum(row, scratch.maxima[i], row, visible(i));
    std::fill(row + visible(i), row + keys, 0.0F);
    const float correction = scratch.corrections[i];
    scratch.sums[i] = first_key == 0 ? sum : scratch.sums[i] * correction + sum;
    if (first_key == 0 || correction == 1.0F) continue;
    float* out_row = out.row(first_query + i);
    for (std::int64_t d = 0; d < head_dim; ++d) out_row[d] *= correction;
  }
}

struct ForwardHead {
  HeadRows<const float> q, k, v;
  HeadRows<float> out;
  float* log_sum_exp;  // [time] of this head
};

void forward_block(const AttentionShape& shape, const ForwardHead& head, std::int64_t first_query,
                   ForwardScratch& scratch) {
  const SingleThreadedGemm single_threaded;
  const std::int64_t queries = std::min(kQueryBlock, shape.time - first_query);
  const std::int64_t all_keys = first_query + queries;
  std::fill_n(scratch.maxima, queries, -std::numeric_limits<float>::infinity());
  for (std::int64_t key = 0; key < all_keys; key += kForwardKeyBlock) {
    const std::int64_t keys = std::min(kForwardKeyBlock, all_keys - key);
    gemm_tile({queries, keys, shape.head_dim}, shape.scale, head.q.from(first_query, false), head.k.from(key, true),
              0.0F, scratch.scores, kForwardStride);
    rescale_tile(scratch, head.out, first_query, queries, key, keys, shape.head_dim);
    gemm_tile({queries, shape.head_dim, keys}, 1.0F, {scratch.scores, kForwardStride, false}, head.v.from(key, false),
              key == 0 ? 0.0F : 1.0F, head.out.row(first_query), head.out.stride);
  }
  for (std::int64_t i = 0; i < queries; ++i) {
    float* row = head.out.row(first_query + i);
    const float inverse = 1.0F / scratch.sums[i];
    for (std::int64_t d = 0; d < shape.head_dim; ++d) row[d] *= inverse;
    head.log_sum_exp[first_query + i] = scratch.maxima[i] + std::log(scratch.sums[i]);
  }
}

struct BackwardScratch {
  float weights[kQueryBlock * kBackwardStride];   // P of a tile
  float d_scores[kQueryBlock * kBackwardStride];  // dP, then scale · dS
};
static_assert(sizeof(BackwardScratch) <= static_cast<std::size_t>(Parallel::kScratchBytes));

struct BackwardHead {
  HeadRows<const float> q, k, v, out, d_out;
  HeadRows<float> d_q, d_k, d_v;
  const float* log_sum_exp;
  float* delta;
};

float dot(const float* a, const float* b, std::int64_t count) noexcept {
  constexpr std::int64_t kLanes = 8;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (std::int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void zero_rows(const HeadRows<float>& rows, std::int64_t count, std::int64_t head_dim) noexcept {
  for (std::int64_t row = 0; row < count; ++row) std::fill_n(rows.row(row), head_dim, 0.0F);
}

// scratch.weights = P, scratch.d_scores = scale · P ∘ (dP − delta) of a tile; zero above the diagonal.
void score_gradients(const AttentionShape& shape, const BackwardHead& head, std::int64_t query, std::int64_t queries,
                     std::int64_t key, std::int64_t keys, BackwardScratch& scratch) {
  gemm_tile({queries, keys, shape.head_dim}, shape.scale, head.q.from(query, false), head.k.from(key, true), 0.0F,
            scratch.weights, kBackwardStride);
  gemm_tile({queries, keys, shape.head_dim}, 1.0F, head.d_out.from(query, false), head.v.from(key, true), 0.0F,
            scratch.d_scores, kBackwardStride);
  for (std::int64_t i = 0; i < queries; ++i) {
    float* weights = scratch.weights + i * kBackwardStride;
    float* d_scores = scratch.d_scores + i * kBackwardStride;
    const std::int64_t visible = std::min(query + i - key + 1, keys);
    exp_minus_sum(weights, head.log_sum_exp[query + i], weights, visible);
    const float delta = head.delta[query + i];
    for (std::int64_t j = 0; j < visible; ++j) d_scores[j] = weights[j] * (d_scores[j] - delta) * shape.scale;
    std::fill(weights + visible, weights + keys, 0.0F);
    std::fill(d_scores + visible, d_scores + keys, 0.0F);
  }
}

// Adds what the queries of one head give to one block of keys and values, and to their own gradient.
void backward_block(const AttentionShape& shape, const BackwardHead& head, std::int64_t key, BackwardScratch& scratch) {
  for (std::int64_t query = key; query < shape.time; query += kQueryBlock) {
    const std::int64_t queries = std::min(kQueryBlock, shape.time - query);
    const std::int64_t keys = std::min(kBackwardKeyBlock, query + queries - key);
    score_gradients(shape, head, query, queries, key, keys, scratch);
    const TileOperand<float> d_scores{scratch.d_scores, kBackwardStride, false};
    const TileOperand<float> d_scores_transposed{scratch.d_scores, kBackwardStride, true};
    const TileOperand<float> weights_transposed{scratch.weights, kBackwardStride, true};
    const TileShape per_key{keys, shape.head_dim, queries};
    gemm_tile(per_key, 1.0F, weights_transposed, head.d_out.from(query, false), 1.0F, head.d_v.row(key),
              head.d_v.stride);
    gemm_tile(per_key, 1.0F, d_scores_transposed, head.q.from(query, false), 1.0F, head.d_k.row(key), head.d_k.stride);
    gemm_tile({queries, shape.head_dim, keys}, 1.0F, d_scores, head.k.from(key, false), 1.0F, head.d_q.row(query),
              head.d_q.stride);
  }
}

}  // namespace

void attention_forward(const Parallel& parallel, const AttentionShape& shape, const float* q, const float* k,
                       const float* v, float* out, float* log_sum_exp) {
  check_shape(shape);
  const std::int64_t blocks = ceil_div(shape.time, kQueryBlock);
  const std::int64_t group = shape.heads / shape.kv_heads;
  parallel.for_each(shape.batch * shape.heads * blocks, [&](std::int64_t task) {
    const std::int64_t block = blocks - 1 - task % blocks;  // the longest first: shorter ones fill the end
    const std::int64_t head = task / blocks % shape.heads;
    const std::int64_t sequence = task / blocks / shape.heads;
    const ForwardHead rows{rows_of(q, shape.q_stride, shape, sequence, head),
                           rows_of(k, shape.k_stride, shape, sequence, head / group),
                           rows_of(v, shape.v_stride, shape, sequence, head / group),
                           rows_of(out, shape.out_stride, shape, sequence, head),
                           log_sum_exp + (sequence * shape.heads + head) * shape.time};
    forward_block(shape, rows, block * kQueryBlock, *reinterpret_cast<ForwardScratch*>(parallel.scratch().data()));
  });
}

void attention_backward(const Parallel& parallel, const AttentionShape& shape, const float* q, const float* k,
                        const float* v, const float* out, const float* log_sum_exp, const float* d_out, float* d_q,
                        float* d_k, float* d_v, float* delta) {
  check_shape(shape);
  const std::int64_t group = shape.heads / shape.kv_heads;
  // A task owns the gradients of one key/value head and of all query heads that share it: no atomics, one order of
  // sums.
  parallel.for_each(shape.batch * shape.kv_heads, [&](std::int64_t task) {
    const SingleThreadedGemm single_threaded;
    auto& scratch = *reinterpret_cast<BackwardScratch*>(parallel.scratch().data());
    const std::int64_t kv_head = task % shape.kv_heads;
    const std::int64_t sequence = task / shape.kv_heads;
    const auto head_of = [&](std::int64_t member) -> BackwardHead {
      const std::int64_t head = kv_head * group + member;
      const std::int64_t row_of_head = (sequence * shape.heads + head) * shape.time;
      return {rows_of(q, shape.q_stride, shape, sequence, head),
              rows_of(k, shape.k_stride, shape, sequence, kv_head),
              rows_of(v, shape.v_stride, shape, sequence, kv_head),
              rows_of(out, shape.out_stride, shape, sequence, head),
              rows_of(d_out, shape.out_stride, shape, sequence, head),
              rows_of(d_q, shape.q_stride, shape, sequence, head),
              rows_of(d_k, shape.k_stride, shape, sequence, kv_head),
              rows_of(d_v, shape.v_stride, shape, sequence, kv_head),
              log_sum_exp + row_of_head,
              delta + row_of_head};
    };
    zero_rows(rows_of(d_k, shape.k_stride, shape, sequence, kv_head), shape.time, shape.head_dim);
    zero_rows(rows_of(d_v, shape.v_stride, shape, sequence, kv_head), shape.time, shape.head_dim);
    for (std::int64_t member = 0; member < group; ++member) {
      const BackwardHead head = head_of(member);
      zero_rows(head.d_q, shape.time, shape.head_dim);
      for (std::int64_t t = 0; t < shape.time; ++t)
        head.delta[t] = dot(head.out.row(t), head.d_out.row(t), shape.head_dim);
      for (std::int64_t key = 0; key < shape.time; key += kBackwardKeyBlock) backward_block(shape, head, key, scratch);
    }
  });
}

}  // namespace headrace::kernels
