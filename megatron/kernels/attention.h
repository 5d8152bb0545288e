#pragma once

#include <type_traits>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/random.h"
#include "megatron/kernels/attention_dropout.h"

namespace megatron::kernels {

// Attention heads inside a larger tensor, so that kernels read queries, keys and values directly
// from a fused projection or a cache. In elements, head h of token i of sample j begins at
// i * stride_s + j * stride_b + (h / heads_per_group) * stride_group + (h % heads_per_group) *
// stride_head; its d channels are adjacent.
template <class Pointer>
struct BasicHeadsView {
  Pointer data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t s = 0, b = 0, heads = 0, d = 0;
  int64_t stride_s = 0, stride_b = 0;
  int64_t heads_per_group = 1;
  int64_t stride_group = 0, stride_head = 0;

  int64_t offset(int64_t batch, int64_t head) const {
    return batch * stride_b + head / heads_per_group * stride_group +
           head % heads_per_group * stride_head;
  }
  // Every writable view is readable. The target depends on P so that it never names this type.
  template <class P = Pointer>
  requires(std::is_same_v<P, void*>)
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator BasicHeadsView<const std::remove_pointer_t<P>*>() const {
    return {data,         dtype,      s, b, heads, d, stride_s, stride_b, heads_per_group,
            stride_group, stride_head};
  }
};
using HeadsView = BasicHeadsView<void*>;
using ConstHeadsView = BasicHeadsView<const void*>;

// The heads of x [s, b, heads * d].
HeadsView heads_of(TensorView x, int64_t heads);
ConstHeadsView heads_of(ConstView x, int64_t heads);

// Queries, keys and values of the fused projection [s, b, (heads + 2 * groups) * d], which holds
// for each group its heads / groups query heads, its key head and its value head.
template <class View>
struct Qkv {
  View q, k, v;
};
Qkv<HeadsView> split_qkv(TensorView qkv, int64_t heads, int64_t groups);
Qkv<ConstHeadsView> split_qkv(ConstView qkv, int64_t heads, int64_t groups);

// Keys and values of cross attention's projection [s, b, heads * 2 * d]: per head, key then value.
template <class View>
struct Kv {
  View k, v;
};
Kv<HeadsView> split_kv(TensorView kv, int64_t heads);
Kv<ConstHeadsView> split_kv(ConstView kv, int64_t heads);

// The keys that a query sees, and the scores added to them. A key is seen if no mask hides it.
struct AttentionSettings {
  float scale = 1;              // factor of q . k
  bool is_causal = false;       // a query sees no key at a later position
  int64_t query_offset = 0;     // position of query 0 (the length of a cache)
  int64_t key_offset = 0;       // position of key 0; at most that of query 0 if is_causal
  ConstView document_starts{};  // [b, sq] int32: query i sees no key before its document's start
  // [b, sq] int32: a causal query i sees the keys before prefix_ends[i], too; key_offset is 0
  ConstView prefix_ends{};
  ConstView key_padding_mask{};  // [b, sk] bool: true hides a key from every query
  // A query at position i sees no key before position i - window + 1. 0: it sees those, too.
  int64_t window = 0;
  // Products become cap * tanh(scale * q . k / cap). 0: they stay. Not together with the biases
  // below.
  float logit_cap = 0;
  ConstView alibi_slopes{};  // [heads] fp32: adds slope * key position to the scores
  // [heads, sq + sk - 1] fp32: relative_bias[head, key - query + sq - 1] is added to the scores of
  // every sample; key_offset is 0
  ConstView relative_bias{};
  // Drops probabilities (kernels/attention_dropout.h) of head first_head + h of sequences of
  // dropout_length positions, or of sq if that is 0.
  DropoutKey dropout{};
  int64_t dropout_length = 0;  // of the whole sequence that contains the queries
  int64_t first_head = 0;      // this rank's first among all heads of the model
  // [heads] fp32: the softmax of a query has one more score, whose probability no value gets
  ConstView sinks{};
};

// out = dropout(softmax(scale * q k^T + alibi + relative_bias, masked)) v, tile by tile with a
// running maximum and sum (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
// arXiv:2205.14135, alg. 1). Stores no sq x sk matrix. A query that sees no key has output 0. Tiles
// of keys that no query of a tile sees are left out: the work grows with the window, not with sk.
//
//   out   [sq, b, heads]  out  dtype of q; must not overlap the inputs
//   lse   [b, heads, sq]  out  fp32 log of the sum of exponentials, the sink's included; +infinity
//                              if that has no term; may be null
//   q     [sq, b, heads]  in   fp32 | fp16 | bf16
//   k, v  [sk, b, groups] in   dtype of q; head h reads group h / (heads / groups)
//   workspace             scratch, uint8, attention_forward_workspace_bytes() of the same
//                         arguments, 16-byte aligned; null if that is 0
//
// Sums in fp32, d up to 256. The result does not depend on the number of threads.
void attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                       ConstHeadsView v, const AttentionSettings& settings, TensorView workspace,
                       Stream stream);

// The gradients; recomputes probabilities from q, k and lse (ibid., alg. 4). They are bit-equal in
// every run on the CPU, and on a deterministic stream on a GPU.
//
//   dq, dk, dv       out  shapes and dtype of q, k, v
//   drelative_bias   out  [heads, sq + sk - 1] fp32, summed over samples and pairs in an order that
//                         the shape alone decides; null if the settings have no bias or its
//                         gradient is not wanted
//   dout, out, q, k, v, lse, settings  in  as in the forward pass
//   workspace        scratch, attention_backward_workspace_bytes() of the same arguments
void attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                        ConstHeadsView dout, ConstHeadsView out, ConstView lse, ConstHeadsView q,
                        ConstHeadsView k, ConstHeadsView v, const AttentionSettings& settings,
                        TensorView workspace, Stream stream);

// attention_forward() with sinks, from its results without them.
//
//   out    [sq, b, heads]  i/o
//   lse    [b, heads, sq]  i/o
//   sinks  [heads] fp32    in
void add_attention_sinks(HeadsView out, TensorView lse, ConstView sinks, Stream stream);

// The gradients of sinks, from what attention_backward() reads. They are bit-equal in every run.
//   dsinks [heads] fp32  out, summed over samples and queries
void attention_sink_gradients(TensorView dsinks, ConstHeadsView dout, ConstHeadsView out,
                              ConstView lse, ConstView sinks, Stream stream);

// Scratch memory of the two passes; none on the CPU.
int64_t attention_forward_workspace_bytes(HeadsView out, TensorView lse, ConstHeadsView q,
                                          ConstHeadsView k, ConstHeadsView v,
                                          const AttentionSettings& settings, Stream stream);
int64_t attention_backward_workspace_bytes(HeadsView dq, HeadsView dk, HeadsView dv,
                                           ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                                           ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                                           const AttentionSettings& settings, Stream stream);

// The first dropout row of a head (kernels/attention_dropout.h).
inline int64_t first_dropout_row(const AttentionSettings& settings, int64_t head, int64_t sq) {
  const int64_t length = settings.dropout_length > 0 ? settings.dropout_length : sq;
  return (settings.first_head + head) * dropout_rows_of_head(length);
}

// Throws ShapeError, DtypeError or Unsupported if the views and settings do not fit together.
void expect_attention_inputs(const ConstHeadsView& q, const ConstHeadsView& k,
                             const ConstHeadsView& v, const AttentionSettings& settings);

namespace cpu {
void attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                       ConstHeadsView v, const AttentionSettings& settings, Stream stream);
void attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                        ConstHeadsView dout, ConstHeadsView out, ConstView lse, ConstHeadsView q,
                        ConstHeadsView k, ConstHeadsView v, const AttentionSettings& settings,
                        Stream stream);
decltype(kernels::add_attention_sinks) add_attention_sinks;
decltype(kernels::attention_sink_gradients) attention_sink_gradients;
// The memory that the backward pass takes from the pool with the current number of threads, for
// queries [s, b, n, d].
int64_t attention_backward_workspace_bytes(const Shape& sbnd, int64_t groups);
}  // namespace cpu

namespace cuda {
// Uses cuDNN if it supports the call (cuda/cudnn_attention.h), otherwise own kernels: on tensor
// cores in 16 bits (cuda/tensor_attention.h), else in fp32 (cuda/math_attention.h).
decltype(kernels::attention_forward) attention_forward;
decltype(kernels::attention_backward) attention_backward;
decltype(kernels::add_attention_sinks) add_attention_sinks;
decltype(kernels::attention_sink_gradients) attention_sink_gradients;
decltype(kernels::attention_forward_workspace_bytes) attention_forward_workspace_bytes;
decltype(kernels::attention_backward_workspace_bytes) attention_backward_workspace_bytes;
// Scratch memory of the own backward kernels on tensor cores, in bytes.
struct BackwardBytes {
  BackwardBytes(int64_t b, int64_t heads, int64_t sq, int64_t sk, int64_t d,
                bool has_relative_bias);
  int64_t total() const { return sums + statistics + first_keys + bias_sums + counters; }
  int64_t sums, statistics, first_keys, bias_sums, counters;
};
inline constexpr int64_t kBackwardQueries = 64;  // queries of a tile
inline constexpr int64_t kBackwardKeys = 128;    // keys of a tile
}  // namespace cuda

}  // namespace megatron::kernels
