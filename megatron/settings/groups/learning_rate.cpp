#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_learning_rate_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  OptimizerConfig& c = args.optimizer;

  flags.group("learning rate");
  flags.add_optional("--lr", c.lr, "Peak learning rate.")
      .nickname({"--learning-rate"})
      .in_every_version()
      .required("--skip-train");
  flags.add("--min-lr", c.min_lr, "Final learning rate.").in_every_version();
  flags.add("--decoupled-lr", c.decoupled_lr,
            "Peak learning rate of the embedding and the output layer.");
  flags.add("--decoupled-min-lr", c.decoupled_min_lr,
            "Learning rate of the embedding and the output layer after the decay.");
  using L = LrDecayStyle;
  flags.add_choice("--lr-decay-style", c.lr_decay_style,
                   {{"constant", L::kConstant},
                    {"linear", L::kLinear},
                    {"cosine", L::kCosine},
                    {"inverse-square-root", L::kInverseSquareRoot},
                    {"WSD", L::kWsd}},
                   "Decay of the learning rate after the warm-up.");
  using W = WsdDecayStyle;
  flags.add_choice("--lr-wsd-decay-style", c.lr_wsd_decay_style,
                   {{"exponential", W::kExponential},
                    {"linear", W::kLinear},
                    {"cosine", W::kCosine},
                    {"minus_sqrt", W::kMinusSqrt}},
                   "Style of the last phase of --lr-decay-style WSD.");
  flags
      .add_optional("--lr-decay-iters", c.lr_decay_iters,
                    "Iterations of the decay to --min-lr; --train-iters if not given.")
      .not_zero();
  flags
      .add_optional("--lr-decay-samples", c.lr_decay_samples,
                    "Samples of the decay to --min-lr; --train-samples if not given.")
      .not_zero();
  flags.add_optional("--lr-wsd-decay-iters", c.lr_wsd_decay_iters,
                     "Iterations of WSD's last phase.");
  flags.add_optional("--lr-wsd-decay-samples", c.lr_wsd_decay_samples,
                     "Samples of WSD's last phase.");
  flags.add("--lr-warmup-fraction", c.lr_warmup_fraction,
            "Fraction of the decay length during which the learning rate rises.");
  flags.add("--lr-warmup-iters", c.lr_warmup_iters, "Iterations of the warm-up.");
  flags.add("--lr-warmup-samples", c.lr_warmup_samples, "Samples of the warm-up.");
  flags.add("--lr-warmup-init", c.lr_warmup_init, "Learning rate at the start of the warm-up.");
  flags.add_switch("--override-opt_param-scheduler,--override-lr-scheduler",
                   c.override_opt_param_scheduler,
                   "Take the schedule from the command line, not from the checkpoint.");
  flags.add_switch("--use-checkpoint-opt_param-scheduler,--use-checkpoint-lr-scheduler",
                   c.use_checkpoint_opt_param_scheduler,
                   "Take the schedule from the checkpoint, not from the command line.");
  flags.add_removed("--warmup", T::kInt, "use --lr-warmup-fraction");
  // The command reads the entry before it resolves the flags.
  flags
      .add_later_entry("--lr-decay-tokens", T::kInt, args.other, ArgValue(),
                       "Decay length in tokens, rounded up to samples.")
      .status = FlagStatus::kUsed;
}

}  // namespace megatron
