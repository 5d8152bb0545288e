#include "megatron/interchange/hf/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/formats/json_file.h"
#include "megatron/interchange/hf/bert_config.h"
#include "megatron/interchange/hf/fields.h"
#include "megatron/interchange/hf/t5_config.h"

namespace megatron {
namespace {

using nlohmann::json;

// The constants of Llama 3's frequency scaling, which Megatron-LM fixes.
constexpr double kRopeLowFactor = 1.0;
constexpr double kRopeHighFactor = 4.0;
constexpr int64_t kRopeOriginalLength = 8192;

struct FamilyName {
  HfFamily family;
  const char* model_type;
  const char* architecture;
  const char* tokenizer_type;
};
constexpr FamilyName kFamilies[] = {
    {HfFamily::kGpt2, "gpt2", "GPT2LMHeadModel", "GPT2BPETokenizer"},
    {HfFamily::kLlama, "llama", "LlamaForCausalLM", "HuggingFaceTokenizer"},
    {HfFamily::kMistral, "mistral", "MistralForCausalLM", "HuggingFaceTokenizer"},
    {HfFamily::kGptNeox, "gpt_neox", "GPTNeoXForCausalLM", "HuggingFaceTokenizer"},
    {HfFamily::kBloom, "bloom", "BloomForCausalLM", "HuggingFaceTokenizer"},
    {HfFamily::kMegatronBert, "megatron-bert", "MegatronBertForPreTraining",
     "BertWordPieceLowerCase"},
    {HfFamily::kBert, "bert", "BertForPreTraining", "BertWordPieceLowerCase"},
    {HfFamily::kT5, "t5", "T5ForConditionalGeneration", "HuggingFaceTokenizer"},
    {HfFamily::kMt5, "mt5", "MT5ForConditionalGeneration", "HuggingFaceTokenizer"},
};

ModelKind kind_of(HfFamily family) {
  switch (family) {
    case HfFamily::kMegatronBert:
    case HfFamily::kBert:
      return ModelKind::kBert;
    case HfFamily::kT5:
    case HfFamily::kMt5:
      return ModelKind::kT5;
    default:
      return ModelKind::kGpt;
  }
}

const FamilyName& row_of(HfFamily family) {
  for (const FamilyName& row : kFamilies) {
    if (row.family == family) return row;
  }
  throw InternalError("a family has a name");
}

// transformers' class of the model.
std::string architecture_of(const HfModel& model) {
  std::string name = row_of(model.family).architecture;
  constexpr std::string_view kBothHeads = "ForPreTraining";
  if (!name.ends_with(kBothHeads)) return name;
  name.resize(name.size() - kBothHeads.size());
  if (!model.class_names.empty()) return name + std::string(kHfClassifier);
  return name + (model.transformer.bert_binary_head ? "ForPreTraining" : "ForMaskedLM");
}

HfFamily family_of(const HfFields& fields) {
  const std::string type = fields.text("model_type", "");
  std::vector<std::string_view> known;
  for (const FamilyName& row : kFamilies) {
    if (type == row.model_type) return row.family;
    known.emplace_back(row.model_type);
  }
  fields.unsupported("model_type",
                     fmt::format("the models that can be read are {}", fmt::join(known, ", ")));
}

DType dtype_named(const HfFields& fields) {
  const char* name = fields.has("dtype") ? "dtype" : "torch_dtype";
  const std::string text = fields.text(name, "float32");
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (text == name_of(dtype)) return dtype;
  }
  fields.unsupported(name, "known are float32, float16, bfloat16");
}

// A dropout probability that several fields state; we have one for all of them.
double common_dropout(const HfFields& fields, const char* name, const char* other) {
  const double value = fields.number(name, 0.1);
  if (fields.number(other, 0.1) != value) {
    warn(fmt::format("{} and {} of config.json differ; {} {} is taken as --hidden-dropout", name,
                     other, name, value));
  }
  return value;
}

// Rotary embeddings, as rope_parameters (transformers 5) or the older fields state them. Compat: as
// in transformers 5.23, nothing of rope_parameters counts beside rope_scaling.
void read_rope(const HfFields& fields, TransformerConfig& config, const char* theta_name,
               const char* percent_name, double default_percent) {
  config.position_embedding_type = PositionEmbedding::kRope;
  config.rotary_base = fields.number(theta_name, 10000.0);
  config.rotary_percent = fields.number(percent_name, default_percent);
  const std::optional<HfFields> scaling = fields.object("rope_scaling");
  const char* name = scaling && !scaling->is_empty() ? "rope_scaling" : "rope_parameters";
  const std::optional<HfFields> rope = fields.object(name);
  if (!rope) return;
  config.rotary_base = rope->number("rope_theta", config.rotary_base);
  config.rotary_percent = rope->number("partial_rotary_factor", config.rotary_percent);
  const std::string type = rope->text("rope_type", rope->text("type", "default").c_str());
  if (type == "default") return;
  if (type == "linear") {
    // Megatron's factor is a whole number.
    const double factor = rope->number("factor");
    if (factor != std::floor(factor) || factor < 1 || factor > static_cast<double>(kMaxHfSize)) {
      fields.unsupported(name, "the factor of linear scaling must be a whole number");
    }
    config.rotary_seq_len_interpolation_factor = static_cast<int64_t>(factor);
  } else if (type == "llama3") {
    config.use_rope_scaling = true;
    config.rope_scaling_factor = rope->number("factor");
    if (rope->number("low_freq_factor", kRopeLowFactor) != kRopeLowFactor ||
        rope->number("high_freq_factor", kRopeHighFactor) != kRopeHighFactor ||
        rope->size("original_max_position_embeddings", kRopeOriginalLength) !=
            kRopeOriginalLength) {
      fields.unsupported(name,
                         "llama3 scaling has low_freq_factor 1, high_freq_factor 4 and "
                         "original_max_position_embeddings 8192 here");
    }
  } else {
    fields.unsupported(name, "rope types that can be read are default, linear and llama3");
  }
}

// Compat: as transformers 5.24, whose Llama and Mistral rotate whole heads and ignore this field.
void refuse_partial_rotation(const HfFields& fields, double factor) {
  if (factor == 1.0) return;
  constexpr const char* kFactor = "partial_rotary_factor";
  const char* name = fields.has(kFactor)          ? kFactor
                     : fields.has("rope_scaling") ? "rope_scaling"
                                                  : "rope_parameters";
  fields.unsupported(
      name,
      fmt::format("rotary positions turn {} of a head, but transformers turns whole heads of this "
                  "family; remove partial_rotary_factor to compute as transformers does",
                  factor));
}

void read_gpt2(const HfFields& fields, TransformerConfig& config) {
  config.num_layers = fields.size("n_layer");
  config.hidden_size = fields.size("n_embd");
  config.num_attention_heads = fields.size("n_head");
  config.ffn_hidden_size = fields.size("n_inner", 4 * config.hidden_size);
  config.max_position_embeddings = fields.size("n_positions", fields.size("n_ctx", 1024));
  config.norm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  config.activation = hf_activation(fields, "activation_function", "gelu_new");
  config.attention_dropout = fields.number("attn_pdrop", 0.1);
  config.hidden_dropout = common_dropout(fields, "resid_pdrop", "embd_pdrop");
  config.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
  config.attention_softmax_in_fp32 = fields.flag("reorder_and_upcast_attn", false);
  fields.require_flag("scale_attn_weights", true, "scores are always scaled by 1/sqrt(head size)");
  fields.require_flag("scale_attn_by_inverse_layer_idx", false,
                      "scores are not scaled by the layer here");
  fields.require_flag("add_cross_attention", false, "a GPT has no cross attention here");
}

void read_llama(const HfFields& fields, HfFamily family, TransformerConfig& config) {
  config.num_layers = fields.size("num_hidden_layers");
  config.hidden_size = fields.size("hidden_size");
  config.num_attention_heads = fields.size("num_attention_heads");
  config.num_query_groups = fields.size("num_key_value_heads", config.num_attention_heads);
  config.group_query_attention = config.num_query_groups != config.num_attention_heads;
  config.kv_channels = fields.size("head_dim", config.hidden_size / config.num_attention_heads);
  config.ffn_hidden_size = fields.size("intermediate_size");
  config.max_position_embeddings = fields.size("max_position_embeddings");
  config.normalization = Normalization::kRmsNorm;
  config.norm_epsilon = fields.number("rms_norm_eps", 1e-6);
  config.attention_dropout = fields.number("attention_dropout", 0.0);
  config.hidden_dropout = 0.0;
  config.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  read_rope(fields, config, "rope_theta", "partial_rotary_factor", 1.0);
  refuse_partial_rotation(fields, config.rotary_percent);

  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.unsupported("hidden_act", "the gated MLP is read with silu only");
  }
  config.activation = Activation::kSwiglu;
  config.add_bias_linear = fields.flag("attention_bias", false);
  if (fields.flag("mlp_bias", false) != config.add_bias_linear) {
    fields.unsupported("mlp_bias",
                       "attention_bias and mlp_bias must be equal: either all linear "
                       "layers have biases or none");
  }
  if (family == HfFamily::kMistral &&
      fields.size("sliding_window", config.max_position_embeddings) <
          config.max_position_embeddings) {
    fields.unsupported("sliding_window",
                       "attention sees the whole sequence here; set it to null to accept that, or "
                       "max_position_embeddings to at most the window");
  }
}

void read_gpt_neox(const HfFields& fields, TransformerConfig& config) {
  config.num_layers = fields.size("num_hidden_layers");
  config.hidden_size = fields.size("hidden_size");
  config.num_attention_heads = fields.size("num_attention_heads");
  config.ffn_hidden_size = fields.size("intermediate_size");
  config.max_position_embeddings = fields.size("max_position_embeddings");
  config.norm_epsilon = fields.number("layer_norm_eps", 1e-5);
  config.activation = hf_activation(fields, "hidden_act", "gelu");
  config.parallel_residual = fields.flag("use_parallel_residual", true);
  config.attention_dropout = fields.number("attention_dropout", 0.0);
  config.hidden_dropout = fields.number("hidden_dropout", 0.0);
  config.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", false);
  fields.require_flag("attention_bias", true, "attention has biases when the MLP has");
  read_rope(fields, config, "rotary_emb_base", "rotary_pct", 0.25);
}

void read_bloom(const HfFields& fields, TransformerConfig& config) {
  // Each size has an older and a newer name.
  const auto size = [&](const char* name, const char* other) {
    return fields.has(name) ? fields.size(name) : fields.size(other);
  };
  config.num_layers = size("n_layer", "num_hidden_layers");
  config.hidden_size = size("hidden_size", "n_embed");
  config.num_attention_heads = size("n_head", "num_attention_heads");
  config.ffn_hidden_size = 4 * config.hidden_size;
  // Compat: ALiBi sets no limit; 2048 is the length BLOOM was trained with.
  config.max_position_embeddings = fields.size("seq_length", 2048);
  config.position_embedding_type = PositionEmbedding::kAlibi;
  config.embed_layernorm = true;
  config.norm_epsilon = fields.number("layer_norm_epsilon", 1e-5);
  config.activation = Activation::kGeluTanh;
  config.apply_residual_connection_post_layernorm =
      fields.flag("apply_residual_connection_post_layernorm", false);
  config.attention_dropout = fields.number("attention_dropout", 0.0);
  config.hidden_dropout = fields.number("hidden_dropout", 0.0);
  config.untie_embeddings_and_output_weights = !fields.flag("tie_word_embeddings", true);
}

// Constants of a family; all other properties of a model are fields of its config.json.
std::vector<std::string> differences(const TransformerConfig& c, HfFamily family) {
  if (is_encoder_only(kind_of(family))) {
    return hf_bert_differences(c, family == HfFamily::kBert);
  }
  if (is_encoder_decoder(kind_of(family))) return hf_t5_differences(c);
  const bool is_llama = family == HfFamily::kLlama || family == HfFamily::kMistral;
  const auto position = family == HfFamily::kGpt2    ? PositionEmbedding::kLearnedAbsolute
                        : family == HfFamily::kBloom ? PositionEmbedding::kAlibi
                                                     : PositionEmbedding::kRope;
  const auto norm = is_llama ? Normalization::kRmsNorm : Normalization::kLayerNorm;
  const bool has_activation = is_llama                     ? c.activation == Activation::kSwiglu
                              : family == HfFamily::kBloom ? c.activation == Activation::kGeluTanh
                                                           : !c.is_gated();
  const bool has_heads = is_llama || (!c.group_query_attention &&
                                      c.kv_channels * c.num_attention_heads == c.hidden_size);
  std::vector<std::string> found;
  const auto require = [&](bool holds, const char* what) {
    if (!holds) found.emplace_back(what);
  };
  require(c.position_embedding_type == position, "the kind of position embedding");
  require(c.normalization == norm, "the kind of norm");
  require(has_activation, "the activation");
  require(has_heads, "query groups or the size of heads");
  require(is_llama || c.add_bias_linear, "no biases in linear layers");
  require(!is_llama || c.add_bias_linear || !c.add_qkv_bias, "a bias of the QKV projection alone");
  require(c.embed_layernorm == (family == HfFamily::kBloom), "a norm on the embedding or none");
  require(family == HfFamily::kGptNeox || !c.parallel_residual, "parallel residuals");
  require(family == HfFamily::kBloom || !c.apply_residual_connection_post_layernorm,
          "residual connections after the norm");
  require(family != HfFamily::kBloom || c.ffn_hidden_size == 4 * c.hidden_size,
          "an MLP that is not four times as wide");
  require(is_llama || family == HfFamily::kGptNeox || !c.use_rope_scaling, "rope scaling");
  require(family == HfFamily::kGptNeox || position != PositionEmbedding::kRope ||
              c.rotary_percent == 1.0,
          "rotary positions of a part of each head (--rotary-percent)");
  require(!c.use_rope_scaling || c.rotary_seq_len_interpolation_factor == 1,
          "rope scaling beside interpolated positions");
  require(!c.apply_layernorm_1p, "--apply-layernorm-1p");
  require(!c.qk_layernorm, "--qk-layernorm");
  require(!c.rotary_interleaved, "--rotary-interleaved");
  require(!c.retro.add_retriever, "--retro-add-retriever");
  return found;
}

void write_rope(const TransformerConfig& config, json& fields) {
  json rope = {{"rope_type", "default"}, {"rope_theta", config.rotary_base}};
  if (config.rotary_percent != 1.0) rope["partial_rotary_factor"] = config.rotary_percent;
  if (config.use_rope_scaling) {
    rope["rope_type"] = "llama3";
    rope["factor"] = config.rope_scaling_factor;
    rope["low_freq_factor"] = kRopeLowFactor;
    rope["high_freq_factor"] = kRopeHighFactor;
    rope["original_max_position_embeddings"] = kRopeOriginalLength;
  } else if (config.rotary_seq_len_interpolation_factor != 1) {
    rope["rope_type"] = "linear";
    rope["factor"] = config.rotary_seq_len_interpolation_factor;
  }
  // transformers 5 reads rope_parameters, earlier versions rope_scaling.
  fields["rope_parameters"] = rope;
  fields["rope_scaling"] = rope["rope_type"] == "default" ? json() : rope;
}

json gpt2_fields(const TransformerConfig& c) {
  return {{"n_layer", c.num_layers},
          {"n_embd", c.hidden_size},
          {"n_head", c.num_attention_heads},
          {"n_inner", c.ffn_hidden_size},
          {"n_positions", c.max_position_embeddings},
          {"layer_norm_epsilon", c.norm_epsilon},
          {"activation_function", hf_activation_name(c.activation)},
          {"attn_pdrop", c.attention_dropout},
          {"resid_pdrop", c.hidden_dropout},
          {"embd_pdrop", c.hidden_dropout}};
}

json llama_fields(const TransformerConfig& c) {
  json fields = {{"num_hidden_layers", c.num_layers},
                 {"hidden_size", c.hidden_size},
                 {"num_attention_heads", c.num_attention_heads},
                 {"num_key_value_heads", c.num_query_groups},
                 {"head_dim", c.kv_channels},
                 {"intermediate_size", c.ffn_hidden_size},
                 {"max_position_embeddings", c.max_position_embeddings},
                 {"rms_norm_eps", c.norm_epsilon},
                 {"hidden_act", "silu"},
                 {"attention_bias", c.add_bias_linear},
                 {"mlp_bias", c.add_bias_linear},
                 {"attention_dropout", c.attention_dropout},
                 {"rope_theta", c.rotary_base}};
  write_rope(c, fields);
  return fields;
}

json gpt_neox_fields(const TransformerConfig& c) {
  json fields = {{"num_hidden_layers", c.num_layers},
                 {"hidden_size", c.hidden_size},
                 {"num_attention_heads", c.num_attention_heads},
                 {"intermediate_size", c.ffn_hidden_size},
                 {"max_position_embeddings", c.max_position_embeddings},
                 {"layer_norm_eps", c.norm_epsilon},
                 {"hidden_act", hf_activation_name(c.activation)},
                 {"use_parallel_residual", c.parallel_residual},
                 {"attention_bias", true},
                 {"attention_dropout", c.attention_dropout},
                 {"hidden_dropout", c.hidden_dropout},
                 {"rotary_emb_base", c.rotary_base},
                 {"rotary_pct", c.rotary_percent}};
  write_rope(c, fields);
  return fields;
}

json bloom_fields(const TransformerConfig& c) {
  return {{"n_layer", c.num_layers},
          {"hidden_size", c.hidden_size},
          {"n_head", c.num_attention_heads},
          {"seq_length", c.max_position_embeddings},
          {"layer_norm_epsilon", c.norm_epsilon},
          {"apply_residual_connection_post_layernorm", c.apply_residual_connection_post_layernorm},
          {"attention_dropout", c.attention_dropout},
          {"hidden_dropout", c.hidden_dropout}};
}

json fields_of(HfFamily family, const TransformerConfig& config) {
  switch (family) {
    case HfFamily::kGpt2:
      return gpt2_fields(config);
    case HfFamily::kLlama:
    case HfFamily::kMistral:
      return llama_fields(config);
    case HfFamily::kGptNeox:
      return gpt_neox_fields(config);
    case HfFamily::kBloom:
      return bloom_fields(config);
    case HfFamily::kMegatronBert:
    case HfFamily::kBert:
      return hf_bert_fields(config);
    case HfFamily::kT5:
    case HfFamily::kMt5:
      return hf_t5_fields(config);
  }
  throw InternalError("a family has fields");
}

std::vector<int64_t> end_tokens(const HfFields& fields, const std::filesystem::path& config_file) {
  const std::filesystem::path file = config_file.parent_path() / "generation_config.json";
  if (std::filesystem::exists(file)) {
    warn_of_change(file);
    const json document = read_json(file);
    if (!document.is_object()) {
      throw FormatError(
          fmt::format("{}: is not a JSON object; copy the file again", file.string()));
    }
    std::vector<int64_t> ids = HfFields(file, document).tokens("eos_token_id");
    if (!ids.empty()) return ids;
  }
  return fields.tokens("eos_token_id");
}

}  // namespace

std::string_view name_of(HfFamily family) { return row_of(family).model_type; }

std::string_view tokenizer_type_of(HfFamily family) { return row_of(family).tokenizer_type; }

HfModel read_hf_config(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "config.json" : path;
  warn_of_change(file);
  const json document = read_json(file);
  if (!document.is_object()) {
    throw FormatError(fmt::format("{}: is not a JSON object; copy the file again", file.string()));
  }
  const HfFields fields(file, document);
  HfModel model;
  model.family = family_of(fields);
  if (fields.has("quantization_config")) {
    throw Unsupported(
        fmt::format("{}: quantization_config: quantized weights are not read; use "
                    "the original model",
                    file.string()));
  }
  TransformerConfig& config = model.transformer;
  config.kind = kind_of(model.family);
  switch (model.family) {
    case HfFamily::kGpt2:
      read_gpt2(fields, config);
      break;
    case HfFamily::kLlama:
    case HfFamily::kMistral:
      read_llama(fields, model.family, config);
      break;
    case HfFamily::kGptNeox:
      read_gpt_neox(fields, config);
      break;
    case HfFamily::kBloom:
      read_bloom(fields, config);
      break;
    case HfFamily::kMegatronBert:
    case HfFamily::kBert:
      read_hf_bert(fields, config);
      break;
    case HfFamily::kT5:
    case HfFamily::kMt5:
      read_hf_t5(fields, config);
      break;
  }
  if (config.is_encoder_only()) model.class_names = hf_class_names(fields);
  if (!model.class_names.empty()) model.problem_type = fields.text("problem_type", "");
  model.vocab_size = fields.size("vocab_size");
  model.bos_token_id = fields.token("bos_token_id");
  model.eos_token_ids = end_tokens(fields, file);
  model.pad_token_id = fields.token("pad_token_id");
  if (config.is_encoder_decoder()) {
    model.decoder_start_token_id = fields.token("decoder_start_token_id");
  }
  config.padded_vocab_size = model.vocab_size;
  config.true_vocab_size = model.vocab_size;
  config.seq_length = config.max_position_embeddings;
  config.init_method_std = fields.number("initializer_range", 0.02);
  config.params_dtype = dtype_named(fields);
  config = resolved(config);
  const std::vector<std::string> wrong = problems(config, 1);
  if (!wrong.empty()) {
    throw FormatError(fmt::format("{}: describes no model that can be: {}", file.string(),
                                  fmt::join(wrong, "; ")));
  }
  return model;
}

std::string hf_config_text(const HfModel& model) {
  const TransformerConfig& config = model.transformer;
  const FamilyName& row = row_of(model.family);
  const std::vector<std::string> found = differences(config, model.family);
  if (!found.empty()) {
    throw Unsupported(fmt::format("a {} model of Hugging Face cannot express {}", row.model_type,
                                  fmt::join(found, ", ")));
  }
  json fields = fields_of(model.family, config);
  const auto token = [](std::optional<int64_t> id) { return id ? json(*id) : json(); };
  const std::vector<int64_t>& ends = model.eos_token_ids;
  fields["architectures"] = {architecture_of(model)};
  fields["model_type"] = row.model_type;
  fields["vocab_size"] = model.vocab_size;
  fields["tie_word_embeddings"] = !config.untie_embeddings_and_output_weights;
  fields["initializer_range"] = config.init_method_std;
  fields["torch_dtype"] = name_of(config.params_dtype);
  fields["bos_token_id"] = token(model.bos_token_id);
  fields["eos_token_id"] = ends.size() > 1 ? json(ends) : ends.empty() ? json() : json(ends[0]);
  fields["pad_token_id"] = token(model.pad_token_id);
  if (config.is_encoder_decoder()) {
    constexpr int64_t kPublished = 0;
    fields["decoder_start_token_id"] =
        model.decoder_start_token_id.value_or(model.pad_token_id.value_or(kPublished));
  }
  if (!model.class_names.empty()) fields.update(hf_class_fields(model.class_names));
  if (!model.problem_type.empty()) fields["problem_type"] = model.problem_type;
  fields["use_cache"] = true;
  return fields.dump(2) + "\n";
}

HfFamily hf_family_of(const TransformerConfig& config) {
  std::string reasons;
  for (const HfFamily family :
       {HfFamily::kGpt2, HfFamily::kLlama, HfFamily::kGptNeox, HfFamily::kBloom,
        HfFamily::kMegatronBert, HfFamily::kBert, HfFamily::kT5}) {
    if (kind_of(family) != config.kind) continue;
    const std::vector<std::string> found = differences(config, family);
    if (found.empty()) return family;
    reasons += fmt::format("\n  {} differs in {}", name_of(family), fmt::join(found, ", "));
  }
  throw Unsupported("no model family of Hugging Face has this configuration:" + reasons +
                    "\nkeep the model in the form of this program or of Megatron-LM");
}

}  // namespace megatron
