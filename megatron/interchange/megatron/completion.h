#pragma once

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// What files of other systems leave out, because their tensors show it.
namespace megatron {

// Adds the sizes that tensors show, where the settings do not say them.
void add_tensor_sizes(ModelKind kind, CheckpointContents& contents);

// Adds the main parameters of a run in fp32, which keeps no copies: they are the weights. Does
// nothing without the optimizer's state.
void add_main_params(CheckpointContents& contents);

}  // namespace megatron
