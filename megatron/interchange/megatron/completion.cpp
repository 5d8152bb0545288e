#include "megatron/interchange/megatron/completion.h"

#include <algorithm>
#include <optional>
#include <string>

#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/names.h"

namespace megatron {

void add_tensor_sizes(ModelKind kind, CheckpointContents& contents) {
  constexpr const char* kWords = "embedding.word_embeddings.weight";
  const StoredSection& weights = contents.sections[kWeightsSection];
  const auto add = [&](const char* name, const char* tensor, int axis, int64_t divisor = 1) {
    const auto found = weights.find(tensor);
    if (found == weights.end() || found->second.shape.rank() <= axis) return;
    ArgValue& value = contents.args[name];
    if (std::holds_alternative<std::monostate>(value)) value = found->second.shape[axis] / divisor;
  };
  add("padded_vocab_size", kWords, 0);
  add("hidden_size", kWords, 1);
  add("max_position_embeddings", "embedding.position_embeddings.weight", 0);
  add("seq_length", "embedding.position_embeddings.weight", 0);
  const bool is_gpt = is_decoder_only(kind);
  add("ffn_hidden_size",
      is_gpt ? "decoder.layers.0.mlp.linear_fc1.weight" : "encoder.layers.0.mlp.linear_fc1.weight",
      0, is_gated(contents.args) ? 2 : 1);
  if (is_encoder_only(kind)) {
    contents.args["bert_binary_head"] = weights.contains("binary_head.weight");
  }
  ArgValue& layers = contents.args["num_layers"];
  if (!std::holds_alternative<std::monostate>(layers)) return;
  int64_t count = 0;
  for (const auto& [name, tensor] : weights) {
    std::optional<int64_t> layer;
    without_layer(name, layer);
    if (layer && !is_of_mtp(name)) count = std::max(count, *layer + 1);
  }
  layers = count;
}

void add_main_params(CheckpointContents& contents) {
  if (!contents.has_optimizer() || contents.sections.contains(kMainParamSection)) return;
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const bool is_fp32 = std::ranges::all_of(
      weights, [](const auto& entry) { return entry.second.dtype == DType::kFloat32; });
  if (is_fp32) contents.sections[kMainParamSection] = weights;
}

}  // namespace megatron
