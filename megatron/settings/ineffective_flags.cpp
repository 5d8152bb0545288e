#include "megatron/settings/ineffective_flags.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/tensor/pieces.h"

namespace megatron {
namespace {

class IneffectiveFlags {
 public:
  explicit IneffectiveFlags(TrainingArgs& args) : args_(args) {}

  void run() {
    model();
    retro();
    parallel();
    overlap();
    zero_stage();
    precision();
    fp8();
    optimizer();
    optimizer_types();
    data_and_run();
    checkpoints();
  }

 private:
  bool given(const std::string& dest) const { return args_.given.contains(dest); }
  void warn(std::string text) { args_.warnings.push_back(std::move(text)); }
  void warn_if(bool holds, std::string text) {
    if (holds) warn(std::move(text));
  }

  void model() {
    const TransformerConfig& c = args_.transformer;
    warn_if(given("num_query_groups") && !c.group_query_attention && !c.multi_latent_attention,
            "--num-query-groups has no effect without --group-query-attention");
    warn_if(given("lora_dropout") && c.lora_rank == 0,
            "--lora-dropout has no effect without --lora-rank");
    warn_if(c.checkpoint_in_cpu && !c.stores_inputs_on_host(),
            "--checkpoint-in-cpu has no effect without --recompute-granularity full");
    warn_if(given("min_offloaded_tensor_size") && c.cpu_offloading_num_layers == 0,
            "--min-offloaded-tensor-size has no effect without --cpu-offloading-num-layers");
    warn_if(c.position_embedding_type != PositionEmbedding::kRope &&
                (given("rotary_percent") || given("rotary_base") || given("rotary_interleaved") ||
                 given("rotary_seq_len_interpolation_factor") || given("use_rope_scaling")),
            "--rotary-... and --use-rope-scaling have no effect without --position-embedding-type "
            "rope");
    recomputed_modules();
    latent_and_multi_token();
    warn_if(given("rope_scaling_factor") && !c.use_rope_scaling,
            "--rope-scaling-factor has no effect without --use-rope-scaling");
  }

  void recomputed_modules() {
    if (!given("recompute_modules")) return;
    const TransformerConfig& c = args_.transformer;
    warn_if(c.recompute_granularity != RecomputeGranularity::kSelective,
            "--recompute-modules has no effect without --recompute-granularity selective");
    const auto warn_of = [&](const char* module, bool holds, const char* why) {
      warn_if(holds && c.recomputes(module),
              fmt::format("--recompute-modules {} has no effect {}", module, why));
    };
    warn_of("layernorm", c.apply_residual_connection_post_layernorm,
            "with --apply-residual-connection-post-layernorm, whose sums read the norm");
    warn_of("layernorm", c.norm_placement == NormPlacement::kAfter,
            "with norms behind the parts of a layer");
    warn_of("activation", c.fp8.is_on() && c.fp8.wgrad,
            "on products in FP8, which always compute it twice");
    warn_of("activation", c.recomputes("mlp"), "beside mlp, which includes it");
    warn_of("moe_act", true, "since experts always compute their activation twice");
    warn_of("mlp", c.has_experts() && c.moe_layer_freq.empty(), "if all layers have experts");
    warn_of("moe", !c.has_experts(), "without --num-experts");
    warn_of("shared_experts", c.moe_shared_expert_intermediate_size == 0,
            "without --moe-shared-expert-intermediate-size");
    warn_of("shared_experts", c.recomputes("moe"), "beside moe, which includes them");
  }

  void latent_and_multi_token() {
    const TransformerConfig& c = args_.transformer;
    const bool is_latent = c.multi_latent_attention;
    const auto warn_given = [&](std::initializer_list<const char*> dests, const std::string& when) {
      for (const char* dest : dests) {
        std::string flag = "--" + std::string(dest);
        std::ranges::replace(flag, '_', '-');
        flag += " has no effect ";
        flag += when;
        warn_if(given(dest), flag);
      }
    };
    if (is_latent) {
      warn_given({"kv_channels", "group_query_attention", "num_query_groups", "rotary_interleaved"},
                 "with --multi-latent-attention");
    } else {
      warn_given(
          {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"},
          "without --multi-latent-attention");
    }
    if (!c.has_experts()) {
      warn_given({"moe_layer_freq",
                  "moe_router_topk",
                  "moe_router_load_balancing_type",
                  "moe_router_score_function",
                  "moe_router_pre_softmax",
                  "moe_router_num_groups",
                  "moe_router_group_topk",
                  "moe_router_group_score_topk",
                  "moe_router_topk_scaling_factor",
                  "moe_router_dtype",
                  "moe_router_enable_expert_bias",
                  "moe_router_bias_update_rate",
                  "moe_router_quantile_balancing_ema",
                  "moe_aux_loss_coeff",
                  "moe_z_loss_coeff",
                  "moe_input_jitter_eps",
                  "moe_expert_capacity_factor",
                  "moe_pad_expert_input_to_capacity",
                  "moe_token_drop_policy",
                  "moe_apply_probs_on_input",
                  "moe_shared_expert_intermediate_size",
                  "moe_shared_expert_gate",
                  "moe_per_layer_logging",
                  "megatron_compat"},
                 "without --num-experts");
    }
    warn_if(given("moe_upcycling_granularity") && !args_.checkpoint.moe_use_upcycling,
            "--moe-upcycling-granularity has no effect without --moe-use-upcycling");
    const RopeScalingType type = c.rope_scaling.type;
    if (type == RopeScalingType::kNone) {
      warn_given({"original_max_position_embeddings"}, "without --rope-type");
      if (!is_latent) warn_given({"rotary_scaling_factor"}, "without --rope-type");
    }
    if (type != RopeScalingType::kYarn) {
      warn_given({"beta_fast", "beta_slow", "mscale"}, "without --rope-type yarn");
      if (!is_latent) warn_given({"mscale_all_dim"}, "without --rope-type yarn");
    }
    if (c.mtp_num_layers == 0) {
      warn_given({"mtp_loss_scaling_factor", "mtp_use_repeated_layer", "mtp_detach_heads"},
                 "without --mtp-num-layers");
    }
  }

  void retro() {
    const RetroConfig& c = args_.transformer.retro;
    warn_if(args_.legacy.retro_cyclic_train_iters > 0 &&
                args_.data.dataloader_type != DataloaderType::kCyclic,
            "--retro-cyclic-train-iters has no effect without --dataloader-type cyclic");
    warn_if(c.add_retriever && c.fit_copy_mlp_norm && !args_.checkpoint.finetune,
            "--retro-fit-copy-mlp-norm has no effect without --finetune");
    if (c.add_retriever) return;
    for (const char* dest :
         {"retro_layer_numbers", "retro_encoder_layers", "retro_encoder_hidden_dropout",
          "retro_encoder_attention_dropout", "retro_encoder_residual", "retro_num_neighbors",
          "retro_num_retrieved_chunks", "retro_attention_gate", "retro_fit_copy_mlp_norm",
          "retro_neighbor_dirs", "retro_pad_missing"}) {
      std::string flag = "--" + std::string(dest);
      std::ranges::replace(flag, '_', '-');
      warn_if(given(dest), flag + " has no effect without --retro-add-retriever");
    }
  }

  void parallel() {
    warn_if(given("sequence_parallel") && !args_.parallel.sequence_parallel,
            "--sequence-parallel has no effect with --tensor-model-parallel-size 1");
    warn_if(given("cp_comm_type") && args_.parallel.context_parallel_size == 1,
            "--cp-comm-type has no effect with --context-parallel-size 1");
    warn_if(given("hierarchical_context_parallel_sizes") &&
                args_.parallel.hierarchical_context_parallel_sizes.empty(),
            "--hierarchical-context-parallel-sizes has no effect without --cp-comm-type a2a+p2p");
    const int64_t pp = args_.parallel.pipeline_model_parallel_size;
    warn_if(pp == 1 && (given("decoder_first_pipeline_num_layers") ||
                        given("decoder_last_pipeline_num_layers")),
            "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers have no "
            "effect with --pipeline-model-parallel-size 1");
    warn_if(pp == 1 && given("pipeline_model_parallel_layout"),
            "--pipeline-model-parallel-layout has no effect with --pipeline-model-parallel-size 1");
    warn_if(pp == 1 && given("enable_zero_bubble"),
            "--enable-zero-bubble has no effect with --pipeline-model-parallel-size 1");
    const int64_t chunks = num_model_chunks(args_.parallel, args_.transformer.num_layers);
    warn_if(given("zero_bubble_max_pending_backward") &&
                (pp == 1 || chunks > 1 || !args_.parallel.enable_zero_bubble),
            "--zero-bubble-max-pending-backward has an effect only with --enable-zero-bubble and "
            "stages that are not interleaved");
    warn_if(pp > 1 && given("overlap_microbatches"),
            "--overlap-microbatches has no effect with --pipeline-model-parallel-size above 1");
    warn_if(pp == 1 && given("overlap_microbatches") && !args_.parallel.overlap_microbatches,
            "--overlap-microbatches has no effect without tensor-, context- or expert-parallel "
            "ranks");
    const int64_t group = args_.parallel.microbatch_group_size_per_virtual_pipeline_stage;
    warn_if(group > 0 && group != pp,
            "--microbatch-group-size-per-virtual-pipeline-stage has no effect: it is always "
            "--pipeline-model-parallel-size");
  }

  void overlap() {
    const ParallelConfig& parallel = args_.parallel;
    const int64_t tp = parallel.tensor_model_parallel_size;
    if (!parallel.tp_comm_overlap) return;
    if (tp == 1) {
      return warn("--tp-comm-overlap has no effect with --tensor-model-parallel-size 1");
    }
    if (!parallel.sequence_parallel) {
      return warn("--tp-comm-overlap has no effect without --sequence-parallel");
    }
    const int64_t rows = args_.training.micro_batch_size * args_.transformer.seq_length /
                         parallel.context_parallel_size / tp;
    if (args_.training.device == DeviceChoice::kCpu || rows >= kMinPieceRows) return;
    warn(
        fmt::format("--tp-comm-overlap has no effect on a GPU: pieces of {} tokens are fewer than "
                    "{}; raise --micro-batch-size",
                    rows, kMinPieceRows));
  }

  void zero_stage() {
    const ParallelConfig& parallel = args_.parallel;
    const LegacyFlags& legacy = args_.legacy;
    warn_if(given("data_parallel_sharding_strategy") && !legacy.use_megatron_fsdp,
            "--data-parallel-sharding-strategy has no effect without --use-megatron-fsdp");
    warn_if(legacy.use_megatron_fsdp && legacy.sharding_strategy == ShardingStrategy::kNone,
            "--use-megatron-fsdp has no effect with --data-parallel-sharding-strategy no_shard; "
            "optim_grads_params shards everything");
    const auto in_vain = [&](bool holds, const char* flag, int64_t first_stage, const char* why) {
      if (!holds || parallel.zero_stage < first_stage) return;
      warn(
          fmt::format("{} has no effect with --zero-stage {}, {}", flag, parallel.zero_stage, why));
    };
    in_vain(parallel.overlap_grad_reduce, "--overlap-grad-reduce", 2,
            "which always sums gradients beside the backward pass");
    in_vain(parallel.overlap_param_gather, "--overlap-param-gather", 3,
            "which gathers parameters ahead of their use");
  }

  void precision() {
    const OptimizerConfig& optimizer = args_.optimizer;
    warn_if(given("loss_scale") && !optimizer.fp16 && !optimizer.bf16 &&
                !args_.parallel.use_distributed_optimizer,
            "--loss-scale has no effect with fp32 parameters without --use-distributed-optimizer");
    warn_if(!optimizer.fp16 && (given("initial_loss_scale") || given("min_loss_scale") ||
                                given("loss_scale_window") || given("hysteresis")),
            "--initial-loss-scale, --min-loss-scale, --loss-scale-window and --hysteresis have no "
            "effect without --fp16");
    warn_if(optimizer.fp16 && optimizer.loss_scale > 0 &&
                (given("initial_loss_scale") || given("min_loss_scale") ||
                 given("loss_scale_window") || given("hysteresis")),
            "--initial-loss-scale, --min-loss-scale, --loss-scale-window and --hysteresis have no "
            "effect with a fixed --loss-scale");
  }

  void fp8() {
    const Fp8Config& fp8 = args_.transformer.fp8;
    const auto warn_of = [&](std::initializer_list<const char*> flags, const char* why) {
      for (std::string flag : flags) {
        std::string dest = flag.starts_with("--no-") ? flag.substr(5) : flag.substr(2);
        std::ranges::replace(dest, '-', '_');
        if (!given(dest)) continue;
        warn(fmt::format("{} has no effect without {}", flag, why));
      }
    };
    if (!fp8.is_on()) {
      return warn_of(
          {"--fp8-margin", "--fp8-interval", "--fp8-amax-history-len", "--fp8-amax-compute-algo",
           "--no-fp8-wgrad", "--fp8-recipe", "--fp8-param-gather", "--no-keep-fp8-transpose-cache",
           "--first-last-layers-bf16", "--num-layers-at-start-in-bf16",
           "--num-layers-at-end-in-bf16"},
          "--fp8-format");
    }
    if (fp8.recipe != Fp8Recipe::kDelayed) {
      warn_of({"--fp8-interval", "--fp8-amax-history-len", "--fp8-amax-compute-algo"},
              "--fp8-recipe delayed");
    }
    if (fp8.recipe == Fp8Recipe::kBlockwise) {
      warn_of({"--fp8-margin"}, "--fp8-recipe delayed or tensorwise");
    }
    if (!fp8.first_last_layers_bf16) {
      warn_of({"--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16"},
              "--first-last-layers-bf16");
    }
    warn_if(fp8.param_gather && num_shards(args_.parallel) == 1,
            "--fp8-param-gather has no effect where each data-parallel rank has all weights");
    warn_if(fp8.param_gather && args_.transformer.lora_rank > 0,
            "--fp8-param-gather has no effect with --lora-rank: weights in FP8 do not change");
    const bool has_experts = args_.transformer.has_experts();
    warn_if(has_experts && fp8.margin != 0,
            "--fp8-margin has no effect on experts, whose scales are those of single rows");
    warn_if(has_experts && fp8.param_gather,
            "--fp8-param-gather has no effect on the weights of experts, which ranks gather in 16 "
            "bits");
    if (args_.parallel.tp_comm_overlap) {
      warn("--tp-comm-overlap has no effect on layers in FP8, whose products are not cut");
    }
  }

  void optimizer() {
    const OptimizerConfig& optimizer = args_.optimizer;
    const bool has_adam =
        optimizer.optimizer == OptimizerKind::kAdam || optimizer.optimizer == OptimizerKind::kMuon;
    warn_if(!has_adam && (given("adam_beta1") || given("adam_beta2") || given("adam_eps")),
            "--adam-beta1, --adam-beta2 and --adam-eps have no effect with --optimizer sgd and "
            "lion");
    warn_if(
        optimizer.optimizer != OptimizerKind::kLion && (given("lion_beta1") || given("lion_beta2")),
        "--lion-beta1 and --lion-beta2 have no effect without --optimizer lion");
    warn_if(optimizer.optimizer != OptimizerKind::kSgd && given("sgd_momentum"),
            "--sgd-momentum has no effect without --optimizer sgd");
    const bool is_muon_given =
        std::any_of(args_.given.begin(), args_.given.end(),
                    [](const std::string& dest) { return dest.starts_with("muon_"); });
    warn_if(optimizer.optimizer != OptimizerKind::kMuon && is_muon_given,
            "--muon-... has no effect without --optimizer muon");
    warn_if(given("muon_tp_mode") && args_.parallel.tensor_model_parallel_size == 1,
            "--muon-tp-mode has no effect with --tensor-model-parallel-size 1");
    const SaveFormat format = args_.checkpoint.save_format;
    const bool is_megatrons =
        format == SaveFormat::kMegatron || format == SaveFormat::kMegatronCore;
    warn_if(!args_.checkpoint.save.empty() && is_megatrons && !args_.checkpoint.no_save_optim &&
                optimizer.optimizer != OptimizerKind::kAdam,
            "--save-format megatron and megatron-core hold the state of --optimizer adam alone: no "
            "run can go on with that of this one; use native");
  }

  void optimizer_types() {
    const OptimizerConfig& c = args_.optimizer;
    const bool has_first = c.optimizer != OptimizerKind::kSgd;  // Muon's other parameters, too
    const bool has_second = has_first && c.optimizer != OptimizerKind::kLion;
    const bool has_16_bit_moments = (has_first && c.exp_avg_dtype != DType::kFloat32) ||
                                    (has_second && c.exp_avg_sq_dtype != DType::kFloat32);
    warn_if(c.use_precision_aware_optimizer && !has_16_bit_moments &&
                c.main_grads_dtype == DType::kFloat32 && c.main_params_dtype == DType::kFloat32,
            "--use-precision-aware-optimizer has no effect with all types fp32; main parameters "
            "take 2 bytes with --bf16 anyway");
    warn_if(!has_first && (given("exp_avg_dtype") || given("exp_avg_sq_dtype")),
            "--exp-avg-dtype and --exp-avg-sq-dtype have no effect with --optimizer sgd");
    warn_if(has_first && !has_second && given("exp_avg_sq_dtype"),
            "--exp-avg-sq-dtype has no effect with --optimizer lion");
    // A rounding that a step of 1 - beta2 cannot leave: half of the last place, in fp16 of the
    // root.
    const bool is_bf16 = c.exp_avg_sq_dtype == DType::kBFloat16;
    const bool is_stuck = (is_bf16 && c.adam_beta2 >= 0.996) ||
                          (c.exp_avg_sq_dtype == DType::kFloat16 && c.adam_beta2 > 0.999);
    warn_if(has_second && is_stuck,
            fmt::format("--exp-avg-sq-dtype {} with --adam-beta2 {}: the second moment cannot "
                        "fall, because so small changes are rounded away; use --adam-beta2 {}, or "
                        "--exp-avg-sq-dtype {}",
                        is_bf16 ? "bf16" : "fp16", c.adam_beta2, is_bf16 ? 0.99 : 0.999,
                        is_bf16 && c.adam_beta2 <= 0.999 ? "fp16" : "fp32"));
  }

  void data_and_run() {
    warn_if(!args_.data.prefix_lm && (args_.data.loss_on_targets_only ||
                                      args_.data.reweight_loss_based_on_position_frequency),
            "--loss-on-targets-only and --reweight-loss-based-on-position-frequency have no effect "
            "without --prefix-lm");
    warn_if(given("split") && args_.data.data_path.empty() && args_.data.data_args_path.empty(),
            "--split has no effect without --data-path");
    warn_if(args_.training.deepspeed && args_.training.rampup_batch_size.empty(),
            "--deepspeed has no effect without --rampup-batch-size: this program has one engine");
    warn_if(given("cuda_graph") && args_.training.cuda_graph &&
                args_.training.device == DeviceChoice::kCpu,
            "--cuda-graph has no effect with --device cpu");
    warn_if(given("allow_tf32") && args_.training.device == DeviceChoice::kCpu,
            "--allow-tf32 has no effect with --device cpu");
    warn_if(args_.training.wandb_project.empty() &&
                (given("wandb_exp_name") || given("wandb_save_dir") || given("wandb_entity")),
            "--wandb-exp-name, --wandb-save-dir and --wandb-entity have no effect without "
            "--wandb-project");
    warn_if(args_.training.mlflow_experiment.empty() &&
                (given("mlflow_run_name") || given("mlflow_tracking_uri")),
            "--mlflow-run-name and --mlflow-tracking-uri have no effect without "
            "--mlflow-experiment");
    warn_if(given("dashboard_host") && args_.training.dashboard_port == 0,
            "--dashboard-host has no effect without --dashboard-port");
    warn_if(args_.training.log_straggler && args_.training.disable_straggler_on_startup,
            "--log-straggler has no effect with --disable-straggler-on-startup: it cannot be "
            "switched on in a running job");
    warn_if(!args_.training.log_straggler &&
                (given("straggler_minmax_count") || given("disable_straggler_on_startup")),
            "--straggler-minmax-count and --disable-straggler-on-startup have no effect without "
            "--log-straggler");
    const std::vector<int64_t>& profiled = args_.training.profile_ranks;
    const int64_t last = args_.parallel.world_size - 1;
    warn_if(args_.training.profile && !profiled.empty() && std::ranges::min(profiled) > last,
            fmt::format("--profile has no effect: --profile-ranks names none of the ranks of this "
                        "run, 0 to {}",
                        last));
    warn_if(given("train_step_args") && args_.training.train_step.empty(),
            "--train-step-args has no effect without --train-step");
  }

  void checkpoints() {
    warn_if(args_.checkpoint.async_save && (args_.checkpoint.save.empty() ||
                                            args_.checkpoint.save_format != SaveFormat::kNative),
            "--async-save has no effect without --save, or with another --save-format than native");
    warn_if(
        given("ckpt_format") && args_.legacy.ckpt_format != CkptFormat::kTorchDist,
        "--ckpt-format has no effect without torch_dist: --save-format is the format of --save, "
        "and that of --load is detected");
    warn_if(
        args_.legacy.ckpt_format == CkptFormat::kTorchDist &&
            args_.checkpoint.save_format != SaveFormat::kTorchDist &&
            !args_.checkpoint.save.empty(),
        "--ckpt-format torch_dist has no effect: it is written for a GPT with --optimizer adam; "
        "this run saves as --save-format native");
    warn_if(
        !args_.checkpoint.replication && (given("replication_jump") || given("replication_factor")),
        "--replication-jump and --replication-factor have no effect without --replication");
    warn_if(given("non_persistent_local_ckpt_dir") &&
                args_.checkpoint.non_persistent_ckpt_type != NonPersistentType::kLocal,
            "--non-persistent-local-ckpt-dir has no effect without --non-persistent-ckpt-type "
            "local");
    warn_if(given("save_interval") && args_.checkpoint.save.empty(),
            "--save-interval has no effect without --save");
    warn_if(given("keep_last") && args_.checkpoint.save.empty(),
            "--keep-last has no effect without --save");
    warn_if(given("save") && args_.checkpoint.save.empty(),
            "--save is empty: this run saves nothing");
    warn_if(given("load") && args_.checkpoint.load.empty(),
            "--load is empty: this run starts from random weights");
  }

  TrainingArgs& args_;
};

}  // namespace

void warn_ineffective_flags(TrainingArgs& args) { IneffectiveFlags(args).run(); }

}  // namespace megatron
