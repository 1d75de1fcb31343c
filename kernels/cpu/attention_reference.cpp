// SPDX-License-Identifier: Apache-2.0
// Attention as its definition says, one query at a time in fp64: what the blocked kernel is compared with.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/attention.h"

namespace headrace::kernels {
namespace {

struct Position {
  std::int64_t sequence, head, kv_head, query;
};

template <class Body>
void for_queries(const AttentionShape& shape, Body body) {
  for (std::int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t query = 0; query < shape.time; ++query) {
        body(Position{sequence, head, head / (shape.heads / shape.kv_heads), query});
      }
    }
  }
}

std::int64_t at(const AttentionShape& shape, std::int64_t sequence, std::int64_t time, std::int64_t stride,
                std::int64_t head) {
  return (sequence * shape.time + time) * stride + head * shape.head_dim;
}

// Fills weights[0..query] with the softmax of the scores; returns the log of the sum of their exponentials.
double softmax_row(const AttentionShape& shape, const Position& p, const float* q, const float* k,
                   std::vector<double>& weights) {
  const float* query = q + at(shape, p.sequence, p.query, shape.q_stride, p.head);
  double maximum = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t <= p.query; ++t) {
    const float* key = k + at(shape, p.sequence, t, shape.k_stride, p.kv_head);
    double score = 0;
    for (std::int64_t d = 0; d < shape.head_dim; ++d)
      score += static_cast<double>(query[d]) * static_cast<double>(key[d]);
    weights[static_cast<std::size_t>(t)] = score * static_cast<double>(shape.scale);
    maximum = std::max(maximum, weights[static_cast<std::size_t>(t)]);
  }
  double sum = 0;
  for (std::int64_t t = 0; t <= p.query; ++t) sum += std::exp(weights[static_cast<std::size_t>(t)] - maximum);
  for (std::int64_t t = 0; t <= p.query; ++t) {
    auto& weight = weights[static_cast<std::size_t>(t)];
    weight = std::exp(weight - maximum) / sum;
  }
  return maximum + std::log(sum);
}

// Gradients of one sequence in fp64 before they are rounded once.
struct Gradients {
  std::vector<double> q, k, v;
};

void add_query(const AttentionShape& shape, const Position& p, const float* q, const float* k, const float* v,
               const float* d_out, Gradients& gradients) {
  std::vector<double> weights(static_cast<std::size_t>(shape.time));
  softmax_row(shape, p, q, k, weights);
  const float* d_row = d_out + at(shape, p.sequence, p.query, shape.out_stride, p.head);
  std::vector<double> d_weights(weights.size());
  double delta = 0;
  for (std::int64_t t = 0; t <= p.query; ++t) {
    const auto i = static_cast<std::size_t>(t);
    const std::int64_t value = at(shape, p.sequence, t, shape.v_stride, p.kv_head);
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      d_weights[i] += static_cast<double>(d_row[d]) * static_cast<double>(v[value + d]);
      gradients.v[static_cast<std::size_t>(value + d)] += weights[i] * static_cast<double>(d_row[d]);
    }
    delta += weights[i] * d_weights[i];
  }
  const std::int64_t query = at(shape, p.sequence, p.query, shape.q_stride, p.head);
  for (std::int64_t t = 0; t <= p.query; ++t) {
    const auto i = static_cast<std::size_t>(t);
    const double d_score = weights[i] * (d_weights[i] - delta) * static_cast<double>(shape.scale);
    const std::int64_t key = at(shape, p.sequence, t, shape.k_stride, p.kv_head);
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      gradients.q[static_cast<std::size_t>(query + d)] += d_score * static_cast<double>(k[key + d]);
      gradients.k[static_cast<std::size_t>(key + d)] += d_score * static_cast<double>(q[query + d]);
    }
  }
}

void round_to(const AttentionShape& shape, const std::vector<double>& exact, std::int64_t stride, std::int64_t columns,
              float* out) {
  for (std::int64_t row = 0; row < shape.batch * shape.time; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      out[row * stride + column] = static_cast<float>(exact[static_cast<std::size_t>(row * stride + column)]);
    }
  }
}

}  // namespace

void attention_forward_reference(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                 float* out, float* log_sum_exp) {
  std::vector<double> weights(static_cast<std::size_t>(shape.time));
  for_queries(shape, [&](const Position& p) {
    const double log_sum = softmax_row(shape, p, q, k, weights);
    log_sum_exp[(p.sequence * shape.heads + p.head) * shape.time + p.query] = static_cast<float>(log_sum);
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      double sum = 0;
      for (std::int64_t t = 0; t <= p.query; ++t) {
        sum += weights[static_cast<std::size_t>(t)] *
               static_cast<double>(v[at(shape, p.sequence, t, shape.v_stride, p.kv_head) + d]);
      }
      out[at(shape, p.sequence, p.query, shape.out_stride, p.head) + d] = static_cast<float>(sum);
    }
  });
}

void attention_backward_reference(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                  const float* d_out, float* d_q, float* d_k, float* d_v) {
  const auto elements = [&](std::int64_t stride) {
    return static_cast<std::size_t>(shape.batch * shape.time * stride);
  };
  Gradients gradients{std::vector<double>(elements(shape.q_stride)), std::vector<double>(elements(shape.k_stride)),
                      std::vector<double>(elements(shape.v_stride))};
  for_queries(shape, [&](const Position& p) { add_query(shape, p, q, k, v, d_out, gradients); });
  round_to(shape, gradients.q, shape.q_stride, shape.heads * shape.head_dim, d_q);
  round_to(shape, gradients.k, shape.k_stride, shape.kv_heads * shape.head_dim, d_k);
  round_to(shape, gradients.v, shape.v_stride, shape.kv_heads * shape.head_dim, d_v);
}

}  // namespace headrace::kernels
