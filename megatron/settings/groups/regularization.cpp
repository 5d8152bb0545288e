#include "megatron/settings/groups/groups.h"

namespace megatron {
namespace {

void listed_if_given(Flag& flag) { flag.is_listed = false; }

void add_muon_flags(FlagTable& flags, OptimizerConfig& c) {
  listed_if_given(flags.add("--muon-momentum", c.muon_momentum, "Momentum of Muon."));
  listed_if_given(flags.add_off(
      "--muon-no-split-qkv -> muon_split_qkv", c.muon_split_qkv,
      "Make queries, keys and values orthogonal as one matrix instead of each by itself."));
  listed_if_given(flags.add_switch("--muon-use-nesterov", c.muon_use_nesterov,
                                   "Nesterov's look ahead in Muon's momentum."));
  using S = MuonScaleMode;
  listed_if_given(flags.add_choice("--muon-scale-mode", c.muon_scale_mode,
                                   {{"spectral", S::kSpectral},
                                    {"unit_rms_norm", S::kUnitRmsNorm},
                                    {"shape_scaling", S::kShapeScaling}},
                                   "Factor of Muon's orthogonal [out, in]: the root of max(out, "
                                   "in), of out / in, or of max(1, out / in)."));
  using P = MuonPrecision;
  listed_if_given(flags.add_choice("--muon-fp32-matmul-prec", c.muon_fp32_matmul_prec,
                                   {{"low", P::kLow}, {"medium", P::kMedium}, {"high", P::kHigh}},
                                   "Products of Muon: in fp32 if high, else in bf16."));
  listed_if_given(
      flags.add("--muon-num-ns-steps", c.muon_num_ns_steps, "Newton-Schulz steps of Muon."));
  using M = MuonTpMode;
  listed_if_given(flags.add_choice("--muon-tp-mode", c.muon_tp_mode,
                                   {{"blockwise", M::kBlockwise},
                                    {"duplicated", M::kDuplicated},
                                    {"distributed", M::kDistributed}},
                                   "Muon of tensor-parallel ranks: blockwise makes each rank's "
                                   "part orthogonal; the others are not available."));
  listed_if_given(flags.add("--muon-extra-scale-factor", c.muon_extra_scale_factor,
                            "Further factor of Muon's steps."));
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
            "First weight decay of a linear or cosine --weight-decay-incr-style.");
  flags.add("--end-weight-decay", c.end_weight_decay, "Last weight decay of such a style.");
  using W = WeightDecayIncrStyle;
  flags.add_choice("--weight-decay-incr-style", c.weight_decay_incr_style,
                   {{"constant", W::kConstant}, {"linear", W::kLinear}, {"cosine", W::kCosine}},
                   "Change of weight decay over the run.");
  flags.add("--clip-grad", c.clip_grad, "Largest global L2 norm of the gradient; 0 never clips.")
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
