#include "megatron/interchange/save_contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "megatron/checkpoint/commit.h"
#include "megatron/checkpoint/fp8_state.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/working.h"
#include "megatron/core/log.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/megatron/dist_writer.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/models/model_specs.h"

namespace megatron {
namespace {

// Experts of the older models of Megatron-LM are those of a Switch Transformer, whatever its flags
// say: a token has the first expert of Sinkhorn's choice, weighed by a sigmoid.
void expect_switch_experts(const TransformerConfig& c) {
  const std::vector<std::string> sinkhorn = {"sinkhorn"};
  if (!c.has_experts() ||
      (c.moe_router_topk == 1 && c.moe_router_load_balancing_type == sinkhorn &&
       c.moe_layer_freq.empty() && c.moe_expert_capacity_factor < 0 &&
       !c.moe_apply_probs_on_input && !(c.add_bias_linear && !c.moe_legacy_router))) {
    return;
  }
  throw Unsupported(
      "--save-format megatron holds experts of one kind alone: --moe-router-topk 1, "
      "--moe-router-load-balancing-type sinkhorn, in every layer, without a capacity, and "
      "--megatron-compat 0.5 or --disable-bias-linear; use megatron-core, torch_dist or native");
}

}  // namespace

void expect_place(SaveFormat format, const TransformerConfig& config) {
  if (format == SaveFormat::kNative) return;
  if (format == SaveFormat::kHuggingFace) {
    static_cast<void>(hf_family_of(config));
    return;
  }
  const MegatronNaming naming = format == SaveFormat::kMegatron       ? MegatronNaming::kLegacy
                                : format == SaveFormat::kMegatronCore ? MegatronNaming::kCore
                                                                      : MegatronNaming::kCoreFused;
  if (format == SaveFormat::kMegatron) expect_switch_experts(config);
  TransformerConfig small = config;
  small.lora_rank = 0;
  if (small.padded_vocab_size == 0) small.padded_vocab_size = 1;
  for (const Parameter& spec : model_specs(small)) {
    if (is_fp8_state(spec.name)) continue;  // left out
    std::optional<int64_t> layer;
    const std::string pattern = without_layer(spec.name, layer);
    megatron_name(config.kind, naming, pattern, layer && config.retro.has_layer(*layer));
  }
}

void save_contents(const std::filesystem::path& directory, const CheckpointContents& saved,
                   SaveFormat format, const MegatronLayout& layout,
                   const TransformerConfig& of_training) {
  if (format == SaveFormat::kNative) return save_checkpoint(directory, saved);
  TransformerConfig config = of_training;
  CheckpointContents contents = saved;
  config.fp8 = {};
  drop_fp8_state(contents);
  if (format == SaveFormat::kMegatron) expect_switch_experts(config);
  if (format == SaveFormat::kTorchDist) {
    pad_vocabulary(contents, vocabulary_of(contents).shape[0]);
    join_pieces(contents);  // the moments of padding rows are zeros, which no piece has
    return save_dist_checkpoint(directory, contents, layout, {});
  }
  const bool is_hf = format == SaveFormat::kHuggingFace;
  const auto write = [&](const std::filesystem::path& unfinished) {
    if (is_hf) {
      write_hf_folder(unfinished, contents, config, {.vocab_size = config.true_vocab_size});
    } else {
      // Other programs count padding rows, which this one does not train.
      CheckpointContents padded = contents;
      pad_vocabulary(padded, vocabulary_of(padded).shape[0]);
      write_megatron_files(unfinished, padded, layout);
    }
  };
  // Compat: Megatron-LM calls what was not trained a release.
  const bool is_release = contents.iteration == 0 && !is_hf;
  commit_checkpoint(directory,
                    is_release ? kReleaseName : iteration_directory_name(contents.iteration),
                    is_hf ? CheckpointFormat::kHuggingFace : CheckpointFormat::kMegatron,
                    is_release ? kReleaseName : std::to_string(contents.iteration), write);
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
  const bool has_padding = true_vocab_size(state.args) > 0;  // which no rank can make alone
  if (config.save_format == SaveFormat::kTorchDist && world.size() > 1 && !has_padding) {
    CheckpointContents contents = contents_of(state);
    drop_fp8_state(contents);
    return save_dist_checkpoint(config.save, contents, layout, world);
  }
  if (world.size() == 1) {
    return save_contents(config.save, contents_of(state), config.save_format, layout,
                         run.transformer);
  }
  // No rank has all of it: they meet in a checkpoint of our own, which rank 0 converts.
  const std::filesystem::path staging = std::filesystem::path(config.save) / kStagingName;
  save_checkpoint(staging, state, {}, world);
  if (world.rank() == 0) {
    const comm::Working working(
        world, fmt::format("converting the checkpoint of iteration {}", state.iteration));
    CheckpointContents contents =
        open_checkpoint(staging / iteration_directory_name(state.iteration));
    join_pieces(contents);
    save_contents(config.save, contents, config.save_format, layout, run.transformer);
    std::error_code error;
    std::filesystem::remove_all(staging, error);
    if (error) {
      warn(fmt::format("{}: cannot be deleted: {}; the next run there tries again",
                       staging.string(), error.message()));
    }
  }
  comm::barrier(world);
}

}  // namespace megatron
