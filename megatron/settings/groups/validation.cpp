#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_validation_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  TrainingConfig& c = args.training;
  ArgMap& other = args.other;

  flags.group("validation");
  flags.add("--eval-iters", c.eval_iters,
            "Iterations of one evaluation, for validation and test; 0 never evaluates.");
  flags.add("--eval-interval", c.eval_interval, "Iterations between evaluations; 0 is never.");
  flags.add_switch(
      "--repeat-last-evaluation", c.repeat_last_evaluation,
      "Evaluate at the end, on the next batches, even if --eval-interval has just done "
      "so, as Megatron-LM does.");
  flags.add_switch("--skip-train", c.skip_train, "Only evaluate, then end.");

  flags.add_later_entry("--eval-global-batch-size", T::kInt, other, ArgValue(),
                        "Global batch size of evaluation.", "another batch size for evaluation");
  flags.add_later_entry("--eval-micro-batch-size", T::kInt, other, ArgValue(),
                        "Micro batch size of evaluation.", "another batch size for evaluation");
  flags.add_later_entry("--start-eval-at-iter", T::kInt, other, ArgValue(),
                        "First iteration that may evaluate.", "a late first evaluation");
  flags.add_later_entry("--full-validation", T::kSwitch, other, false,
                        "Evaluate on the whole validation set.", "full validation");
  flags.add_switch("--multiple-validation-sets", args.data.multiple_validation_sets,
                   "Evaluate on each dataset of --valid-data-path separately.");
  flags.add_optional("--validation-set-names", args.data.validation_set_names,
                     "Names of these datasets in the log; file names if not given.");
}

}  // namespace megatron
