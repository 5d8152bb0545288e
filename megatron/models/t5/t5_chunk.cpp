#include "megatron/models/t5/t5_chunk.h"

#include <fmt/format.h>

namespace megatron {
namespace {

// The part of `place` of `places` that share a stack evenly.
StackSlice slice_of(int64_t num_layers, int64_t place, int64_t places) {
  const int64_t each = num_layers / places;
  return {.first_layer = place * each, .num_layers = each, .has_end = place + 1 == places};
}

}  // namespace

T5Chunk whole_t5(const TransformerConfig& config) {
  return {.encoder = slice_of(config.num_layers, 0, 1),
          .decoder = slice_of(config.decoder_num_layers, 0, 1)};
}

T5Chunk t5_chunk(const ParallelConfig& parallel, const TransformerConfig& config, int64_t stage) {
  const int64_t stages = parallel.pipeline_model_parallel_size;
  const int64_t split = parallel.pipeline_model_parallel_split_rank;
  if (stages == 1) return whole_t5(config);
  T5Chunk chunk{.embeds_encoder = stage == 0,
                .embeds_decoder = stage == split,
                .has_head = stage + 1 == stages};
  if (stage < split) {
    chunk.encoder = slice_of(config.num_layers, stage, split);
  } else {
    chunk.decoder = slice_of(config.decoder_num_layers, stage - split, stages - split);
  }
  return chunk;
}

std::vector<std::string> t5_pipeline_problems(const ParallelConfig& parallel,
                                              const TransformerConfig& config) {
  const int64_t stages = parallel.pipeline_model_parallel_size;
  const int64_t split = parallel.pipeline_model_parallel_split_rank;
  if (stages == 1) return {};
  std::vector<std::string> problems;
  if (parallel.num_layers_per_virtual_pipeline_stage > 0 ||
      parallel.num_virtual_stages_per_pipeline_rank > 1) {
    problems.emplace_back(
        "an interleaved pipeline is not available for T5; remove "
        "--num-layers-per-virtual-pipeline-stage or --num-virtual-stages-per-pipeline-rank");
  }
  if (parallel.decoder_first_pipeline_num_layers > 0 ||
      parallel.decoder_last_pipeline_num_layers > 0 || parallel.standalone_embedding_stage ||
      parallel.account_for_embedding_in_pipeline_split ||
      parallel.account_for_loss_in_pipeline_split ||
      !parallel.pipeline_model_parallel_layout.empty()) {
    problems.emplace_back(
        "the stages of a T5 share its layers evenly; remove --pipeline-model-parallel-layout, "
        "--standalone-embedding-stage, "
        "--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers and "
        "--account-for-...-in-pipeline-split");
  }
  if (split < 1 || split >= stages) {
    problems.push_back(
        fmt::format("--pipeline-model-parallel-split-rank {} must be at least 1 and below "
                    "--pipeline-model-parallel-size {}: it is the first stage of T5's decoder",
                    split, stages));
    return problems;
  }
  const auto expect_even = [&](const char* flag, int64_t layers, int64_t places) {
    if (layers % places == 0) return;
    problems.push_back(
        fmt::format("{} {} must be a multiple of the {} pipeline stages that share them; use {}, "
                    "or another --pipeline-model-parallel-split-rank",
                    flag, layers, places, (layers + places - 1) / places * places));
  };
  expect_even("--encoder-num-layers", config.num_layers, split);
  expect_even("--decoder-num-layers", config.decoder_num_layers, stages - split);
  return problems;
}

}  // namespace megatron
