#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "megatron/interchange/hf/class_names.h"
#include "megatron/interchange/hf/families/list.h"
#include "megatron/interchange/hf/families/shared.h"

// transformers' MegatronBert, whose norms come before the branches, and Bert, whose norms come
// after them: ForPreTraining, ForMaskedLM (without the binary head) and ForSequenceClassification.
//
// BertForPreTraining is the model of --apply-residual-connection-post-layernorm: a layer whose
// residual is the output of its first norm is a layer that ends with the norm of the one before.
// So the norm of the embedding is our first norm, and the norm that ends a layer our next one.
namespace megatron {
namespace {

// transformers has one activation for the layers and the LM head. Models of Megatron-LM may have
// two forms of GELU; ours writes the head's here, where transformers does not look.
constexpr const char* kHeadActivation = "lm_head_act";

// The name that a field writes for an activation; nullptr if there is none.
const char* bert_activation_name(Activation activation) {
  const auto found = std::ranges::find(kHfActivations, activation, &HfActivation::activation);
  return found == kHfActivations.end() ? nullptr : found->name;
}

void bind_head_activation(HfBinding& f, TransformerConfig& c) {
  f.bind(c.head_activation);
  if (f.reads()) {
    f.activation(f.has(kHeadActivation) ? kHeadActivation : "hidden_act", c.head_activation,
                 kHfActivations, "gelu");
    return;
  }
  const char* of_layers = bert_activation_name(c.activation);
  const char* of_head = bert_activation_name(c.head_activation);
  if (of_layers != nullptr && of_head != nullptr && std::strcmp(of_layers, of_head) == 0) return;
  f.activation(kHeadActivation, c.head_activation, kHfActivations, "gelu");
  f.warns(
      "transformers has one activation for the layers and the LM head of a BERT: it computes "
      "this model's head with the other form of GELU, which moves its logits by about 1e-3");
}

// False if the model has neither a pooler nor a binary head.
bool has_binary_head(HfBinding& f) {
  for (const std::string& name : f.texts("architectures")) {
    if (name.ends_with("BertForMaskedLM") || name.ends_with(kHfClassifier)) return false;
    if (!name.ends_with("BertForPreTraining")) {
      f.unsupported("architectures",
                    "a BERT is read with its heads, from a model that was saved as "
                    "ForPreTraining, ForMaskedLM or ForSequenceClassification");
    }
  }
  return true;
}

void bind_either_bert(HfBinding& f, TransformerConfig& c) {
  f.size("num_hidden_layers", c.num_layers);
  f.size("hidden_size", c.hidden_size);
  f.size("num_attention_heads", c.num_attention_heads);
  f.size("intermediate_size", c.ffn_hidden_size);
  f.size("max_position_embeddings", c.max_position_embeddings, 512);
  f.fixed(c.position_embedding_type, PositionEmbedding::kLearnedAbsolute,
          "the kind of position embedding");
  f.fixed(c.normalization, Normalization::kLayerNorm, "the kind of norm");
  f.number("layer_norm_eps", c.norm_epsilon, 1e-12);
  f.activation("hidden_act", c.activation, kHfActivations, "gelu");
  bind_head_activation(f, c);
  bind_hf_whole_heads(f, c);
  f.number("attention_probs_dropout_prob", c.attention_dropout, 0.1);
  f.number("hidden_dropout_prob", c.hidden_dropout, 0.1);
  if (f.reads()) c.bert_binary_head = has_binary_head(f);
  int64_t types = c.tokentypes();
  f.size("type_vocab_size", types, 2);
  if (f.reads()) c.num_tokentypes = types;
  f.only("position_embedding_type", "absolute", "a BERT has absolute positions here");
  f.only("is_decoder", false, "a BERT sees the whole text here");
  f.only("add_cross_attention", false, "a BERT has no cross-attention here");
  f.only("tie_word_embeddings", true, "the output layer of a BERT is tied here");
  static constexpr const char* kUnused[] = {"classifier_dropout",   "directionality",
                                            "pooler_fc_size",       "pooler_num_attention_heads",
                                            "pooler_num_fc_layers", "pooler_size_per_head",
                                            "pooler_type"};
  f.ignore(kUnused);
}

void bind_megatron_bert(HfBinding& f, TransformerConfig& c) {
  f.fixed(c.apply_residual_connection_post_layernorm, false, "residual connections after the norm");
  bind_either_bert(f, c);
}

void bind_bert(HfBinding& f, TransformerConfig& c) {
  f.fixed(c.apply_residual_connection_post_layernorm, true, "residual connections before the norm");
  bind_either_bert(f, c);
}

// Modules with the same names in both model types.
constexpr NameRule kBertShared[] = {
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
constexpr NameRule kMegatronBertNorms[] = {
    {"encoder.layers.{i}.input_layernorm.weight", {"bert.encoder.layer.{i}.attention.ln.weight"}},
    {"encoder.layers.{i}.input_layernorm.bias", {"bert.encoder.layer.{i}.attention.ln.bias"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.weight", {"bert.encoder.layer.{i}.ln.weight"}},
    {"encoder.layers.{i}.pre_mlp_layernorm.bias", {"bert.encoder.layer.{i}.ln.bias"}},
    {"encoder.final_layernorm.weight", {"bert.encoder.ln.weight"}},
    {"encoder.final_layernorm.bias", {"bert.encoder.ln.bias"}},
};

constexpr NameRule kBertNorms[] = {
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

NameTable bert_table(std::span<const NameRule> rules, const TransformerConfig& config) {
  NameTable table = {rules_of({rules, kBertShared}),
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

NameTable megatron_bert_names(const TransformerConfig& config) {
  return bert_table(kMegatronBertNorms, config);
}

NameTable bert_names(const TransformerConfig& config) { return bert_table(kBertNorms, config); }

}  // namespace

const HfFamily kHfMegatronBert = {.model_type = "megatron-bert",
                                  .architecture = "MegatronBertForPreTraining",
                                  .kind = ModelKind::kBert,
                                  .tokenizer_type = "BertWordPieceLowerCase",
                                  .bind = bind_megatron_bert,
                                  .names = megatron_bert_names};

const HfFamily kHfBert = {.model_type = "bert",
                          .architecture = "BertForPreTraining",
                          .kind = ModelKind::kBert,
                          .tokenizer_type = "BertWordPieceLowerCase",
                          .bind = bind_bert,
                          .names = bert_names};

}  // namespace megatron
