#pragma once

#include <memory>

#include "megatron/transformer/config.h"
#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/layer_part.h"
#include "megatron/transformer/layer_recipe.h"
#include "megatron/transformer/stack.h"

namespace megatron {

class TransformerBlock;

// The inputs of NeighborAttention in one forward pass. Sequences are cut into l chunks, which have
// k neighbours each.
struct Neighbors : ModelContext {
  int64_t chunk_length = 0;  // m
  // [r, b l k, h] the embedded neighbours; column (sample l + chunk) k + neighbour. Undefined in
  // generation, once a pass has read them.
  Variable embedded;
  // [r k, b l, h] the encoder's output: the first layer that attends to neighbours sets it
  Variable encoded;
  // Generation, in the pass that reads the neighbours: the number of tokens that they were
  // retrieved for, and the places of the keys of `encoded` in the cache, [r k] int32.
  int64_t first_chunk = 0;
  Tensor slots;
};

// Retro's chunked cross-attention (Borgeaud et al. 2022, arXiv:2112.04426, sec. 2.4): a token
// attends to the neighbours of a chunk if it is the last token of that chunk or one of the m - 1
// tokens after it. Earlier tokens attend to no neighbours, because retrieval depends on the whole
// chunk.
//
//   x   [s, b, h]              normed
//   context.model              Neighbors of the s tokens; absent: the layer skips cross-attention
//   attn.linear_q, ...         CrossAttention, of all neighbours of a chunk as one sequence
//   encoder                    of the first layer that attends to neighbours: layers without final
//                              norm that read each neighbour in both directions. The first of them
//                              also attends to the chunk of x that the neighbour was retrieved for.
//   y   [s, b, h]              with bias, dropout and --retro-attention-gate; zero for tokens that
//                              attend to nothing
class NeighborAttention final : public Attention {
 public:
  NeighborAttention(const TransformerConfig& config, const LayerPlace& place,
                    const TensorParallel& tp, Stream stream);
  ~NeighborAttention() override;

  // Sets Neighbors::encoded if the layer has the encoder.
  //
  // In generation (context.decode) x are tokens of one text: either its beginning, with the
  // neighbours of its first chunk, to which the last token of that chunk and all later ones attend;
  // or later tokens, whose neighbours an earlier pass has read.
  BiasedOutput forward(const Variable& x, const ForwardContext& context) const override;
  bool has_input(const ForwardContext& context) const override;

 private:
  // The encoder's output for each chunk's k neighbours: own [m, b l, h] -> [r k, b l, h].
  Variable encode(const Variable& own, const Variable& embedded, RandomState random) const;
  Variable forward_cached(const Variable& x, const ForwardContext& context) const;
  Variable forward_whole(const Variable& x, const ForwardContext& context) const;
  Variable gated(const Variable& y) const;

  RetroConfig retro_;
  DType dtype_;
  float hidden_dropout_;
  uint64_t dropout_site_;
  CrossAttention attn_;
  std::unique_ptr<TransformerBlock> encoder_;  // null: another layer has it
};

// Makes the layers of a Retro's decoder: those in config.retro have NeighborAttention between
// self-attention and MLP.
LayerMaker retro_layers(const TransformerConfig& config);

}  // namespace megatron
