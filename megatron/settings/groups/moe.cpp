#include "megatron/settings/groups/groups.h"

namespace megatron {
namespace {

void add_router_flags(FlagTable& flags, TransformerConfig& c) {
  flags.add("--moe-router-topk", c.moe_router_topk, "Experts of each token.").architecture();
  flags
      .add_choice("--moe-router-score-function", c.moe_router_score_function,
                  {{"softmax", RouterScore::kSoftmax},
                   {"sigmoid", RouterScore::kSigmoid},
                   {"sqrtsoftplus", RouterScore::kSqrtSoftplus}},
                  "Scores that the router makes of its logits.")
      .architecture();
  flags
      .add_switch("--moe-router-pre-softmax", c.moe_router_pre_softmax,
                  "Weights are a softmax over all experts, not over those of the token.")
      .architecture();
  flags
      .add_optional("--moe-router-num-groups", c.moe_router_num_groups,
                    "Blocks of experts, of which a token chooses from the "
                    "--moe-router-group-topk best.")
      .not_zero()
      .architecture();
  flags
      .add_optional("--moe-router-group-topk", c.moe_router_group_topk,
                    "Blocks of experts that a token chooses from.")
      .not_zero()
      .architecture();
  flags
      .add_optional("--moe-router-group-score-topk", c.moe_router_group_score_topk,
                    "Experts of a block whose scores add up to the block's (DeepSeek-V3: 2); "
                    "--moe-router-topk / --moe-router-group-topk if not given.")
      .not_zero()
      .architecture();
  flags
      .add_optional("--moe-router-topk-scaling-factor", c.moe_router_topk_scaling_factor,
                    "Factor of the weights of a token's experts.")
      .architecture();
  constexpr int kNone = -1;
  flags
      .add_choice(
          "--moe-router-dtype",
          {.set = [&c](int value) { c.moe_router_dtype = static_cast<DType>(value); },
           .get =
               [&c] { return c.moe_router_dtype ? static_cast<int>(*c.moe_router_dtype) : kNone; },
           .values = {{"fp32", static_cast<int>(DType::kFloat32)},
                      {"fp64", static_cast<int>(DType::kFloat64)}}},
          "Precision of the router's product and weights; that of its input if not given.")
      .none();
  flags
      .add("--moe-router-load-balancing-type", c.moe_router_load_balancing_type,
           "Balancing of tokens over the experts: aux_loss, seq_aux_loss, global_aux_loss, or "
           "several of them; or sinkhorn, quantile_balancing or none.")
      .prints("aux_loss")
      .from_checkpoint();
  flags
      .add("--moe-aux-loss-coeff", c.moe_aux_loss_coeff,
           "Weight of the balancing loss, or one of each type.")
      .prints(0.0);
  flags.add_optional("--moe-z-loss-coeff", c.moe_z_loss_coeff, "Weight of the router's z-loss.");
  flags
      .add_switch("--moe-router-enable-expert-bias", c.moe_router_enable_expert_bias,
                  "Balance the experts by a bias of the choice, which changes after each "
                  "iteration, without a loss.")
      .architecture();
  flags.add("--moe-router-bias-update-rate", c.moe_router_bias_update_rate,
            "Change of that bias in an iteration.");
  flags.add("--moe-router-quantile-balancing-ema", c.moe_router_quantile_balancing_ema,
            "Part of the bias of quantile_balancing that an iteration keeps.");
  flags.add_optional("--moe-input-jitter-eps", c.moe_input_jitter_eps,
                     "In training, multiply the router's input by 1 +- this.");
}

}  // namespace

void add_moe_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  ArgMap& other = args.other;
  TransformerConfig& c = args.transformer;
  const ArgValue none;
  const char* of_kernels = "it chooses kernels of Megatron-LM";

  flags.group("mixture of experts");
  flags
      .add_optional("--num-experts", c.num_experts,
                    "Experts of a layer: MLPs of which each token is sent to --moe-router-topk.")
      .architecture();
  flags
      .add("--moe-layer-freq", c.moe_layer_freq,
           "Layers with experts: each N-th from the first one, or a list with 1 for each such "
           "layer, as in [0]*1+[1]*23.")
      .prints(int64_t{1})
      .architecture();
  flags
      .add_optional("--moe-ffn-hidden-size", c.moe_ffn_hidden_size,
                    "Hidden size of an expert; --ffn-hidden-size if not given.")
      .not_zero()
      .architecture();
  add_router_flags(flags, c);
  flags.add_optional("--moe-expert-capacity-factor", c.moe_expert_capacity_factor,
                     "An expert has place for this many times its even share of the tokens; no "
                     "token is dropped if not given.");
  flags.add_choice(
      "--moe-token-drop-policy", c.moe_token_drop_policy,
      {{"probs", TokenDropPolicy::kProbs}, {"position", TokenDropPolicy::kPosition}},
      "Tokens that a full expert keeps: those with the largest weights, or the first.");
  flags
      .add_optional("--moe-shared-expert-intermediate-size", c.moe_shared_expert_intermediate_size,
                    "Hidden size of an MLP that reads every token, beside the experts.")
      .not_zero()
      .architecture();
  flags
      .add_switch("--moe-shared-expert-gate", c.moe_shared_expert_gate,
                  "Multiply the output of that MLP by the sigmoid of a product with its input.")
      .architecture();
  flags
      .add_switch("--moe-apply-probs-on-input", c.moe_apply_probs_on_input,
                  "With --moe-router-topk 1, weigh the inputs of experts, not their outputs.")
      .architecture();
  flags
      .add_switch("--moe-pad-expert-input-to-capacity", c.moe_pad_expert_input_to_capacity,
                  "Fill each expert's rows up to its capacity.")
      .no_effect("rows without a token add nothing");
  flags
      .add_later_entry("--moe-token-dispatcher-type", T::kChoice, other, "allgather",
                       "Dispatch of tokens to experts.")
      .among({"allgather", "alltoall", "flex"})
      .no_effect("all dispatchers give the same sums, and tokens travel by all-gather");
  flags.add_entry("--moe-grouped-gemm", T::kSwitch, other, false, "Kernel choice of experts.")
      .no_effect(of_kernels);
  for (const char* flag :
       {"--moe-permute-fusion", "--moe-router-fusion", "--moe-shared-expert-overlap",
        "--moe-router-padding-for-quantization", "--moe-enable-deepep"}) {
    flags.add_later_entry(flag, T::kSwitch, other, false, "Kernel choice of experts.")
        .no_effect(of_kernels);
  }
  flags
      .add_later_entry("--overlap-moe-expert-parallel-comm", T::kSwitch, other, false,
                       "Overlap of experts' transfers with another microbatch.")
      .no_effect("--overlap-microbatches overlaps the transfers of all layers");
  flags
      .add_later_entry("--moe-flex-dispatcher-backend", T::kText, other, "deepep",
                       "Library of --moe-token-dispatcher-type flex.")
      .no_effect(of_kernels);
  flags.add_entry("--moe-token-dropping", T::kSwitch, other, false, "Drop tokens of full experts.",
                  "dropping tokens without --moe-expert-capacity-factor");
  flags.add_later_entry("--moe-latent-size", T::kInt, other, none, "Size of latent experts.",
                        "a mixture of latent experts");
  flags.add_switch("--moe-use-upcycling", args.checkpoint.moe_use_upcycling,
                   "Make experts of the MLPs of a dense checkpoint, and begin at iteration 0.");
  flags
      .add("--moe-upcycling-granularity", args.checkpoint.moe_upcycling_granularity,
           "Experts made of each of these MLPs, of a part of its width.")
      .is_listed = false;
  flags.add_switch("--moe-per-layer-logging", c.moe_per_layer_logging,
                   "Write each layer's balancing losses, and the tokens of each expert as a "
                   "multiple of its even share, to TensorBoard and the other trackers.");
  flags.add_later_entry("--moe-router-force-load-balancing", T::kSwitch, other, false,
                        "Route by random logits.", "routing by random logits");
}

}  // namespace megatron
