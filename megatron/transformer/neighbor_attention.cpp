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

Variable NeighborAttention::encode(const Variable& own, const ForwardContext& context,
                                   RandomState random) const {
  const Variable& embedded = context.neighbors->embedded;
  ForwardContext inside;
  inside.random = &random;
  inside.encoder.output = own;
  const Variable y = encoder_->forward(embedded, inside);  // [r, b l k, h]
  return cast(join_neighbors(y, embedded.size(1) / own.size(1)), dtype_);
}

Variable NeighborAttention::gated(const Variable& y) const {
  return retro_.attention_gate == 1 ? y : scale(y, static_cast<float>(retro_.attention_gate));
}

Variable NeighborAttention::forward(const Variable& x, const ForwardContext& context) const {
  if (context.decode.cached != nullptr) return forward_cached(x, context);
  Neighbors& neighbors = *context.neighbors;
  const int64_t m = neighbors.chunk_length;
  const int64_t num_chunks = (x.size(0) + m - 1) / m;
  if (encoder_) {
    const int64_t of_sample = neighbors.embedded.size(1) / x.size(1);
    neighbors.encoded =
        encode(split_chunks(x, m, ChunkRows::kOwn), context, context.random->of_parts(of_sample));
  }
  RandomState random = context.random->of_parts(num_chunks);
  ForwardContext inside;
  inside.random = &random;
  inside.encoder.output = neighbors.encoded;
  const Variable readers = split_chunks(x, m, ChunkRows::kReaders);
  const Variable read =
      attn_.forward(readers, inside, random.dropout_key(dropout_site_, hidden_dropout_));
  return gated(join_chunks(read, x.size(0), ChunkRows::kReaders));  // [s, b, h]
}

Variable NeighborAttention::forward_cached(const Variable& x, const ForwardContext& context) const {
  Neighbors& neighbors = *context.neighbors;
  const CachedBatch& cached = *context.decode.cached;
  ForwardContext inside;
  inside.random = context.random;
  if (!neighbors.embedded.defined()) {
    inside.decode.cached = context.decode.cached;
    return gated(attn_.forward(x, inside, {}));
  }
  const int64_t first = cached.first_chunk;
  if (encoder_) {
    Tensor own = zeros({neighbors.chunk_length, 1, x.size(2)}, dtype_, x.data().stream());
    Tensor tokens = own.slice(0, first);
    copy_into(tokens, x.data().slice(0, first));
    neighbors.encoded = encode(Variable(own), context, *context.random);
  }
  attn_.keep(neighbors.encoded, *cached.encoder_cache, cached.encoder_slots);
  inside.encoder.output = neighbors.encoded;
  const int64_t num_readers = x.size(0) - (first - 1);
  const Variable readers(x.data().slice(first - 1, num_readers));
  Tensor y = zeros(x.shape(), x.dtype(), x.data().stream());
  Tensor read = y.slice(first - 1, num_readers);
  copy_into(read, attn_.forward(readers, inside, {}).data());
  return gated(Variable(y));
}

}  // namespace megatron
