#include "megatron/parallel/pipeline/model_chunk.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/parallel/pipeline/layout_word.h"

namespace megatron {
namespace {

// Layers of each piece of the model, in the order of the layers: piece i belongs to stage i % pp.
// Without pipeline_model_parallel_layout. Empty when they do not divide; then `problem` says why.
std::vector<int64_t> layers_of_pieces(const ParallelConfig& c, int64_t num_layers,
                                      std::string& problem) {
  const int64_t pp = c.pipeline_model_parallel_size;
  if (pp == 1) return {num_layers};
  const int64_t pieces = pp * num_model_chunks(c, num_layers);
  std::vector<int64_t> layers(static_cast<size_t>(pieces), 0);

  int64_t left = num_layers;
  int64_t even = pieces;  // pieces that share what is left
  const auto fix = [&](size_t piece, int64_t count) {
    layers[piece] = count;
    left -= count;
    even -= 1;
  };
  const size_t last = layers.size() - 1;
  const bool is_first_fixed =
      c.decoder_first_pipeline_num_layers > 0 || c.standalone_embedding_stage;
  if (is_first_fixed) fix(0, c.decoder_first_pipeline_num_layers);
  if (c.decoder_last_pipeline_num_layers > 0) fix(last, c.decoder_last_pipeline_num_layers);

  const int64_t extra = (c.account_for_embedding_in_pipeline_split ? 1 : 0) +
                        (c.account_for_loss_in_pipeline_split ? 1 : 0);
  const int64_t shared = left + extra;
  if (left < 0 || even < 0 || (even == 0 && left > 0) || (even > 0 && shared % even != 0)) {
    problem = fmt::format(
        "--num-layers {} do not divide: {} layers{} for {} equal pieces of the pipeline; choose "
        "another number of layers, or give the first or the last stage its own with "
        "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
        num_layers, left, extra > 0 ? fmt::format(" and {} that count as one", extra) : "", even);
    return {};
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool is_fixed =
        (i == 0 && is_first_fixed) || (i == last && c.decoder_last_pipeline_num_layers > 0);
    if (!is_fixed) layers[i] = shared / even;
  }
  if (c.account_for_embedding_in_pipeline_split) layers.front() -= 1;
  if (c.account_for_loss_in_pipeline_split) layers.back() -= 1;
  return layers;
}

// The pieces of the model, in the order of the layers.
std::vector<ModelChunk> pieces_of(const ParallelConfig& c, int64_t num_layers) {
  std::vector<ModelChunk> pieces;
  std::string problem;
  int64_t begun = 0;  // layers
  if (c.pipeline_model_parallel_layout.empty()) {
    for (const int64_t layers : layers_of_pieces(c, num_layers, problem)) {
      pieces.push_back({.first_layer = begun, .num_layers = layers});
      begun += layers;
    }
  } else {
    for (const std::string& stage : stages_of_layout(c.pipeline_model_parallel_layout, problem)) {
      const auto has = [&](char letter) { return stage.find(letter) != std::string::npos; };
      ModelChunk& piece = pieces.emplace_back();
      piece.begins_with_mlp = has('f');
      piece.ends_with_attention = has('a');
      const int64_t begins = std::ranges::count(stage, 't') + (piece.ends_with_attention ? 1 : 0);
      const int64_t goes_on = piece.begins_with_mlp ? 1 : 0;
      piece.first_layer = begun - goes_on;
      piece.num_layers = begins + goes_on;
      begun += begins;
    }
  }
  for (ModelChunk& piece : pieces) {
    piece.has_embedding = &piece == &pieces.front();
    piece.has_head = &piece == &pieces.back();
  }
  return pieces;
}

}  // namespace

ModelChunk whole_model(int64_t num_layers) { return {.num_layers = num_layers}; }

int64_t num_model_chunks(const ParallelConfig& c, int64_t num_layers) {
  if (c.virtual_pipeline_model_parallel_size > 0) return c.virtual_pipeline_model_parallel_size;
  if (!c.pipeline_model_parallel_layout.empty()) {
    std::string problem;
    const size_t stages = stages_of_layout(c.pipeline_model_parallel_layout, problem).size();
    return static_cast<int64_t>(stages) / std::max<int64_t>(c.pipeline_model_parallel_size, 1);
  }
  if (c.num_virtual_stages_per_pipeline_rank > 0) return c.num_virtual_stages_per_pipeline_rank;
  const int64_t piece = c.num_layers_per_virtual_pipeline_stage;
  if (piece <= 0 || c.pipeline_model_parallel_size == 1) return 1;
  return num_layers / c.pipeline_model_parallel_size / piece;
}

PipelineShape pipeline_shape(const ParallelConfig& c, int64_t stage, int64_t chunks,
                             int64_t microbatches) {
  return {.stage = stage,
          .stages = c.pipeline_model_parallel_size,
          .chunks = chunks,
          .microbatches = microbatches,
          .zero_bubble = c.enable_zero_bubble,
          .max_pending = c.zero_bubble_max_pending_backward,
          .overlaps_microbatches = c.overlap_microbatches};
}

std::vector<ModelChunk> model_chunks(const ParallelConfig& config, int64_t num_layers, int stage) {
  const auto pp = static_cast<size_t>(config.pipeline_model_parallel_size);
  const std::vector<ModelChunk> pieces = pieces_of(config, num_layers);
  std::vector<ModelChunk> chunks;
  for (auto piece = static_cast<size_t>(stage); piece < pieces.size(); piece += pp) {
    chunks.push_back(pieces[piece]);
  }
  return chunks;
}

std::vector<std::string> pipeline_problems(const ParallelConfig& c, int64_t num_layers,
                                           int64_t mtp_num_layers) {
  const int64_t pp = c.pipeline_model_parallel_size;
  if (!c.pipeline_model_parallel_layout.empty()) {
    return layout_word_problems(c.pipeline_model_parallel_layout, pp, num_layers, mtp_num_layers);
  }
  const int64_t piece = c.num_layers_per_virtual_pipeline_stage;
  if (piece > 0 && pp > 1 && (num_layers % pp != 0 || num_layers / pp % piece != 0)) {
    return {
        fmt::format("--num-layers {} over {} pipeline stages are not a multiple of "
                    "--num-layers-per-virtual-pipeline-stage {}; choose numbers that divide",
                    num_layers, pp, piece)};
  }
  std::string problem;
  const std::vector<int64_t> layers = layers_of_pieces(c, num_layers, problem);
  if (layers.empty()) return {problem};
  return {};
}

}  // namespace megatron
