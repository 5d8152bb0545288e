#include "megatron/interchange/hf/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/formats/json_file.h"
#include "megatron/interchange/hf/class_names.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/hf/quantized.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// transformers' class of the model.
std::string architecture_of(const HfModel& model) {
  std::string name(model.family->architecture);
  constexpr std::string_view kBothHeads = "ForPreTraining";
  if (!name.ends_with(kBothHeads)) return name;
  name.resize(name.size() - kBothHeads.size());
  if (!model.class_names.empty()) return name + std::string(kHfClassifier);
  return name + (model.transformer.bert_binary_head ? "ForPreTraining" : "ForMaskedLM");
}

void read_dtype(HfBinding& fields, TransformerConfig& config) {
  const char* name = fields.has("dtype") ? "dtype" : "torch_dtype";
  const std::string text = fields.text_of(name, "float32");
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (text != name_of(dtype)) continue;
    config.params_dtype = dtype;
    return;
  }
  fields.unsupported(name, "known are float32, float16, bfloat16");
}

// Options that a family does not bind must have their defaults.
void expect_defaults(HfBinding& f, TransformerConfig& c) {
  const TransformerConfig usual;
  const auto expect = [&]<class T, class C>(T C::*setting, const char* phrase) {
    f.fixed_unless_bound(c.*setting, usual.*setting, phrase);
  };
  // Position embeddings that no fields describe.
  if (c.position_embedding_type == PositionEmbedding::kRope) {
    expect(&TransformerConfig::rotary_base, "another rotary base");
    expect(&TransformerConfig::rotary_seq_len_interpolation_factor, "interpolated positions");
    f.fixed_unless_bound(c.rope_scaling.type, RopeScalingType::kNone, "rope scaling");
  }
  expect(&TransformerConfig::add_bias_linear, "no biases in linear layers");
  expect(&TransformerConfig::add_attention_bias, "biases of attention alone");
  expect(&TransformerConfig::add_norm_bias, "LayerNorm without a bias");
  expect(&TransformerConfig::add_qkv_bias, "a bias of the QKV projection alone");
  expect(&TransformerConfig::embed_layernorm, "a norm on the embedding or none");
  expect(&TransformerConfig::parallel_residual, "parallel residuals");
  expect(&TransformerConfig::parallel_residual_shares_norm, "parallel residuals with one norm");
  expect(&TransformerConfig::apply_residual_connection_post_layernorm,
         "residual connections after the norm");
  expect(&TransformerConfig::norm_placement, "norms after the branches");
  expect(&TransformerConfig::use_rope_scaling, "rope scaling");
  expect(&TransformerConfig::apply_layernorm_1p, "--apply-layernorm-1p");
  expect(&TransformerConfig::qk_layernorm, "--qk-layernorm");
  expect(&TransformerConfig::qk_layernorm_of_projection, "--qk-layernorm-of-projection");
  expect(&TransformerConfig::qk_layernorm_weight_per_head, "norms of each head's own weight");
  expect(&TransformerConfig::softmax_scale, "--softmax-scale");
  expect(&TransformerConfig::attention_window, "a window of attention");
  expect(&TransformerConfig::window_layers, "layers with a window of attention");
  expect(&TransformerConfig::attn_logit_softcapping, "soft caps of attention scores");
  expect(&TransformerConfig::softmax_type, "--softmax-type");
  expect(&TransformerConfig::attention_output_gate, "--attention-output-gate");
  expect(&TransformerConfig::rotary_base_local, "a rotary base of layers with a window");
  expect(&TransformerConfig::no_rope_layers, "layers without rotary positions");
  expect(&TransformerConfig::learned_position_offset, "an offset of learned positions");
  expect(&TransformerConfig::alibi_before_scaling, "--alibi-before-scaling");
  expect(&TransformerConfig::residual_multiplier, "a multiplier of residual branches");
  expect(&TransformerConfig::embedding_multiplier, "a multiplier of embeddings");
  expect(&TransformerConfig::logits_multiplier, "a multiplier of logits");
  expect(&TransformerConfig::final_logit_softcapping, "soft caps of logits");
  expect(&TransformerConfig::add_output_bias, "a bias of the output layer");
  expect(&TransformerConfig::num_experts, "--num-experts");
  if (c.has_experts()) {
    expect(&TransformerConfig::moe_router_score_function, "the scores of the router");
    expect(&TransformerConfig::moe_router_pre_softmax, "--moe-router-pre-softmax");
    expect(&TransformerConfig::moe_router_num_groups, "--moe-router-num-groups");
    expect(&TransformerConfig::moe_router_group_score_topk, "--moe-router-group-score-topk");
    expect(&TransformerConfig::moe_router_topk_scaling_factor, "--moe-router-topk-scaling-factor");
    expect(&TransformerConfig::moe_router_enable_expert_bias, "--moe-router-enable-expert-bias");
    expect(&TransformerConfig::moe_layer_freq, "layers without experts");
    expect(&TransformerConfig::moe_apply_probs_on_input, "--moe-apply-probs-on-input");
    expect(&TransformerConfig::moe_shared_expert_intermediate_size, "shared experts");
    expect(&TransformerConfig::moe_shared_expert_gate, "--moe-shared-expert-gate");
  }
  expect(&TransformerConfig::multi_latent_attention, "--multi-latent-attention");
  expect(&TransformerConfig::mtp_num_layers, "--mtp-num-layers");
  f.fixed_unless_bound(c.retro.add_retriever, false, "--retro-add-retriever");
}

// The configuration without settings that have no effect.
TransformerConfig without_ineffective(TransformerConfig c) {
  if (c.add_attention_bias == c.add_bias_linear) c.add_attention_bias.reset();
  if (c.has_proj_bias()) c.add_qkv_bias = false;
  if (c.normalization == Normalization::kRmsNorm) c.add_norm_bias = true;
  if (!c.multi_latent_attention &&
      c.softmax_scale == std::pow(static_cast<double>(c.kv_channels), -0.5))
    c.softmax_scale = 0.0;
  if (c.attention_window == 0) c.window_layers.clear();
  if (std::ranges::count(c.window_layers, 0) == 0) c.window_layers.clear();
  if (std::ranges::count(c.no_rope_layers, 0) == std::ssize(c.no_rope_layers)) {
    c.no_rope_layers.clear();
  }
  return c;
}

// The fields of the configuration, as far as the family can express it.
json fields_of(const HfFamily& family, const TransformerConfig& model, HfReport& report) {
  TransformerConfig config = without_ineffective(model);
  json document = json::object();
  HfBinding fields(document, report);
  family.bind(fields, config);
  expect_defaults(fields, config);
  if (!fields.is_bound(config.init_method_std)) {
    fields.number("initializer_range", config.init_method_std, 0.02);
  }
  return document;
}

json document_in(const fs::path& file) {
  warn_of_change(file);
  json document = read_json(file);
  if (!document.is_object()) {
    throw FormatError(fmt::format("{}: is not a JSON object; copy the file again", file.string()));
  }
  return document;
}

std::vector<int64_t> end_tokens(HfBinding& fields, const fs::path& config_file, HfReport& report) {
  const fs::path file = config_file.parent_path() / "generation_config.json";
  std::vector<int64_t> ids = fields.tokens("eos_token_id");
  if (!fs::exists(file)) return ids;
  const json document = document_in(file);
  const std::vector<int64_t> generated = HfBinding(file, document, report).tokens("eos_token_id");
  return generated.empty() ? ids : generated;
}

// The model of a document, of a given family.
HfModel model_of(const HfFamily& family, const fs::path& file, const json& document,
                 HfReport& report) {
  HfBinding fields(file, document, report);
  HfModel model;
  model.family = &family;
  TransformerConfig& config = model.transformer;
  config.kind = family.kind;
  family.bind(fields, config);
  if (config.is_encoder_only()) model.class_names = hf_class_names(fields);
  if (!model.class_names.empty()) model.problem_type = fields.text_of("problem_type", "");
  fields.text_of("model_type", "");
  fields.size("vocab_size", model.vocab_size);
  model.bos_token_id = fields.token("bos_token_id");
  model.eos_token_ids = end_tokens(fields, file, report);
  model.pad_token_id = fields.token("pad_token_id");
  if (config.is_encoder_decoder()) {
    model.decoder_start_token_id = fields.token("decoder_start_token_id");
  }
  config.padded_vocab_size = model.vocab_size;
  config.true_vocab_size = model.vocab_size;
  config.seq_length = config.max_position_embeddings;
  if (!fields.is_bound(config.init_method_std)) {
    fields.number("initializer_range", config.init_method_std, 0.02);
  }
  read_dtype(fields, config);
  model.quantization = read_quantization(fields);
  const bool has_dtype = fields.has("dtype") || fields.has("torch_dtype");
  if (model.quantization != nullptr && !has_dtype)
    config.params_dtype = DType::kBFloat16;  // GPT-OSS
  const auto has_transposed_weights = [&] {
    return std::ranges::any_of(family.names(config).rules, [](const NameRule& rule) {
      return rule.layout == Layout::kTranspose || rule.layout == Layout::kQkvThirdsTranspose;
    });
  };
  if (model.quantization != nullptr && has_transposed_weights()) {
    fields.unsupported("quantization_config",
                       fmt::format("quantized weights of a {} are not read; use the original model",
                                   family.model_type));
  }
  fields.report_unknown();
  if (!report.malformed.empty() || !report.unsupported.empty()) return model;
  config = resolved(config);
  const std::vector<std::string> wrong = problems(config, 1);
  if (!wrong.empty()) {
    report.malformed.push_back(fmt::format("{}: describes no model that can be: {}", file.string(),
                                           fmt::join(wrong, "; ")));
  }
  return model;
}

// Compat: transformers 5.24 writes the number of layers that predict further tokens, but not their
// tensors.
void drop_missing_layers(HfModel& model, const fs::path& folder) {
  TransformerConfig& config = model.transformer;
  if (config.mtp_num_layers == 0) return;
  const NameTable table = hf_names(*model.family, config);
  const TensorSpec last{
      fmt::format("mtp.layers.{}.enorm.weight", config.mtp_num_layers - 1), {}, {}};
  const std::string name = mapped(table, {&last, 1}).front().theirs.front();
  if (!has_weights(folder) || ShardedWeights(folder).find(name) != nullptr) return;
  warn(fmt::format("{}: has no {}; the {} of num_nextn_predict_layers {} left out", folder.string(),
                   name, config.mtp_num_layers == 1 ? "layer" : "layers",
                   config.mtp_num_layers == 1 ? "is" : "are"));
  config.mtp_num_layers = 0;
}

// Does the document, with the weights beside it, describe a model of the family?
bool resembles(const HfFamily& family, const fs::path& file, const json& document) {
  try {
    HfReport report;
    const HfModel model = model_of(family, file, document, report);
    if (!report.malformed.empty() || !report.unsupported.empty()) return false;
    open_hf_checkpoint(file.parent_path(), model);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// "; ...": the family that a model of an unknown one may be, if there is one.
std::string likeness(const fs::path& file, const json& document) {
  HfReport ignored;
  const std::vector<std::string> architectures =
      HfBinding(file, document, ignored).texts("architectures");
  const auto sentence = [](const char* what, const HfFamily* family) {
    return fmt::format("; {} of a {}: set model_type to {} if it computes what that does", what,
                       family->model_type, family->model_type);
  };
  for (const HfFamily* family : hf_families()) {
    if (std::ranges::find(architectures, family->architecture) == architectures.end()) continue;
    return sentence("its architecture is that", family);
  }
  for (const HfFamily* family : hf_families()) {
    if (!resembles(*family, file, document)) continue;
    return sentence("its fields and tensors are those", family);
  }
  return "";
}

const HfFamily& family_of(const fs::path& file, const json& document) {
  HfReport report;
  HfBinding fields(file, document, report);
  const std::string type = fields.text_of("model_type", "");
  if (!report.malformed.empty()) throw FormatError(report.malformed.front());
  if (const HfFamily* family = find_hf_family(type)) return *family;
  std::vector<std::string_view> known;
  for (const HfFamily* family : hf_families()) known.push_back(family->model_type);
  fields.unsupported("model_type", fmt::format("the models that can be read are {}{}",
                                               fmt::join(known, ", "), likeness(file, document)));
  throw Unsupported(report.unsupported.front());
}

}  // namespace

HfModel read_hf_config(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "config.json" : path;
  const json document = document_in(file);
  const HfFamily& family = family_of(file, document);
  HfReport report;
  HfModel model = model_of(family, file, document, report);
  if (!report.malformed.empty())
    throw FormatError(fmt::to_string(fmt::join(report.malformed, "\n")));
  if (!report.unsupported.empty()) {
    throw Unsupported(fmt::to_string(fmt::join(report.unsupported, "\n")));
  }
  for (const std::string& warning : report.warnings) warn_once(warning);
  if (!report.unknown.empty()) {
    warn(fmt::format("{}: {} has no such field, which is left out: {}", file.string(),
                     family.model_type, fmt::join(report.unknown, ", ")));
  }
  if (fs::is_directory(path)) drop_missing_layers(model, path);
  return model;
}

std::string hf_config_text(const HfModel& model) {
  const TransformerConfig& config = model.transformer;
  const HfFamily& family = *model.family;
  HfReport report;
  json fields = fields_of(family, config, report);
  if (!report.differences.empty()) {
    throw Unsupported(fmt::format("a {} model of Hugging Face cannot express {}", family.model_type,
                                  fmt::join(report.differences, ", ")));
  }
  for (const std::string& warning : report.warnings) warn_once(warning);
  const auto token = [](std::optional<int64_t> id) { return id ? json(*id) : json(); };
  const std::vector<int64_t>& ends = model.eos_token_ids;
  fields["architectures"] = {architecture_of(model)};
  fields["model_type"] = family.model_type;
  fields["vocab_size"] = model.vocab_size;
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

const HfFamily& hf_family_of(const TransformerConfig& config, std::string_view model_type) {
  std::string reasons;
  const auto differences = [&](const HfFamily& family) {
    HfReport report;
    fields_of(family, config, report);
    return report.differences;
  };
  const HfFamily* first = find_hf_family(model_type);
  if (first != nullptr && first->kind == config.kind && differences(*first).empty()) return *first;
  for (const HfFamily* family : hf_families()) {
    if (family->kind != config.kind) continue;
    const std::vector<std::string> found = differences(*family);
    if (found.empty()) return *family;
    reasons += fmt::format("\n  {} differs in {}", family->model_type, fmt::join(found, ", "));
  }
  throw Unsupported("no model family of Hugging Face has this configuration:" + reasons +
                    "\nkeep the model in the form of this program or of Megatron-LM");
}

}  // namespace megatron
