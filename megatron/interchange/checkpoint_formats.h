#pragma once

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/load_source.h"
#include "megatron/settings/training_args.h"

// Checkpoints as runs of this program describe them.
namespace megatron {

// The contents of a source, Hugging Face models included: these have no optimizer, and their
// settings are those that config.json gives.
CheckpointContents open_any(const LoadSource& source);

// The run that saved a checkpoint, as its command line would give it; resolved, and for one
// rank. The tokenizer is left out when its files are not on this machine.
TrainingArgs described_run(CheckpointFormat format, const ArgMap& stored);

// The model that a source holds.
TransformerConfig config_of(const LoadSource& source, const CheckpointContents& contents);

}  // namespace megatron
