#include "megatron/interchange/hf/bert_names.h"

#include <iterator>
#include <span>
#include <vector>

namespace megatron {
namespace {

// Modules with the same names in both model types.
constexpr NameRule kShared[] = {
    {"embedding.word_embeddings.weight",
     {"bert.embeddings.word_embeddings.weight"},
     Layout::kPadVocab},
    {"embedding.position_embeddings.weight", {"bert.embeddings.position_embeddings.weight"}},
    {"embedding.tokentype_embeddings.weight", {"bert.embeddings.token_type_embeddings.weight"}},
    {"encoder.layers.{i}.self_attention.linear_qkv.weight",
     {"bert.encoder.layer.{i}.attention.self.query.weight",
      "bert.encoder.layer.{i}.attention.self.key.weight",
      "bert.encoder.layer.{i}.attention.self.value.weight"},
     Layout::kQkvSplit},
    {"encoder.layers.{i}.self_attention.linear_qkv.bias",
     {"bert.encoder.layer.{i}.attention.self.query.bias",
      "bert.encoder.layer.{i}.attention.self.key.bias",
      "bert.encoder.layer.{i}.attention.self.value.bias"},
     Layout::kQkvSplit},
    {"encoder.layers.{i}.self_attention.linear_proj.weight",
     {"bert.encoder.layer.{i}.attention.output.dense.weight"}},
    {"encoder.layers.{i}.self_attention.linear_proj.bias",
     {"bert.encoder.layer.{i}.attention.output.dense.bias"}},
    {"encoder.layers.{i}.mlp.linear_fc1.weight",
     {"bert.encoder.layer.{i}.intermediate.dense.weight"}},
    {"encoder.layers.{i}.mlp.linear_fc1.bias", {"bert.encoder.layer.{i}.intermediate.dense.bias"}},
    {"encoder.layers.{i}.mlp.linear_fc2.weight", {"bert.encoder.layer.{i}.output.dense.weight"}},
    {"encoder.layers.{i}.mlp.linear_fc2.bias", {"bert.encoder.layer.{i}.output.dense.bias"}},
    {"lm_head.dense.weight", {"cls.predictions.transform.dense.weight"}},
    {"lm_head.dense.bias", {"cls.predictions.transform.dense.bias"}},
    {"lm_head.layer_norm.weight", {"cls.predictions.transform.LayerNorm.weight"}},
    {"lm_head.layer_norm.bias", {"cls.predictions.transform.LayerNorm.bias"}},
    {"output_layer.bias", {"cls.predictions.bias"}, Layout::kPadVocab},
    {"pooler.dense.weight", {"bert.pooler.dense.weight"}},
    {"pooler.dense.bias", {"bert.pooler.dense.bias"}},
    {"binary_head.weight", {"cls.seq_relationship.weight"}},
    {"binary_head.bias", {"cls.seq_relationship.bias"}},
    {"classification_head.weight", {"classifier.weight"}},
    {"classification_head.bias", {"classifier.bias"}},
};

// MegatronBert has its norms before the modules, Bert after them.
constexpr NameRule kPreNorm[] = {
    {"encoder.layers.{i}.input_layernorm.weight", {"bert.encoder.layer.{i}.attention.ln.weight"}},
    {"encoder.layers.{i}.input_layernorm.bias", {"bert.encoder.layer.{i}.attention.ln.bias"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.weight", {"bert.encoder.layer.{i}.ln.weight"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.bias", {"bert.encoder.layer.{i}.ln.bias"}},
    {"encoder.final_layernorm.weight", {"bert.encoder.ln.weight"}},
    {"encoder.final_layernorm.bias", {"bert.encoder.ln.bias"}},
};

constexpr NameRule kPostNorm[] = {
    {"encoder.layers.0.input_layernorm.weight", {"bert.embeddings.LayerNorm.weight"}},
    {"encoder.layers.0.input_layernorm.bias", {"bert.embeddings.LayerNorm.bias"}},
    {"encoder.layers.{i}.input_layernorm.weight",
     {"bert.encoder.layer.{i-1}.output.LayerNorm.weight"}},
    {"encoder.layers.{i}.input_layernorm.bias", {"bert.encoder.layer.{i-1}.output.LayerNorm.bias"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.weight",
     {"bert.encoder.layer.{i}.attention.output.LayerNorm.weight"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.bias",
     {"bert.encoder.layer.{i}.attention.output.LayerNorm.bias"}},
    {"encoder.final_layernorm.weight", {"bert.encoder.layer.{last}.output.LayerNorm.weight"}},
    {"encoder.final_layernorm.bias", {"bert.encoder.layer.{last}.output.LayerNorm.bias"}},
};

std::vector<NameRule> with_shared(std::span<const NameRule> own) {
  std::vector<NameRule> rules(own.begin(), own.end());
  rules.insert(rules.end(), std::begin(kShared), std::end(kShared));
  return rules;
}

NameTable bert_table(std::span<const NameRule> rules, const TransformerConfig& config) {
  NameTable table = {rules,
                     "",
                     // The tied output layer, which files may hold a second time, and a table of
                     // positions.
                     {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias",
                      "bert.embeddings.position_ids"}};
  table.num_layers = config.num_layers;
  table.older_ends = {{"LayerNorm.weight", "LayerNorm.gamma"},
                      {"LayerNorm.bias", "LayerNorm.beta"}};
  if (!config.bert_binary_head) {  // as transformers does for ForMaskedLM
    for (const char* name : {"bert.pooler.dense.weight", "bert.pooler.dense.bias",
                             "cls.seq_relationship.weight", "cls.seq_relationship.bias"}) {
      table.ignored.emplace_back(name);
    }
  }
  return table;
}

}  // namespace

NameTable hf_megatron_bert_names(const TransformerConfig& config) {
  static const std::vector<NameRule> rules = with_shared(kPreNorm);
  return bert_table(rules, config);
}

NameTable hf_bert_names(const TransformerConfig& config) {
  static const std::vector<NameRule> rules = with_shared(kPostNorm);
  return bert_table(rules, config);
}

}  // namespace megatron
