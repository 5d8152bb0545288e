#include "megatron/settings/groups/groups.h"

namespace megatron {
namespace {

void add_optimizer_types(FlagTable& flags, TrainingArgs& args) {
  OptimizerConfig& c = args.optimizer;
  const auto listed_if_given = [](Flag& flag) -> Flag& {
    flag.is_listed = false;
    return flag;
  };
  listed_if_given(
      flags.add_switch("--use-precision-aware-optimizer", c.use_precision_aware_optimizer,
                       "Keep gradients and the optimizer's moments in the types below; needs "
                       "--use-distributed-optimizer. fp32 main parameters of bf16 parameters are "
                       "stored, with and without this switch, as the 16 bits that bf16 lacks."));
  listed_if_given(flags.add_choice("--main-grads-dtype", c.main_grads_dtype,
                                   {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}},
                                   "Type in which gradients are stored and summed."))
      .becomes("accumulate_allreduce_grads_in_fp32");
  listed_if_given(flags.add_choice(
      "--main-params-dtype", c.main_params_dtype,
      {{"fp32", DType::kFloat32}, {"fp16", DType::kFloat16}, {"bf16", DType::kBFloat16}},
      "Type of main parameters; bf16: those of the model, to which "
      "updates round at random; fp16 is not available."));
  const std::initializer_list<std::pair<const char*, DType>> moments = {
      {"fp32", DType::kFloat32},
      {"fp16", DType::kFloat16},
      {"bf16", DType::kBFloat16},
      {"fp8", DType::kFloat8E4M3}};
  listed_if_given(flags.add_choice("--exp-avg-dtype", c.exp_avg_dtype, moments,
                                   "Type of Adam's first moment."));
  listed_if_given(flags.add_choice("--exp-avg-sq-dtype", c.exp_avg_sq_dtype, moments,
                                   "Type of Adam's second moment; bf16 is for --adam-beta2 below "
                                   "0.996, fp16 for up to 0.999; fp8 rounds at random."));
}

}  // namespace

void add_mixed_precision_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  OptimizerConfig& c = args.optimizer;
  TransformerConfig& transformer = args.transformer;
  ArgMap& other = args.other;

  flags.group("mixed precision");
  flags.add_switch("--fp16", c.fp16, "Parameters and activations in fp16.")
      .becomes("params_dtype")
      .in_every_version();
  flags.add_switch("--bf16", c.bf16, "Parameters and activations in bf16.")
      .becomes("params_dtype")
      .in_every_version();
  flags.add_optional("--loss-scale", c.loss_scale,
                     "Constant loss scale; fp16 uses a dynamic one if not given.");
  flags.add("--initial-loss-scale", c.initial_loss_scale, "Initial value of a dynamic loss scale.")
      .prints(int64_t{4294967296});
  flags.add("--min-loss-scale", c.min_loss_scale, "Smallest value of a dynamic loss scale.");
  flags
      .add("--loss-scale-window", c.loss_scale_window,
           "Iterations without overflow before the loss scale doubles.")
      .prints(int64_t{1000});
  flags.add("--hysteresis", c.hysteresis, "Overflows before the loss scale halves.");
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
  add_optimizer_types(flags, args);
  Fp8Config& fp8 = transformer.fp8;
  flags.add_choice("--fp8-format -> fp8", fp8.format,
                   {{"e4m3", Fp8Format::kE4M3}, {"hybrid", Fp8Format::kHybrid}},
                   "Compute the linear layers of transformer layers in FP8: e4m3 for all tensors, "
                   "or hybrid with E5M2 for gradients.");
  flags.add("--fp8-margin", fp8.margin, "Divide the scales of FP8 tensors by 2 to this power.")
      .becomes("margin");
  flags.add("--fp8-interval", fp8.interval, "Iterations between two updates of delayed scales.")
      .becomes("interval");
  flags
      .add("--fp8-amax-history-len", fp8.amax_history_len,
           "Length of the amax history for delayed scaling, in iterations.")
      .becomes("amax_history_len");
  flags
      .add_choice("--fp8-amax-compute-algo", fp8.amax_compute_algo,
                  {{"most_recent", Fp8AmaxAlgorithm::kMostRecent}, {"max", Fp8AmaxAlgorithm::kMax}},
                  "Amax that determines a delayed scale: that of the last iteration, or the "
                  "maximum of the history.")
      .becomes("amax_compute_algo");
  flags.add_off("--no-fp8-wgrad -> fp8_wgrad", fp8.wgrad, "Compute weight gradients without FP8.")
      .becomes("wgrad");
  Flag& recipe = flags.add_choice("--fp8-recipe", fp8.recipe,
                                  {{"delayed", Fp8Recipe::kDelayed},
                                   {"tensorwise", Fp8Recipe::kTensorwise},
                                   {"blockwise", Fp8Recipe::kBlockwise}},
                                  "Scaling recipe: from the amax of earlier iterations (delayed), "
                                  "from the tensor's own amax (tensorwise), or from the amax of "
                                  "each block (blockwise; on GPUs of compute capability 9.0).");
  recipe.becomes("recipe").is_listed = false;
  Flag& gather = flags.add_switch("--fp8-param-gather", fp8.param_gather,
                                  "Keep the weights of FP8 layers only in FP8, and all-gather them "
                                  "with one byte per element; needs --use-distributed-optimizer.");
  gather.becomes("param_gather").is_listed = false;
  flags
      .add_off(
          "--no-keep-fp8-transpose-cache -> keep_fp8_transpose_cache", fp8.keep_transpose_cache,
          "Keep one copy of weights in FP8: products for the gradients of inputs transpose it.")
      .becomes("keep_transpose_cache")
      .is_listed = false;
  flags
      .add_switch("--first-last-layers-bf16", fp8.first_last_layers_bf16,
                  "Compute the first and last layers without FP8.")
      .is_listed = false;
  flags
      .add("--num-layers-at-start-in-bf16", fp8.num_layers_at_start_in_bf16,
           "Number of first layers without FP8, with --first-last-layers-bf16.")
      .is_listed = false;
  flags
      .add("--num-layers-at-end-in-bf16", fp8.num_layers_at_end_in_bf16,
           "Number of last layers without FP8, with --first-last-layers-bf16.")
      .is_listed = false;
}

}  // namespace megatron
