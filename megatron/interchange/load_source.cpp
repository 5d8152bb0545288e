#include "megatron/interchange/load_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "megatron/checkpoint/chunks.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/interchange/deepspeed/reader.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/save_contents.h"
#include "megatron/models/gpt/gpt_parameters.h"

namespace megatron {
namespace {

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

// The target's part of a whole tensor.
void fill(const CheckpointTensor& target, const Tensor& whole) {
  const Region all = {std::vector<int64_t>(static_cast<size_t>(whole.rank()), 0), whole.shape()};
  Tensor part(target.data.shape(), whole.dtype(), Stream{});
  copy_shared(static_cast<std::byte*>(part.view().data), {target.offset, part.shape()},
              static_cast<const std::byte*>(whole.view().data), all, size_of(whole.dtype()));
  Tensor data = target.data;
  copy_into(data, part.to(data.stream()));
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

void load_hf(const Module& model, const TransformerConfig& config, const LoadSource& source) {
  const HfModel& hf = *source.hf;
  const std::vector<std::string> problems = contradictions(hf.transformer, config);
  if (!problems.empty()) throw ConfigError(problems);
  // This rank's part of each tensor, wherever the tensor comes by.
  std::map<std::string, std::vector<CheckpointTensor>> wanted;
  for (CheckpointTensor& target : chunks_of(model)) {
    wanted[target.name].push_back(std::move(target));
  }
  load_hf_weights(source.hf_directory, hf, gpt_parameters(config),
                  [&](const std::string& name, const Tensor& elements) {
                    for (const CheckpointTensor& target : wanted[name]) fill(target, elements);
                  });
}

void save_foreign(const RunConfig& run, const CheckpointState& state, const comm::Group& world) {
  const CheckpointConfig& config = run.checkpoint;
  const int64_t chunks = run.parallel.virtual_pipeline_model_parallel_size;
  const MegatronLayout layout = {
      .naming = config.save_format == SaveFormat::kMegatronCore ? MegatronNaming::kCore
                                                                : MegatronNaming::kLegacy,
      .tensor_model_parallel_size = run.parallel.tensor_model_parallel_size,
      .pipeline_model_parallel_size = run.parallel.pipeline_model_parallel_size,
      .virtual_pipeline_model_parallel_size = std::max<int64_t>(chunks, 1),
      .use_distributed_optimizer = run.parallel.use_distributed_optimizer,
      .data_parallel_size = run.parallel.data_parallel_size};
  if (world.size() == 1) {
    return save_contents(config.save, contents_of(state), config.save_format, layout,
                         run.transformer);
  }
  // No rank has all of it: they meet in a checkpoint of our own, which rank 0 converts.
  const std::filesystem::path staging = std::filesystem::path(config.save) / ".staging";
  save_checkpoint(staging, state, {}, world);
  if (world.rank() == 0) {
    CheckpointContents contents =
        open_checkpoint(staging / iteration_directory_name(state.iteration));
    join_pieces(contents);
    save_contents(config.save, contents, config.save_format, layout, run.transformer);
    std::filesystem::remove_all(staging);
  }
  comm::barrier(world);
}

void load_weights(const GptModel& model, const LoadSource& source) {
  if (source.hf) return load_hf(model, model.config(), source);
  CheckpointState state;
  state.model = chunks_of(model);
  CheckpointContents contents = open_source(source);
  if (model.tensor_parallel().size() > 1) {  // rows that only make it divide are not stored
    resize_vocabulary(contents, model.config().padded_vocab_size);
  }
  const bool is_part = !(model.chunk() == whole_model(model.config().num_layers));
  load_checkpoint(contents, state, {.optimizer = false, .is_part = is_part});
}

}  // namespace megatron
