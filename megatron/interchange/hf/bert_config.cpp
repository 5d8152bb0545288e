#include "megatron/interchange/hf/bert_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/log.h"

namespace megatron {
namespace {

// transformers has one activation for the layers and the LM head. Models of Megatron-LM may have
// two forms of GELU; ours writes the head's here, where transformers does not look.
constexpr const char* kHeadActivation = "lm_head_act";

// True if the model has a pooler and a binary head.
bool has_binary_head(const HfFields& fields) {
  for (const std::string& name : fields.texts("architectures")) {
    if (name.ends_with("BertForMaskedLM") || name.ends_with(kHfClassifier)) return false;
    if (!name.ends_with("BertForPreTraining")) {
      fields.unsupported("architectures",
                         "a BERT is read with its heads, from a model that was saved as "
                         "ForPreTraining, ForMaskedLM or ForSequenceClassification");
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> hf_default_class_names(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("LABEL_{}", i));
  return names;
}

std::vector<std::string> hf_class_names(const HfFields& fields) {
  const std::vector<std::string> architectures = fields.texts("architectures");
  const bool is_classifier = std::ranges::any_of(
      architectures, [](const std::string& name) { return name.ends_with(kHfClassifier); });
  if (!is_classifier) return {};
  constexpr int64_t kDefaultClasses = 2;  // transformers leaves them out
  std::vector<std::string> names =
      hf_default_class_names(fields.size("num_labels", kDefaultClasses));
  const std::optional<HfFields> named = fields.object("id2label");
  if (!named) return names;
  names.clear();
  for (int64_t i = 0; named->has(std::to_string(i).c_str()); ++i) {
    names.push_back(named->text(std::to_string(i).c_str(), ""));
  }
  if (names.empty()) fields.unsupported("id2label", "the classes must be numbered from 0");
  return names;
}

nlohmann::json hf_class_fields(const std::vector<std::string>& names) {
  nlohmann::json by_id = nlohmann::json::object();
  nlohmann::json by_name = nlohmann::json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    by_id[std::to_string(i)] = names[i];
    by_name[names[i]] = i;
  }
  return {{"id2label", by_id}, {"label2id", by_name}};
}

void read_hf_bert(const HfFields& fields, TransformerConfig& config) {
  config.num_layers = fields.size("num_hidden_layers");
  config.hidden_size = fields.size("hidden_size");
  config.num_attention_heads = fields.size("num_attention_heads");
  config.ffn_hidden_size = fields.size("intermediate_size");
  config.max_position_embeddings = fields.size("max_position_embeddings", 512);
  config.norm_epsilon = fields.number("layer_norm_eps", 1e-12);
  config.activation = hf_activation(fields, "hidden_act", "gelu");
  const char* head = fields.has(kHeadActivation) ? kHeadActivation : "hidden_act";
  config.head_activation = hf_activation(fields, head, "gelu");
  config.attention_dropout = fields.number("attention_probs_dropout_prob", 0.1);
  config.hidden_dropout = fields.number("hidden_dropout_prob", 0.1);
  config.bert_binary_head = has_binary_head(fields);
  config.num_tokentypes = fields.size("type_vocab_size", 2);
  config.apply_residual_connection_post_layernorm = fields.text("model_type", "") == "bert";
  if (fields.text("position_embedding_type", "absolute") != "absolute") {
    fields.unsupported("position_embedding_type", "a BERT has absolute positions here");
  }
  fields.require_flag("is_decoder", false, "a BERT sees the whole text here");
  fields.require_flag("add_cross_attention", false, "a BERT has no cross-attention here");
  fields.require_flag("tie_word_embeddings", true, "the output layer of a BERT is tied here");
}

std::vector<std::string> hf_bert_differences(const TransformerConfig& c, bool is_bert) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, const char* what) {
    if (!holds) found.emplace_back(what);
  };
  require(c.apply_residual_connection_post_layernorm == is_bert,
          is_bert ? "residual connections before the norm" : "residual connections after the norm");
  require(c.position_embedding_type == PositionEmbedding::kLearnedAbsolute,
          "the kind of position embedding");
  require(c.normalization == Normalization::kLayerNorm, "the kind of norm");
  require(!c.is_gated(), "the activation");
  require(!c.group_query_attention && c.kv_channels * c.num_attention_heads == c.hidden_size,
          "query groups or the size of heads");
  require(c.add_bias_linear, "no biases in linear layers");
  require(!c.parallel_residual, "parallel residuals");
  require(!c.apply_layernorm_1p, "--apply-layernorm-1p");
  require(!c.qk_layernorm, "--qk-layernorm");
  return found;
}

nlohmann::json hf_bert_fields(const TransformerConfig& c) {
  nlohmann::json fields = {{"num_hidden_layers", c.num_layers},
                           {"hidden_size", c.hidden_size},
                           {"num_attention_heads", c.num_attention_heads},
                           {"intermediate_size", c.ffn_hidden_size},
                           {"max_position_embeddings", c.max_position_embeddings},
                           {"layer_norm_eps", c.norm_epsilon},
                           {"hidden_act", hf_activation_name(c.activation)},
                           {"attention_probs_dropout_prob", c.attention_dropout},
                           {"hidden_dropout_prob", c.hidden_dropout},
                           {"type_vocab_size", c.tokentypes()},
                           {"position_embedding_type", "absolute"}};
  if (fields["hidden_act"] != hf_activation_name(c.head_activation)) {
    fields[kHeadActivation] = hf_activation_name(c.head_activation);
    warn(
        "transformers has one activation for the layers and the LM head of a BERT: it computes "
        "this model's head with the other form of GELU, which moves its logits by about 1e-3");
  }
  return fields;
}

}  // namespace megatron
