#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_lora_flags(FlagTable& flags, TrainingArgs& args) {
  TransformerConfig& c = args.transformer;
  flags.group("low-rank adapters");
  flags
      .add("--lora-rank", c.lora_rank,
           "Rank of the low-rank adapters (LoRA) to train while all other parameters are frozen; "
           "0: train the model.")
      .only_for({"GPT"})
      .from_checkpoint();
  flags.add("--lora-alpha", c.lora_alpha, "Scale the output of an adapter by alpha / rank.")
      .only_for({"GPT"})
      .from_checkpoint();
  flags
      .add("--lora-dropout", c.lora_dropout,
           "Dropout probability of the input of each adapter, in training.")
      .only_for({"GPT"})
      .from_checkpoint();
  flags
      .add("--lora-target-modules", c.lora_target_modules,
           "Layers with adapters: linear_qkv (with latent attention its projections), linear_proj, "
           "linear_fc1, linear_fc2, their names in transformers (c_attn, q_proj, ...), or "
           "all-linear.")
      .only_for({"GPT"})
      .from_checkpoint();
}

}  // namespace megatron
