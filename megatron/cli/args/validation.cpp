#include "megatron/cli/args/groups.h"

namespace megatron::cli {

void add_validation_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  TrainingConfig& c = args.training;
  ArgMap& other = args.other;

  flags.group("validation");
  flags.add("--eval-iters", c.eval_iters,
            "Iterations of one evaluation, for validation and test; 0 never evaluates.");
  flags.add("--eval-interval", c.eval_interval, "Iterations between evaluations; 0 is never.");
  flags.add_switch("--skip-train", c.skip_train, "Only evaluate, then end.");

  flags
      .add_entry("--eval-global-batch-size", T::kInt, other, ArgValue(),
                 "Global batch size of evaluation.")
      .needs("another batch size for evaluation")
      .unlisted();
  flags
      .add_entry("--eval-micro-batch-size", T::kInt, other, ArgValue(),
                 "Micro batch size of evaluation.")
      .needs("another batch size for evaluation")
      .unlisted();
  flags
      .add_entry("--start-eval-at-iter", T::kInt, other, ArgValue(),
                 "First iteration that may evaluate.")
      .needs("a late first evaluation")
      .unlisted();
  flags
      .add_entry("--full-validation", T::kSwitch, other, false,
                 "Evaluate on the whole validation set.")
      .needs("full validation")
      .unlisted();
  flags
      .add_entry("--multiple-validation-sets", T::kSwitch, other, false,
                 "Evaluate on each validation set by itself.")
      .needs("several validation sets")
      .unlisted();
  flags
      .add_entry("--validation-set-names", T::kTexts, other, ArgValue(),
                 "Names of the validation sets.")
      .unlisted();
}

}  // namespace megatron::cli
