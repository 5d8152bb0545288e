#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/transformer/config.h"

// The names of the parameters of GPT, Retro, BERT and T5 in Megatron-LM's checkpoints.
namespace megatron {

// Naming schemes of versions and options of Megatron-LM for the same model.
enum class MegatronNaming {
  kLegacy,           // core_r0.5.0 without --use-mcore-models
  kLegacyLayerNorm,  // the same until August 2023: "layernorm" instead of "norm"
  kLegacyFused,      // the same with --transformer-impl transformer_engine
  kCore,             // Megatron Core, local layers
  kCoreFused,        // Megatron Core, Transformer Engine's layers: norms are part of what follows
};
constexpr bool is_core(MegatronNaming naming) { return naming >= MegatronNaming::kCore; }

// A tensor of theirs.
struct MegatronName {
  std::string ours;              // with "{i}" for the number of the layer
  std::optional<int64_t> layer;  // within its file
  bool is_tied_copy = false;     // of the embedding, on the last pipeline stage
  bool is_second_name = false;   // of a tensor that the file has under another name too
};

// Identifies the tensor at a path, in any spelling; nothing for an unknown name. The path joins the
// keys of nested dictionaries with dots, without "model". A layer of a GPT that `attends` to
// neighbours is a Retro's: its norms have other names (layers_that_attend()).
std::optional<MegatronName> find_megatron_name(ModelKind kind, std::string_view path,
                                               bool attends = false);

// The layers with cross-attention (of a Retro) in a GPT with such names, ours or theirs.
std::set<int64_t> layers_that_attend(const std::vector<std::string>& names);

// The kind of model whose tensors have these paths.
ModelKind kind_of_paths(const std::vector<std::string>& paths);

// Their path for a tensor of ours, both with "{i}". Throws Unsupported if the naming scheme has
// none.
std::string megatron_name(ModelKind kind, MegatronNaming naming, std::string_view ours,
                          bool attends = false);

// The path of the tied copy of the embedding.
std::string megatron_tied_name(MegatronNaming naming);

// Our names in the order in which Megatron-LM registers the parameters and its optimizer numbers
// them. The name of an output layer also stands for a tied copy.
std::vector<std::string> registration_order(MegatronNaming naming, std::vector<std::string> names);

// Multi-token prediction: "mtp.layers.0.enorm.weight". Its layers are in no stack.
bool is_of_mtp(std::string_view name);

// The layer stack of a name of ours: "encoder", "decoder"; empty: none.
std::string_view stack_of(std::string_view ours);

// The modules of a layer for which a checkpoint has an empty "<module>._extra_state".
std::vector<std::string> extra_states(MegatronNaming naming, bool has_cross_attention = false);

// The same for a layer with latent attention, whose weights `has` knows by their names of ours
// within the layer: "self_attention.linear_kv_up_proj.weight".
std::vector<std::string> extra_states(MegatronNaming naming, bool has_cross_attention,
                                      const std::function<bool(std::string_view)>& has);

// "decoder.layers.3.mlp.linear_fc1.bias" -> "decoder.layers.{i}.mlp.linear_fc1.bias" and 3.
std::string without_layer(std::string_view name, std::optional<int64_t>& layer);
std::string with_layer(std::string_view pattern, int64_t layer);

}  // namespace megatron
