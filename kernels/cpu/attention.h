// SPDX-License-Identifier: Apache-2.0
// Causal attention with grouped heads, blocked so that the T×T matrix never exists (Dao et al. 2022, FlashAttention,
// alg. 1; backward: alg. 4 with the row-wise delta). Blocks are constants of the shape.
#pragma once

#include <cstdint>

#include "core/bytes.h"
#include "kernels/cpu/parallel.h"

namespace headrace::kernels {

struct AttentionShape {
  std::int64_t batch = 0;  // sequences
  std::int64_t time = 0;   // tokens of a sequence
  std::int64_t heads = 0;  // query heads; query head h uses key/value head h / (heads / kv_heads)
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 0;  // head_dim^-0.5
  // Element distance between rows (tokens) of each matrix: q [batch·time, heads·head_dim], k and v [batch·time,
  // kv_heads·head_dim].
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
};

// out [batch·time, heads·head_dim]; log_sum_exp [batch, heads, time] is what backward needs.
void attention_forward(const Parallel& parallel, const AttentionShape& shape, const float* q, const float* k,
                       const float* v, float* out, float* log_sum_exp);
// d_q, d_k, d_v are overwritten and have the strides of q, k, v. `delta` [batch, heads, time] is workspace.
void attention_backward(const Parallel& parallel, const AttentionShape& shape, const float* q, const float* k,
                        const float* v, const float* out, const float* log_sum_exp, const float* d_out, float* d_q,
                        float* d_k, float* d_v, float* delta);
void attention_forward_reference(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                 float* out, float* log_sum_exp);
void attention_backward_reference(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                  const float* d_out, float* d_q, float* d_k, float* d_v);

}  // namespace headrace::kernels
