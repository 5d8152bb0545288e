#include "megatron/transformer/retro_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/transformer/config.h"

namespace megatron {

bool RetroConfig::has_layer(int64_t layer) const {
  return add_retriever && std::ranges::find(layer_numbers, layer + 1) != layer_numbers.end();
}

bool RetroConfig::is_first_layer(int64_t layer) const {
  return has_layer(layer) && layer + 1 == std::ranges::min(layer_numbers);
}

RetroConfig resolved(RetroConfig config, int64_t num_layers) {
  if (!config.add_retriever || !config.layer_numbers.empty()) return config;
  constexpr int64_t kMostOfSmall = 15;
  for (int64_t n = num_layers <= kMostOfSmall ? 6 : 9; n <= num_layers; n += 3) {
    config.layer_numbers.push_back(n);
  }
  return config;
}

std::vector<std::string> retro_problems(const TransformerConfig& c) {
  std::vector<std::string> found;
  const RetroConfig& retro = c.retro;
  if (!retro.add_retriever) return found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(c.is_decoder_only(),
          fmt::format("--retro-add-retriever is for a GPT, and this is a {}; remove it",
                      name_of(c.kind)));
  require(!retro.layer_numbers.empty(),
          fmt::format("--retro-add-retriever: none of {} layers would attend to neighbours, which "
                      "begins at layer 6; name layers with --retro-layer-numbers",
                      c.num_layers));
  for (const int64_t number : retro.layer_numbers) {
    require(number >= 1 && number <= c.num_layers,
            fmt::format("--retro-layer-numbers {} must be between 1 and --num-layers {}", number,
                        c.num_layers));
  }
  const auto positive = [&](int64_t value, const char* flag) {
    require(value > 0, fmt::format("{} {} must be greater than 0", flag, value));
  };
  positive(retro.chunk_length, "--retro-gpt-chunk-length");
  positive(retro.num_neighbors, "--retro-num-neighbors");
  positive(retro.num_retrieved_chunks, "--retro-num-retrieved-chunks");
  positive(retro.encoder_layers, "--retro-encoder-layers");
  const auto probability = [&](double value, const char* flag) {
    require(value >= 0 && value < 1, fmt::format("{} {} must be in [0, 1)", flag, value));
  };
  probability(retro.encoder_hidden_dropout, "--retro-encoder-hidden-dropout");
  probability(retro.encoder_attention_dropout, "--retro-encoder-attention-dropout");
  const bool has_table = c.position_embedding_type == PositionEmbedding::kLearnedAbsolute;
  require(
      !has_table || retro.neighbor_length() <= c.max_position_embeddings,
      fmt::format("--retro-num-retrieved-chunks {} makes neighbours of {} tokens, which must "
                  "not exceed --max-position-embeddings {}; raise the latter",
                  retro.num_retrieved_chunks, retro.neighbor_length(), c.max_position_embeddings));
  const auto exclude = [&](bool is_on, const char* flag) {
    require(!is_on,
            fmt::format("--retro-add-retriever does not go with {}; remove one of them", flag));
  };
  exclude(c.recompute_granularity == RecomputeGranularity::kFull, "--recompute-granularity full");
  exclude(c.group_query_attention, "--group-query-attention");
  exclude(c.parallel_residual, "--parallel-residual");
  exclude(c.position_embedding_type == PositionEmbedding::kAlibi,
          "--position-embedding-type alibi");
  exclude(c.position_embedding_type == PositionEmbedding::kRelative,
          "--position-embedding-type relative");
  exclude(c.fp8.is_on(), "--fp8-format");
  exclude(c.lora_rank > 0, "--lora-rank");
  require(retro.attention_gate != 0 || !c.apply_residual_connection_post_layernorm,
          "--retro-attention-gate 0 leaves out the norm that "
          "--apply-residual-connection-post-layernorm reads; remove one of them");
  return found;
}

bool is_retro_parameter(const std::string& name) {
  return name.starts_with("decoder.") && (name.find(".cross_attention.") != std::string::npos ||
                                          name.find(".pre_cross_attn_") != std::string::npos);
}

}  // namespace megatron
