#include "megatron/transformer/neighbor_attention.h"

#include "megatron/ops/chunks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/transformer_block.h"

namespace megatron {
namespace {

// The layers of the neighbours' encoder: those of the decoder with dropouts of their own. They have
// no rotary positions, and neither has cross-attention.
TransformerConfig encoder_config(const TransformerConfig& config) {
  TransformerConfig own = config;
  own.hidden_dropout = config.retro.encoder_hidden_dropout;
  own.attention_dropout = config.retro.encoder_attention_dropout;
  return own;
}

}  // namespace

NeighborAttention::NeighborAttention(const TransformerConfig& config, const Stack& stack,
                                     int64_t layer, const TensorParallel& tp, Stream stream)
    : retro_(config.retro),
      dtype_(config.params_dtype),
      hidden_dropout_(static_cast<float>(config.hidden_dropout)),
      dropout_site_(hash_of(stack.layer_name(layer) + ".cross_attention.dropout")),
      attn_(config, stack, layer, tp, stream) {
  add_child("attn", attn_);
  if (!retro_.is_first_layer(layer)) return;
  const Stack of_neighbors = {.name = stack.layer_name(layer) + ".cross_attention.encoder",
                              .is_causal = false,
                              .reads_chunks = true};
  encoder_ = std::make_unique<TransformerBlock>(
      encoder_config(config), of_neighbors,
      StackSlice{.num_layers = retro_.encoder_layers, .has_end = false}, tp, stream);
  add_child("encoder", *encoder_);
}

NeighborAttention::~NeighborAttention() = default;

Variable NeighborAttention::encode(const Variable& x, const ForwardContext& context) const {
  const int64_t neighbors_of_sample = retro_.num_chunks(x.size(0)) * retro_.num_neighbors;
  RandomState random = context.random->of_parts(neighbors_of_sample);
  ForwardContext inside;
  inside.random = &random;
  inside.encoder_output = split_chunks(x, retro_.chunk_length, ChunkRows::kOwn);  // [m, b l, h]
  const Variable y = encoder_->forward(context.neighbors->embedded, inside);      // [r, b l k, h]
  return cast(join_neighbors(y, retro_.num_neighbors), dtype_);                   // [r k, b l, h]
}

Variable NeighborAttention::forward(const Variable& x, const ForwardContext& context) const {
  if (encoder_) context.neighbors->encoded = encode(x, context);
  RandomState random = context.random->of_parts(retro_.num_chunks(x.size(0)));
  ForwardContext inside;
  inside.random = &random;
  inside.encoder_output = context.neighbors->encoded;
  const Variable readers = split_chunks(x, retro_.chunk_length, ChunkRows::kReaders);
  const Variable read =
      attn_.forward(readers, inside, random.dropout_key(dropout_site_, hidden_dropout_));
  const Variable y = join_chunks(read, x.size(0), ChunkRows::kReaders);  // [s, b, h]
  return retro_.attention_gate == 1 ? y : scale(y, static_cast<float>(retro_.attention_gate));
}

}  // namespace megatron
