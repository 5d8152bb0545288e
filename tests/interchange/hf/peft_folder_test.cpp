#include "megatron/interchange/hf/peft_folder.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/names.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kRank = 2;
constexpr double kAlpha = 6;

// A Llama, and a folder with adapters of its queries and values.
class PeftFolderTest : public testing::Test {
 protected:
  PeftFolderTest()
      : model_(read_hf_config(source_path("tests/golden/hf/llama"))),
        contents_(open_hf_checkpoint(source_path("tests/golden/hf/llama"), model_)) {
    settings_ = {{"peft_type", "LORA"},
                 {"r", kRank},
                 {"lora_alpha", kAlpha},
                 {"base_model_name_or_path", "llama"},
                 {"target_modules", {"q_proj", "v_proj"}}};
    const TransformerConfig& c = model_.transformer;
    const int64_t values = c.num_query_groups * c.kv_channels;
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      add(layer, "q_proj", c.num_attention_heads * c.kv_channels);
      add(layer, "v_proj", values);
    }
  }

  static std::string name_of(int64_t layer, const std::string& module, const char* matrix) {
    return "base_model.model.model.layers." + std::to_string(layer) + ".self_attn." + module + "." +
           matrix + ".weight";
  }
  void add(int64_t layer, const std::string& module, int64_t out) {
    const auto seed = static_cast<uint64_t>(tensors_.size() + 1);
    tensors_[name_of(layer, module, "lora_A")] =
        random_normal({kRank, model_.transformer.hidden_size}, {.seed = seed});
    tensors_[name_of(layer, module, "lora_B")] = random_normal({out, kRank}, {.seed = seed + 1000});
  }
  std::filesystem::path written() const {
    write_text_atomically(directory_.path() / "adapter_config.json", settings_.dump());
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors_) {
      specs.push_back({name, tensor.dtype(), tensor.shape()});
    }
    SafetensorsWriter writer(directory_.path() / "adapter_model.safetensors", specs,
                             {{"format", "pt"}});
    for (const TensorSpec& spec : writer.specs()) writer.write(tensors_.at(spec.name).view());
    writer.commit();
    return directory_.path();
  }
  PeftAdapters read() const {
    return read_peft_adapters(written(), model_.transformer,
                              contents_.sections.at(kWeightsSection));
  }

  const TemporaryDirectory directory_;
  const HfModel model_;
  CheckpointContents contents_;
  json settings_;
  std::map<std::string, Tensor> tensors_;
};

TEST_F(PeftFolderTest, JoinsTheAdaptersOfALayer) {
  const PeftAdapters adapters = read();
  EXPECT_EQ(adapters.rank, 3 * kRank) << "queries, keys and values have blocks of their own";
  EXPECT_EQ(adapters.alpha, 3 * kAlpha);
  EXPECT_THAT(adapters.layers, ElementsAre("linear_qkv"));

  CheckpointContents adapted = contents_;
  StoredSection more = adapters.weights;
  adapted.sections.at(kWeightsSection).merge(more);
  TransformerConfig config = model_.transformer;
  config.lora_rank = adapters.rank;
  config.lora_alpha = adapters.alpha;
  merge_adapters(adapted, config);

  const NameTable table = hf_names(*model_.family, config);
  const LayoutSizes sizes{config.num_attention_heads, config.num_query_groups, config.kv_channels,
                          config.counted_vocab_size()};
  const std::string name = "decoder.layers.1.self_attention.linear_qkv.weight";
  const Tensor before =
      cast(read_whole(contents_.sections.at(kWeightsSection).at(name)), DType::kFloat32);
  const Tensor after =
      cast(read_whole(adapted.sections.at(kWeightsSection).at(name)), DType::kFloat32);
  const std::vector<TensorSpec> ours = {{name, DType::kFloat32, before.shape()}};
  const TensorMapping mapping = mapped(table, ours).front();
  const char* const modules[] = {"q_proj", "k_proj", "v_proj"};
  for (size_t part = 0; part < 3; ++part) {
    Tensor want = to_theirs(mapping, part, before.view(), sizes);
    if (part != 1) {
      const Tensor& a = tensors_.at(name_of(1, modules[part], "lora_A"));
      const Tensor& b = tensors_.at(name_of(1, modules[part], "lora_B"));
      const int64_t in = a.size(1);
      for (int64_t row = 0; row < b.size(0); ++row) {
        for (int64_t k = 0; k < kRank; ++k) {
          const auto factor = static_cast<float>(kAlpha / kRank) *
                              b.span<float>()[static_cast<size_t>(row * kRank + k)];
          for (int64_t i = 0; i < in; ++i) {
            want.span<float>()[static_cast<size_t>(row * in + i)] +=
                factor * a.span<float>()[static_cast<size_t>(k * in + i)];
          }
        }
      }
    }
    expect_close(to_theirs(mapping, part, after.view(), sizes), want, Tolerance{1e-5, 1e-5});
  }
}

TEST_F(PeftFolderTest, LayersWithoutAdaptersHaveZeros) {
  for (const char* const module : {"q_proj", "v_proj"}) {
    tensors_.erase(name_of(0, module, "lora_A"));
    tensors_.erase(name_of(0, module, "lora_B"));
  }
  const PeftAdapters adapters = read();
  const Tensor b = read_whole(
      adapters.weights.at("decoder.layers.0.self_attention.linear_qkv.adapter.linear_out.weight"));
  EXPECT_EQ(b.size(1), adapters.rank);
  for (const float value : b.span<float>()) EXPECT_EQ(value, 0);
}

TEST_F(PeftFolderTest, ScalesByTheRootOfTheRankIfAsked) {
  settings_["use_rslora"] = true;
  const PeftAdapters adapters = read();
  EXPECT_DOUBLE_EQ(adapters.alpha / static_cast<double>(adapters.rank),
                   kAlpha / std::sqrt(static_cast<double>(kRank)));
}

TEST_F(PeftFolderTest, HasADropout) {
  EXPECT_EQ(read().dropout, 0);
  settings_["lora_dropout"] = 0.25;
  EXPECT_EQ(read().dropout, 0.25);
}

TEST_F(PeftFolderTest, RefusesOtherAdaptersByName) {
  const auto message = [&](const char* setting, const json& value) {
    const json kept = settings_;
    settings_[setting] = value;
    const std::string text = message_of<Error>([&] { read(); });
    settings_ = kept;
    return text;
  };
  EXPECT_THAT(message("peft_type", "IA3"), HasSubstr("peft_type \"IA3\" is not LORA"));
  EXPECT_THAT(message("use_dora", true), HasSubstr("use_dora true cannot be read"));
  EXPECT_THAT(message("bias", "all"), HasSubstr("bias \"all\" trains biases"));
  EXPECT_THAT(message("rank_pattern", {{"q_proj", 4}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(message("r", 5), AllOf(HasSubstr("q_proj"), HasSubstr("lora_A [5, in]")));
  tensors_["base_model.model.model.embed_tokens.lora_A.weight"] =
      random_normal({2, 4}, {.seed = 1});
  EXPECT_THAT(message_of<Error>([&] { read(); }),
              AllOf(HasSubstr("embed_tokens"), HasSubstr("no linear layer")));
}

TEST_F(PeftFolderTest, NamesItsModel) {
  const std::filesystem::path folder = written();
  EXPECT_TRUE(is_peft_folder(folder));
  EXPECT_EQ(base_model_of(folder), "llama");
  settings_.erase("base_model_name_or_path");
  written();
  EXPECT_THAT(message_of<FormatError>([&] { base_model_of(folder); }),
              HasSubstr("base_model_name_or_path is missing"));
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_FALSE(is_peft_folder(folder)) << "a merged model was written there";
}

}  // namespace
}  // namespace megatron
