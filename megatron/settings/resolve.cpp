#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "annex/retro/data/work_directory.h"
#include "megatron/core/error.h"
#include "megatron/core/parts.h"
#include "megatron/core/printable.h"
#include "megatron/optim/parameter_scheduler.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/settings/ineffective_flags.h"
#include "megatron/settings/possible_sizes.h"
#include "megatron/settings/retro_project.h"
#include "megatron/settings/training_args.h"
#include "megatron/tokenizers/tokenizer_files.h"
#include "megatron/tokenizers/unicode_text.h"
#include "megatron/training/web_address.h"
#include "megatron/transformer/expert_config.h"

namespace megatron {
namespace {

void append(std::vector<std::string>& problems, std::vector<std::string> more) {
  for (std::string& problem : more) problems.push_back(std::move(problem));
}

// One pass of Megatron-LM's validate_args, in its order. Each step fills fields that later ones
// read, and adds its problems to `problems`.
class Resolver {
 public:
  Resolver(TrainingArgs& args, std::vector<std::string>& problems)
      : args_(args), problems_(problems) {}

  void run(int64_t world_size) {
    script_defaults();
    if constexpr (kHasRetro) apply_retro_project(args_, problems_);
    // Checkpoints store these paths and may be used from other directories.
    args_.tokenizer = with_absolute_paths(args_.tokenizer);
    directory_in_utf8();
    trackers();
    if (!has_possible_sizes(args_, problems_)) return;
    ranks(world_size);
    recomputation();
    retro();
    layers_and_lengths();
    precision();
    batches();
    training_length();
    curriculum();
    prefixes();
    pipeline();
    save_format();
    positions();
    collect();
    warn_ineffective_flags(args_);
  }

 private:
  bool given(const char* dest) const { return args_.given.contains(dest); }
  void require(bool holds, std::string problem) {
    if (!holds) problems_.push_back(std::move(problem));
  }
  void exclude(bool both, const char* one, const char* other) {
    require(!both, fmt::format("{} and {} exclude each other; keep one", one, other));
  }

  void directory_in_utf8() {
    const TokenizerConfig& c = args_.tokenizer;
    for (const std::string* path : {&c.vocab_file, &c.merge_file, &c.tokenizer_model}) {
      if (is_valid_utf8(*path)) continue;
      problems_.emplace_back(
          "the working directory's name is not UTF-8, and checkpoints keep the paths of the "
          "tokenizer as JSON; rename the directory, or start in another one");
      return;
    }
  }

  void trackers() {
    TrainingConfig& c = args_.training;
    if constexpr (!kHasServer) {
      require(c.dashboard_port == 0, missing_part("--dashboard-port", "MG_SERVER"));
    }
    if constexpr (!kHasProtobuf) {
      require(c.tensorboard_dir.empty(), missing_part("--tensorboard-dir", "MG_PROTOBUF"));
      require(c.wandb_project.empty(), missing_part("--wandb-project", "MG_PROTOBUF"));
    }
    mlflow();
    if (c.wandb_project.empty()) return;
    require(!c.wandb_exp_name.empty(),
            fmt::format("--wandb-project {} needs --wandb-exp-name, the name of the run",
                        c.wandb_project));
    if (!c.wandb_save_dir.empty()) return;
    const std::string& save = args_.checkpoint.save;
    require(!save.empty(),
            fmt::format("--wandb-project {} needs --wandb-save-dir or --save, a directory for its "
                        "files",
                        c.wandb_project));
    c.wandb_save_dir = (std::filesystem::path(save) / "wandb").string();
  }

  void mlflow() {
    TrainingConfig& c = args_.training;
    if (c.mlflow_experiment.empty()) return;
    if constexpr (!kHasServer) {
      problems_.push_back(missing_part("--mlflow-experiment", "MG_SERVER"));
    }
    const char* const variable = std::getenv("MLFLOW_TRACKING_URI");
    if (c.mlflow_tracking_uri.empty() && variable != nullptr) c.mlflow_tracking_uri = variable;
    require(!c.mlflow_tracking_uri.empty(),
            fmt::format("--mlflow-experiment {} needs --mlflow-tracking-uri, or the variable "
                        "MLFLOW_TRACKING_URI, the address of a server: http://localhost:5000",
                        c.mlflow_experiment));
    require(c.mlflow_tracking_uri.empty() || web_address_of(c.mlflow_tracking_uri),
            fmt::format("--mlflow-tracking-uri {} is not the address of a server; write "
                        "http://HOST:PORT, and a user's name and password into "
                        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
                        printable(c.mlflow_tracking_uri)));
  }

  void script_defaults() {
    std::string& type = args_.tokenizer.tokenizer_type;
    if (!type.empty()) return;
    type = family_of(args_.transformer.kind).tokenizer_type;
  }

  // FSDP by Megatron Core's flags is a stage of ZeRO.
  void fsdp() {
    const LegacyFlags& legacy = args_.legacy;
    exclude(legacy.use_megatron_fsdp && legacy.use_torch_fsdp2, "--use-megatron-fsdp",
            "--use-torch-fsdp2");
    if (!legacy.use_megatron_fsdp && !legacy.use_torch_fsdp2) return;
    const int64_t stage =
        legacy.use_torch_fsdp2 ? 3 : static_cast<int64_t>(legacy.sharding_strategy);
    int64_t& zero_stage = args_.parallel.zero_stage;
    require(!given("zero_stage") || zero_stage == stage,
            fmt::format("{} is --zero-stage {}, not {}; remove --zero-stage",
                        legacy.use_torch_fsdp2 ? "--use-torch-fsdp2"
                                               : "--use-megatron-fsdp with its "
                                                 "--data-parallel-sharding-strategy",
                        stage, zero_stage));
    zero_stage = stage;
  }

  void ranks(int64_t world_size) {
    fsdp();
    ParallelConfig& parallel = args_.parallel;
    const ParallelConfig asked = parallel;
    parallel.world_size = world_size;
    parallel = megatron::resolved(parallel);
    const auto clamped = [&](int64_t before, int64_t after, const char* flag) {
      if (before == after) return;
      args_.warnings.push_back(fmt::format("{} {} is lowered to {}: this run has {} rank{}", flag,
                                           before, after, world_size, world_size == 1 ? "" : "s"));
    };
    clamped(asked.tensor_model_parallel_size, parallel.tensor_model_parallel_size,
            "--tensor-model-parallel-size");
    clamped(asked.pipeline_model_parallel_size, parallel.pipeline_model_parallel_size,
            "--pipeline-model-parallel-size");
    append(problems_, megatron::problems(parallel));
    args_.notes.push_back(
        fmt::format("using world size: {}, data-parallel size: {}, context-parallel size: {} "
                    "tensor-model-parallel size: {}, pipeline-model-parallel size: {} ",
                    world_size, parallel.data_parallel_size, parallel.context_parallel_size,
                    parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size));
  }

  void recomputation() {
    TransformerConfig& c = args_.transformer;
    if (args_.legacy.recompute_activations) {
      c.recompute_granularity = RecomputeGranularity::kSelective;
    }
    if (args_.legacy.checkpoint_activations) {
      // Compat: BigScience Megatron-DeepSpeed's --checkpoint-activations.
      exclude(args_.legacy.recompute_activations || given("recompute_granularity"),
              "--checkpoint-activations", "the newer --recompute-... flags");
      c.recompute_granularity = RecomputeGranularity::kFull;
      c.recompute_method = RecomputeMethod::kUniform;
      c.recompute_num_layers = args_.legacy.checkpoint_num_layers;
    }
  }

  void retro() {
    const int64_t iterations = args_.legacy.retro_cyclic_train_iters;
    const bool is_cyclic = args_.data.dataloader_type == DataloaderType::kCyclic;
    if (iterations > 0 && is_cyclic) args_.training.train_iters = iterations;
    RetroConfig& c = args_.transformer.retro;
    const std::string& directory = args_.data.retro_workdir;
    if constexpr (!kHasRetro) {
      if (c.reads_neighbors()) {
        problems_.push_back(missing_part("--retro-add-retriever", "MG_RETRO"));
      }
    } else if (c.reads_neighbors() && !directory.empty()) {
      try {
        const int64_t length = read_retro_settings(directory).chunk_length;
        if (!given("retro_gpt_chunk_length")) c.chunk_length = length;
        args_.given.insert("retro_gpt_chunk_length");  // checkpoints store it
      } catch (const Error& error) {
        problems_.emplace_back(error.what());
      }
    }
  }

  void layers_and_lengths() {
    TransformerConfig& c = args_.transformer;
    exclude(given("num_layers") && given("encoder_num_layers"), "--num-layers",
            "--encoder-num-layers");
    exclude(given("seq_length") && given("encoder_seq_length"), "--seq-length",
            "--encoder-seq-length");
    c.activation = activation_of(args_.activation, c.add_bias_linear);
    c.head_activation = args_.activation.openai_gelu ? Activation::kGeluTanh
                        : args_.activation.onnx_safe ? Activation::kGeluOnnx
                                                     : Activation::kGeluErf;
    append(problems_, megatron::problems(args_.activation));
    if (!c.add_bias_linear) args_.activation.bias_gelu_fusion = false;
    if (c.multi_latent_attention) {
      // Compat: the defaults of Megatron Core 0.19. Without a factor both types are the same.
      const bool means_yarn = given("rotary_scaling_factor") && !given("rope_type");
      if (means_yarn) c.rope_scaling.type = RopeScalingType::kYarn;
      int64_t& original = c.rope_scaling.original_max_position_embeddings;
      if (original == 0) original = 4096;
    }
    if (!args_.transformer.is_encoder_decoder()) return;
    if (c.decoder_num_layers == 0) {
      c.decoder_num_layers = c.num_layers != 0 ? c.num_layers : c.encoder_num_layers;
    }
    require(c.decoder_seq_length > 0,
            "--decoder-seq-length is required for T5; for example --decoder-seq-length 128");
  }

  void precision() {
    ParallelConfig& parallel = args_.parallel;
    args_.optimizer.check_for_nan_in_loss_and_grad = args_.training.check_for_nan_in_loss_and_grad;
    args_.optimizer.log_num_zeros_in_grad = args_.training.log_num_zeros_in_grad;
    // Compat: Megatron-LM core_r0.5.0 scales fp32 losses only with the distributed optimizer.
    OptimizerConfig& optimizer = args_.optimizer;
    optimizer.rounding_seed = args_.training.seed;
    optimizer.clips_apart =
        args_.transformer.mtp_num_layers > 0 && args_.transformer.mtp_detach_heads;
    if (!optimizer.fp16 && !optimizer.bf16 && !parallel.use_distributed_optimizer) {
      optimizer.loss_scale = 0.0;
    }
    optimizer = megatron::resolved(optimizer);
    args_.transformer.params_dtype = args_.optimizer.params_dtype;
    const bool has_bf16_grads = optimizer.main_grads_dtype == DType::kBFloat16;
    exclude(has_bf16_grads && parallel.accumulate_allreduce_grads_in_fp32,
            "--main-grads-dtype bf16", "--accumulate-allreduce-grads-in-fp32");
    if (args_.optimizer.bf16 && !parallel.accumulate_allreduce_grads_in_fp32 &&
        !parallel.grad_reduce_in_bf16 && !has_bf16_grads) {
      parallel.accumulate_allreduce_grads_in_fp32 = true;
      args_.notes.emplace_back(
          "accumulate and all-reduce gradients in fp32 for bfloat16 data type.");
    }
    require(!parallel.grad_reduce_in_bf16 || args_.optimizer.bf16,
            "--grad-reduce-in-bf16 needs --bf16; add it or remove --grad-reduce-in-bf16");
    args_.notes.push_back(
        fmt::format("using {} for parameters ...", text_of(args_.optimizer.params_dtype)));
    const std::string& version = args_.training.megatron_compat;
    require(version.empty() || version == "0.5",
            fmt::format("--megatron-compat {} must be 0.5", version));
    args_.transformer.moe_legacy_router = version == "0.5";
    args_.transformer = megatron::resolved(args_.transformer);
    upcycling();
  }

  void upcycling() {
    TransformerConfig& c = args_.transformer;
    const int64_t g = args_.checkpoint.moe_upcycling_granularity;
    require(g >= 1, fmt::format("--moe-upcycling-granularity {} must be at least 1", g));
    if (!args_.checkpoint.moe_use_upcycling || g < 1) return;
    require(c.has_experts(), "--moe-use-upcycling needs --num-experts; add it");
    require(!args_.checkpoint.load.empty(),
            "--moe-use-upcycling needs --load with a dense checkpoint; add it");
    if (!c.has_experts()) return;
    if (!given("moe_ffn_hidden_size")) c.moe_ffn_hidden_size = c.ffn_hidden_size / g;
    require(c.moe_ffn_hidden_size * g == c.ffn_hidden_size,
            fmt::format("--ffn-hidden-size {} must be --moe-upcycling-granularity {} times "
                        "--moe-ffn-hidden-size {}",
                        c.ffn_hidden_size, g, c.moe_ffn_hidden_size));
    require(c.num_experts % g == 0,
            fmt::format("--num-experts {} must be a multiple of --moe-upcycling-granularity {}",
                        c.num_experts, g));
    require(c.moe_shared_expert_intermediate_size == 0,
            "--moe-use-upcycling makes no shared experts; remove "
            "--moe-shared-expert-intermediate-size");
    require(c.mtp_num_layers == 0,
            "--moe-use-upcycling makes no experts of further tokens; remove --mtp-num-layers");
  }

  void batches() {
    // 0 if the sizes do not fit, which is already reported.
    const int64_t dp = std::max<int64_t>(args_.parallel.data_parallel_size, 1);
    args_.training = megatron::resolved(args_.training, dp);
  }

  void training_length() {
    const OptimizerConfig& c = args_.optimizer;
    const TrainingConfig& training = args_.training;
    if (training.train_iters > 0) {
      exclude(given("lr_decay_samples"), "--train-iters", "--lr-decay-samples");
      exclude(c.lr_warmup_samples != 0, "--train-iters", "--lr-warmup-samples");
      exclude(c.lr_warmup_fraction && c.lr_warmup_iters != 0, "--lr-warmup-fraction",
              "--lr-warmup-iters");
    } else if (training.train_samples > 0) {
      exclude(given("lr_decay_iters"), "--train-samples", "--lr-decay-iters");
      exclude(c.lr_warmup_iters != 0, "--train-samples", "--lr-warmup-iters");
      exclude(c.lr_warmup_fraction && c.lr_warmup_samples != 0, "--lr-warmup-fraction",
              "--lr-warmup-samples");
    }
    const bool by_samples = training.train_samples > 0;
    const int64_t length = by_samples ? training.train_samples : training.train_iters;
    const int64_t asked = by_samples ? c.lr_decay_samples : c.lr_decay_iters;
    const int64_t decay = asked > 0 ? asked : length;
    const int64_t warmup = by_samples ? c.lr_warmup_samples : c.lr_warmup_iters;
    const char* unit = by_samples ? "samples" : "iters";
    require(
        decay <= 0 || warmup < decay,
        fmt::format("--lr-warmup-{} {} must be below the decay length {} (--lr-decay-{}, or the "
                    "length of training)",
                    unit, warmup, decay, unit));
    const int64_t wsd = by_samples ? c.lr_wsd_decay_samples : c.lr_wsd_decay_iters;
    require(c.lr_decay_style != LrDecayStyle::kWsd || (wsd > 0 && wsd <= decay - warmup),
            fmt::format("--lr-decay-style WSD needs --lr-wsd-decay-{} between 1 and {}, the decay "
                        "length less the warm-up",
                        unit, decay - warmup));
    require(training.skip_train || given("lr"), "--lr is required; for example --lr 1.5e-4");
  }

  void curriculum() {
    const TrainingConfig& training = args_.training;
    if (!training.curriculum.is_on()) return;
    require(args_.transformer.is_decoder_only(),
            "curriculum_learning is for GPT only; remove it from the DeepSpeed configuration");
    require(training.rampup_batch_size.empty(),
            "curriculum_learning and --rampup-batch-size exclude each other; keep one");
    require(!args_.transformer.fp8.is_on(),
            "curriculum_learning and --fp8-format exclude each other; keep one");
    const LrDecayStyle style = args_.optimizer.lr_decay_style;
    require(
        !args_.optimizer.lr_decays_by_tokens || style == LrDecayStyle::kLinear ||
            style == LrDecayStyle::kCosine || style == LrDecayStyle::kConstant,
        fmt::format("--lr-decay-style {} cannot decay by --lr-decay-tokens while lengths change; "
                    "use linear or cosine",
                    name_of(style)));
    const ParallelConfig& parallel = args_.parallel;
    const int64_t cp = std::max<int64_t>(parallel.context_parallel_size, 1);
    const int64_t slices =
        parallel.sequence_parallel ? cp * parallel.tensor_model_parallel_size : 1;
    append(problems_, megatron::problems(training.curriculum, args_.transformer.seq_length,
                                         std::lcm(slices, cp > 1 ? 2 * cp : 1)));
  }

  void prefixes() {
    const DataConfig& data = args_.data;
    if (!data.prefix_lm) return;
    require(args_.transformer.is_decoder_only(), "--prefix-lm is for GPT only; remove it");
    require(args_.parallel.context_parallel_size <= 1,
            "--prefix-lm and --context-parallel-size above 1 exclude each other; keep one");
    require(!args_.training.curriculum.is_on(),
            "--prefix-lm and curriculum_learning exclude each other; keep one");
  }

  void pipeline() {
    ParallelConfig& parallel = args_.parallel;
    const int64_t layers = args_.transformer.num_layers;
    const int64_t pp = parallel.pipeline_model_parallel_size;
    require(pp > 1 || !parallel.standalone_embedding_stage,
            "--standalone-embedding-stage needs --pipeline-model-parallel-size above 1");
    const TransformerConfig& c = args_.transformer;
    require(parallel.pipeline_model_parallel_size == 1 || c.mtp_num_layers == 0 ||
                (c.position_embedding_type != PositionEmbedding::kLearnedAbsolute &&
                 !c.embed_layernorm),
            "--mtp-num-layers with a table of positions or --embed-layernorm needs "
            "--pipeline-model-parallel-size 1: the last stage has only a copy of the word "
            "embeddings; use it, or --position-embedding-type rope");
    const bool has_layout = !parallel.pipeline_model_parallel_layout.empty();
    if (pp < (has_layout ? 1 : 2) || layers <= 0 || c.is_encoder_decoder()) return;
    std::vector<std::string> wrong = pipeline_problems(parallel, layers, c.mtp_num_layers);
    if (!wrong.empty()) return append(problems_, std::move(wrong));
    const int64_t chunks = num_model_chunks(parallel, layers);
    if (has_layout ? chunks == 1
                   : parallel.num_layers_per_virtual_pipeline_stage <= 0 &&
                         parallel.num_virtual_stages_per_pipeline_rank <= 0) {
      return;
    }
    parallel.virtual_pipeline_model_parallel_size = chunks;
    const int64_t lot = args_.training.micro_batch_size * parallel.data_parallel_size;
    require(lot <= 0 || args_.training.global_batch_size % (lot * pp) == 0,
            fmt::format("--global-batch-size {} makes {} microbatches; an interleaved pipeline of "
                        "{} stages needs a multiple of {}, so a multiple of {} samples",
                        args_.training.global_batch_size,
                        args_.training.global_batch_size / std::max<int64_t>(lot, 1), pp, pp,
                        lot * pp));
  }

  // --ckpt-format torch_dist, and the limits of that format.
  void save_format() {
    SaveFormat& format = args_.checkpoint.save_format;
    const TransformerConfig& c = args_.transformer;
    const bool is_gpt = c.is_decoder_only() && !c.retro.add_retriever;
    const bool is_adam = args_.optimizer.optimizer == OptimizerKind::kAdam;
    const bool can_hold = is_gpt && (is_adam || args_.checkpoint.no_save_optim);
    if (args_.legacy.ckpt_format == CkptFormat::kTorchDist) {
      require(!given("save_format") || format == SaveFormat::kTorchDist,
              "--ckpt-format torch_dist contradicts --save-format; remove one");
      if (can_hold) format = SaveFormat::kTorchDist;
    }
    const ParallelConfig& parallel = args_.parallel;
    const int64_t stages = parallel.pipeline_model_parallel_size *
                           std::max<int64_t>(parallel.virtual_pipeline_model_parallel_size, 1);
    const bool has_equal_stages =
        format == SaveFormat::kMegatron || format == SaveFormat::kMegatronCore;
    require(!has_equal_stages || args_.checkpoint.save.empty() || c.is_encoder_decoder() ||
                stages < 1 || c.num_layers % stages == 0,
            fmt::format("--save-format {} writes stages of equal size: --num-layers {} must be a "
                        "multiple of {} stages; use --save-format native",
                        format == SaveFormat::kMegatron ? "megatron" : "megatron-core",
                        c.num_layers, stages));
    require(format != SaveFormat::kTorchDist || args_.checkpoint.save.empty() || can_hold,
            "--save-format torch_dist is for a GPT with --optimizer adam; use "
            "--save-format native");
  }

  void positions() {
    TransformerConfig& c = args_.transformer;
    if (args_.legacy.use_rotary_position_embeddings) {
      require(!given("position_embedding_type") ||
                  c.position_embedding_type == PositionEmbedding::kRope,
              "--use-rotary-position-embeddings contradicts --position-embedding-type; remove one");
      c.position_embedding_type = PositionEmbedding::kRope;
    }
    window();
    require(args_.legacy.add_position_embedding ||
                c.position_embedding_type != PositionEmbedding::kLearnedAbsolute,
            "--no-position-embedding needs --position-embedding-type rope, alibi or none");
    require(c.lora_rank == 0 || args_.checkpoint.save_format == SaveFormat::kNative,
            "--lora-rank needs --save-format native: other systems have no place for adapters; "
            "convert the checkpoint afterwards");
    require(c.has_decoder() || c.softmax_scale == 0, "--softmax-scale is not for BERT; remove it");
    require(c.has_decoder() || !c.untie_embeddings_and_output_weights,
            "--untie-embeddings-and-output-weights is not for BERT; remove it");
    const int64_t tp = args_.parallel.tensor_model_parallel_size;
    if (args_.parallel.sequence_parallel && tp > 0) {
      const int64_t parts = tp * std::max<int64_t>(args_.parallel.context_parallel_size, 1);
      require(c.seq_length % parts == 0,
              parts == tp
                  ? fmt::format("--seq-length {} must be a multiple of "
                                "--tensor-model-parallel-size {} with --sequence-parallel",
                                c.seq_length, tp)
                  : fmt::format("--seq-length {} must be a multiple of {}: "
                                "--tensor-model-parallel-size {} x --context-parallel-size {} with "
                                "--sequence-parallel",
                                c.seq_length, parts, tp, parts / tp));
    }
    const int64_t cp = args_.parallel.context_parallel_size;
    require(cp <= 1 || c.seq_length % (2 * cp) == 0,
            fmt::format("--seq-length {} must be a multiple of 2 * --context-parallel-size {}",
                        c.seq_length, cp));
    const int64_t exchanging = head_exchange_size(args_.parallel);
    if (exchanging > 1 && tp > 0) {
      const int64_t heads = c.num_attention_heads / tp;
      const int64_t groups = c.query_groups_of_rank(tp);
      const bool is_hierarchical = !args_.parallel.hierarchical_context_parallel_sizes.empty();
      require(heads % exchanging == 0 && groups % exchanging == 0,
              fmt::format("--cp-comm-type {}: {} heads on {} groups of keys and values, those of a "
                          "tensor-parallel rank, must be multiples of {} {}; use {}",
                          fmt::join(args_.parallel.cp_comm_type, " "), heads, groups,
                          is_hierarchical ? "the first of --hierarchical-context-parallel-sizes"
                                          : "--context-parallel-size",
                          exchanging,
                          is_hierarchical ? "a smaller first size, or p2p" : "p2p or all_gather"));
    }
    require(!(c.distribute_saved_activations && args_.parallel.sequence_parallel),
            "--distribute-saved-activations and --sequence-parallel exclude each other; the latter "
            "already divides saved activations");
  }

  void window() {
    const std::vector<int64_t>& size = args_.legacy.window_size;
    TransformerConfig& c = args_.transformer;
    if (!size.empty()) {
      require(size.size() == 2 && size[0] >= -1 && size[1] == 0,
              fmt::format("--window-size {} must be a number of tokens before a token, and 0; for "
                          "example 127,0",
                          fmt::join(size, ",")));
      c.attention_window = std::max<int64_t>(size[0] + 1, 0);
    }
    require(c.window_layers.empty() || c.attention_window > 0,
            "--window-attn-skip-freq needs --window-size; add it or remove the flag");
  }

  void collect() {
    const int64_t tp = std::max<int64_t>(args_.parallel.tensor_model_parallel_size, 1);
    const int64_t dp = std::max<int64_t>(args_.parallel.data_parallel_size, 1);
    append(problems_, megatron::problems(args_.transformer, tp));
    experts();
    fp8_tokens();
    append(problems_, megatron::problems(args_.training, dp));
    if (given("lr") || args_.training.skip_train) {
      append(problems_, megatron::problems(args_.optimizer));
    }
    require(
        !args_.optimizer.use_precision_aware_optimizer || args_.parallel.use_distributed_optimizer,
        "--use-precision-aware-optimizer needs --use-distributed-optimizer; add it or remove "
        "--use-precision-aware-optimizer");
    muon();
    append(problems_, megatron::problems(args_.checkpoint));
    append(problems_, megatron::problems(args_.data));
    tokenizer();
  }

  void experts() {
    const ParallelConfig& parallel = args_.parallel;
    const TransformerConfig& c = args_.transformer;
    append(problems_, expert_layout_problems(c, parallel));
    if (!c.has_experts()) return;
    require(parallel.tensor_model_parallel_size == 1 || parallel.sequence_parallel,
            "--num-experts with --tensor-model-parallel-size above 1 needs --sequence-parallel: "
            "without it ranks would send their tokens several times");
    require(!c.moe_legacy_router || parallel.context_parallel_size == 1,
            "--megatron-compat 0.5 and --context-parallel-size above 1 exclude each other: that "
            "version has no experts with the latter; keep one");
  }

  void muon() {
    const OptimizerConfig& c = args_.optimizer;
    if (c.optimizer != OptimizerKind::kMuon) return;
    const bool shares_experts =
        args_.transformer.has_experts() && expert_tensor_size(args_.parallel) > 1;
    require(!shares_experts || c.muon_tp_mode == MuonTpMode::kBlockwise,
            "--muon-tp-mode duplicated and distributed are not available with "
            "--expert-tensor-parallel-size above 1; use blockwise");
    require(
        c.muon_tp_mode == MuonTpMode::kBlockwise || args_.parallel.tensor_model_parallel_size == 1,
        "--muon-tp-mode duplicated and distributed are not available with "
        "--tensor-model-parallel-size above 1; use blockwise");
  }

  void tokenizer() {
    const TokenizerConfig& c = args_.tokenizer;
    const auto needs = [&](bool has, const char* what) {
      require(has, fmt::format("--tokenizer-type {} needs {}", c.tokenizer_type, what));
    };
    if (c.tokenizer_type == "GPT2BPETokenizer") {
      needs(!c.tokenizer_model.empty() || (!c.vocab_file.empty() && !c.merge_file.empty()),
            "--vocab-file vocab.json and --merge-file merges.txt");
    } else if (c.tokenizer_type.starts_with("BertWordPiece")) {
      needs(!c.vocab_file.empty(), "--vocab-file vocab.txt");
    } else if (c.tokenizer_type == "NullTokenizer") {
      needs(c.vocab_size > 0, "--vocab-size; for example --vocab-size 1000");
    } else {
      needs(!c.tokenizer_model.empty(), "--tokenizer-model with the path of its model");
    }
    require(c.vocab_extra_ids >= 0,
            fmt::format("--vocab-extra-ids {} must be at least 0", c.vocab_extra_ids));
  }

  // FP8 products need extents that are multiples of 16.
  void fp8_tokens() {
    const TransformerConfig& c = args_.transformer;
    const int64_t cp = args_.parallel.context_parallel_size;
    if (!c.fp8.is_on()) return;
    require(args_.parallel.zero_stage < 3,
            "--fp8-format keeps whole weights in FP8, so --zero-stage 3 would save no memory; use "
            "--zero-stage 2");
    require(!c.fp8.param_gather || args_.parallel.use_distributed_optimizer,
            "--fp8-param-gather needs --use-distributed-optimizer; add it or remove "
            "--fp8-param-gather");
    const int64_t shares = std::max<int64_t>(1, expert_tensor_size(args_.parallel));
    require(
        !c.has_experts() || c.moe_ffn_hidden_size % (16 * shares) == 0,
        fmt::format("--fp8-format needs --moe-ffn-hidden-size {} to be a multiple of {}; choose "
                    "another size or remove --fp8-format",
                    c.moe_ffn_hidden_size, 16 * shares));
    for (const int64_t length : {c.seq_length, c.decoder_seq_length}) {
      const int64_t tokens = args_.training.micro_batch_size * length / cp;
      require(tokens % 16 == 0,
              fmt::format("--fp8-format needs a multiple of 16 tokens in a micro-batch, not {}; "
                          "choose another --micro-batch-size, {}, or --seq-length",
                          tokens, args_.training.micro_batch_size));
    }
  }

  TrainingArgs& args_;
  std::vector<std::string>& problems_;
};

// An invalid value leaves its field unset: drops sentences that call a flag missing if an earlier
// one reports its value. A flag that was given as 0 is not missing.
void drop_echoes(std::vector<std::string>& problems, const std::set<std::string>& given) {
  constexpr std::string_view kRequired = " is required";
  std::set<std::string> mentioned;
  std::erase_if(problems, [&](std::string& problem) {
    const std::string flag = problem.substr(0, problem.find(' '));
    const bool is_missing = problem.compare(flag.size(), kRequired.size(), kRequired) == 0;
    const bool is_echo = is_missing && mentioned.contains(flag);
    mentioned.insert(flag);
    std::string dest = flag.substr(std::min<size_t>(2, flag.size()));
    std::replace(dest.begin(), dest.end(), '-', '_');
    if (is_missing && given.contains(dest)) {
      problem = fmt::format("{} 0 must be greater than 0", flag);
    }
    return is_echo;
  });
}

}  // namespace

TrainingArgs resolved(TrainingArgs args, int64_t world_size, std::vector<std::string>& problems) {
  Resolver(args, problems).run(world_size);
  drop_echoes(problems, args.given);
  return args;
}

std::vector<std::string> unavailable(const TrainingArgs& args) {
  std::vector<std::string> found;
  const auto refuse_if = [&](bool asked, std::string what) {
    if (asked) found.push_back(std::move(what) + " is not available yet; remove the flag");
  };
  const std::vector<std::string> types = known_tokenizer_types();
  if (std::find(types.begin(), types.end(), args.tokenizer.tokenizer_type) == types.end()) {
    found.push_back(fmt::format("--tokenizer-type {} is not available; use one of {}",
                                args.tokenizer.tokenizer_type, fmt::join(types, ", ")));
  }
  refuse_if(args.transformer.position_embedding_type == PositionEmbedding::kRelative &&
                !args.transformer.is_encoder_decoder(),
            fmt::format("--position-embedding-type relative: a relative position bias for {}",
                        name_of(args.transformer.kind)));
  return found;
}

}  // namespace megatron
