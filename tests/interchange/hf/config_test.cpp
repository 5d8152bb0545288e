#include "megatron/interchange/hf/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/interchange/source_settings.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class HfConfigTest : public testing::Test {
 protected:
  json golden(const std::string& model) const {
    return json::parse(
        read_text(std::filesystem::path(source_path("tests/golden/hf")) / model / "config.json"));
  }
  HfModel read(const std::string& text) {
    std::ofstream(directory_.path() / "config.json") << text;
    return read_hf_config(directory_.path());
  }
  HfModel read(const std::string& model, const json& changes) {
    json fields = golden(model);
    fields.update(changes);
    return read(fields.dump());
  }
  std::string unsupported(const std::string& model, const json& changes) {
    return message_of<Unsupported>([&] { read(model, changes); });
  }
  std::string malformed(const std::string& model, const json& changes) {
    return message_of<FormatError>([&] { read(model, changes); });
  }

  TemporaryDirectory directory_;
};

TEST_F(HfConfigTest, Gpt2) {
  const HfModel model = read("gpt2", {{"tie_word_embeddings", false}});
  const TransformerConfig& c = model.transformer;
  EXPECT_EQ(model.family->model_type, "gpt2");
  EXPECT_EQ(model.vocab_size, 131);
  EXPECT_EQ(model.eos_token_ids, std::vector<int64_t>{50256});
  EXPECT_EQ(model.pad_token_id, std::nullopt);
  EXPECT_EQ(c.num_layers, 3);
  EXPECT_EQ(c.hidden_size, 48);
  EXPECT_EQ(c.ffn_hidden_size, 192);
  EXPECT_EQ(c.kv_channels, 12);
  EXPECT_EQ(c.num_query_groups, 4);
  EXPECT_EQ(c.max_position_embeddings, 64);
  EXPECT_EQ(c.seq_length, 64);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.position_embedding_type, PositionEmbedding::kLearnedAbsolute);
  EXPECT_EQ(c.norm_epsilon, 1e-5);
  EXPECT_TRUE(c.untie_embeddings_and_output_weights);
  EXPECT_EQ(c.hidden_dropout, 0.1);
  EXPECT_EQ(c.params_dtype, DType::kFloat32);
}

TEST_F(HfConfigTest, LlamaWithGroupedQueries) {
  const HfModel model = read("llama-gqa", {{"dtype", "bfloat16"}});
  const TransformerConfig& c = model.transformer;
  EXPECT_TRUE(c.group_query_attention);
  EXPECT_EQ(c.num_query_groups, 2);
  EXPECT_EQ(c.normalization, Normalization::kRmsNorm);
  EXPECT_EQ(c.activation, Activation::kSwiglu);
  EXPECT_EQ(c.position_embedding_type, PositionEmbedding::kRope);
  EXPECT_EQ(c.norm_epsilon, 1e-6);
  EXPECT_FALSE(c.add_bias_linear);
  EXPECT_TRUE(c.untie_embeddings_and_output_weights);
  EXPECT_EQ(c.params_dtype, DType::kBFloat16);
}

TEST_F(HfConfigTest, LlamaRotaryEmbeddings) {
  // The fields of transformers 4, then of 5.
  json llama3 = {{"rope_theta", 500000.0},
                 {"rope_parameters", nullptr},
                 {"rope_scaling",
                  {{"factor", 32.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0},
                   {"original_max_position_embeddings", 8192},
                   {"rope_type", "llama3"}}}};
  const HfModel old_model = read("llama", llama3);
  EXPECT_EQ(old_model.transformer.rotary_base, 500000.0);
  EXPECT_TRUE(old_model.transformer.use_rope_scaling);
  EXPECT_EQ(old_model.transformer.rope_scaling_factor, 32.0);
  json rope = llama3["rope_scaling"];
  rope["rope_theta"] = 250000.0;
  EXPECT_EQ(read("llama", {{"rope_parameters", rope}}).transformer.rotary_base, 250000.0);

  const json linear = {{"type", "linear"}, {"factor", 4}};
  const json changes = {{"rope_parameters", nullptr}, {"rope_scaling", linear}};
  EXPECT_EQ(read("llama", changes).transformer.rotary_seq_len_interpolation_factor, 4);

  // Constants that --use-rope-scaling does not have.
  rope["low_freq_factor"] = 2.0;
  const TransformerConfig low = read("llama", {{"rope_parameters", rope}}).transformer;
  EXPECT_FALSE(low.use_rope_scaling);
  EXPECT_EQ(low.rope_scaling.type, RopeScalingType::kLlama3);
  EXPECT_EQ(low.rope_scaling.low_freq_factor, 2.0);
  EXPECT_EQ(low.rope_scaling.factor, 32.0);
  // Of two, rope_scaling alone counts. The values are those of LlamaConfig in transformers 5.23.
  json both = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e4}}},
               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}};
  EXPECT_EQ(read("llama", both).transformer.rotary_seq_len_interpolation_factor, 2);
  EXPECT_EQ(read("llama", both).transformer.rotary_base, 1e4);
  both["rope_theta"] = 7e3;
  EXPECT_EQ(read("llama", both).transformer.rotary_base, 7e3);
  both["rope_scaling"]["rope_theta"] = 9e3;
  EXPECT_EQ(read("llama", both).transformer.rotary_base, 9e3);
  both["rope_scaling"] = json::object();
  EXPECT_EQ(read("llama", both).transformer.rotary_base, 5e4);
  EXPECT_THAT(malformed("llama", {{"rope_scaling", {{"rope_type", "yarn"}}}}),
              HasSubstr("has no factor"));
  EXPECT_THAT(
      unsupported("llama", {{"rope_parameters", {{"rope_type", "spiral"}, {"factor", 2.0}}}}),
      HasSubstr("default, linear, llama3, yarn, dynamic, longrope"));
  const json half = {{"rope_type", "linear"}, {"factor", 1.5}};
  EXPECT_EQ(read("llama", {{"rope_parameters", half}}).transformer.rope_scaling.factor, 1.5);
}

// Of YaRN's mscale and mscale_all_dim one alone is unused in transformers 5.24.
TEST_F(HfConfigTest, ScalingsOfRotaryEmbeddings) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0},     {"original_max_position_embeddings", 16},
               {"beta_fast", 20},     {"truncate", false}, {"mscale", 0.7}};
  const RopeScaling one = read("llama", {{"rope_scaling", yarn}}).transformer.rope_scaling;
  EXPECT_EQ(one.type, RopeScalingType::kYarn);
  EXPECT_EQ(one.original_max_position_embeddings, 16);
  EXPECT_EQ(one.beta_fast, 20);
  EXPECT_EQ(one.beta_slow, 1);
  EXPECT_FALSE(one.truncate);
  EXPECT_EQ(one.mscale, 1.0);
  yarn["mscale_all_dim"] = 0.5;
  EXPECT_EQ(read("llama", {{"rope_scaling", yarn}}).transformer.rope_scaling.mscale, 0.7);
  const json dynamic = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  const RopeScaling grown = read("llama", {{"rope_scaling", dynamic}}).transformer.rope_scaling;
  EXPECT_EQ(grown.original_max_position_embeddings, 64);
  const json longrope = {
      {"type", "su"}, {"short_factor", {1, 1, 1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2, 2, 3}}};
  const RopeScaling apart =
      read("llama", {{"rope_scaling", longrope}, {"original_max_position_embeddings", 32}})
          .transformer.rope_scaling;
  EXPECT_EQ(apart.type, RopeScalingType::kLongRope);
  EXPECT_EQ(apart.factor, 2.0);
  EXPECT_EQ(apart.long_factor.back(), 3.0);
}

TEST_F(HfConfigTest, NamesEveryWrongField) {
  const std::string message = malformed("llama", {{"hidden_size", "48"}, {"rms_norm_eps", true}});
  EXPECT_THAT(message, HasSubstr("hidden_size is \"48\", expected a size"));
  EXPECT_THAT(message, HasSubstr("rms_norm_eps is true, expected a number"));
}

TEST_F(HfConfigTest, WarnsOfUnknownFields) {
  testing::internal::CaptureStderr();
  read("llama", {{"rms_norm_epz", 1e-3}, {"flavour", "sweet"}, {"use_cache", false}});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("llama has no such field, which is left out: flavour is \"sweet\", "
                              "rms_norm_epz is 0.001 (did you mean rms_norm_eps?)"));
}

TEST_F(HfConfigTest, NamesTheFamilyOfARenamedModel) {
  EXPECT_THAT(unsupported("llama", {{"model_type", "llama-of-ours"}}),
              HasSubstr("its architecture is that of a llama: set model_type to llama"));
  std::filesystem::copy_file(
      std::filesystem::path(source_path("tests/golden/hf/llama-gqa")) / "model.safetensors",
      directory_.path() / "model.safetensors");
  EXPECT_THAT(
      unsupported("llama-gqa", {{"model_type", "yi"}, {"architectures", {"YiForCausalLM"}}}),
      HasSubstr("its fields and tensors are those of a llama: set model_type to llama"));
}

TEST_F(HfConfigTest, GptNeox) {
  const TransformerConfig c = read("gpt-neox", json::object()).transformer;
  EXPECT_TRUE(c.parallel_residual);
  EXPECT_EQ(c.rotary_percent, 0.25);
  EXPECT_EQ(c.activation, Activation::kGeluErf);
  EXPECT_TRUE(c.untie_embeddings_and_output_weights);
  const json old_fields = {{"rope_parameters", nullptr},
                           {"rotary_pct", 0.5},
                           {"rotary_emb_base", 20000},
                           {"use_parallel_residual", false}};
  const TransformerConfig old_model = read("gpt-neox", old_fields).transformer;
  EXPECT_EQ(old_model.rotary_percent, 0.5);
  EXPECT_EQ(old_model.rotary_base, 20000);
  EXPECT_FALSE(old_model.parallel_residual);
}

// transformers 5.24 turns whole heads of a Llama and a Mistral, and parts of those of a GPT-NeoX,
// in which a rotary_pct beside rope_parameters with partial_rotary_factor does not count.
TEST_F(HfConfigTest, PartsOfHeadsAreTurnedInGptNeoxAlone) {
  constexpr const char* kFactor = "partial_rotary_factor";
  const json half = {{"rope_type", "default"}, {"rope_theta", 1e4}, {kFactor, 0.5}};
  const json scaled = {{"rope_type", "linear"}, {"factor", 2.0}, {kFactor, 0.5}};
  EXPECT_THAT(unsupported("llama", {{"rope_parameters", half}}),
              HasSubstr("turn 0.5 of a head, but transformers turns whole heads of this family; "
                        "remove partial_rotary_factor"));
  EXPECT_THAT(unsupported("llama", {{kFactor, 0.25}}),
              HasSubstr("partial_rotary_factor is 0.25: rotary positions turn 0.25 of a head"));
  EXPECT_THAT(unsupported("llama", {{"rope_scaling", scaled}}), HasSubstr("rope_scaling is"));
  EXPECT_THAT(unsupported("llama", {{"model_type", "mistral"}, {kFactor, 0.25}}),
              HasSubstr("whole heads"));
  EXPECT_EQ(read("llama", {{kFactor, 1.0}}).transformer.rotary_percent, 1.0);
  const json neox = {{"rope_parameters", half}, {"rotary_pct", 0.25}};
  EXPECT_EQ(read("gpt-neox", neox).transformer.rotary_percent, 0.5);
}

TEST_F(HfConfigTest, Bloom) {
  const TransformerConfig c =
      read("bloom", {{"apply_residual_connection_post_layernorm", true}}).transformer;
  EXPECT_TRUE(c.embed_layernorm);
  EXPECT_EQ(c.position_embedding_type, PositionEmbedding::kAlibi);
  EXPECT_TRUE(c.apply_residual_connection_post_layernorm);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_FALSE(c.untie_embeddings_and_output_weights);
  EXPECT_EQ(c.ffn_hidden_size, 192);
}

TEST_F(HfConfigTest, Mistral) {
  const json mistral = {{"model_type", "mistral"}, {"sliding_window", nullptr}};
  EXPECT_EQ(read("llama-gqa", mistral).family->model_type, "mistral");
  EXPECT_EQ(read("llama-gqa", mistral).transformer.attention_window, 0);
  const auto window = [&](int64_t size) {
    const json changes = {{"model_type", "mistral"}, {"sliding_window", size}};
    return read("llama-gqa", changes).transformer.attention_window;
  };
  EXPECT_EQ(window(32), 32);
  EXPECT_EQ(window(64), 0);  // it holds the longest sequence
}

TEST_F(HfConfigTest, NamesTheFieldItCannotServe) {
  EXPECT_THAT(unsupported("gpt2", {{"model_type", "mamba"}}),
              HasSubstr("model_type is \"mamba\": the models that can be read are gpt2, llama"));
  EXPECT_THAT(unsupported("gpt2", {{"activation_function", "quick_gelu"}}),
              HasSubstr("activation_function is \"quick_gelu\""));
  EXPECT_THAT(unsupported("gpt2", {{"scale_attn_by_inverse_layer_idx", true}}),
              HasSubstr("scale_attn_by_inverse_layer_idx is true"));
  EXPECT_THAT(unsupported("gpt2", {{"scale_attn_weights", false}}),
              HasSubstr("scale_attn_weights"));
  EXPECT_THAT(unsupported("gpt2", {{"add_cross_attention", true}}), HasSubstr("cross attention"));
  EXPECT_THAT(unsupported("gpt2", {{"dtype", "float8"}}), HasSubstr("dtype is \"float8\""));
  EXPECT_THAT(unsupported("gpt2", {{"quantization_config", {{"quant_method", "gptq"}}}}),
              HasSubstr("quantized weights of a gpt2 are not read"));
  EXPECT_THAT(unsupported("gpt2", {{"quantization_config", json::object()}}),
              HasSubstr("quantization_config"));
  EXPECT_THAT(unsupported("llama", {{"hidden_act", "gelu"}}), HasSubstr("hidden_act"));
  EXPECT_THAT(unsupported("gpt-neox", {{"attention_bias", false}}), HasSubstr("attention_bias"));
}

// Llama 3 Instruct has several, and states them in either file.
TEST_F(HfConfigTest, SeveralTokensEndAText) {
  const HfModel list = read("llama", {{"eos_token_id", {7, 9}}});
  EXPECT_EQ(list.eos_token_ids, (std::vector<int64_t>{7, 9}));
  EXPECT_EQ(json::parse(hf_config_text(list)).at("eos_token_id"), json({7, 9}));
  EXPECT_EQ(end_tokens_of(settings_of(list)), list.eos_token_ids);
  EXPECT_TRUE(read("llama", {{"eos_token_id", nullptr}}).eos_token_ids.empty());

  directory_.write("generation_config.json", R"({"eos_token_id": [7, 9, 11]})");
  EXPECT_EQ(read("llama", {{"eos_token_id", 7}}).eos_token_ids, (std::vector<int64_t>{7, 9, 11}));
  directory_.write("generation_config.json", R"({"temperature": 0.6})");
  EXPECT_EQ(read("llama", {{"eos_token_id", 7}}).eos_token_ids, std::vector<int64_t>{7});
  directory_.write("generation_config.json", R"({"eos_token_id": "</s>"})");
  EXPECT_THAT(malformed("llama", {{"eos_token_id", 7}}),
              HasSubstr("generation_config.json: eos_token_id is \"</s>\", expected a token id"));
}

TEST_F(HfConfigTest, NamesTheFieldThatIsMalformed) {
  EXPECT_THAT(malformed("gpt2", {{"n_layer", "3"}}),
              HasSubstr("n_layer is \"3\", expected a size"));
  EXPECT_THAT(malformed("gpt2", {{"n_layer", 0}}), HasSubstr("n_layer is 0"));
  EXPECT_THAT(malformed("gpt2", {{"n_layer", nullptr}}), HasSubstr("has no n_layer"));
  EXPECT_THAT(malformed("gpt2", {{"n_embd", int64_t{1} << 40}}), HasSubstr("expected a size"));
  EXPECT_THAT(malformed("gpt2", {{"n_head", 5}}), HasSubstr("describes no model"));
  EXPECT_THAT(malformed("gpt2", {{"tie_word_embeddings", 1}}), HasSubstr("true or false"));
  EXPECT_THAT(malformed("gpt2", {{"layer_norm_epsilon", "small"}}), HasSubstr("a number"));
  EXPECT_THAT(malformed("gpt2", {{"eos_token_id", "x"}}), HasSubstr("a token id"));
  EXPECT_THAT(malformed("llama", {{"rope_parameters", 4}}), HasSubstr("an object"));
  EXPECT_THAT(message_of<FormatError>([&] { read("[]"); }), HasSubstr("not a JSON object"));
  EXPECT_THAT(message_of<FormatError>([&] { read("{"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of<FormatError>([&] { read(R"({"a":1,"a":2})"); }),
              HasSubstr("occurs twice"));
}

// Values that no model has are named with what would be right.
TEST_F(HfConfigTest, RefusesNumbersThatMakeNoModel) {
  const auto refusal = [&](const std::string& name, const json& changes) {
    json fields =
        json::parse(read_text(source_path(("tests/golden/hf/configs/" + name + ".json").c_str())));
    fields.update(changes);
    return message_of<FormatError>([&] { read(fields.dump()); });
  };
  EXPECT_THAT(refusal("gemma2", {{"query_pre_attn_scalar", -4}}),
              HasSubstr("query_pre_attn_scalar is -4, expected a number above 0"));
  EXPECT_THAT(refusal("granite", {{"attention_multiplier", 0}}),
              HasSubstr("attention_multiplier is 0, expected a number above 0"));
  EXPECT_THAT(refusal("granite", {{"logits_scaling", 0}}), HasSubstr("logits_scaling is 0"));
  EXPECT_THAT(refusal("deepseek-v3", {{"routed_scaling_factor", 0.0}}),
              HasSubstr("routed_scaling_factor is 0.0, expected a number above 0"));
  EXPECT_THAT(
      malformed("llama", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 0}}}}),
      HasSubstr("rope_theta is 0, expected a number above 0"));
  EXPECT_THAT(
      unsupported("llama", {{"rope_parameters", {{"rope_type", "linear"}, {"factor", -2.0}}}}),
      HasSubstr("the factor of rope scaling must be above 0"));
  json gptj = json::parse(read_text(source_path("tests/golden/hf/configs/gptj.json")));
  gptj["rotary_dim"] = 7;
  EXPECT_THAT(message_of<Unsupported>([&] { read(gptj.dump()); }),
              AllOf(HasSubstr("rotary_dim is 7: "), HasSubstr("must be even")));
}

TEST_F(HfConfigTest, RefusesScaledPositionsOfLayersWithAWindow) {
  json gemma = json::parse(read_text(source_path("tests/golden/hf/configs/gemma3.json")));
  json& window = gemma["rope_parameters"]["sliding_attention"];
  window["rope_theta"] = 5000.0;
  EXPECT_EQ(read(gemma.dump()).transformer.rotary_base_local, 5000.0);
  window["rope_type"] = "linear";
  window["factor"] = 2.0;
  EXPECT_THAT(message_of<Unsupported>([&] { read(gemma.dump()); }),
              HasSubstr("positions of sliding_attention layers are not scaled here"));
}

TEST_F(HfConfigTest, GptOss) {
  const TransformerConfig c = read("gpt-oss-small", json::object()).transformer;
  EXPECT_EQ(c.activation, Activation::kClampedQuickGeglu);
  EXPECT_EQ(c.softmax_type, SoftmaxType::kLearnable);
  EXPECT_EQ(c.attention_window, 6);
  EXPECT_EQ(c.window_layers, (std::vector<int>{1, 0}));
  EXPECT_TRUE(c.add_bias_linear);
  EXPECT_FALSE(c.rope_scaling.truncate);
  // Without either field, as transformers 5.24.
  const TransformerConfig bare =
      read("gpt-oss-small", {{"rope_parameters", nullptr}, {"max_position_embeddings", 131072}})
          .transformer;
  EXPECT_EQ(bare.rotary_base, 150000.0);
  EXPECT_EQ(bare.rope_scaling.type, RopeScalingType::kYarn);
  EXPECT_EQ(bare.rope_scaling.factor, 32.0);
  EXPECT_THAT(unsupported("gpt-oss-small", {{"swiglu_limit", 5.0}}),
              HasSubstr("swiglu_limit is 5.0: the gate and the up projection are clamped at 7"));
  EXPECT_THAT(unsupported("gpt-oss-small", {{"attention_bias", false}}),
              HasSubstr("attention_bias"));
  testing::internal::CaptureStderr();
  read("gpt-oss-small", {{"output_router_logits", true}, {"router_aux_loss_coef", 0.9}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("output_router_logits is true: the loss by which transformers balances "
                        "experts (router_aux_loss_coef 0.9) is left out of training"));
}

TEST_F(HfConfigTest, GroupsOfExpertsOfDeepSeek) {
  const auto deepseek = [&](const std::string& name, const json& changes) {
    json fields =
        json::parse(read_text(source_path(("tests/golden/hf/configs/" + name + ".json").c_str())));
    fields.update(changes);
    return read(fields.dump());
  };
  const HfModel v3 = deepseek("deepseek-v3", json::object());
  EXPECT_EQ(v3.transformer.moe_router_num_groups, 4);
  EXPECT_EQ(v3.transformer.moe_router_group_topk, 2);
  EXPECT_EQ(v3.transformer.moe_router_group_score_topk, 2);
  EXPECT_EQ(v3.transformer.mtp_num_layers, 1);
  EXPECT_EQ(json::parse(hf_config_text(v3)).at("num_nextn_predict_layers"), 1);
  EXPECT_EQ(json::parse(hf_config_text(v3)).at("num_key_value_heads"), 4);
  const TransformerConfig one =
      deepseek("deepseek-v3", {{"n_group", 1}, {"topk_group", 1}}).transformer;
  EXPECT_EQ(one.moe_router_num_groups, 0);
  EXPECT_THAT(message_of<Unsupported>([&] {
                deepseek("deepseek-v3", {{"num_experts_per_tok", 1}});
              }),
              HasSubstr("num_experts_per_tok is 1"));
  const json groups = {{"topk_method", "group_limited_greedy"}, {"n_group", 3}, {"topk_group", 2}};
  const HfModel v2 = deepseek("deepseek-v2", groups);
  EXPECT_EQ(v2.transformer.moe_router_group_score_topk, 1);
  EXPECT_EQ(json::parse(hf_config_text(v2)).at("topk_method"), "group_limited_greedy");
  EXPECT_EQ(deepseek("deepseek-v2", {{"n_group", 3}, {"topk_group", 2}})
                .transformer.moe_router_num_groups,
            0);
  EXPECT_THAT(message_of<Unsupported>([&] {
                deepseek("deepseek-v2", {{"topk_method", "noaux_tc"}});
              }),
              HasSubstr("known are greedy and group_limited_greedy"));
  // Groups that a run has chosen by Megatron Core's rule, whose numbers are those of the family.
  TransformerConfig ours = v3.transformer;
  ours.moe_router_group_score_topk = 0;
  EXPECT_THAT(message_of<Unsupported>([&] { hf_family_of(ours, "deepseek_v3"); }),
              HasSubstr("deepseek_v3 differs in --moe-router-group-score-topk"));
  ours.moe_router_topk = 4;
  EXPECT_EQ(hf_family_of(ours, "deepseek_v3").model_type, "deepseek_v3");
}

// mT5 and Flan are T5 1.1 with other vocabularies.
TEST_F(HfConfigTest, T5OfOtherKinds) {
  const HfModel mt5 = read(
      "t5-v1.1", {{"model_type", "mt5"}, {"vocab_size", 250112}, {"tie_word_embeddings", false}});
  EXPECT_EQ(mt5.family->model_type, "mt5");
  EXPECT_EQ(mt5.vocab_size, 250112);
  EXPECT_EQ(mt5.decoder_start_token_id, 0);
  EXPECT_EQ(mt5.transformer.activation, Activation::kGegluTanh);
  EXPECT_TRUE(mt5.transformer.untie_embeddings_and_output_weights);
  EXPECT_FALSE(mt5.transformer.scale_decoder_outputs);
  const json written = json::parse(hf_config_text(mt5));
  EXPECT_EQ(written.at("model_type"), "mt5");
  EXPECT_EQ(written.at("architectures").at(0), "MT5ForConditionalGeneration");
  const HfModel longer = read(
      "t5-v1.0", {{"num_decoder_layers", 5}, {"decoder_start_token_id", 7}, {"n_positions", 64}});
  EXPECT_EQ(longer.transformer.decoder_num_layers, 5);
  EXPECT_EQ(json::parse(hf_config_text(longer)).at("decoder_start_token_id"), 7);
  EXPECT_THAT(unsupported("t5-v1.1", {{"feed_forward_proj", "gated-tanh"}}),
              HasSubstr("known are relu, gated-gelu and gated-silu"));
}

TEST_F(HfConfigTest, WritesWhatItReads) {
  const json rope = {{"rope_type", "llama3"}, {"rope_theta", 1e6}, {"factor", 8.0}};
  const json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  const auto expect_round_trip = [&](const std::string& name, const json& changes) {
    const HfModel model = read(name, changes);
    const std::string text = hf_config_text(model);
    const HfModel again = read(text);
    EXPECT_EQ(hf_config_text(again), text);
    EXPECT_EQ(&hf_family_of(again.transformer), model.family);
    EXPECT_EQ(again.transformer.rotary_base, model.transformer.rotary_base);
    EXPECT_EQ(again.transformer.rope_scaling_factor, model.transformer.rope_scaling_factor);
    EXPECT_EQ(again.transformer.rotary_percent, model.transformer.rotary_percent);
    EXPECT_EQ(again.transformer.kv_channels, model.transformer.kv_channels);
    EXPECT_EQ(again.transformer.activation, model.transformer.activation);
  };
  expect_round_trip("gpt2", {{"n_inner", 100}, {"activation_function", "relu"}});
  expect_round_trip("llama", {{"rope_parameters", rope}, {"head_dim", 16}, {"dtype", "float16"}});
  expect_round_trip("llama-gqa",
                    {{"rope_parameters", linear}, {"attention_bias", true}, {"mlp_bias", true}});
  expect_round_trip("gpt-neox", {{"use_parallel_residual", false}});
  expect_round_trip("bloom", {{"seq_length", 512}});
}

// Models of every family in the spelling of transformers 5 and in that of the hub, as transformers
// 5.24 wrote them.
TEST_F(HfConfigTest, BothSpellingsOfEveryFamilyAreOneModel) {
  int models = 0;
  const std::filesystem::path folder = source_path("tests/golden/hf/configs");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().stem();
    if (name.ends_with(".hub")) continue;
    SCOPED_TRACE(name);
    testing::internal::CaptureStderr();
    const HfModel model = read_hf_config(entry.path());
    const std::string text = hf_config_text(model);
    EXPECT_EQ(hf_config_text(read_hf_config(folder / (name + ".hub.json"))), text);
    const HfModel again = read(text);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("no such field")));
    EXPECT_EQ(hf_config_text(again), text);
    EXPECT_EQ(&hf_family_of(again.transformer, model.family->model_type), model.family);
    models += 1;
  }
  EXPECT_EQ(models, 23);
}

// transformers 5 refuses 256.0 for an integer, and 1 for a number.
TEST_F(HfConfigTest, WritesIntegersAndNumbersAsTheyWere) {
  const std::filesystem::path folder = source_path("tests/golden/hf/configs");
  size_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with(".hub.json")) continue;
    const json before = json::parse(read_text(entry.path()));
    const json after = json::parse(hf_config_text(read_hf_config(entry.path())));
    const auto compare = [&](const json& theirs, const json& ours) {
      for (const auto& [name, value] : theirs.items()) {
        if (!value.is_number() || !ours.contains(name) || !ours[name].is_number()) continue;
        EXPECT_EQ(ours[name].is_number_integer(), value.is_number_integer())
            << entry.path() << ": " << name;
        ++compared;
      }
    };
    compare(before, after);
    if (before.contains("attn_config")) compare(before["attn_config"], after["attn_config"]);
  }
  EXPECT_GT(compared, 100u);
}

TEST_F(HfConfigTest, RefusesToWriteWhatTheFamilyCannotExpress) {
  HfModel model = read("gpt2", json::object());
  model.transformer.normalization = Normalization::kRmsNorm;
  model.transformer.qk_layernorm = true;
  const std::string message = message_of<Unsupported>([&] { hf_config_text(model); });
  EXPECT_THAT(message, HasSubstr("the kind of norm, --qk-layernorm"));
  const std::string no_family = message_of<Unsupported>([&] { hf_family_of(model.transformer); });
  EXPECT_THAT(no_family, HasSubstr("llama differs in"));
  EXPECT_THAT(no_family, HasSubstr("keep the model in the form of this program"));

  const auto llama_refusal = [&](const std::function<void(TransformerConfig&)>& change) {
    HfModel llama = read("llama", json::object());
    change(llama.transformer);
    return message_of<Unsupported>([&] { hf_config_text(llama); });
  };
  EXPECT_THAT(llama_refusal([](TransformerConfig& c) { c.rotary_percent = 0.5; }),
              HasSubstr("cannot express rotary positions of a part of each head"));
  EXPECT_THAT(llama_refusal([](TransformerConfig& c) {
                c.use_rope_scaling = true;
                c.rotary_seq_len_interpolation_factor = 2;
              }),
              HasSubstr("rope scaling beside interpolated positions"));
  HfModel part = read("llama", json::object());
  part.transformer.rotary_percent = 0.5;
  EXPECT_EQ(hf_family_of(part.transformer).model_type, "phi3");
  part.transformer.retro.add_retriever = true;
  EXPECT_THROW(hf_family_of(part.transformer), Unsupported);
  EXPECT_THAT(llama_refusal([](TransformerConfig& c) { c.retro.add_retriever = true; }),
              HasSubstr("--retro-add-retriever"));
  HfModel neox = read("gpt-neox", json::object());
  neox.transformer.rotary_percent = 0.5;
  EXPECT_EQ(read(hf_config_text(neox)).transformer.rotary_percent, 0.5);
}

}  // namespace
}  // namespace megatron
