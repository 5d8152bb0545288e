#include "megatron/settings/groups/groups.h"

namespace megatron {
namespace {

void listed_if_given(Flag& flag) { flag.is_listed = false; }

void add_muon_flags(FlagTable& flags, OptimizerConfig& c) {
  listed_if_given(flags.add("--muon-momentum", c.muon_momentum, "Momentum of Muon."));
  listed_if_given(
      flags.add_off("--muon-no-split-qkv -> muon_split_qkv", c.muon_split_qkv,
                    "Orthogonalize queries, keys and values as one matrix instead of separately."));
  listed_if_given(flags.add_switch("--muon-use-nesterov", c.muon_use_nesterov,
                                   "Use Nesterov momentum in Muon."));
  using S = MuonScaleMode;
  listed_if_given(flags.add_choice("--muon-scale-mode", c.muon_scale_mode,
                                   {{"spectral", S::kSpectral},
                                    {"unit_rms_norm", S::kUnitRmsNorm},
                                    {"shape_scaling", S::kShapeScaling}},
                                   "Scale of Muon's orthogonal update [out, in]: sqrt(max(out, "
                                   "in)), sqrt(out / in) or sqrt(max(1, out / in))."));
  using P = MuonPrecision;
  listed_if_given(flags.add_choice("--muon-fp32-matmul-prec", c.muon_fp32_matmul_prec,
                                   {{"low", P::kLow}, {"medium", P::kMedium}, {"high", P::kHigh}},
                                   "Precision of Muon's products: fp32 if high, otherwise bf16."));
  listed_if_given(
      flags.add("--muon-num-ns-steps", c.muon_num_ns_steps, "Newton-Schulz iterations of Muon."));
  using M = MuonTpMode;
  listed_if_given(flags.add_choice("--muon-tp-mode", c.muon_tp_mode,
                                   {{"blockwise", M::kBlockwise},
                                    {"duplicated", M::kDuplicated},
                                    {"distributed", M::kDistributed}},
                                   "Muon with tensor parallelism: blockwise orthogonalizes each "
                                   "rank's shard; the other modes are not available."));
  listed_if_given(flags.add("--muon-extra-scale-factor", c.muon_extra_scale_factor,
                            "Additional scale of Muon's updates."));
}

}  // namespace

void add_regularization_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  OptimizerConfig& c = args.optimizer;

  flags.group("regularization");
  flags
      .add("--attention-dropout", args.transformer.attention_dropout,
           "Dropout probability of attention.")
      .in_every_version();
  flags
      .add("--hidden-dropout", args.transformer.hidden_dropout,
           "Dropout probability of the embedding and of each residual branch.")
      .in_every_version();
  flags.add("--weight-decay", c.weight_decay, "Weight decay; biases and norms are never decayed.")
      .in_every_version();
  flags.add("--start-weight-decay", c.start_weight_decay,
            "Initial weight decay of a linear or cosine --weight-decay-incr-style.");
  flags.add("--end-weight-decay", c.end_weight_decay, "Final weight decay of such a style.");
  using W = WeightDecayIncrStyle;
  flags.add_choice("--weight-decay-incr-style", c.weight_decay_incr_style,
                   {{"constant", W::kConstant}, {"linear", W::kLinear}, {"cosine", W::kCosine}},
                   "Schedule of the weight decay.");
  flags
      .add("--clip-grad", c.clip_grad,
           "Clip gradients to this global L2 norm; 0 disables clipping.")
      .in_every_version();
  flags.add("--adam-beta1", c.adam_beta1, "Decay of Adam's running mean of gradients.")
      .in_every_version();
  flags.add("--adam-beta2", c.adam_beta2, "Decay of Adam's running mean of squared gradients.")
      .in_every_version();
  flags.add("--adam-eps", c.adam_eps, "Added to the denominator of Adam's update.")
      .in_every_version();
  flags.add("--sgd-momentum", c.sgd_momentum, "Momentum of SGD.");
  listed_if_given(flags.add("--lion-beta1", c.lion_beta1,
                            "Weight of Lion's running mean in the direction of an update."));
  listed_if_given(
      flags.add("--lion-beta2", c.lion_beta2, "Decay of Lion's running mean of gradients."));
  add_muon_flags(flags, c);

  flags.add_later_entry("--apply-wd-to-qk-layernorm", T::kSwitch, args.other, false,
                        "Decay the weights of --qk-layernorm.", "weight decay of norms");
  flags.add_later_entry("--no-weight-decay-cond-type", T::kText, args.other, ArgValue(),
                        "Another rule for weight decay.", "another rule for weight decay");
}

}  // namespace megatron
