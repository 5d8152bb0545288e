#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_latent_flags(FlagTable& flags, TrainingArgs& args) {
  TransformerConfig& c = args.transformer;
  RopeScaling& scaling = c.rope_scaling;
  flags.group("latent attention");
  flags
      .add_switch("--multi-latent-attention", c.multi_latent_attention,
                  "Project queries, keys and values up from short vectors, like DeepSeek-V2.")
      .only_for({"GPT"})
      .architecture();
  flags
      .add_optional("--q-lora-rank", c.q_lora_rank,
                    "Size of the latent of queries; if not given, they have none.")
      .only_for({"GPT"})
      .not_zero()
      .architecture();
  flags.add("--kv-lora-rank", c.kv_lora_rank, "Size of the latent of keys and values.")
      .only_for({"GPT"})
      .architecture();
  flags
      .add("--qk-head-dim", c.qk_head_dim,
           "Channels of a head of queries and keys that are not rotated.")
      .only_for({"GPT"})
      .architecture();
  flags
      .add("--qk-pos-emb-head-dim", c.qk_pos_emb_head_dim,
           "Channels that are rotated; the keys of all heads share them.")
      .only_for({"GPT"})
      .architecture();
  flags.add("--v-head-dim", c.v_head_dim, "Channels of a head of values.")
      .only_for({"GPT"})
      .architecture();
  using S = RopeScalingType;
  flags
      .add_choice("--rope-type", scaling.type,
                  {{"rope", S::kNone},
                   {"yarn", S::kYarn},
                   {"linear", S::kLinear},
                   {"llama3", S::kLlama3},
                   {"dynamic", S::kDynamic},
                   {"longrope", S::kLongRope}},
                  "Scaling of the rotary frequencies for sequences longer than the original ones; "
                  "rope: none. With --multi-latent-attention a factor means yarn.")
      .none()
      .only_for({"GPT"})
      .architecture()
      .becomes("rope_scaling.type");
  flags
      .add("--rotary-scaling-factor", scaling.factor,
           "Factor of --rope-type: how much longer sequences are than the original ones.")
      .only_for({"GPT"})
      .architecture()
      .becomes("rope_scaling.factor");
  flags
      .add_optional(
          "--original-max-position-embeddings", scaling.original_max_position_embeddings,
          "Length before the scaling of --rope-type; 4096 with --multi-latent-attention if not "
          "given.")
      .only_for({"GPT"})
      .not_zero()
      .architecture()
      .becomes("rope_scaling.original_max_position_embeddings");
  flags
      .add("--beta-fast", scaling.beta_fast,
           "YaRN keeps frequencies that turn more often in the original length.")
      .only_for({"GPT"})
      .architecture()
      .becomes("rope_scaling.beta_fast");
  flags
      .add("--beta-slow", scaling.beta_slow,
           "YaRN divides frequencies that turn less often in the original length.")
      .only_for({"GPT"})
      .architecture()
      .becomes("rope_scaling.beta_slow");
  flags.add("--mscale", scaling.mscale, "YaRN's scale of cosines and sines.")
      .only_for({"GPT"})
      .architecture()
      .becomes("rope_scaling.mscale");
  flags
      .add("--mscale-all-dim", scaling.mscale_all_dim,
           "YaRN's scale of whole queries and keys, by which --mscale is divided.")
      .only_for({"GPT"})
      .architecture()
      .becomes("rope_scaling.mscale_all_dim");
}

void add_multi_token_flags(FlagTable& flags, TrainingArgs& args) {
  TransformerConfig& c = args.transformer;
  flags.group("multi-token prediction");
  flags
      .add_optional("--mtp-num-layers", c.mtp_num_layers,
                    "Predict so many tokens beyond the next, each with a layer of its own.")
      .only_for({"GPT"})
      .architecture();
  flags
      .add("--mtp-loss-scaling-factor", c.mtp_loss_scaling_factor,
           "Weight of the mean of their losses.")
      .only_for({"GPT"});
  flags
      .add_switch("--mtp-use-repeated-layer", c.mtp_use_repeated_layer,
                  "Use one layer for all further tokens.")
      .only_for({"GPT"})
      .architecture();
  flags
      .add_switch("--mtp-detach-heads", c.mtp_detach_heads,
                  "Train the layers of further tokens alone with their losses.")
      .only_for({"GPT"});
}

}  // namespace megatron
