#include "megatron/models/retro/neighbor_attention.h"

#include <utility>

#include "megatron/ops/chunks.h"
#include "megatron/ops/elementwise.h"
#include "megatron/transformer/init.h"
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

// Makes the encoder's layers. The first one also attends to the chunk of its neighbour.
LayerMaker encoder_layers(RetroResidual residual) {
  return [residual](const LayerRecipe& recipe, const TensorParallel& tp, Stream stream) {
    if (recipe.place.layer != 0) return make_layer(recipe, tp, stream);
    LayerRecipe reader = recipe;
    const bool is_normed =
        residual == RetroResidual::kPost || recipe.branches.front().residual_is_normed;
    reader.branches.insert(reader.branches.begin() + 1, {.part = PartKind::kCrossAttention,
                                                         .name = "cross_attention",
                                                         .norm = "pre_cross_attn_layernorm",
                                                         .residual_is_normed = is_normed});
    std::vector<ResidualBranch> branches = make_branches(reader, tp, stream);
    branches[1].name = "cross_attention.attn";  // Compat: Megatron Core's name.
    return std::make_unique<TransformerLayer>(std::move(branches), tp);
  };
}

Neighbors& inputs_of(const ForwardContext& context) {
  return static_cast<Neighbors&>(*context.model);
}

}  // namespace

NeighborAttention::NeighborAttention(const TransformerConfig& config, const LayerPlace& place,
                                     const TensorParallel& tp, Stream stream)
    : retro_(config.retro),
      dtype_(config.params_dtype),
      hidden_dropout_(static_cast<float>(config.hidden_dropout)),
      dropout_site_(hash_of(place.name + ".cross_attention.dropout")),
      attn_(config, place, tp, stream) {
  add_child("attn", attn_);
  if (!retro_.is_first_layer(place.layer)) return;
  const Stack of_neighbors = {.name = place.name + ".cross_attention.encoder", .is_causal = false};
  encoder_ = std::make_unique<TransformerBlock>(
      encoder_config(config), of_neighbors,
      StackSlice{.num_layers = retro_.encoder_layers, .has_end = false}, tp, stream,
      encoder_layers(retro_.encoder_residual));
  add_child("encoder", *encoder_);
}

NeighborAttention::~NeighborAttention() = default;

Variable NeighborAttention::encode(const Variable& own, const Variable& embedded,
                                   RandomState random) const {
  ForwardContext inside;
  inside.random = &random;
  inside.encoder.output = own;
  const Variable y = encoder_->forward(embedded, inside);  // [r, b l k, h]
  return cast(join_neighbors(y, embedded.size(1) / own.size(1)), dtype_);
}

Variable NeighborAttention::gated(const Variable& y) const {
  return retro_.attention_gate == 1 ? y : scale(y, static_cast<float>(retro_.attention_gate));
}

bool NeighborAttention::has_input(const ForwardContext& context) const {
  return dynamic_cast<const Neighbors*>(context.model) != nullptr;
}

BiasedOutput NeighborAttention::forward(const Variable& x, const ForwardContext& context) const {
  return {.y = context.decode.cached != nullptr ? forward_cached(x, context)
                                                : forward_whole(x, context),
          .bias = {}};
}

Variable NeighborAttention::forward_whole(const Variable& x, const ForwardContext& context) const {
  Neighbors& neighbors = inputs_of(context);
  const int64_t m = neighbors.chunk_length;
  const int64_t num_chunks = (x.size(0) + m - 1) / m;
  if (encoder_) {
    const int64_t of_sample = neighbors.embedded.size(1) / x.size(1);
    neighbors.encoded = encode(split_chunks(x, m, ChunkRows::kOwn), neighbors.embedded,
                               context.random->of_parts(of_sample));
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
  Neighbors& neighbors = inputs_of(context);
  const CachedBatch& cached = *context.decode.cached;
  ForwardContext inside;
  inside.random = context.random;
  if (!neighbors.embedded.defined()) {
    inside.decode.cached = context.decode.cached;
    return gated(attn_.forward(x, inside, {}));
  }
  const int64_t first = neighbors.first_chunk;
  if (encoder_) {
    Tensor own = zeros({neighbors.chunk_length, 1, x.size(2)}, dtype_, x.data().stream());
    Tensor tokens = own.slice(0, first);
    copy_into(tokens, x.data().slice(0, first));
    neighbors.encoded = encode(Variable(own), neighbors.embedded, *context.random);
  }
  attn_.keep(neighbors.encoded, *cached.encoder_cache, neighbors.slots);
  inside.encoder.output = neighbors.encoded;
  const int64_t num_readers = x.size(0) - (first - 1);
  const Variable readers(x.data().slice(first - 1, num_readers));
  Tensor y = zeros(x.shape(), x.dtype(), x.data().stream());
  Tensor read = y.slice(first - 1, num_readers);
  copy_into(read, attn_.forward(readers, inside, {}).data());
  return gated(Variable(y));
}

LayerMaker retro_layers(const TransformerConfig& config) {
  return [config](const LayerRecipe& recipe, const TensorParallel& tp, Stream stream) {
    std::vector<ResidualBranch> branches = make_branches(recipe, tp, stream);
    if (config.retro.has_layer(recipe.place.layer)) {
      branches.insert(
          branches.begin() + 1,
          {.norm_name = "pre_cross_attn_layernorm",
           .norm = make_norm(recipe.config, tp, stream),
           .name = "cross_attention",
           .part = std::make_unique<NeighborAttention>(config, recipe.place, tp, stream),
           .residual_is_normed = recipe.branches.front().residual_is_normed});
    }
    return std::make_unique<TransformerLayer>(std::move(branches), tp);
  };
}

}  // namespace megatron
