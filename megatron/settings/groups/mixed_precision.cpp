#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_mixed_precision_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  OptimizerConfig& c = args.optimizer;
  TransformerConfig& transformer = args.transformer;
  ArgMap& other = args.other;
  const ArgValue none;

  flags.group("mixed precision");
  flags.add_switch("--fp16", c.fp16, "Parameters and activations in fp16.")
      .becomes("params_dtype")
      .in_every_version();
  flags.add_switch("--bf16", c.bf16, "Parameters and activations in bf16.")
      .becomes("params_dtype")
      .in_every_version();
  flags.add_optional("--loss-scale", c.loss_scale,
                     "Fixed loss scale; fp16 has a dynamic one if not given.");
  flags.add("--initial-loss-scale", c.initial_loss_scale, "First value of a dynamic loss scale.")
      .prints(int64_t{4294967296});
  flags.add("--min-loss-scale", c.min_loss_scale, "Smallest value of a dynamic loss scale.");
  flags
      .add("--loss-scale-window", c.loss_scale_window,
           "Iterations without overflow until the loss scale doubles.")
      .prints(int64_t{1000});
  flags.add("--hysteresis", c.hysteresis, "Overflows until the loss scale halves.");
  flags.add_switch("--fp32-residual-connection", transformer.fp32_residual_connection,
                   "Keep the residual stream in fp32.");
  flags
      .add_switch("--apply-query-key-layer-scaling", transformer.apply_query_key_layer_scaling,
                  "Scale attention scores by the layer number, so that they fit fp16.")
      .no_effect("attention scores are computed in fp32, where they cannot overflow");
  flags
      .add_switch("--attention-softmax-in-fp32", transformer.attention_softmax_in_fp32,
                  "Compute the softmax of attention in fp32.")
      .no_effect("the softmax of attention is always computed in fp32");
  flags.add_switch("--accumulate-allreduce-grads-in-fp32",
                   args.parallel.accumulate_allreduce_grads_in_fp32,
                   "Sum gradients in fp32; --bf16 implies it.");
  flags
      .add_switch("--grad-reduce-in-bf16", args.parallel.grad_reduce_in_bf16,
                  "Sum gradients in bf16 despite --bf16.")
      .becomes("accumulate_allreduce_grads_in_fp32");
  flags
      .add_switch("--fp16-lm-cross-entropy", transformer.fp16_lm_cross_entropy,
                  "Compute the loss in fp16.")
      .no_effect("the loss is always computed in fp32");

  flags.add_later_entry("--no-query-key-layer-scaling", T::kSwitch, other, false,
                        "Already off without --apply-query-key-layer-scaling.");
  flags.add_later_entry("--use-precision-aware-optimizer", T::kSwitch, other, false,
                        "Optimizer state in other types.", "optimizer state in other types");
  const char* state_types = "optimizer state in other types";
  for (const char* name :
       {"--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"}) {
    flags.add_later_entry(name, T::kText, other, "fp32", "Type of optimizer state.", state_types);
  }
  flags.add_entry("--fp8-format -> fp8", T::kChoice, other, none, "FP8 matrix products.", "fp8")
      .among({"e4m3", "hybrid"});
  flags.add_entry("--fp8-margin", T::kInt, other, int64_t{0}, "Detail of --fp8-format.");
  flags.add_entry("--fp8-interval", T::kInt, other, int64_t{1}, "Detail of --fp8-format.");
  flags.add_entry("--fp8-amax-history-len", T::kInt, other, int64_t{1}, "Detail of --fp8-format.");
  flags
      .add_entry("--fp8-amax-compute-algo", T::kChoice, other, "most_recent",
                 "Detail of --fp8-format.")
      .among({"most_recent", "max"});
  flags.add_entry("--no-fp8-wgrad -> fp8_wgrad", T::kOff, other, true, "Detail of --fp8-format.");
  flags.add_later_entry("--fp8-recipe", T::kText, other, "delayed", "Detail of --fp8-format.");
  flags.add_later_entry("--fp8-param-gather", T::kSwitch, other, false, "Detail of --fp8-format.",
                        "fp8");
  flags.add_later_entry("--first-last-layers-bf16", T::kSwitch, other, false,
                        "Detail of --fp8-format.");
}

}  // namespace megatron
