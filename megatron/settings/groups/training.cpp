#include <string>
#include <vector>

#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_training_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  TrainingConfig& c = args.training;
  TransformerConfig& transformer = args.transformer;
  ParallelConfig& parallel = args.parallel;
  ArgMap& other = args.other;
  const ArgValue none;

  flags.group("training");
  flags.add_optional("--micro-batch-size", c.micro_batch_size, "Samples of one microbatch.")
      .nickname({"--mbs", "--bs"})
      .required();
  flags
      .add_optional("--global-batch-size", c.global_batch_size,
                    "Samples of one iteration over all data-parallel ranks; micro batch size * "
                    "data parallel size if not given.")
      .not_zero()
      .nickname({"--gbs"});
  flags.add_optional("--rampup-batch-size", c.rampup_batch_size,
                     "Three numbers: initial global batch size, its increment, and the number of "
                     "samples over which it grows to --global-batch-size. Needs --train-samples.");
  flags.add_switch("--decrease-batch-size-if-needed", c.decrease_batch_size_if_needed,
                   "Round the global batch size down to a multiple of micro batch size * data "
                   "parallel size.");
  flags
      .add_optional("--train-iters", c.train_iters,
                    "Total iterations, including earlier runs of this training.")
      .nickname({"--iters", "--max-steps"})
      .required("--train-samples");
  flags
      .add_optional("--train-samples", c.train_samples,
                    "Total samples, including earlier runs of this training.")
      .not_zero();
  flags.add("--iterations-to-skip", c.iterations_to_skip,
            "Iterations, counted from 1, whose data is consumed but not trained on.");
  flags.add_optional("--exit-interval", c.exit_interval,
                     "End the program at an iteration divisible by this.");
  flags.add_optional("--exit-duration-in-mins", c.exit_duration_in_mins,
                     "End the program after this many minutes.");
  flags.add_switch("--exit-signal-handler", c.exit_signal_handler,
                   "Save a checkpoint and end the program on SIGTERM.");
  flags.add_switch("--calculate-per-token-loss", c.calculate_per_token_loss,
                   "Weight all tokens of the global batch equally instead of all microbatches.");
  flags.add_optional("--train-step", c.train_step,
                     "Shared library with a custom task: another loss, other data or another model "
                     "(docs/library.md).");
  flags.add("--train-step-args", c.train_step_args,
            "Arguments of the library of --train-step: key=value ...");
  flags.add_off("--no-check-for-nan-in-loss-and-grad", c.check_for_nan_in_loss_and_grad,
                "Do not stop at a NaN loss or gradient norm.");

  using G = RecomputeGranularity;
  flags
      .add_switch("--recompute-activations", args.legacy.recompute_activations,
                  "The same as --recompute-granularity selective.")
      .becomes("recompute_granularity")
      .is_listed = false;
  flags.add_choice("--recompute-granularity", transformer.recompute_granularity,
                   {{"full", G::kFull}, {"selective", G::kSelective}},
                   "Activation checkpointing: recompute whole layers, or the parts of "
                   "--recompute-modules, in the backward pass.");
  flags.add("--recompute-modules", transformer.recompute_modules,
            "Parts of layers that selective recomputation covers: layernorm, activation (of MLPs), "
            "mla_up_proj, mlp, moe, shared_experts; core_attn and moe_act change nothing.");
  flags.add_choice("--recompute-method", transformer.recompute_method,
                   {{"uniform", RecomputeMethod::kUniform}, {"block", RecomputeMethod::kBlock}},
                   "Layers of full recomputation: groups of --recompute-num-layers, or the first "
                   "--recompute-num-layers of each stage.");
  flags.add_optional(
      "--recompute-num-layers", transformer.recompute_num_layers,
      "Layers per group (uniform), or number of layers (block), of --recompute-method.");
  flags.add_switch("--distribute-saved-activations,--distribute-checkpointed-activations",
                   transformer.distribute_saved_activations,
                   "Shard saved activations over the tensor-parallel ranks.");
  flags
      .add_switch("--checkpoint-activations", args.legacy.checkpoint_activations,
                  "Old name of full, uniform recomputation.")
      .becomes("recompute_granularity")
      .is_listed = false;
  flags
      .add("--checkpoint-num-layers", args.legacy.checkpoint_num_layers,
           "Old name of --recompute-num-layers.")
      .becomes("recompute_num_layers")
      .is_listed = false;

  flags
      .add("--cpu-offloading-num-layers", transformer.cpu_offloading_num_layers,
           "Keep the activations of so many layers, the first of each stage, in host memory from "
           "their forward to their backward pass.")
      .is_listed = false;
  flags
      .add("--min-offloaded-tensor-size", transformer.min_offloaded_tensor_size,
           "Elements of the smallest tensor that --cpu-offloading-num-layers offloads.")
      .is_listed = false;
  flags.add_later_entry("--cpu-offloading-retain-pinned-cpu-buffers", T::kSwitch, other, false,
                        "Pinned memory is always reused.");
  flags.add_later_entry(
      "--fine-grained-activation-offloading", T::kSwitch, other, false,
      "Offload the inputs of --offload-modules.",
      "offloading of single modules (--cpu-offloading-num-layers is of whole layers)");
  flags.add_later_entry("--offload-modules", T::kTexts, other, std::vector<std::string>{},
                        "Modules of --fine-grained-activation-offloading.");
  flags.add_later_entry("--delay-offload-until-cuda-graph", T::kSwitch, other, false,
                        "Detail of --fine-grained-activation-offloading.");
  flags.add_later_entry("--delta-offload-bytes-across-pp-ranks", T::kInt, other, int64_t{0},
                        "Detail of --fine-grained-activation-offloading.");
  flags.add_later_entry("--activation-offload-fraction", T::kFloat, other, 1.0,
                        "Detail of --fine-grained-activation-offloading.");

  flags.add_choice("--optimizer", args.optimizer.optimizer,
                   {{"adam", OptimizerKind::kAdam},
                    {"sgd", OptimizerKind::kSgd},
                    {"muon", OptimizerKind::kMuon},
                    {"lion", OptimizerKind::kLion}},
                   "Optimizer: Adam with decoupled weight decay, SGD with momentum, Lion, or Muon "
                   "for the matrices of layers and Adam for the rest.");
  flags.add_choice("--dataloader-type", args.data.dataloader_type,
                   {{"single", DataloaderType::kSingle}, {"cyclic", DataloaderType::kCyclic}},
                   "One pass over the shuffled samples, or newly shuffled epochs.");
  flags
      .add_off("--disable-bias-linear -> add_bias_linear", transformer.add_bias_linear,
               "Remove biases of linear layers.")
      .architecture(FromCheckpoint::kAlways);
  flags
      .add_switch("--add-qkv-bias", transformer.add_qkv_bias,
                  "Keep the QKV bias despite --disable-bias-linear.")
      .architecture(FromCheckpoint::kAlways)
      .becomes("has_qkv_bias");
  flags
      .add_bool("--attention-bias", transformer.add_attention_bias,
                "Biases of attention's linear layers; those of all linear layers if not given.")
      .architecture()
      .becomes("has_qkv_bias");
  flags
      .add_off("--no-bias-gelu-fusion", args.activation.bias_gelu_fusion,
               "Use GELU in its erf form; the fused kernel has the tanh form.")
      .architecture()
      .becomes("activation");
  flags.add_switch("--sequence-parallel", parallel.sequence_parallel,
                   "Shard norms and dropouts over the tensor-parallel ranks along the sequence.");
  flags.add_off("--no-async-tensor-model-parallel-allreduce",
                parallel.async_tensor_model_parallel_allreduce,
                "Do not overlap the all-reduce of input gradients with weight gradients.");
  flags
      .add_off("--no-gradient-accumulation-fusion", parallel.gradient_accumulation_fusion,
               "Compute weight gradients separately, then add them to the gradient buffer.")
      .no_effect("products always add weight gradients to the gradient buffer");
  // Compat: Megatron-LM rejects it without --sequence-parallel.
  flags.add_switch("--tp-comm-overlap", parallel.tp_comm_overlap,
                   "Overlap tensor parallel communication with matrix products.");
  flags.add_switch("--profile", c.profile, "Write a trace of some iterations for Perfetto.");
  flags.add("--profile-step-start", c.profile_step_start, "First iteration to profile.");
  flags.add("--profile-step-end", c.profile_step_end, "Iteration at which profiling ends.");
  flags.add("--profile-ranks", c.profile_ranks, "Ranks to profile.");
  flags.add_optional("--tensorboard-dir", c.tensorboard_dir,
                     "Directory of TensorBoard event files.");

  flags.add_removed("--batch-size", T::kInt, "use --micro-batch-size");
  flags.add_later_entry("--step-batch-size-schedule", T::kText, other, none,
                        "Global batch sizes by consumed tokens.",
                        "a batch size schedule by tokens");
  flags.add_entry("--no-clone-scatter-output-in-embedding", T::kOff, other, true,
                  "Memory detail of the sequence parallel embedding.");
  flags.add_entry("--no-masked-softmax-fusion", T::kOff, other, true,
                  "Kernel choice of masked softmax.");
  flags.add_entry("--no-bias-swiglu-fusion", T::kOff, other, true, "Kernel choice of SwiGLU.");
  flags.add_entry("--no-bias-dropout-fusion", T::kOff, other, true, "Kernel choice of dropout.");
  flags.add_entry("--no-rope-fusion -> apply_rope_fusion", T::kOff, other, true,
                  "Kernel choice of rotary embeddings.");
  flags.add_entry("--use-flash-attn", T::kSwitch, other, false, "Kernel choice of attention.");
  flags.add_entry("--no-persist-layer-norm", T::kSwitch, other, false, "Kernel choice of norms.");
  flags.add_entry("--use-mcore-models", T::kSwitch, other, false,
                  "The other model family of Megatron-LM; this program has one.");
  flags.add_later_entry("--use-legacy-models", T::kSwitch, other, false,
                        "The other model family of Megatron-LM; this program has one.");
  flags
      .add_later_entry("--attention-backend", T::kChoice, other, "auto",
                       "Kernel choice of attention.")
      .among({"auto", "flash", "fused", "unfused", "local"});
  flags.add_later_entry("--cross-entropy-loss-fusion", T::kSwitch, other, false,
                        "Kernel choice of cross entropy.");
  flags
      .add_later_entry("--cross-entropy-fusion-impl", T::kChoice, other, "native",
                       "Kernel choice of cross entropy.")
      .among({"native", "te"});
  // Compat: in Megatron-LM they switch off parts of --tp-comm-overlap; here it has no parts.
  flags.add_entry("--tp-comm-overlap-cfg", T::kText, other, none, "Options of --tp-comm-overlap.");
  flags.add_entry("--disable-tp-comm-split-ag", T::kOff, other, true,
                  "Finer switch of --tp-comm-overlap.");
  flags.add_entry("--disable-tp-comm-split-rs", T::kOff, other, true,
                  "Finer switch of --tp-comm-overlap.");
  flags.add_entry("--disable-tp-comm-bulk-dgrad", T::kOff, other, true,
                  "Finer switch of --tp-comm-overlap.");
  flags.add_entry("--disable-tp-comm-bulk-wgrad", T::kOff, other, true,
                  "Finer switch of --tp-comm-overlap.");
  flags.add_later_entry("--disable-tp-comm-overlap-ag", T::kOff, other, true,
                        "Finer switch of --tp-comm-overlap.");
  flags.add_later_entry("--disable-tp-comm-overlap-rs", T::kOff, other, true,
                        "Finer switch of --tp-comm-overlap.");
  flags.add_entry("--manual-gc", T::kSwitch, other, false, "Python's garbage collection.");
  flags.add_entry("--manual-gc-interval", T::kInt, other, int64_t{0},
                  "Python's garbage collection.");
  flags.add_entry("--no-manual-gc-eval", T::kOff, other, true, "Python's garbage collection.");
  flags.add_later_entry("--train-sync-interval", T::kInt, other, none,
                        "Iterations between synchronizations with the device.");
  flags.add_later_entry("--check-for-spiky-loss", T::kSwitch, other, false,
                        "Stop at a sudden rise of the loss.", "the check for spiky losses");
  flags.add_later_entry("--check-for-large-grads", T::kSwitch, other, false,
                        "Stop at very large gradients.", "the check for large gradients");
  flags.add_optional(
      "--check-weight-hash-across-dp-replicas-interval",
      c.check_weight_hash_across_dp_replicas_interval,
      "Iterations between comparisons of the ranks' replicas of weights and optimizer state; a "
      "difference ends the run before it saves. Every save compares, too.");
  flags.add_later_entry("--exit-signal-handler-for-dataloader", T::kSwitch, other, false,
                        "End loader threads with the program.");
  flags.add_later_entry("--exit-signal", T::kText, other, "SIGTERM",
                        "Signal of --exit-signal-handler.", "another signal than SIGTERM");
  // Compat: Megatron-LM of 2026 has validate_results as the default.
  flags
      .add_later_entry("--rerun-mode", T::kChoice, other, "disabled",
                       "Repeat an iteration with a suspicious result.",
                       "computing an iteration again, to tell a fault of a device from a bad step,")
      .among({"disabled", "validate_results", "report_stats"});
  // The command reads these two entries before it resolves the flags.
  flags
      .add_later_entry("--skip-train-iteration-range", T::kTexts, other, none,
                       "Ranges A-B of iterations whose data are consumed but not trained.")
      .status = FlagStatus::kUsed;
  flags
      .add_later_entry("--train-tokens", T::kInt, other, none,
                       "Length of the training in tokens, rounded up to samples.")
      .status = FlagStatus::kUsed;
  flags.add_optional("--kill-switch-path", c.kill_switch_path,
                     "Save a checkpoint and end the program when this file exists.");
}

}  // namespace megatron
