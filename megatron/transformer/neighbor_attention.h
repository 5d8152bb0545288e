#pragma once

#include <memory>

#include "megatron/transformer/config.h"
#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/stack.h"

namespace megatron {

class TransformerBlock;

// Retro's chunked cross-attention (Borgeaud et al. 2022, arXiv:2112.04426, sec. 2.4): a token
// attends to what was retrieved for a chunk, if it is the last token of that chunk or one of the
// m - 1 tokens behind it. Earlier tokens attend to nothing: what was retrieved depends on the whole
// chunk.
//
//   x   [s, b, h]              normed
//   context.neighbors          of the s tokens
//   attn.linear_q, ...         CrossAttention, of all neighbours of a chunk as one sequence
//   encoder                    of the first layer that attends to neighbours: layers without final
//                              norm that read each neighbour in both directions. The first of them
//                              also attends to the chunk of x that the neighbour was retrieved for.
//   y   [s, b, h]              with bias, dropout and --retro-attention-gate; zero for tokens that
//                              attend to nothing
class NeighborAttention final : public Module {
 public:
  // `layer` counts from 0 over the stack.
  NeighborAttention(const TransformerConfig& config, const Stack& stack, int64_t layer,
                    const TensorParallel& tp, Stream stream);
  ~NeighborAttention() override;

  // Sets context.neighbors->encoded if the layer has the encoder.
  //
  // In generation (context.decode.cached) x are tokens of one text: either its beginning, with
  // neighbours of its first chunk, which the last token of that chunk and all behind it attend to;
  // or tokens behind it, whose neighbours an earlier pass has read.
  Variable forward(const Variable& x, const ForwardContext& context) const;

 private:
  // What the encoder makes of each chunk's k neighbours: own [m, b l, h] -> [r k, b l, h].
  Variable encode(const Variable& own, const ForwardContext& context, RandomState random) const;
  Variable forward_cached(const Variable& x, const ForwardContext& context) const;
  Variable gated(const Variable& y) const;

  RetroConfig retro_;
  DType dtype_;
  float hidden_dropout_;
  uint64_t dropout_site_;
  CrossAttention attn_;
  std::unique_ptr<TransformerBlock> encoder_;  // null: another layer has it
};

}  // namespace megatron
