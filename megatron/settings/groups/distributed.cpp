#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_distributed_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  ParallelConfig& c = args.parallel;
  ArgMap& other = args.other;
  const ArgValue none;

  flags.group("distributed");
  flags
      .add("--tensor-model-parallel-size", c.tensor_model_parallel_size,
           "Tensor-parallel size: ranks that share each layer.")
      .nickname({"--tp", "--tp-size", "--tensor-parallel-size"});
  flags
      .add("--pipeline-model-parallel-size", c.pipeline_model_parallel_size,
           "Number of pipeline stages.")
      .nickname({"--pp", "--pp-size", "--pipeline-parallel-size"});
  flags
      .add_optional("--pipeline-model-parallel-split-rank", c.pipeline_model_parallel_split_rank,
                    "Stage at which T5's decoder begins.")
      .only_for({"T5"});
  flags.add_optional("--num-layers-per-virtual-pipeline-stage",
                     c.num_layers_per_virtual_pipeline_stage,
                     "Layers in one chunk of a stage; the pipeline interleaves chunks.");
  flags
      .add_optional("--num-virtual-stages-per-pipeline-rank",
                    c.num_virtual_stages_per_pipeline_rank,
                    "The same, given as the number of chunks of a stage.")
      .nickname({"--vp", "--vpp"});
  flags.add_optional(
      "--microbatch-group-size-per-virtual-pipeline-stage,"
      "--microbatch-group-size-per-vp-stage",
      c.microbatch_group_size_per_virtual_pipeline_stage,
      "Consecutive microbatches that a stage runs through one chunk before it switches to the "
      "next.");
  flags.add_optional("--decoder-first-pipeline-num-layers", c.decoder_first_pipeline_num_layers,
                     "Layers of the first stage.");
  flags.add_optional("--decoder-last-pipeline-num-layers", c.decoder_last_pipeline_num_layers,
                     "Layers of the last stage.");
  flags.add_switch("--account-for-embedding-in-pipeline-split",
                   c.account_for_embedding_in_pipeline_split,
                   "Count the embedding as a layer when dividing layers.");
  flags.add_switch("--account-for-loss-in-pipeline-split", c.account_for_loss_in_pipeline_split,
                   "Count the loss as a layer when dividing layers.");
  flags.add_switch("--standalone-embedding-stage", c.standalone_embedding_stage,
                   "Put only the embedding on the first stage.");
  flags
      .add_switch("--enable-zero-bubble", c.enable_zero_bubble,
                  "Compute gradients of weights where a pipeline stage would wait (ZB-H1).")
      .is_listed = false;
  flags
      .add_optional("--zero-bubble-max-pending-backward", c.zero_bubble_max_pending_backward,
                    "With --enable-zero-bubble: microbatches that a stage may hold, by default as "
                    "many as there are stages (ZB-H1). Up to twice as many fill more of the bubble "
                    "(ZB-H2).")
      .is_listed = false;
  flags
      .add_switch("--overlap-microbatches", c.overlap_microbatches,
                  "Run two microbatches at a time: while collectives of one (tensor, context or "
                  "expert parallel) are under way, the other computes.")
      .is_listed = false;
  flags
      .add_off("--no-overlap-p2p-communication -> overlap_p2p_comm", c.overlap_p2p_comm,
               "Do not overlap communication between stages with computation.")
      .no_effect("stages always receive while they compute");
  flags
      .add("--context-parallel-size", c.context_parallel_size,
           "Context-parallel size: ranks that share each sequence.")
      .nickname({"--cp", "--cp-size"});
  flags
      .add("--cp-comm-type", c.cp_comm_type,
           "Exchange of keys and values between context-parallel ranks: p2p (ring attention, "
           "overlapped), all_gather, a2a (all-to-all over the heads), or a2a+p2p (a2a between "
           "neighbours, a ring of them).")
      .becomes("context_exchange")
      .is_listed = false;
  flags
      .add("--hierarchical-context-parallel-sizes", c.hierarchical_context_parallel_sizes,
           "With --cp-comm-type a2a+p2p: the number of neighbouring ranks that exchange heads, as "
           "those of a host, and that of ranks in a ring; their product is "
           "--context-parallel-size.")
      .is_listed = false;
  flags
      .add("--expert-model-parallel-size", c.expert_model_parallel_size,
           "Expert-parallel size: ranks among which the experts of a layer are divided.")
      .nickname({"--ep", "--ep-size"});
  flags
      .add_optional("--expert-tensor-parallel-size", c.expert_tensor_parallel_size,
                    "Ranks that share each expert; --tensor-model-parallel-size if not given.")
      .not_zero()
      .is_listed = false;
  flags.add_switch(
      "--use-tp-pp-dp-mapping", c.use_tp_pp_dp_mapping,
      "Order ranks tp, pp, dp: pipeline neighbours are closer together than data-parallel ones.");
  flags
      .add_switch("--use-distributed-optimizer", c.use_distributed_optimizer,
                  "Shard the optimizer state over the data-parallel ranks (ZeRO stage 1).")
      .nickname({"--zero"});
  flags.add_switch("--overlap-grad-reduce", c.overlap_grad_reduce,
                   "Overlap gradient reduction with the backward pass.");
  flags
      .add_off(
          "--no-delay-grad-reduce,--no-align-grad-reduce,--disable-align-grad-reduce",
          c.delay_grad_reduce,
          "Let each stage reduce gradients as soon as possible, instead of all stages together.")
      .no_effect("a stage reduces a bucket of gradients as soon as it is complete");
  flags.add_switch("--overlap-param-gather", c.overlap_param_gather,
                   "Overlap the all-gather of parameters with the forward pass.");
  flags
      .add_switch("--delay-param-gather", c.delay_param_gather,
                  "Let stages gather their parameters together.")
      .no_effect("a stage gathers its parameters shortly before it needs them");
  flags
      .add_optional(
          "--ddp-bucket-size", c.ddp_bucket_size,
          "Elements of a gradient bucket; the larger of 40 million and a million per rank if not "
          "given.")
      .becomes("bucket_size");
  flags.add_optional("--ddp-num-buckets", c.ddp_num_buckets, "Number of gradient buckets.")
      .no_effect("the size of buckets is given, with --ddp-bucket-size");
  flags
      .add_switch("--ddp-average-in-collective", c.ddp_average_in_collective,
                  "Average gradients in the collective instead of scaling before it.")
      .no_effect("gradients are averaged before they are summed");
  flags
      .add_choice("--distributed-backend", c.distributed_backend,
                  {{"nccl", DistributedBackend::kNccl}, {"gloo", DistributedBackend::kGloo}},
                  "Transport of GPU ranks; CPU ranks choose their own.")
      .no_effect("the transport follows from the devices and from how the ranks were started");
  constexpr int64_t kTenYears = int64_t{10} * 366 * 24 * 60;  // in minutes; clocks count more
  flags
      .add("--distributed-timeout-minutes", c.distributed_timeout_minutes,
           "Time-out of collectives in minutes.")
      .at_most(kTenYears);
  flags
      .add_optional("--distributed-timeout-seconds-after-init",
                    c.distributed_timeout_seconds_after_init,
                    "Time-out of collectives in seconds, from the first iteration on.")
      .at_most(60 * kTenYears);
  flags
      .add_switch("--use-cpu-initialization", args.transformer.use_cpu_initialization,
                  "Draw initial weights on the host.")
      .none()
      .no_effect("first values are the same on every device and in every layout");

  flags.add_removed("--model-parallel-size", T::kInt, "use --tensor-model-parallel-size");
  flags.add_entry("--no-scatter-gather-tensors-in-pipeline", T::kOff, other, true,
                  "Has no effect in Megatron-LM, either.");
  flags.add_entry("--use-ring-exchange-p2p", T::kSwitch, other, false, "Use a custom transport.");
  flags.add_entry("--local_rank", T::kInt, other, none, "Set by launchers.");
  flags.add_entry("--lazy-mpu-init", T::kBool, other, none, "Left to an outer program.");
  flags.add_entry("--empty-unused-memory-level", T::kInt, other, int64_t{0},
                  "Limit of PyTorch's allocator.");
  flags.add_entry("--nccl-communicator-config-path", T::kText, other, none,
                  "Options of NCCL by group.");
  flags.add_later_entry("--no-align-param-gather", T::kOff, other, true,
                        "Already off without --delay-param-gather.");
  flags.add_later_entry("--overlap-param-gather-with-optimizer-step", T::kSwitch, other, false,
                        "Overlap the first gather with the optimizer's step.");
  flags.add_later_entry("--ddp-pad-buckets-for-high-nccl-busbw", T::kSwitch, other, false,
                        "Larger padding of buckets.");
  flags.add_later_entry("--overlap-p2p-communication-warmup-flush", T::kSwitch, other, false,
                        "Overlap in the warm-up and cool-down phases of the interleaved schedule.");
  flags.add_later_entry("--tp-comm-bootstrap-backend", T::kText, other, "nccl",
                        "Detail of --tp-comm-overlap.");
  flags.add_later_entry("--disable-gloo-process-groups -> use_gloo_process_groups", T::kOff, other,
                        true, "This program has no such groups.");
  flags.add_later_entry("--high-priority-stream-groups", T::kTexts, other, none,
                        "Groups with priority for communication.");
  flags.add_later_entry("--use-sharp", T::kSwitch, other, false, "Reductions inside switches.");
  flags.add_later_entry("--use-nccl-ub", T::kSwitch, other, false, "Registered NCCL buffers.");
  flags
      .add_optional("--pipeline-model-parallel-layout", c.pipeline_model_parallel_layout,
                    "Layers of every stage in one word, as 'Et|(tt|)*2tL': E embedding, t layer, a "
                    "and f a layer's attention and its MLP on two stages, m layer for a further "
                    "token, L loss, | end of a stage. More stages than pipeline ranks are "
                    "interleaved.")
      .is_listed = false;
  flags
      .add("--num-distributed-optimizer-instances", c.num_distributed_optimizer_instances,
           "Equal groups of consecutive data-parallel ranks, such as hosts: each shards the "
           "optimizer's state, and all that --zero-stage shards, among its own ranks. Groups add "
           "up gradients, of which each rank sends its share.")
      .is_listed = false;
  flags
      .add_switch("--optimizer-cpu-offload", args.optimizer.optimizer_cpu_offload,
                  "Keep the optimizer state in host memory, and update parameters on the CPU.")
      .is_listed = false;
  flags.add_later_entry("--optimizer-offload-fraction", T::kFloat, other, 1.0,
                        "Fraction of the optimizer state in host memory.",
                        "a part of the optimizer's state in host memory");
  flags.add_later_entry("--DDP-impl", T::kChoice, other, "local", "Data parallel implementation.")
      .among({"local", "torch"});
  flags.add_later_entry("--use-contiguous-buffers-in-ddp", T::kSwitch, other, false,
                        "Gradients are always in contiguous buffers.");
  flags.add_later_entry("--no-contiguous-buffers-in-local-ddp", T::kOff, other, true,
                        "Gradients are always in contiguous buffers.");
  flags.add_later_entry("--sync-tp-duplicated-parameters", T::kSwitch, other, false,
                        "Replicated parameters are always equal.");
  flags
      .add_switch("--deepspeed", args.training.deepspeed,
                  "Count the iterations of --rampup-batch-size as Megatron-DeepSpeed does. No "
                  "other effect.")
      .is_listed = false;
  // The command reads these two entries before it resolves the flags.
  flags
      .add_later_entry(
          "--deepspeed_config,--deepscale_config", T::kText, other, none,
          "DeepSpeed's JSON file: batch sizes, loss scale, clipping and stage of ZeRO. "
          "They must agree with the flags on the command line.")
      .status = FlagStatus::kUsed;
  flags
      .add("--zero-stage", c.zero_stage,
           "ZeRO stage, the data sharded over data-parallel ranks: 0 nothing, 1 optimizer state "
           "(--use-distributed-optimizer), 2 also gradients, 3 also parameters.")
      .is_listed = false;
  LegacyFlags& legacy = args.legacy;
  flags
      .add_switch("--use-megatron-fsdp,--use-custom-fsdp", legacy.use_megatron_fsdp,
                  "Shard as --data-parallel-sharding-strategy says.")
      .is_listed = false;
  flags
      .add_choice("--data-parallel-sharding-strategy", legacy.sharding_strategy,
                  {{"no_shard", ShardingStrategy::kNone},
                   {"optim", ShardingStrategy::kOptimizer},
                   {"optim_grads", ShardingStrategy::kGradients},
                   {"optim_grads_params", ShardingStrategy::kParameters}},
                  "The data sharded with --use-megatron-fsdp: --zero-stage 0, 1, 2 or 3.")
      .is_listed = false;
  flags
      .add_switch("--use-torch-fsdp2", legacy.use_torch_fsdp2,
                  "Shard optimizer state, gradients and parameters: --zero-stage 3.")
      .is_listed = false;
  flags.add_bool("--eval-only", args.training.skip_train, "Megatron-DeepSpeed's --skip-train.")
      .becomes("skip_train")
      .is_listed = false;
  for (const char* name :
       {"--deepspeed-activation-checkpointing", "--deepspeed_mpi", "--deepscale",
        "--contigious-checkpointing", "--synchronize-each-layer", "--profile-backward",
        "--scattered-embeddings", "--split-transformers", "--memory-centric-tiled-linear",
        "--zero-reduce-scatter", "--zero-contigious-gradients", "--use-pin-memory",
        "--abort-on-unmet-fused-kernel-constraints", "--cpu_torch_adam"}) {
    flags.add_later_entry(name, T::kSwitch, other, false, "For DeepSpeed's engine.");
  }
  for (const char* name : {"--tile-factor", "--zero-reduce-bucket-size",
                           "--zero-allgather-bucket-size", "--valid-num-workers"}) {
    flags.add_later_entry(name, T::kInt, other, int64_t{0}, "For DeepSpeed's engine.");
  }
  for (const char* name : {"--log-level", "--log-level-replica"}) {
    flags.add_later_entry(name, T::kText, other, none, "Log level of Megatron-DeepSpeed.");
  }
  flags
      .add_optional(
          "--codecarbon-dir", args.training.codecarbon_dir,
          "Directory for emissions.csv, which gets a row with the energy consumption of each run.")
      .is_listed = false;
  flags
      .add_optional("--log-path", args.training.log_path,
                    "Directory for args_<time>.txt, which lists the arguments.")
      .is_listed = false;
  flags.add_later_entry("--remote-device", T::kText, other, "none",
                        "Device on which ZeRO 3 keeps parameters.", "offloading of parameters");
  // These entries, too, are applied before the flags are resolved.
  flags
      .add_later_entry(
          "--pp-partition-method", T::kText, other, "type:transformer",
          "Megatron-DeepSpeed's partition of layers into stages: type:transformer balances "
          "transformer layers, type:transformer|embedding also counts embedding and output as "
          "layers, uniform counts all entries of its list, parameters counts parameters.")
      .becomes("account_for_loss_in_pipeline_split")
      .status = FlagStatus::kUsed;
  flags
      .add_later_entry("--partition-activations", T::kSwitch, other, false,
                       "Megatron-DeepSpeed's --distribute-saved-activations.")
      .becomes("distribute_saved_activations")
      .status = FlagStatus::kUsed;
  flags
      .add_switch("--checkpoint-in-cpu", args.transformer.checkpoint_in_cpu,
                  "Offload the saved inputs of recomputed layers to host memory.")
      .is_listed = false;
  flags
      .add_later_entry("--universal-checkpoint", T::kSwitch, other, false,
                       "Load the universal checkpoint named in latest_universal.")
      .becomes("load")
      .status = FlagStatus::kUsed;
  flags.add_later_entry("--use-bnb-optimizer", T::kSwitch, other, false, "8-bit Adam.",
                        "8-bit Adam");
  flags.add_later_entry("--noise-density", T::kFloat, other, none, "Share of masked tokens.",
                        "span corruption for a GPT");
  flags.add_later_entry("--mean-noise-span-length", T::kFloat, other, none,
                        "Mean length of a masked span.", "span corruption for a GPT");
  flags.add_removed("--cpu-optimizer", T::kSwitch, "use --optimizer-cpu-offload");
  flags.add_removed("--inference", T::kSwitch,
                    "use --skip-train, or the commands score and generate");
}

}  // namespace megatron
