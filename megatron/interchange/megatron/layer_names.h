#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/megatron/names.h"

// The names within a layer in Megatron-LM's checkpoints: what follows "layers.{i}.".
namespace megatron {

// Which norms and attentions a layer has.
enum class LayerKind {
  kPlain,
  kCross,         // of a T5's decoder: attention to the output of an encoder
  kRetro,         // of a Retro, which attends to neighbours; the first one has their encoder
  kRetroEncoder,  // the first of that encoder, which attends to a chunk
};

// Replaces `from` by `to` if the text begins with it.
void replace_start(std::string& text, std::string_view from, std::string_view to);

// Ours for a name of theirs, of whatever spelling; empty for none.
std::string ours_in_layer(LayerKind kind, std::string_view theirs);
// Theirs for a name of ours; empty if the spelling has none.
std::string theirs_in_layer(LayerKind kind, MegatronNaming naming, std::string_view ours);

// Where our name is in the order in which Megatron-LM registers the parameters of a layer: numbers
// to compare one by one.
std::vector<int64_t> place_in_layer(MegatronNaming naming, std::string_view ours);

}  // namespace megatron
