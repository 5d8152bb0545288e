#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/megatron/names.h"

// The names within a layer in Megatron-LM's checkpoints: what follows "layers.{i}.".
namespace megatron {

// The norms and attentions of a layer.
enum class LayerKind {
  kPlain,
  kCross,         // of a T5's decoder: attention to the output of an encoder
  kRetro,         // of a Retro, which attends to neighbours; the first one has their encoder
  kRetroEncoder,  // the first of that encoder, which attends to a chunk
};

// Replaces `from` by `to` if the text begins with it.
void replace_start(std::string& text, std::string_view from, std::string_view to);

// Our name for a name of theirs, in any spelling; empty if there is none.
std::string ours_in_layer(LayerKind kind, std::string_view theirs);
// Their name for a name of ours; empty if the spelling has none.
std::string theirs_in_layer(LayerKind kind, MegatronNaming naming, std::string_view ours);

// A sort key: the position of our name in the order in which Megatron-LM registers the parameters
// of a layer.
std::vector<int64_t> place_in_layer(MegatronNaming naming, std::string_view ours);

}  // namespace megatron
