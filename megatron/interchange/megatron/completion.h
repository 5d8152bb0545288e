#pragma once

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// Infers what files of other systems omit.
namespace megatron {

// Adds sizes missing in the settings, from the shapes of tensors.
void add_tensor_sizes(ModelKind kind, CheckpointContents& contents);

// Adds the main parameters of an fp32 run, which saves no copies: they are the weights. Does
// nothing without optimizer state.
void add_main_params(CheckpointContents& contents);

}  // namespace megatron
