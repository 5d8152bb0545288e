#include "megatron/interchange/megatron/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/writer.h"
#include "megatron/interchange/model_kind.h"

namespace megatron {
namespace {

constexpr std::string_view kEncoderPart = "encoder";
constexpr std::string_view kDecoderPart = "decoder";

// The ranks of a T5's encoder: near its share of all layers. None if no number divides both stacks
// evenly.
std::optional<int64_t> encoder_ranks(int64_t encoder_layers, int64_t decoder_layers,
                                     int64_t ranks) {
  std::optional<int64_t> best;
  const auto distance = [&](int64_t n) {
    return std::abs(n * (encoder_layers + decoder_layers) - ranks * encoder_layers);
  };
  for (int64_t n = 1; n < ranks; ++n) {
    if (encoder_layers % n != 0 || decoder_layers % (ranks - n) != 0) continue;
    if (!best || distance(n) < distance(*best)) best = n;
  }
  return best;
}

void add_t5_problems(const CheckpointContents& contents, const MegatronLayout& layout,
                     std::vector<std::string>& found) {
  const int64_t ranks = layout.pipeline_model_parallel_size;
  const int64_t encoder_layers = layers_in(contents, kEncoderPart);
  const int64_t decoder_layers = layers_in(contents, kDecoderPart);
  if (ranks > 1 && is_core(layout.naming)) {
    found.push_back(
        fmt::format("Megatron Core's T5 has one pipeline stage, not {}; give "
                    "--target-pipeline-parallel-size 1, or --saver megatron",
                    ranks));
  } else if (ranks > 1 && !encoder_ranks(encoder_layers, decoder_layers, ranks)) {
    found.push_back(
        fmt::format("{} layers of the encoder and {} of the decoder cannot be divided evenly among "
                    "{} pipeline stages; give another --target-pipeline-parallel-size",
                    encoder_layers, decoder_layers, ranks));
  }
  if (layout.virtual_pipeline_model_parallel_size > 1) {
    found.emplace_back(
        "a T5 has no virtual pipeline stages; leave --target-virtual-pipeline-size out");
  }
}

}  // namespace

// Layers [first, end) of a stack.
struct MegatronStages::Layers {
  int64_t first = 0;
  int64_t end = 0;
};

int64_t layers_in(const CheckpointContents& contents, std::string_view stack) {
  int64_t layers = 0;
  for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    if (is_of_mtp(name) || (!stack.empty() && stack_of(name) != stack)) continue;
    std::optional<int64_t> layer;
    without_layer(name, layer);
    if (layer) layers = std::max(layers, *layer + 1);
  }
  return layers;
}

std::vector<std::string> stage_problems(const CheckpointContents& contents,
                                        const MegatronLayout& layout) {
  std::vector<std::string> found;
  const int64_t stages =
      layout.pipeline_model_parallel_size * layout.virtual_pipeline_model_parallel_size;
  if (is_encoder_decoder(kind_of(contents))) {
    add_t5_problems(contents, layout, found);
  } else if (const int64_t layers = layers_in(contents); layers % stages != 0) {
    found.push_back(
        fmt::format("{} layers cannot be divided among {} pipeline stages; choose a divisor of {}",
                    layers, stages, layers));
  }
  if (layout.virtual_pipeline_model_parallel_size > 1 && layout.pipeline_model_parallel_size < 2) {
    found.emplace_back("virtual pipeline stages need a pipeline size of 2 or more");
  }
  return found;
}

MegatronStages::MegatronStages(const CheckpointContents& contents, const MegatronLayout& layout)
    : ranks_(layout.pipeline_model_parallel_size),
      chunks_(layout.virtual_pipeline_model_parallel_size),
      encoder_layers_(layers_in(contents, kEncoderPart)),
      decoder_layers_(layers_in(contents, kDecoderPart)) {
  if (is_encoder_decoder(kind_of(contents)) && ranks_ > 1) {
    split_rank_ = encoder_ranks(encoder_layers_, decoder_layers_, ranks_).value();
  }
}

bool MegatronStages::is_last(Place place) const {
  return place.pipeline + 1 == ranks_ && place.chunk + 1 == chunks_;
}

bool MegatronStages::has_embeddings(Place place) const {
  const bool is_first = place.pipeline == 0 && place.chunk == 0;
  return is_first || (split_rank_ > 0 && place.pipeline == split_rank_);
}

MegatronStages::Layers MegatronStages::layers_of(std::string_view stack, Place place) const {
  const int64_t stage = place.chunk * ranks_ + place.pipeline;
  const bool is_divided = split_rank_ > 0;
  const int64_t first_stage = is_divided && stack == kDecoderPart ? split_rank_ : 0;
  const int64_t end_stage = is_divided && stack == kEncoderPart ? split_rank_ : ranks_ * chunks_;
  if (stage < first_stage || stage >= end_stage) return {};
  const int64_t layers = stack == kEncoderPart ? encoder_layers_ : decoder_layers_;
  const int64_t own = layers / (end_stage - first_stage);
  return {(stage - first_stage) * own, (stage - first_stage + 1) * own};
}

bool MegatronStages::holds(Place place, std::string_view name) const {
  if (name.starts_with("embedding.")) return has_embeddings(place);
  if (is_of_mtp(name)) return is_last(place);
  std::optional<int64_t> layer;
  without_layer(name, layer);
  const std::string_view stack = stack_of(name);
  if (layer) {
    const Layers here = layers_of(stack, place);
    return *layer >= here.first && *layer < here.end;
  }
  if (split_rank_ > 0 && stack == kEncoderPart) return place.pipeline + 1 == split_rank_;
  return is_last(place);
}

int64_t MegatronStages::local_layer(Place place, std::string_view name, int64_t layer) const {
  return is_of_mtp(name) ? layer : layer - layers_of(stack_of(name), place).first;
}

}  // namespace megatron
