#include "megatron/interchange/hf/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/interchange/hf/bert_names.h"
#include "megatron/interchange/hf/t5_names.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/model_specs.h"

namespace megatron {
namespace {

constexpr NameRule kGpt2[] = {
    {"embedding.word_embeddings.weight", {"transformer.wte.weight"}, Layout::kPadVocab},
    {"embedding.position_embeddings.weight", {"transformer.wpe.weight"}},
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.h.{i}.ln_1.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"transformer.h.{i}.ln_1.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"transformer.h.{i}.attn.c_attn.weight"},
     Layout::kQkvThirdsTranspose},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"transformer.h.{i}.attn.c_attn.bias"},
     Layout::kQkvThirds},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"transformer.h.{i}.attn.c_proj.weight"},
     Layout::kTranspose},
    {"decoder.layers.{i}.self_attention.linear_proj.bias", {"transformer.h.{i}.attn.c_proj.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight", {"transformer.h.{i}.ln_2.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias", {"transformer.h.{i}.ln_2.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"transformer.h.{i}.mlp.c_fc.weight"},
     Layout::kTranspose},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"transformer.h.{i}.mlp.c_fc.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight",
     {"transformer.h.{i}.mlp.c_proj.weight"},
     Layout::kTranspose},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"transformer.h.{i}.mlp.c_proj.bias"}},
    {"decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
    {"decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

constexpr NameRule kLlama[] = {
    {"embedding.word_embeddings.weight", {"model.embed_tokens.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.input_layernorm.weight", {"model.layers.{i}.input_layernorm.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"model.layers.{i}.self_attn.q_proj.weight", "model.layers.{i}.self_attn.k_proj.weight",
      "model.layers.{i}.self_attn.v_proj.weight"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"model.layers.{i}.self_attn.q_proj.bias", "model.layers.{i}.self_attn.k_proj.bias",
      "model.layers.{i}.self_attn.v_proj.bias"},
     Layout::kQkvSplit},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"model.layers.{i}.self_attn.o_proj.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"model.layers.{i}.self_attn.o_proj.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"model.layers.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight",
     {"model.layers.{i}.mlp.gate_proj.weight", "model.layers.{i}.mlp.up_proj.weight"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.linear_fc1.bias",
     {"model.layers.{i}.mlp.gate_proj.bias", "model.layers.{i}.mlp.up_proj.bias"},
     Layout::kGateUp},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"model.layers.{i}.mlp.down_proj.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"model.layers.{i}.mlp.down_proj.bias"}},
    {"decoder.final_layernorm.weight", {"model.norm.weight"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

// Queries, keys and values are fused by head, which is our order.
constexpr NameRule kGptNeox[] = {
    {"embedding.word_embeddings.weight", {"gpt_neox.embed_in.weight"}, Layout::kPadVocab},
    {"decoder.layers.{i}.input_layernorm.weight", {"gpt_neox.layers.{i}.input_layernorm.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"gpt_neox.layers.{i}.input_layernorm.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"gpt_neox.layers.{i}.attention.query_key_value.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"gpt_neox.layers.{i}.attention.query_key_value.bias"}},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"gpt_neox.layers.{i}.attention.dense.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"gpt_neox.layers.{i}.attention.dense.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"gpt_neox.layers.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias",
     {"gpt_neox.layers.{i}.post_attention_layernorm.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"gpt_neox.layers.{i}.mlp.dense_h_to_4h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"gpt_neox.layers.{i}.mlp.dense_h_to_4h.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"gpt_neox.layers.{i}.mlp.dense_4h_to_h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"gpt_neox.layers.{i}.mlp.dense_4h_to_h.bias"}},
    {"decoder.final_layernorm.weight", {"gpt_neox.final_layer_norm.weight"}},
    {"decoder.final_layernorm.bias", {"gpt_neox.final_layer_norm.bias"}},
    {"output_layer.weight", {"embed_out.weight"}, Layout::kPadVocab},
};

// Queries, keys and values are fused by head, which is our order.
constexpr NameRule kBloom[] = {
    {"embedding.word_embeddings.weight", {"transformer.word_embeddings.weight"}, Layout::kPadVocab},
    {"embedding.norm.weight", {"transformer.word_embeddings_layernorm.weight"}},
    {"embedding.norm.bias", {"transformer.word_embeddings_layernorm.bias"}},
    {"decoder.layers.{i}.input_layernorm.weight", {"transformer.h.{i}.input_layernorm.weight"}},
    {"decoder.layers.{i}.input_layernorm.bias", {"transformer.h.{i}.input_layernorm.bias"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.weight",
     {"transformer.h.{i}.self_attention.query_key_value.weight"}},
    {"decoder.layers.{i}.self_attention.linear_qkv.bias",
     {"transformer.h.{i}.self_attention.query_key_value.bias"}},
    {"decoder.layers.{i}.self_attention.linear_proj.weight",
     {"transformer.h.{i}.self_attention.dense.weight"}},
    {"decoder.layers.{i}.self_attention.linear_proj.bias",
     {"transformer.h.{i}.self_attention.dense.bias"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.weight",
     {"transformer.h.{i}.post_attention_layernorm.weight"}},
    {"decoder.layers.{i}.pre_mlp_layernorm.bias",
     {"transformer.h.{i}.post_attention_layernorm.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc1.weight", {"transformer.h.{i}.mlp.dense_h_to_4h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc1.bias", {"transformer.h.{i}.mlp.dense_h_to_4h.bias"}},
    {"decoder.layers.{i}.mlp.linear_fc2.weight", {"transformer.h.{i}.mlp.dense_4h_to_h.weight"}},
    {"decoder.layers.{i}.mlp.linear_fc2.bias", {"transformer.h.{i}.mlp.dense_4h_to_h.bias"}},
    {"decoder.final_layernorm.weight", {"transformer.ln_f.weight"}},
    {"decoder.final_layernorm.bias", {"transformer.ln_f.bias"}},
    {"output_layer.weight", {"lm_head.weight"}, Layout::kPadVocab},
};

NameTable table_of(HfFamily family, const TransformerConfig& config) {
  switch (family) {
    case HfFamily::kMegatronBert:
      return hf_megatron_bert_names(config);
    case HfFamily::kBert:
      return hf_bert_names(config);
    case HfFamily::kT5:
    case HfFamily::kMt5:
      return hf_t5_names(config);
    case HfFamily::kGpt2:
      return {kGpt2,
              "transformer.",
              {"transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"}};
    case HfFamily::kLlama:
    case HfFamily::kMistral:
      return {kLlama,
              "model.",
              {"model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}};
    case HfFamily::kGptNeox:
      return {kGptNeox,
              "gpt_neox.",
              {"gpt_neox.layers.{i}.attention.bias", "gpt_neox.layers.{i}.attention.masked_bias",
               "gpt_neox.layers.{i}.attention.rotary_emb.inv_freq"}};
    case HfFamily::kBloom:
      return {kBloom, "transformer.", {}};
  }
  throw InternalError("a family has a table");
}

LayoutSizes sizes_of(const HfModel& model) {
  const TransformerConfig& config = model.transformer;
  return {config.num_attention_heads, config.num_query_groups, config.kv_channels,
          model.vocab_size};
}

}  // namespace

NameTable hf_names(HfFamily family, const TransformerConfig& config) {
  NameTable table = table_of(family, config);
  // A tied output layer may be in the file a second time.
  if (config.is_decoder_only() && !config.untie_embeddings_and_output_weights) {
    table.ignored.push_back(table.rules.back().theirs[0]);
  }
  return table;
}

std::vector<TensorSpec> hf_tensors(const HfModel& model) {
  if (model.class_names.empty()) return model_tensors(model.transformer);
  const BertHeads heads = {.classifier = "classification_head",
                           .num_classes = std::ssize(model.class_names)};
  const std::vector<ParameterSpec> specs =
      bert_specs(model.transformer, whole_model(model.transformer.num_layers), heads);
  return {specs.begin(), specs.end()};
}

StoredSection open_hf_weights(const std::shared_ptr<const ShardedWeights>& file,
                              const HfModel& model) {
  return open_mapped(file, hf_names(model.family, model.transformer), hf_tensors(model),
                     sizes_of(model));
}

namespace {

// The pooler of a file that has one.
void add_pooler(const ShardedWeights& file, const HfModel& model, std::vector<TensorSpec>& ours) {
  constexpr const char* kOurs = "pooler.dense.weight";
  const bool has_one =
      std::ranges::any_of(ours, [](const TensorSpec& spec) { return spec.name == kOurs; });
  if (has_one || file.find("bert.pooler.dense.weight") == nullptr) return;
  const int64_t h = model.transformer.hidden_size;
  const DType dtype = model.transformer.params_dtype;
  ours.push_back({kOurs, dtype, {h, h}});
  ours.push_back({"pooler.dense.bias", dtype, {h}});
}

}  // namespace

CheckpointContents open_hf_checkpoint(const std::filesystem::path& directory, const HfModel& model,
                                      HfPooler pooler) {
  const auto file = std::make_shared<const ShardedWeights>(directory);
  const auto count = static_cast<int64_t>(file->tensors().size());
  if (model.transformer.num_layers > count) {  // before a list of its parameters is made
    throw FormatError(fmt::format("{}: config.json says {} layers, but the weights are {} tensors",
                                  directory.string(), model.transformer.num_layers, count));
  }
  CheckpointContents contents;
  contents.directory = directory;
  std::vector<TensorSpec> ours = hf_tensors(model);
  if (pooler == HfPooler::kIfThere) add_pooler(*file, model, ours);
  contents.sections[kWeightsSection] =
      open_mapped(file, hf_names(model.family, model.transformer), ours, sizes_of(model));
  return contents;
}

void save_hf_model(const std::filesystem::path& directory, const HfModel& model,
                   std::span<const TensorSpec> ours, int64_t max_shard_bytes,
                   const TensorSource& source, WeightsFormat format) {
  write_text_atomically(directory / "config.json", hf_config_text(model));
  save_mapped(directory, hf_names(model.family, model.transformer), ours, sizes_of(model),
              max_shard_bytes, source, format);
}

}  // namespace megatron
