#include "megatron/cli/gpt_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "megatron/checkpoint/chunks.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"
#include "megatron/cli/checkpoint_formats.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/interchange/deepspeed/reader.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/models/gpt/gpt_parameters.h"

namespace megatron::cli {
namespace {

// Keys of CheckpointState::scalars; Megatron-LM's names where it has them.
constexpr const char* kScheduler = "opt_param_scheduler";
constexpr const char* kScaler = "grad_scaler";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kRandom = "rng";
constexpr const char* kTokenizer = "tokenizer";
constexpr const char* kProgress = "progress";

template <class T>
T value_of(const std::map<std::string, ArgMap>& scalars, const char* owner, const char* name) {
  const auto map = scalars.find(owner);
  if (map != scalars.end()) {
    const auto entry = map->second.find(name);
    if (entry != map->second.end()) {
      if (const T* value = std::get_if<T>(&entry->second)) return *value;
      if constexpr (std::is_same_v<T, double>) {  // a whole number may be stored as one
        if (const auto* value = std::get_if<int64_t>(&entry->second)) {
          return static_cast<double>(*value);
        }
      }
    }
  }
  throw FormatError(fmt::format(
      "the checkpoint's {} has no usable value {}; start from its weights with --finetune", owner,
      name));
}

// What a rank has of the model: to save it, each part on one rank alone; to load it, all.
enum class Parts { kToSave, kToLoad };

void add_chunks(std::vector<CheckpointTensor>& tensors, std::vector<CheckpointTensor> chunks) {
  for (CheckpointTensor& chunk : chunks) tensors.push_back(std::move(chunk));
}

std::vector<CheckpointTensor> model_tensors(const GptModel& model, const ParallelContext& parallel,
                                            Parts parts) {
  std::vector<CheckpointTensor> tensors;
  if (parts == Parts::kToSave && parallel.data.rank() != 0) return tensors;
  for (const NamedParameter& parameter : named_tensors(model)) {
    const Sharding& sharding = parameter.info.sharding;
    const bool is_elsewhere =
        parameter.info.is_copy || (sharding.is_whole() && parallel.tensor.rank() != 0);
    if (parts == Parts::kToSave && is_elsewhere) continue;
    const Tensor& data = parameter.variable.data();
    add_chunks(tensors,
               chunks_of(parameter.name, sharding, data.shape(), 0, data.reshape({data.numel()})));
  }
  return tensors;
}

std::map<std::string, std::vector<CheckpointTensor>> optimizer_tensors(
    const Optimizer& optimizer, const ParallelContext& parallel, bool is_distributed, Parts parts) {
  std::map<std::string, std::vector<CheckpointTensor>> tensors;
  optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                            const FlatSpan& part, const Tensor& run) {
    std::vector<CheckpointTensor>& section = tensors[std::string(state)];
    const bool is_elsewhere =
        !parameter.counts_in_norm || (!is_distributed && parallel.data.rank() != 0);
    if (parts == Parts::kToSave && is_elsewhere) return;
    add_chunks(section, chunks_of(parameter.name, parameter.sharding, parameter.variable.shape(),
                                  part.begin, run));
  });
  return tensors;
}

ArgMap scheduler_map(const ParameterSchedulerState& state) {
  ArgMap map = {{"max_lr", state.max_lr},
                {"min_lr", state.min_lr},
                {"lr_warmup_steps", state.lr_warmup_steps},
                {"lr_decay_steps", state.lr_decay_steps},
                {"lr_decay_style", std::string(name_of(state.lr_decay_style))},
                {"num_steps", state.num_steps}};
  if (state.weight_decay) {
    map["start_wd"] = state.weight_decay->start;
    map["end_wd"] = state.weight_decay->end;
    map["wd_incr_style"] = std::string(name_of(state.weight_decay->style));
    map["wd_incr_steps"] = state.weight_decay->steps;
  }
  return map;
}

ParameterSchedulerState scheduler_state(const std::map<std::string, ArgMap>& scalars) {
  const auto number = [&](const char* name) { return value_of<double>(scalars, kScheduler, name); };
  const auto count = [&](const char* name) { return value_of<int64_t>(scalars, kScheduler, name); };
  const auto text = [&](const char* name) {
    return value_of<std::string>(scalars, kScheduler, name);
  };
  const auto lr_style = lr_decay_style_of(text("lr_decay_style"));
  const auto wd_style = weight_decay_incr_style_of(text("wd_incr_style"));
  if (!lr_style || !wd_style) {
    throw FormatError(
        "the checkpoint's scheduler has an unknown style; use --override-opt_param-scheduler");
  }
  return {.max_lr = number("max_lr"),
          .min_lr = number("min_lr"),
          .lr_warmup_steps = number("lr_warmup_steps"),
          .lr_decay_steps = count("lr_decay_steps"),
          .lr_decay_style = *lr_style,
          .num_steps = count("num_steps"),
          .weight_decay = WeightDecaySchedule{.start = number("start_wd"),
                                              .end = number("end_wd"),
                                              .style = *wd_style,
                                              .steps = count("wd_incr_steps")}};
}

void load_optimizer_scalars(Optimizer& optimizer, const std::map<std::string, ArgMap>& scalars,
                            int64_t iteration) {
  OptimizerScalars loaded;
  const auto known = scalars.find(kOptimizer);
  if (known != scalars.end() && known->second.contains("group_steps")) {
    loaded.group_steps = value_of<std::vector<int64_t>>(scalars, kOptimizer, "group_steps");
  } else {
    // Other systems count for all groups together, and some not at all.
    const bool counts = known != scalars.end() && known->second.contains("step");
    if (!counts) {
      warn(fmt::format(
          "the checkpoint does not say how often the optimizer has updated; taken as {}, the "
          "number of iterations",
          iteration));
    }
    loaded.group_steps.assign(optimizer.groups().size(),
                              counts ? value_of<int64_t>(scalars, kOptimizer, "step") : iteration);
  }
  // All groups are updated together, but not every pipeline stage has parameters of every group.
  const std::vector<int64_t>& steps = loaded.group_steps;
  if (!steps.empty() && std::equal(steps.begin() + 1, steps.end(), steps.begin())) {
    loaded.group_steps.assign(optimizer.groups().size(), steps.front());
  }
  if (scalars.contains(kScaler)) {
    loaded.loss_scaler = LossScalerState{
        .scale = value_of<double>(scalars, kScaler, "scale"),
        .growth_tracker = value_of<int64_t>(scalars, kScaler, "growth_tracker"),
        .hysteresis_tracker = value_of<int64_t>(scalars, kScaler, "hysteresis_tracker")};
  }
  optimizer.load(loaded);
}

CheckpointState state_of(GptSetup& setup, bool with_optimizer, Parts parts) {
  CheckpointState state;
  for (const std::unique_ptr<GptModel>& chunk : setup.chunks()) {
    add_chunks(state.model, model_tensors(*chunk, setup.parallel(), parts));
  }
  if (with_optimizer) {
    state.optimizer = optimizer_tensors(setup.optimizer(), setup.parallel(),
                                        setup.args().parallel.use_distributed_optimizer, parts);
  }
  return state;
}

std::string_view name_of(PositionEmbedding type) {
  switch (type) {
    case PositionEmbedding::kLearnedAbsolute:
      return "learned_absolute";
    case PositionEmbedding::kRope:
      return "rope";
    case PositionEmbedding::kAlibi:
      return "alibi";
    case PositionEmbedding::kRelative:
      return "relative";
    case PositionEmbedding::kNone:
      return "none";
  }
  throw InternalError("name_of: unknown position embedding");
}

std::string_view name_of(Normalization normalization) {
  return normalization == Normalization::kLayerNorm ? "LayerNorm" : "RMSNorm";
}

// The fields of which a Hugging Face model and the flags must agree.
std::vector<std::string> contradictions(const TransformerConfig& theirs,
                                        const TransformerConfig& ours) {
  std::vector<std::string> found;
  const auto compare = [&](const char* flag, const auto& saved, const auto& now) {
    if (saved == now) return;
    found.push_back(
        fmt::format("{} is {} in the model's config.json, but {} now; give the model's value or "
                    "--use-checkpoint-args",
                    flag, saved, now));
  };
  compare("--num-layers", theirs.num_layers, ours.num_layers);
  compare("--hidden-size", theirs.hidden_size, ours.hidden_size);
  compare("--ffn-hidden-size", theirs.ffn_hidden_size, ours.ffn_hidden_size);
  compare("--num-attention-heads", theirs.num_attention_heads, ours.num_attention_heads);
  compare("--kv-channels", theirs.kv_channels, ours.kv_channels);
  compare("--num-query-groups", theirs.num_query_groups, ours.num_query_groups);
  compare("--norm-epsilon", theirs.norm_epsilon, ours.norm_epsilon);
  compare("--normalization", name_of(theirs.normalization), name_of(ours.normalization));
  compare("--apply-layernorm-1p", theirs.apply_layernorm_1p, ours.apply_layernorm_1p);
  compare("--qk-layernorm", theirs.qk_layernorm, ours.qk_layernorm);
  compare("--embed-layernorm", theirs.embed_layernorm, ours.embed_layernorm);
  compare("--parallel-residual", theirs.parallel_residual, ours.parallel_residual);
  compare("--apply-residual-connection-post-layernorm",
          theirs.apply_residual_connection_post_layernorm,
          ours.apply_residual_connection_post_layernorm);
  compare("the activation", name_of(theirs.activation), name_of(ours.activation));
  compare("bias of linear layers", theirs.add_bias_linear, ours.add_bias_linear);
  compare("bias of the QKV projection", theirs.has_qkv_bias(), ours.has_qkv_bias());
  compare("--untie-embeddings-and-output-weights", theirs.untie_embeddings_and_output_weights,
          ours.untie_embeddings_and_output_weights);
  compare("--position-embedding-type", name_of(theirs.position_embedding_type),
          name_of(ours.position_embedding_type));
  if (theirs.position_embedding_type != ours.position_embedding_type) return found;
  if (theirs.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    compare("--max-position-embeddings", theirs.max_position_embeddings,
            ours.max_position_embeddings);
  }
  if (theirs.position_embedding_type == PositionEmbedding::kRope) {
    compare("--rotary-base", theirs.rotary_base, ours.rotary_base);
    compare("--rotary-percent", theirs.rotary_percent, ours.rotary_percent);
    compare("--rotary-interleaved", theirs.rotary_interleaved, ours.rotary_interleaved);
    compare("--rotary-seq-len-interpolation-factor", theirs.rotary_seq_len_interpolation_factor,
            ours.rotary_seq_len_interpolation_factor);
    compare("--use-rope-scaling", theirs.use_rope_scaling, ours.use_rope_scaling);
  }
  return found;
}

// The flags that choose an activation.
ActivationFlags activation_flags(Activation activation) {
  ActivationFlags flags;
  switch (activation) {
    case Activation::kGeluTanh:
      flags.openai_gelu = true;
      break;
    case Activation::kGeluErf:
      flags.bias_gelu_fusion = false;
      break;
    case Activation::kGeluOnnx:
      flags.onnx_safe = true;
      break;
    case Activation::kSquaredRelu:
      flags.squared_relu = true;
      break;
    case Activation::kSwiglu:
      flags.swiglu = true;
      break;
    case Activation::kGeglu:
      flags.glu_activation = GluActivation::kGeglu;
      break;
    case Activation::kLiglu:
      flags.glu_activation = GluActivation::kLiglu;
      break;
    case Activation::kReglu:
      flags.glu_activation = GluActivation::kReglu;
      break;
    case Activation::kRelu:
      throw Unsupported("the activation relu has no training flag");
  }
  return flags;
}

// The target's part of a whole tensor.
void fill(const CheckpointTensor& target, const Tensor& whole) {
  const Region all = {std::vector<int64_t>(static_cast<size_t>(whole.rank()), 0), whole.shape()};
  Tensor part(target.data.shape(), whole.dtype(), Stream{});
  copy_shared(static_cast<std::byte*>(part.view().data), {target.offset, part.shape()},
              static_cast<const std::byte*>(whole.view().data), all, size_of(whole.dtype()));
  Tensor data = target.data;
  copy_into(data, part.to(data.stream()));
}

void load_hf(const GptModel& model, const LoadSource& source) {
  const HfModel& hf = *source.hf;
  const std::vector<std::string> problems = contradictions(hf.transformer, model.config());
  if (!problems.empty()) throw ConfigError(problems);
  // This rank's part of each tensor, wherever the tensor comes by.
  std::map<std::string, std::vector<CheckpointTensor>> wanted;
  for (CheckpointTensor& target : model_tensors(model, {}, Parts::kToLoad)) {
    wanted[target.name].push_back(std::move(target));
  }
  load_hf_weights(source.hf_directory, hf, gpt_parameters(model.config()),
                  [&](const std::string& name, const Tensor& elements) {
                    for (const CheckpointTensor& target : wanted[name]) fill(target, elements);
                  });
}

// Saves in another system's format, for the ranks of this run.
void save_foreign(const TrainingArgs& args, const CheckpointState& state,
                  const comm::Group& world) {
  const CheckpointConfig& config = args.checkpoint;
  const int64_t chunks = args.parallel.virtual_pipeline_model_parallel_size;
  const MegatronLayout layout = {
      .naming = config.save_format == SaveFormat::kMegatronCore ? MegatronNaming::kCore
                                                                : MegatronNaming::kLegacy,
      .tensor_model_parallel_size = args.parallel.tensor_model_parallel_size,
      .pipeline_model_parallel_size = args.parallel.pipeline_model_parallel_size,
      .virtual_pipeline_model_parallel_size = std::max<int64_t>(chunks, 1),
      .use_distributed_optimizer = args.parallel.use_distributed_optimizer,
      .data_parallel_size = args.parallel.data_parallel_size};
  if (world.size() == 1) {
    return save_contents(config.save, contents_of(state), config.save_format, layout,
                         args.transformer);
  }
  // No rank has all of it: they meet in a checkpoint of our own, which rank 0 converts.
  const std::filesystem::path staging = std::filesystem::path(config.save) / ".staging";
  save_checkpoint(staging, state, {}, world);
  if (world.rank() == 0) {
    CheckpointContents contents =
        open_checkpoint(staging / iteration_directory_name(state.iteration));
    join_pieces(contents);
    save_contents(config.save, contents, config.save_format, layout, args.transformer);
    std::filesystem::remove_all(staging);
  }
  comm::barrier(world);
}

SaveOptions save_options(const CheckpointConfig& config) {
  return {.keep_last = config.keep_last, .retain_interval = config.save_retain_interval};
}

}  // namespace

LoadSource find_load_source(const std::filesystem::path& load, int64_t ckpt_step, bool must_exist,
                            LoadFormat load_format) {
  LoadSource source;
  if (load.empty()) return source;
  const std::optional<std::filesystem::path> found = find_checkpoint(load, ckpt_step);
  if (!found) {
    if (!must_exist) return source;
    throw ConfigError(fmt::format(
        "--load {}: there is no checkpoint (no {}) and no Hugging Face model (no config.json); "
        "check the directory",
        load.string(), kTrackerFile));
  }
  source.format = *format_of(*found);
  if (load_format != LoadFormat::kAuto && name_of(load_format) != name_of(source.format)) {
    throw ConfigError(fmt::format("--load-format {}: {} is of the format {}; use it, or auto",
                                  name_of(load_format), found->string(), name_of(source.format)));
  }
  if (source.format == CheckpointFormat::kHuggingFace) {
    source.hf = read_hf_config(*found);
    source.hf_directory = *found;
  } else {
    source.checkpoint = found;
  }
  return source;
}

CheckpointContents open_source(const LoadSource& source, const ArgMap& fallback) {
  invariant(source.checkpoint.has_value(), "contents are those of a checkpoint");
  switch (source.format) {
    case CheckpointFormat::kMegatron:
      return open_megatron_checkpoint(*source.checkpoint, fallback);
    case CheckpointFormat::kDeepSpeed:
      return open_deepspeed_checkpoint(*source.checkpoint);
    default:
      return open_checkpoint(*source.checkpoint);
  }
}

void take_architecture(TrainingArgs& args, const LoadSource& source) {
  if (source.checkpoint) use_checkpoint_args(args, open_source(source).args);
  if (!source.hf) return;
  // Everything config.json decides; what it does not know (dropout, precision, recompute) stays.
  const TransformerConfig given = args.transformer;
  TransformerConfig& config = args.transformer;
  config = source.hf->transformer;
  if (given.seq_length > 0) config.seq_length = given.seq_length;
  // What the command line names stays too; if it contradicts the model, loading says so.
  const auto keep = [&](const char* dest, int64_t TransformerConfig::*field) {
    if (args.given.contains(dest)) config.*field = given.*field;
  };
  keep("num_layers", &TransformerConfig::num_layers);
  keep("hidden_size", &TransformerConfig::hidden_size);
  keep("ffn_hidden_size", &TransformerConfig::ffn_hidden_size);
  keep("num_attention_heads", &TransformerConfig::num_attention_heads);
  keep("kv_channels", &TransformerConfig::kv_channels);
  keep("max_position_embeddings", &TransformerConfig::max_position_embeddings);
  config.padded_vocab_size = 0;
  config.make_vocab_size_divisible_by = given.make_vocab_size_divisible_by;
  config.params_dtype = given.params_dtype;
  config.attention_dropout = given.attention_dropout;
  config.hidden_dropout = given.hidden_dropout;
  config.label_smoothing = given.label_smoothing;
  config.fp32_residual_connection = given.fp32_residual_connection;
  config.recompute_granularity = given.recompute_granularity;
  config.recompute_method = given.recompute_method;
  config.recompute_num_layers = given.recompute_num_layers;
  args.activation = activation_flags(config.activation);
}

std::unique_ptr<AsyncSaver> make_async_saver(const CheckpointConfig& config,
                                             const comm::Group& world) {
  if (!config.async_save || config.save.empty() || config.save_format != SaveFormat::kNative) {
    return nullptr;
  }
  return std::make_unique<AsyncSaver>(config.save, save_options(config), world);
}

void save_run(GptSetup& setup, const Tokenizer& tokenizer, AsyncSaver* saver) {
  const TrainingArgs& args = setup.args();
  const Progress& progress = setup.progress();
  CheckpointState state = state_of(setup, !args.checkpoint.no_save_optim, Parts::kToSave);
  state.iteration = progress.iteration;
  state.consumed_train_samples = progress.consumed_train_samples;
  state.consumed_valid_samples = progress.consumed_valid_samples;
  state.args = arg_map(args);
  state.scalars[kProgress] = {{"floating_point_operations", progress.floating_point_operations}};
  if (!args.checkpoint.no_save_optim) {
    const OptimizerScalars scalars = setup.optimizer().scalars();
    state.scalars[kScheduler] = scheduler_map(setup.scheduler().state());
    state.scalars[kOptimizer] = {{"group_steps", scalars.group_steps}};
    if (scalars.loss_scaler) {
      state.scalars[kScaler] = {{"scale", scalars.loss_scaler->scale},
                                {"growth_tracker", scalars.loss_scaler->growth_tracker},
                                {"hysteresis_tracker", scalars.loss_scaler->hysteresis_tracker}};
    }
  }
  if (!args.checkpoint.no_save_rng) {
    state.scalars[kRandom] = {{"seed", static_cast<int64_t>(setup.random().seed())}};
  }
  state.scalars[kTokenizer] = {{"type", std::string(tokenizer.type())},
                               {"vocab_size", tokenizer.vocab_size()}};
  if (args.checkpoint.save_format != SaveFormat::kNative) {
    return save_foreign(args, state, setup.parallel().world);
  }
  if (saver != nullptr) return saver->save(state);
  save_checkpoint(args.checkpoint.save, state, save_options(args.checkpoint),
                  setup.parallel().world);
}

void load_run(GptSetup& setup, const LoadSource& source) {
  const TrainingArgs& args = setup.args();
  const CheckpointConfig& config = args.checkpoint;
  if (source.hf) {
    print_line(fmt::format(" loading Hugging Face model from {}", config.load));
    for (const std::unique_ptr<GptModel>& chunk : setup.chunks()) load_hf(*chunk, source);
    setup.optimizer().reload_main_params();
    return;
  }
  if (!source.checkpoint) {
    if (!config.load.empty()) {
      print_line(fmt::format("WARNING: could not find the metadata file {}/{} ", config.load,
                             kTrackerFile));
      print_line("    will not load any checkpoints and will start from random");
    }
    return;
  }
  print_line(fmt::format(" loading checkpoint from {}", source.checkpoint->string()));
  CheckpointContents contents = open_source(source, arg_map(args));
  const bool with_optimizer = !config.finetune && !config.no_load_optim && contents.has_optimizer();
  if (!config.finetune) {
    const std::vector<std::string> problems =
        megatron::contradictions(contents.args, arg_map(args));
    if (!problems.empty()) throw ConfigError(problems);
    if (!contents.has_optimizer() && !config.no_load_optim) {
      throw ConfigError(fmt::format(
          "{} has no optimizer state (it was saved with --no-save-optim); use --no-load-optim to "
          "go on without, or --finetune to begin at iteration 0",
          source.checkpoint->string()));
    }
  }
  CheckpointState state = state_of(setup, with_optimizer, Parts::kToLoad);
  load_checkpoint(contents, state,
                  {.optimizer = with_optimizer, .is_part = setup.parallel().world.size() > 1});
  if (config.finetune) {
    setup.optimizer().reload_main_params();
    return;
  }
  Progress& progress = setup.progress();
  progress.iteration = state.iteration;
  progress.consumed_train_samples = state.consumed_train_samples;
  progress.consumed_valid_samples = state.consumed_valid_samples;
  progress.floating_point_operations =
      value_of<double>(state.scalars, kProgress, "floating_point_operations");
  if (with_optimizer) {
    load_optimizer_scalars(setup.optimizer(), state.scalars, state.iteration);
    setup.scheduler().load(scheduler_state(state.scalars), scheduler_load_of(args.optimizer));
  } else {
    setup.optimizer().reload_main_params();
  }
  if (!config.no_load_rng && state.scalars.contains(kRandom)) {
    const auto seed = static_cast<uint64_t>(value_of<int64_t>(state.scalars, kRandom, "seed"));
    setup.random() = RandomState(seed);
  }
  setup.microbatches().update(progress.consumed_train_samples, false);
  print_line(fmt::format("  successfully loaded checkpoint from {} at iteration {}", config.load,
                         progress.iteration));
}

void load_weights(const GptModel& model, const LoadSource& source) {
  if (source.hf) return load_hf(model, source);
  CheckpointState state;
  state.model = model_tensors(model, {}, Parts::kToLoad);
  CheckpointContents contents = open_source(source);
  if (model.tensor_parallel().size() > 1) {  // rows that only make it divide are not stored
    resize_vocabulary(contents, model.config().padded_vocab_size);
  }
  const bool is_part = !(model.chunk() == whole_model(model.config().num_layers));
  load_checkpoint(contents, state, {.optimizer = false, .is_part = is_part});
}

}  // namespace megatron::cli
