#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/region.h"

// The parameters of a GPT in Megatron-LM's checkpoints: under which names, and which part of each
// a tensor-parallel rank holds.
namespace megatron {

// The spellings that versions and options of Megatron-LM gave the same model.
enum class MegatronNaming {
  kLegacy,           // core_r0.5.0 without --use-mcore-models
  kLegacyLayerNorm,  // the same until August 2023: "layernorm" instead of "norm"
  kLegacyFused,      // the same with --transformer-impl transformer_engine
  kCore,             // Megatron Core, local layers
  kCoreFused,        // Megatron Core, Transformer Engine's layers: norms are part of what follows
};
constexpr bool is_core(MegatronNaming naming) { return naming >= MegatronNaming::kCore; }

// How a tensor is divided among the ranks of a tensor-parallel group.
enum class ShardKind {
  kWhole,    // every rank has all of it
  kRows,     // consecutive rows; vocabularies and query groups too
  kColumns,  // consecutive columns
  kGateUp,   // rows of the gate, then the same rows of the up projection
};

// A tensor of theirs.
struct MegatronName {
  std::string ours;              // with "{i}" for the number of the layer
  std::optional<int64_t> layer;  // within its file
  bool is_tied_copy = false;     // of the embedding, on the last pipeline stage
};

// What the tensor of that path is, of whatever spelling; none for a name that no GPT has. The path
// joins the keys of nested dictionaries with dots, without "model".
std::optional<MegatronName> find_megatron_name(std::string_view path);

// Their path of a tensor of ours, both with "{i}". Throws Unsupported when the naming has no place
// for it.
std::string megatron_name(MegatronNaming naming, std::string_view ours);

// The path of the tied copy of the embedding.
std::string megatron_tied_name(MegatronNaming naming);

// Our names in the order in which Megatron-LM registers the parameters, which numbers them in its
// optimizer.
std::vector<std::string> registration_order(MegatronNaming naming, std::vector<std::string> names);

// The modules of a layer for which a checkpoint has an empty "<module>._extra_state".
std::vector<std::string> extra_states(MegatronNaming naming);

// "decoder.layers.3.mlp.linear_fc1.bias" -> "decoder.layers.{i}.mlp.linear_fc1.bias" and 3.
std::string without_layer(std::string_view name, std::optional<int64_t>& layer);
std::string with_layer(std::string_view pattern, int64_t layer);

// REQUIRES: `ours`, with "{i}" or a number, is a name of ours.
ShardKind shard_kind_of(std::string_view ours, bool is_gated);

// Consecutive rows of a rank's shard, and which rectangle of the whole tensor they are.
struct ShardPart {
  int64_t begin = 0;  // the first row, within the shard
  Region region;      // has as many rows as the part
};

// The parts of rank `rank` of `ranks`, which together are its shard. Throws ShapeError when the
// tensor cannot be divided so.
std::vector<ShardPart> shard_parts(ShardKind kind, const Shape& whole, int64_t rank, int64_t ranks);
Shape shard_shape(ShardKind kind, const Shape& whole, int64_t ranks);
Shape whole_shape(ShardKind kind, const Shape& shard, int64_t ranks);

// The same for queries, keys and values in the order of an older checkpoint version (0: by kind,
// 1: interleaved). `heads` is their number in the whole model, `channels` of one.
std::vector<ShardPart> old_qkv_parts(int64_t version, const Shape& whole, int64_t rank,
                                     int64_t ranks, int64_t heads, int64_t channels);

}  // namespace megatron
