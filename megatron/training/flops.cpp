#include "megatron/training/flops.h"

#include <algorithm>
#include <vector>

namespace megatron {

namespace {

// The widths of the MLPs that a token goes through, on average over the layers.
struct FfnWidths {
  double dense = 0;
  double routed = 0;         // of the chosen experts
  double shared = 0;         // of the experts of all tokens
  double expert_layers = 0;  // a fraction

  explicit FfnWidths(const TransformerConfig& config) {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      expert_layers += config.has_experts(layer) ? 1 : 0;
    }
    if (config.has_experts()) expert_layers /= static_cast<double>(config.num_layers);
    dense = (1 - expert_layers) * static_cast<double>(config.ffn_hidden_size);
    routed =
        expert_layers * static_cast<double>(config.moe_router_topk * config.moe_ffn_hidden_size);
    shared = expert_layers * static_cast<double>(config.moe_shared_expert_intermediate_size);
  }
  double all() const { return dense + routed + shared; }
};

double mlp_matrices(const TransformerConfig& config) { return config.is_gated() ? 3.0 : 2.0; }

}  // namespace

double mlp_products(const TransformerConfig& config) {
  return static_cast<double>(config.hidden_size) * FfnWidths(config).all() * mlp_matrices(config);
}

double attention_products(const TransformerConfig& config) {
  const auto h = static_cast<double>(config.hidden_size);
  const auto n = static_cast<double>(config.num_attention_heads);
  if (config.multi_latent_attention) {
    const auto of_keys = static_cast<double>(config.qk_head_dim);
    const auto rotated = static_cast<double>(config.qk_pos_emb_head_dim);
    const auto of_values = static_cast<double>(config.v_head_dim);
    const auto latent = static_cast<double>(config.kv_lora_rank);
    const auto q_latent = static_cast<double>(config.q_lora_rank);
    const double q = n * (of_keys + rotated);
    return (q_latent > 0 ? q_latent * (h + q) : h * q) + h * (latent + rotated) +
           latent * n * (of_keys + of_values) + n * of_values * h;
  }
  const double q = n * static_cast<double>(config.kv_channels);
  const auto k = static_cast<double>(config.num_query_groups * config.kv_channels);
  const double gate = config.attention_output_gate ? q : 0.0;
  return h * (q + gate + 2.0 * k) + q * h;
}

RecomputedWork recomputed_work(const TransformerConfig& config) {
  const auto h = static_cast<double>(config.hidden_size);
  const FfnWidths widths(config);
  const bool repeats_experts = config.recomputes("moe");
  const bool repeats_shared = repeats_experts || config.recomputes("shared_experts");
  RecomputedWork work;
  double width = 0;
  if (config.recomputes("mlp")) {
    width += widths.dense;
    work.mlp_passes += 1 - widths.expert_layers;
  }
  if (repeats_experts) {
    width += widths.routed;
    work.mlp_passes += widths.expert_layers;
  }
  if (repeats_shared) width += widths.shared;
  work.products = h * width * mlp_matrices(config);
  if (config.recomputes("mla_up_proj")) {
    const auto n = static_cast<double>(config.num_attention_heads);
    const double query = config.q_lora_rank > 0 ? static_cast<double>(config.q_lora_rank) : h;
    work.products +=
        n * (query * static_cast<double>(config.qk_head_dim + config.qk_pos_emb_head_dim) +
             static_cast<double>(config.kv_lora_rank * (config.qk_head_dim + config.v_head_dim)));
  }
  const bool drops_norms = config.norm_placement != NormPlacement::kAfter &&
                           !config.apply_residual_connection_post_layernorm;
  if (config.recomputes("layernorm") && drops_norms) work.normed = 4 * h;  // two norms
  if (config.recomputes("activation") && !(config.fp8.is_on() && config.fp8.wgrad)) {
    const double elements =
        (config.recomputes("mlp") ? 0 : widths.dense) + (repeats_shared ? 0 : widths.shared);
    work.activated = elements * mlp_matrices(config);  // one or two read, one written
  }
  return work;
}

double attention_layers(const TransformerConfig& config) {
  const auto layers = static_cast<double>(config.num_layers + config.mtp_num_layers);
  if (config.attention_window == 0 || config.attention_window >= config.seq_length) return layers;
  const double window =
      static_cast<double>(config.attention_window) / static_cast<double>(config.seq_length);
  const std::vector<int>& windows = config.window_layers;
  auto full = static_cast<double>(std::count(windows.begin(), windows.end(), 0));
  // Depths of multi-token prediction are like the last layer.
  if (!windows.empty() && windows.back() == 0) full += static_cast<double>(config.mtp_num_layers);
  return full + (layers - full) * window * (2.0 - window);
}

double standard_flops(const TransformerConfig& config, int64_t batch_size) {
  // Compat: as Megatron Core since it has them.
  if (config.has_experts() || config.multi_latent_attention || config.mtp_num_layers > 0) {
    return causal_flops(config, batch_size);
  }
  const auto h = static_cast<double>(config.hidden_size);
  const auto s = static_cast<double>(config.seq_length);
  const auto n = static_cast<double>(config.num_attention_heads);
  const auto g = static_cast<double>(config.num_query_groups);
  const auto v = static_cast<double>(config.padded_vocab_size);
  const auto layers = static_cast<double>(config.num_layers);
  return neighbor_flops(config, batch_size) +
         60.0 * static_cast<double>(batch_size) * s * layers * h * h *
             (1.0 + g / (5.0 * n) + s / (5.0 * h) + v / (10.0 * layers * h));
}

double causal_flops(const TransformerConfig& config, int64_t batch_size) {
  if (config.is_encoder_decoder()) return encoder_decoder_flops(config, batch_size);
  const auto h = static_cast<double>(config.hidden_size);
  const auto s = static_cast<double>(config.seq_length);
  const auto v = static_cast<double>(config.padded_vocab_size);
  const auto layers = static_cast<double>(config.num_layers);
  const auto heads = static_cast<double>(config.num_attention_heads);
  // Channels of the two products of a query and a key: of keys and of values.
  const double channels =
      config.multi_latent_attention
          ? static_cast<double>(config.qk_head_dim + config.qk_pos_emb_head_dim +
                                config.v_head_dim) /
                2.0
          : static_cast<double>(config.kv_channels);
  const auto depths = static_cast<double>(config.mtp_num_layers);
  const double tokens = static_cast<double>(batch_size) * s;
  const bool is_bert = config.is_encoder_only();
  const double head = h * v + (is_bert ? h * h : 0.0);
  const double matrices = (layers + depths) * (mlp_products(config) + attention_products(config)) +
                          head + depths * (2.0 * h * h + head);
  const double scores =
      tokens * s * attention_layers(config) * heads * channels * (is_bert ? 2.0 : 1.0);
  return 6.0 * (tokens * matrices + scores) + neighbor_flops(config, batch_size);
}

double neighbor_flops(const TransformerConfig& config, int64_t batch_size) {
  const RetroConfig& retro = config.retro;
  if (!retro.reads_neighbors()) return 0;
  const auto h = static_cast<double>(config.hidden_size);
  const auto q = static_cast<double>(config.num_attention_heads * config.kv_channels);
  const auto r = static_cast<double>(retro.neighbor_length());
  const auto m = static_cast<double>(retro.chunk_length);
  const auto neighbors = static_cast<double>(retro.neighbor_tokens(config.seq_length));
  const double padded = static_cast<double>(retro.num_chunks(config.seq_length)) * m;
  const double mlp =
      h * static_cast<double>(config.ffn_hidden_size) * (is_gated(config.activation) ? 3.0 : 2.0);
  // FLOPs of cross-attention by the numbers of queries, in a chunk or its neighbours, and of keys.
  const auto cross = [&](double queries, double keys, double keys_of_query) {
    return 6.0 * 2.0 * h * q * (queries + keys) + 12.0 * q * queries * keys_of_query;
  };
  const double encoder = static_cast<double>(retro.encoder_layers) * neighbors *
                             (6.0 * (mlp + 4.0 * h * q) + 12.0 * q * r) +
                         cross(neighbors, padded, m);
  const double decoder = static_cast<double>(retro.layer_numbers.size()) *
                         cross(padded, neighbors, r * static_cast<double>(retro.num_neighbors));
  return static_cast<double>(batch_size) * (encoder + decoder);
}

double encoder_decoder_flops(const TransformerConfig& config, int64_t batch_size) {
  const auto h = static_cast<double>(config.hidden_size);
  const auto s = static_cast<double>(config.seq_length);
  const auto t = static_cast<double>(config.decoder_seq_length);
  const auto v = static_cast<double>(config.padded_vocab_size);
  const auto q = static_cast<double>(config.num_attention_heads * config.kv_channels);
  const auto encoder = static_cast<double>(config.num_layers);
  const auto decoder = static_cast<double>(config.decoder_num_layers);
  const auto batch = static_cast<double>(batch_size);
  const double mlp =
      h * static_cast<double>(config.ffn_hidden_size) * (is_gated(config.activation) ? 3.0 : 2.0);
  const double of_encoder = encoder * (mlp + 4.0 * h * q) + decoder * 2.0 * h * q;
  const double of_decoder = decoder * (mlp + 6.0 * h * q) + h * v;
  const double pairs = encoder * s * s + decoder * (t * t / 2.0 + t * s);
  return batch * (6.0 * s * of_encoder + 6.0 * t * of_decoder + 12.0 * q * pairs);
}

double tflops_per_device(double flops, double seconds, int64_t num_devices) {
  return flops / (seconds * static_cast<double>(num_devices) * 1e12);
}

}  // namespace megatron
