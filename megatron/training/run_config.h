#pragma once

#include "megatron/checkpoint/config.h"
#include "megatron/core/arg_map.h"
#include "megatron/data/config.h"
#include "megatron/optim/config.h"
#include "megatron/parallel/config.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/config.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The complete configuration of a training run, one struct for each owner.
struct RunConfig {
  TransformerConfig transformer;
  OptimizerConfig optimizer;
  TrainingConfig training;
  CheckpointConfig checkpoint;
  DataConfig data;
  ParallelConfig parallel;
  TokenizerConfig tokenizer;
  // Every setting by its name in Megatron-LM, as recorded in checkpoints. Resolving the config
  // fills it (settings/resolve.h).
  ArgMap settings = {};
};

}  // namespace megatron
