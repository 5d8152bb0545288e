#include "megatron/interchange/hf/peft_folder.h"

#include <fmt/format.h>
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
#include "tests/support/shared_data.h"
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

// Adapters of the linear layers of single experts, as PEFT has those of a Qwen3-MoE.
class PeftExpertsTest : public testing::Test {
 protected:
  static constexpr const char* kModel = "golden/hf2/qwen3-moe";

  void SetUp() override {
    MG_NEEDS_SHARED("golden/hf2/qwen3-moe/config.json");
    model_ = read_hf_config(shared_data(kModel));
    contents_ = open_hf_checkpoint(shared_data(kModel), model_);
    config_ = model_.transformer;
    table_ = hf_names(*model_.family, config_);
  }

  TensorMapping mapping_of(const std::string& name) const {
    const StoredTensor& weight = contents_.sections.at(kWeightsSection).at(name);
    const std::vector<TensorSpec> ours = {{name, DType::kFloat32, weight.shape}};
    return mapped(table_, ours).front();
  }
  static std::string module_of(const std::string& theirs) {
    return "base_model.model." + theirs.substr(0, theirs.rfind('.'));
  }
  // Reads the folder, and merges its adapters.
  PeftAdapters adapt(CheckpointContents& adapted) {
    PeftAdapters adapters =
        read_peft_adapters(directory_.path(), config_, contents_.sections.at(kWeightsSection));
    StoredSection more = adapters.weights;
    adapted.sections.at(kWeightsSection).merge(more);
    config_.lora_rank = adapters.rank;
    config_.lora_alpha = adapters.alpha;
    config_.lora_target_modules = adapters.layers;
    return adapters;
  }

  const TemporaryDirectory directory_;
  HfModel model_;
  CheckpointContents contents_;
  TransformerConfig config_;
  NameTable table_;
};

// Some experts have both matrices, one has a gate alone, others have none.
TEST_F(PeftExpertsTest, AddsTheirProducts) {
  const json settings = {
      {"r", kRank}, {"lora_alpha", kAlpha}, {"lora_dropout", 0.1}, {"peft_type", "LORA"}};
  write_text_atomically(directory_.path() / "adapter_config.json", settings.dump());
  std::map<std::string, Tensor> tensors;
  std::vector<TensorMapping> layers;
  for (const char* const layer : {"linear_fc1", "linear_fc2"}) {
    layers.push_back(mapping_of(fmt::format("decoder.layers.1.mlp.experts.{}.weight", layer)));
    const TensorMapping& mapping = layers.back();
    const std::vector<Shape> shapes = their_shapes(mapping, {});
    for (size_t part = 0; part < shapes.size(); ++part) {
      if (part == 1 || part == 4 || part == 5) continue;
      const std::string module = module_of(mapping.theirs[part]);
      const uint64_t seed = tensors.size() + 1;
      tensors[module + ".lora_A.weight"] = random_normal({kRank, shapes[part][1]}, {.seed = seed});
      tensors[module + ".lora_B.weight"] =
          random_normal({shapes[part][0], kRank}, {.seed = seed + 1000});
    }
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  SafetensorsWriter writer(directory_.path() / "adapter_model.safetensors", specs, {});
  for (const TensorSpec& spec : writer.specs()) writer.write(tensors.at(spec.name).view());
  writer.commit();

  CheckpointContents adapted = contents_;
  const PeftAdapters adapters = adapt(adapted);
  EXPECT_EQ(adapters.rank, 2 * kRank) << "gate and up have blocks of their own";
  EXPECT_THAT(adapters.layers, ElementsAre("linear_fc1", "linear_fc2"));
  EXPECT_EQ(adapters.dropout, 0) << "experts have none";
  merge_adapters(adapted, config_);
  for (const TensorMapping& mapping : layers) {
    const Tensor before = read_whole(contents_.sections.at(kWeightsSection).at(mapping.ours.name));
    const Tensor after = read_whole(adapted.sections.at(kWeightsSection).at(mapping.ours.name));
    for (size_t part = 0; part < mapping.theirs.size(); ++part) {
      Tensor want = to_theirs(mapping, part, before.view(), {});
      const std::string module = module_of(mapping.theirs[part]);
      if (const auto a = tensors.find(module + ".lora_A.weight"); a != tensors.end()) {
        const Tensor& b = tensors.at(module + ".lora_B.weight");
        for (int64_t i = 0; i < want.numel(); ++i) {
          const int64_t row = i / want.size(1);
          const int64_t column = i % want.size(1);
          double sum = 0;
          for (int64_t k = 0; k < kRank; ++k) {
            sum += element(b, row * kRank + k) * element(a->second, k * want.size(1) + column);
          }
          want.span<float>()[static_cast<size_t>(i)] += static_cast<float>(kAlpha / kRank * sum);
        }
      }
      expect_close(to_theirs(mapping, part, after.view(), {}), want, Tolerance{1e-5, 1e-5},
                   mapping.theirs[part]);
    }
  }
}

// Our adapters, one for gate and up of an expert, come back as they were.
TEST_F(PeftExpertsTest, AreReadAsTheyWereWritten) {
  config_.lora_rank = kRank;
  config_.lora_alpha = kAlpha;
  CheckpointContents adapted = contents_;
  StoredSection& weights = adapted.sections.at(kWeightsSection);
  std::map<std::string, Tensor> ours;
  uint64_t seed = 0;
  for (const auto& [name, weight] : contents_.sections.at(kWeightsSection)) {
    const size_t end = name.rfind(".weight");
    if (name.find("linear_fc") == std::string::npos) continue;
    const std::string adapter = name.substr(0, end) + ".adapter.";
    const Shape shape = weight.shape;
    ours[adapter + "linear_in.weight"] = random_normal(shape.with(-2, kRank), {.seed = ++seed});
    ours[adapter + "linear_out.weight"] = random_normal(shape.with(-1, kRank), {.seed = ++seed});
  }
  for (const auto& [name, tensor] : ours) {
    weights[name] = tensor_in_one_piece(tensor.shape(), DType::kFloat32, [tensor = tensor] {
      return FileElements{tensor.view(), tensor};
    });
  }
  write_peft_adapters(directory_.path(), adapted, config_, "qwen3-moe");
  const json settings = json::parse(std::ifstream(directory_.path() / "adapter_config.json"));
  EXPECT_THAT(settings.at("target_modules"), testing::Contains("experts.5.gate_proj"));
  CheckpointContents again = contents_;
  const PeftAdapters adapters = adapt(again);
  EXPECT_EQ(adapters.rank, kRank);
  ASSERT_EQ(adapters.weights.size(), ours.size());
  for (const auto& [name, tensor] : ours) {
    expect_identical(read_whole(adapters.weights.at(name)), tensor, name);
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
