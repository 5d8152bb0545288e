#pragma once

#include <cstdint>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"
#include "megatron/kernels/attention.h"

namespace megatron {

// Options of attention besides softmax(q k^T) v. Undefined tensors stand for "none";
// kernels::AttentionSettings has the contracts of masks and dropout.
struct AttentionOptions {
  int64_t num_heads = 0;         // required: query heads on this rank
  int64_t num_query_groups = 0;  // heads of keys and values; 0: num_heads
  float softmax_scale = 0;       // 0: 1 / sqrt(head size)
  bool is_causal = true;
  Tensor document_starts{};   // [b, sq] int32
  Tensor prefix_ends{};       // [b, sq] int32
  Tensor key_padding_mask{};  // [b, sk] bool, true = hidden
  Tensor alibi_slopes{};      // [num_heads] fp32
  DropoutKey dropout{};
  int64_t first_head = 0;  // this rank's first among all heads of the model
  int64_t window = 0;
  float logit_cap = 0;
};

// Self attention on a fused projection, which holds for each group its query heads, key and value.
//
//   qkv            [s, b, (n + 2 g) d]  fp32 | fp16 | bf16
//   relative_bias  [n, 2s - 1]          fp32, by index key - query + s - 1, added to the
//                                       scores; undefined: none
//   sinks          [n] fp32             kernels::AttentionSettings; undefined: none
//   y              [s, b, n d]          dtype of qkv
//
// Saves qkv, relative_bias, y and fp32 log-sum-exp [b, n, s], so recomputing only attention saves
// no memory.
Variable attention(const Variable& qkv, const AttentionOptions& options,
                   const Variable& relative_bias = {}, const Variable& sinks = {});

// Attention of sq queries to another sequence; not causal unless the options say so.
//
//   q   [sq, c b, n d]  kv  [sk, b, n 2 d], per head its key, then its value    y  as q
//
// Sequence i of the queries reads sequence i / c of the keys; c is usually 1. The dropout key
// counts sequences of queries.
Variable cross_attention(const Variable& q, const Variable& kv, const AttentionOptions& options);

// kernels::attention_forward with the scratch memory it needs.
void attention_without_gradient(kernels::HeadsView y, TensorView lse, kernels::ConstHeadsView q,
                                kernels::ConstHeadsView k, kernels::ConstHeadsView v,
                                const kernels::AttentionSettings& settings, Stream stream);

// The gradients of sinks [n], from what the backward pass of attention reads.
Tensor sink_gradients(const Tensor& sinks, const Tensor& dy, const Tensor& y, const Tensor& lse);

// kernels::attention_backward with the scratch memory it needs.
void attention_gradients(kernels::HeadsView dq, kernels::HeadsView dk, kernels::HeadsView dv,
                         TensorView drelative_bias, kernels::ConstHeadsView dy,
                         kernels::ConstHeadsView y, ConstView lse, kernels::ConstHeadsView q,
                         kernels::ConstHeadsView k, kernels::ConstHeadsView v,
                         const kernels::AttentionSettings& settings, Stream stream);

// The kernels' settings for heads of size head_size; they borrow the options' tensors.
kernels::AttentionSettings attention_settings(const AttentionOptions& options, int64_t head_size);

// The slopes of all heads (Press et al. 2022, arXiv:2108.12409, sec. 3): a geometric sequence from
// 2^(-8/n) if n is a power of two, otherwise interleaved with the sequence for 2n heads.
std::vector<float> alibi_slopes(int64_t num_heads);

}  // namespace megatron
