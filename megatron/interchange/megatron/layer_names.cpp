#include "megatron/interchange/megatron/layer_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

namespace megatron {
namespace {

// One tensor: what is after "layers.{i}." here and after its counterpart there.
struct LayerRow {
  std::string_view ours;
  // By MegatronNaming; empty: the spelling has no such tensor.
  std::array<std::string_view, 5> theirs;
};

constexpr LayerRow kLayerRows[] = {
    {"input_layernorm.weight",
     {"input_norm.weight", "input_layernorm.weight",
      "self_attention.layernorm_qkv.layer_norm_weight", "input_layernorm.weight",
      "self_attention.linear_qkv.layer_norm_weight"}},
    {"input_layernorm.bias",
     {"input_norm.bias", "input_layernorm.bias", "self_attention.layernorm_qkv.layer_norm_bias",
      "input_layernorm.bias", "self_attention.linear_qkv.layer_norm_bias"}},
    {"self_attention.linear_qkv.weight",
     {"self_attention.query_key_value.weight", "self_attention.query_key_value.weight",
      "self_attention.layernorm_qkv.weight", "self_attention.linear_qkv.weight",
      "self_attention.linear_qkv.weight"}},
    {"self_attention.linear_qkv.bias",
     {"self_attention.query_key_value.bias", "self_attention.query_key_value.bias",
      "self_attention.layernorm_qkv.bias", "self_attention.linear_qkv.bias",
      "self_attention.linear_qkv.bias"}},
    {"self_attention.linear_q_proj.weight",
     {"", "", "", "self_attention.linear_q_proj.weight", "self_attention.linear_q_proj.weight"}},
    {"self_attention.linear_q_down_proj.weight",
     {"", "", "", "self_attention.linear_q_down_proj.weight",
      "self_attention.linear_q_down_proj.weight"}},
    {"self_attention.linear_q_up_proj.weight",
     {"", "", "", "self_attention.linear_q_up_proj.weight",
      "self_attention.linear_q_up_proj.weight"}},
    {"self_attention.linear_kv_down_proj.weight",
     {"", "", "", "self_attention.linear_kv_down_proj.weight",
      "self_attention.linear_kv_down_proj.weight"}},
    {"self_attention.linear_kv_up_proj.weight",
     {"", "", "", "self_attention.linear_kv_up_proj.weight",
      "self_attention.linear_kv_up_proj.weight"}},
    {"self_attention.core_attention.softmax_offset",
     {"", "", "", "self_attention.core_attention.softmax_offset",
      "self_attention.core_attention.softmax_offset"}},
    {"self_attention.linear_proj.weight",
     {"self_attention.dense.weight", "self_attention.dense.weight", "self_attention.proj.weight",
      "self_attention.linear_proj.weight", "self_attention.linear_proj.weight"}},
    {"self_attention.linear_proj.bias",
     {"self_attention.dense.bias", "self_attention.dense.bias", "self_attention.proj.bias",
      "self_attention.linear_proj.bias", "self_attention.linear_proj.bias"}},
    {"self_attention.q_layernorm.weight",
     {"", "", "", "self_attention.q_layernorm.weight", "self_attention.q_layernorm.weight"}},
    {"self_attention.q_layernorm.bias",
     {"", "", "", "self_attention.q_layernorm.bias", "self_attention.q_layernorm.bias"}},
    {"self_attention.k_layernorm.weight",
     {"", "", "", "self_attention.k_layernorm.weight", "self_attention.k_layernorm.weight"}},
    {"self_attention.k_layernorm.bias",
     {"", "", "", "self_attention.k_layernorm.bias", "self_attention.k_layernorm.bias"}},
    {"self_attention.kv_layernorm.weight",
     {"", "", "", "self_attention.kv_layernorm.weight", "self_attention.kv_layernorm.weight"}},
    {"self_attention.kv_layernorm.bias",
     {"", "", "", "self_attention.kv_layernorm.bias", "self_attention.kv_layernorm.bias"}},
    {"pre_mlp_layernorm.weight",
     {"post_attention_norm.weight", "post_attention_layernorm.weight",
      "layernorm_mlp.layer_norm_weight", "pre_mlp_layernorm.weight",
      "mlp.linear_fc1.layer_norm_weight"}},
    {"pre_mlp_layernorm.bias",
     {"post_attention_norm.bias", "post_attention_layernorm.bias", "layernorm_mlp.layer_norm_bias",
      "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"}},
    {"mlp.linear_fc1.weight",
     {"mlp.dense_h_to_4h.weight", "mlp.dense_h_to_4h.weight", "layernorm_mlp.fc1_weight",
      "mlp.linear_fc1.weight", "mlp.linear_fc1.weight"}},
    {"mlp.linear_fc1.bias",
     {"mlp.dense_h_to_4h.bias", "mlp.dense_h_to_4h.bias", "layernorm_mlp.fc1_bias",
      "mlp.linear_fc1.bias", "mlp.linear_fc1.bias"}},
    {"mlp.linear_fc2.weight",
     {"mlp.dense_4h_to_h.weight", "mlp.dense_4h_to_h.weight", "layernorm_mlp.fc2_weight",
      "mlp.linear_fc2.weight", "mlp.linear_fc2.weight"}},
    {"mlp.linear_fc2.bias",
     {"mlp.dense_4h_to_h.bias", "mlp.dense_4h_to_h.bias", "layernorm_mlp.fc2_bias",
      "mlp.linear_fc2.bias", "mlp.linear_fc2.bias"}},
    {"mlp.router.weight",
     {"mlp.router.weight", "mlp.router.weight", "", "mlp.router.weight", "mlp.router.weight"}},
    {"mlp.router.bias", {"", "", "", "mlp.router.bias", "mlp.router.bias"}},
    {"mlp.router.expert_bias", {"", "", "", "mlp.router.expert_bias", "mlp.router.expert_bias"}},
    {"mlp.experts.linear_fc1.weight",
     {"mlp.experts.dense_h_to_4h.weight", "mlp.experts.dense_h_to_4h.weight", "",
      "mlp.experts.experts.linear_fc1.weight", "mlp.experts.experts.linear_fc1.weight"}},
    {"mlp.experts.linear_fc1.bias",
     {"mlp.experts.dense_h_to_4h.bias", "mlp.experts.dense_h_to_4h.bias", "",
      "mlp.experts.experts.linear_fc1.bias", "mlp.experts.experts.linear_fc1.bias"}},
    {"mlp.experts.linear_fc2.weight",
     {"mlp.experts.dense_4h_to_h.weight", "mlp.experts.dense_4h_to_h.weight", "",
      "mlp.experts.experts.linear_fc2.weight", "mlp.experts.experts.linear_fc2.weight"}},
    {"mlp.experts.linear_fc2.bias",
     {"mlp.experts.dense_4h_to_h.bias", "mlp.experts.dense_4h_to_h.bias", "",
      "mlp.experts.experts.linear_fc2.bias", "mlp.experts.experts.linear_fc2.bias"}},
    {"mlp.shared_experts.gate_weight",
     {"", "", "", "mlp.shared_experts.gate_weight", "mlp.shared_experts.gate_weight"}},
    {"mlp.shared_experts.linear_fc1.weight",
     {"", "", "", "mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.linear_fc1.weight"}},
    {"mlp.shared_experts.linear_fc2.weight",
     {"", "", "", "mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.linear_fc2.weight"}},
    {"post_self_attn_layernorm.weight",
     {"", "", "", "post_self_attn_layernorm.weight", "post_self_attn_layernorm.weight"}},
    {"post_self_attn_layernorm.bias",
     {"", "", "", "post_self_attn_layernorm.bias", "post_self_attn_layernorm.bias"}},
    {"post_mlp_layernorm.weight",
     {"", "", "", "post_mlp_layernorm.weight", "post_mlp_layernorm.weight"}},
    {"post_mlp_layernorm.bias", {"", "", "", "post_mlp_layernorm.bias", "post_mlp_layernorm.bias"}},
    // Second names, of Transformer Engine's latent attention: norms are part of what follows.
    {"self_attention.q_layernorm.weight",
     {"", "", "", "", "self_attention.linear_q_up_proj.layer_norm_weight"}},
    {"self_attention.q_layernorm.bias",
     {"", "", "", "", "self_attention.linear_q_up_proj.layer_norm_bias"}},
    {"self_attention.kv_layernorm.weight",
     {"", "", "", "", "self_attention.linear_kv_up_proj.layer_norm_weight"}},
    {"self_attention.kv_layernorm.bias",
     {"", "", "", "", "self_attention.linear_kv_up_proj.layer_norm_bias"}},
};

// What a layer with cross-attention has beside the rows above, or instead of them: the norm before
// the feed-forward part comes later there. From the attention to the encoder's output on, in order.
constexpr LayerRow kCrossRows[] = {
    {"pre_cross_attn_layernorm.weight",
     {"post_attention_norm.weight", "post_attention_layernorm.weight", "",
      "pre_cross_attn_layernorm.weight", "pre_cross_attn_layernorm.weight"}},
    {"pre_cross_attn_layernorm.bias",
     {"post_attention_norm.bias", "post_attention_layernorm.bias", "",
      "pre_cross_attn_layernorm.bias", "pre_cross_attn_layernorm.bias"}},
    {"cross_attention.linear_q.weight",
     {"inter_attention.query.weight", "inter_attention.query.weight", "",
      "cross_attention.linear_q.weight", "cross_attention.linear_q.weight"}},
    {"cross_attention.linear_q.bias",
     {"inter_attention.query.bias", "inter_attention.query.bias", "",
      "cross_attention.linear_q.bias", "cross_attention.linear_q.bias"}},
    {"cross_attention.linear_kv.weight",
     {"inter_attention.key_value.weight", "inter_attention.key_value.weight", "",
      "cross_attention.linear_kv.weight", "cross_attention.linear_kv.weight"}},
    {"cross_attention.linear_kv.bias",
     {"inter_attention.key_value.bias", "inter_attention.key_value.bias", "",
      "cross_attention.linear_kv.bias", "cross_attention.linear_kv.bias"}},
    {"cross_attention.linear_proj.weight",
     {"inter_attention.dense.weight", "inter_attention.dense.weight", "",
      "cross_attention.linear_proj.weight", "cross_attention.linear_proj.weight"}},
    {"cross_attention.linear_proj.bias",
     {"inter_attention.dense.bias", "inter_attention.dense.bias", "",
      "cross_attention.linear_proj.bias", "cross_attention.linear_proj.bias"}},
    {"pre_mlp_layernorm.weight",
     {"post_inter_attention_norm.weight", "post_inter_attention_layernorm.weight", "",
      "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"}},
    {"pre_mlp_layernorm.bias",
     {"post_inter_attention_norm.bias", "post_inter_attention_layernorm.bias", "",
      "pre_mlp_layernorm.bias", "mlp.linear_fc1.layer_norm_bias"}},
};

using Rows = std::array<std::span<const LayerRow>, 2>;

// The rows of a layer, in the order of the search.
Rows rows_of(LayerKind kind) {
  return {kind == LayerKind::kPlain ? std::span<const LayerRow>() : std::span(kCrossRows),
          kLayerRows};
}

// Cross-attention is a part of what a Retro's layer has in its place.
constexpr std::string_view kCross = "cross_attention.";
constexpr std::string_view kRetroCross = "cross_attention.attn.";
// Megatron Core's norm before the MLP, in the first layer of the neighbours' encoder.
constexpr std::string_view kMlpNorm = "pre_mlp_layernorm.";
constexpr std::string_view kInnerMlpNorm = "pre_mlp_layernorm.norm.";

bool is_retro(LayerKind kind) {
  return kind == LayerKind::kRetro || kind == LayerKind::kRetroEncoder;
}

// A tensor of the neighbours' encoder.
struct EncoderTensor {
  int64_t layer = 0;
  std::string_view rest;  // after "layers.0."
  LayerKind kind() const { return layer == 0 ? LayerKind::kRetroEncoder : LayerKind::kPlain; }
};
constexpr std::string_view kNeighborEncoder = "cross_attention.encoder.layers.";
constexpr std::string_view kLegacyEncoder = "retriever.layers.";

// None if the name within a layer begins with neither of the starts.
std::optional<EncoderTensor> encoder_tensor(std::string_view name,
                                            std::span<const std::string_view> starts) {
  for (const std::string_view start : starts) {
    if (!name.starts_with(start)) continue;
    EncoderTensor tensor;
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + start.size(), end, tensor.layer);
    if (error != std::errc() || stop == end || *stop != '.') return std::nullopt;
    tensor.rest = {stop + 1, static_cast<size_t>(end - stop - 1)};
    return tensor;
  }
  return std::nullopt;
}

}  // namespace

void replace_start(std::string& text, std::string_view from, std::string_view to) {
  if (text.starts_with(from)) text.replace(0, from.size(), to);
}

std::string ours_in_layer(LayerKind kind, std::string_view theirs) {
  constexpr std::string_view kStarts[] = {kNeighborEncoder, kLegacyEncoder};
  if (kind == LayerKind::kRetro) {
    if (const auto inner = encoder_tensor(theirs, kStarts)) {
      const std::string ours = ours_in_layer(inner->kind(), inner->rest);
      return ours.empty() ? ours : fmt::format("{}{}.{}", kNeighborEncoder, inner->layer, ours);
    }
  }
  std::string name(theirs);
  if (is_retro(kind)) replace_start(name, kRetroCross, kCross);
  if (kind == LayerKind::kRetroEncoder) replace_start(name, kInnerMlpNorm, kMlpNorm);
  for (const std::span<const LayerRow> rows : rows_of(kind)) {
    for (const LayerRow& row : rows) {
      if (std::ranges::find(row.theirs, name) == row.theirs.end()) continue;
      std::string ours(row.ours);
      if (is_retro(kind)) replace_start(ours, kCross, kRetroCross);
      return ours;
    }
  }
  return {};
}

std::string theirs_in_layer(LayerKind kind, MegatronNaming naming, std::string_view ours) {
  if (kind == LayerKind::kRetro) {
    if (const auto inner = encoder_tensor(ours, {&kNeighborEncoder, 1})) {
      const std::string theirs = theirs_in_layer(inner->kind(), naming, inner->rest);
      return theirs.empty()
                 ? theirs
                 : fmt::format("{}{}.{}", is_core(naming) ? kNeighborEncoder : kLegacyEncoder,
                               inner->layer, theirs);
    }
  }
  std::string name(ours);
  if (is_core(naming) && kind == LayerKind::kRetroEncoder && name.starts_with(kMlpNorm)) {
    replace_start(name, kMlpNorm, kInnerMlpNorm);
    return name;
  }
  if (is_retro(kind)) replace_start(name, kRetroCross, kCross);
  for (const std::span<const LayerRow> rows : rows_of(kind)) {
    const auto row = std::ranges::find(rows, name, &LayerRow::ours);
    if (row == rows.end()) continue;
    std::string theirs(row->theirs[static_cast<size_t>(naming)]);
    if (is_retro(kind) && is_core(naming)) replace_start(theirs, kCross, kRetroCross);
    return theirs;
  }
  return {};
}

std::vector<int64_t> place_in_layer(MegatronNaming naming, std::string_view ours) {
  // Rows of a layer count in hundreds, which leaves places between them.
  constexpr int64_t kBetweenRows = 100;
  const auto place_of_row = [](const LayerRow* row) { return kBetweenRows * (row - kLayerRows); };
  const int64_t before_mlp = place_of_row(
      std::ranges::find(kLayerRows, std::string_view("pre_mlp_layernorm.weight"), &LayerRow::ours));
  if (const auto inner = encoder_tensor(ours, {&kNeighborEncoder, 1})) {
    // Behind cross-attention; the older models make the encoder last.
    std::vector<int64_t> place = {
        is_core(naming) ? before_mlp - 10 : kBetweenRows * std::ssize(kLayerRows), inner->layer};
    for (const int64_t more : place_in_layer(naming, inner->rest)) place.push_back(more);
    return place;
  }
  if (const auto* row = std::ranges::find(kLayerRows, ours, &LayerRow::ours);
      row != std::end(kLayerRows)) {
    // Megatron Core makes the output projection before that of queries, keys and values.
    if (is_core(naming) && ours.starts_with("self_attention.linear_proj")) {
      return {naming == MegatronNaming::kCore ? kBetweenRows * 3 / 2 : -kBetweenRows / 2};
    }
    return {place_of_row(row)};
  }
  std::string name(ours);
  replace_start(name, kRetroCross, kCross);
  const auto* row = std::ranges::find(kCrossRows, name, &LayerRow::ours);
  if (row == std::end(kCrossRows)) return {kBetweenRows * 1000};
  if (is_core(naming) && name.starts_with("cross_attention.linear_proj")) {
    return {before_mlp - 29, 1};  // before that of queries, too
  }
  return {before_mlp - 30 + (row - kCrossRows)};
}

}  // namespace megatron
