#pragma once

#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"

namespace megatron {

// One function per group of --help. Each adds its rows, bound to the fields of `args`.
void add_network_size_flags(FlagTable& flags, TrainingArgs& args);
void add_regularization_flags(FlagTable& flags, TrainingArgs& args);
void add_latent_flags(FlagTable& flags, TrainingArgs& args);
void add_multi_token_flags(FlagTable& flags, TrainingArgs& args);
void add_lora_flags(FlagTable& flags, TrainingArgs& args);
void add_training_flags(FlagTable& flags, TrainingArgs& args);
void add_initialization_flags(FlagTable& flags, TrainingArgs& args);
void add_learning_rate_flags(FlagTable& flags, TrainingArgs& args);
void add_checkpointing_flags(FlagTable& flags, TrainingArgs& args);
void add_mixed_precision_flags(FlagTable& flags, TrainingArgs& args);
void add_distributed_flags(FlagTable& flags, TrainingArgs& args);
void add_validation_flags(FlagTable& flags, TrainingArgs& args);
void add_data_flags(FlagTable& flags, TrainingArgs& args);
void add_logging_flags(FlagTable& flags, TrainingArgs& args);
void add_inference_flags(FlagTable& flags, TrainingArgs& args);
void add_moe_flags(FlagTable& flags, TrainingArgs& args);
void add_retro_flags(FlagTable& flags, TrainingArgs& args);
void add_machine_flags(FlagTable& flags, TrainingArgs& args);
// Flags of features of Megatron-LM that this program does not have.
void add_compat_flags(FlagTable& flags, TrainingArgs& args);

}  // namespace megatron
