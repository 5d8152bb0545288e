#pragma once

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/transformer/config.h"

// Detects the kind of model in a checkpoint from its tensors, whatever system saved it.
namespace megatron {

// An encoder only is a BERT, an encoder with a decoder a T5, a decoder only a GPT.
ModelKind kind_of(const CheckpointContents& contents);

// Throws ConfigError, which names the right command, unless the source holds such a model.
void expect_kind(const CheckpointSource& source, ModelKind kind);

}  // namespace megatron
