#include "megatron/settings/groups/groups.h"

namespace megatron {

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

  flags.add_later_entry("--apply-wd-to-qk-layernorm", T::kSwitch, args.other, false,
                        "Decay the weights of --qk-layernorm.", "weight decay of norms");
  flags.add_later_entry("--no-weight-decay-cond-type", T::kText, args.other, ArgValue(),
                        "Another rule for weight decay.", "another rule for weight decay");
}

}  // namespace megatron
