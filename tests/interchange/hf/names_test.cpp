#include "megatron/interchange/hf/names.h"
#include "megatron/models/model_specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::HasSubstr;

std::filesystem::path names_golden(const std::string& model) {
  return std::filesystem::path(source_path("tests/golden/hf")) / model;
}

std::map<std::string, Tensor> loaded(const std::filesystem::path& directory, const HfModel& model) {
  std::map<std::string, Tensor> tensors;
  const CheckpointContents contents = open_hf_checkpoint(directory, model);
  for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    tensors.emplace(name, read_whole(tensor));
  }
  return tensors;
}

void expect_same_files(const std::filesystem::path& got, const std::filesystem::path& want) {
  const ShardedWeights a(got);
  const ShardedWeights b(want);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : b.tensors()) {
    const StoredTensor* other = a.find(name);
    ASSERT_NE(other, nullptr) << name;
    expect_identical(copy_of(whole_elements(*other).view), copy_of(whole_elements(tensor).view),
                     name);
  }
}

// Parameter: a folder of tests/golden/hf.
class HfModelTest : public testing::TestWithParam<const char*> {
 protected:
  TemporaryDirectory directory_;
};

TEST_P(HfModelTest, LoadsEveryTensorAndWritesTheSameBits) {
  const HfModel model = read_hf_config(names_golden(GetParam()));
  const std::vector<TensorSpec> ours = model_tensors(model.transformer);
  const std::map<std::string, Tensor> tensors = loaded(names_golden(GetParam()), model);
  ASSERT_EQ(tensors.size(), ours.size());
  for (const TensorSpec& spec : ours) {
    EXPECT_EQ(tensors.at(spec.name).shape(), spec.shape) << spec.name;
  }
  const TensorSource source = [&](const TensorSpec& spec) {
    return FileElements{tensors.at(spec.name).view(), tensors.at(spec.name)};
  };
  save_hf_model(directory_.path(), model, ours, int64_t{1} << 30, source);
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "model.safetensors"));
  expect_same_files(directory_.path(), names_golden(GetParam()));

  save_hf_model(directory_.path(), model, ours, 100'000, source);
  EXPECT_TRUE(std::filesystem::exists(directory_.path() / "model.safetensors.index.json"));
  expect_same_files(directory_.path(), names_golden(GetParam()));

  const std::filesystem::path torch = directory_.path() / "torch";
  for (const int64_t max_shard_bytes : {int64_t{1} << 30, int64_t{100'000}}) {
    std::filesystem::create_directories(torch);
    save_hf_model(torch, model, ours, max_shard_bytes, source, WeightsFormat::kTorch);
    expect_same_files(torch, names_golden(GetParam()));
    std::filesystem::remove_all(torch);
  }
  const HfModel again = read_hf_config(directory_.path());
  EXPECT_EQ(again.family, model.family);
  EXPECT_EQ(hf_config_text(again), hf_config_text(model));
}

TEST_P(HfModelTest, PadsAndTrimsTheVocabulary) {
  HfModel model = read_hf_config(names_golden(GetParam()));
  const Tensor plain =
      loaded(names_golden(GetParam()), model).at("embedding.word_embeddings.weight");
  model.transformer.padded_vocab_size = 256;
  const std::vector<TensorSpec> ours = model_tensors(model.transformer);
  const std::map<std::string, Tensor> tensors = loaded(names_golden(GetParam()), model);
  const Tensor& padded = tensors.at("embedding.word_embeddings.weight");
  ASSERT_EQ(padded.shape(), Shape({256, 48}));
  expect_identical(padded.slice(0, 131), plain);
  expect_identical(padded.slice(131, 125), zeros({125, 48}, DType::kFloat32, {}));
  save_hf_model(directory_.path(), model, ours, int64_t{1} << 30,
                [&](const TensorSpec& spec) -> FileElements {
                  return {tensors.at(spec.name).view(), tensors.at(spec.name)};
                });
  expect_same_files(directory_.path(), names_golden(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Models, HfModelTest,
                         testing::Values("gpt2", "llama", "llama-gqa", "bloom", "gpt-neox",
                                         "megatron-bert"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(HfNamesTest, GradientsOfTheReferenceFollowTheSameTable) {
  // The same layout for every tensor of the model: gradients and updated weights load too.
  const HfModel model = read_hf_config(names_golden("gpt2"));
  const SafetensorsFile expected(names_golden("gpt2") / "expected.safetensors");
  for (const TensorMapping& tensor :
       mapped(hf_names(*model.family, model.transformer), model_tensors(model.transformer))) {
    for (const std::string& name : tensor.theirs) {
      EXPECT_NE(expected.find("grad." + name), nullptr) << name;
      EXPECT_NE(expected.find("after3." + name), nullptr) << name;
    }
  }
}

TEST(HfNamesTest, ReadsNamesWithoutPrefixAndSkipsBuffers) {
  const HfModel model = read_hf_config(names_golden("gpt2"));
  const SafetensorsFile file(names_golden("gpt2") / "model.safetensors");
  const std::string prefix = "transformer.";
  const Tensor buffer = zeros({1, 1, 64, 64}, DType::kUInt8, {});
  std::vector<TensorSpec> specs = {{"h.0.attn.bias", DType::kUInt8, buffer.shape()}};
  for (const SafetensorsFile::Entry& tensor : file.tensors()) {
    TensorSpec spec = tensor.spec;
    spec.name.erase(0, prefix.size());
    specs.push_back(spec);
  }
  // A tied output layer stored a second time, as old conversions do.
  specs.push_back({"lm_head.weight", DType::kFloat32, {131, 48}});
  const TemporaryDirectory directory;
  write_sharded(
      directory.path(), specs, int64_t{1} << 30, [&](const TensorSpec& spec) -> FileElements {
        if (spec.name == "h.0.attn.bias") return {buffer.view()};
        return {
            file.at(spec.name == "lm_head.weight" ? "transformer.wte.weight" : prefix + spec.name)};
      });
  const std::map<std::string, Tensor> want = loaded(names_golden("gpt2"), model);
  for (const auto& [name, tensor] : loaded(directory.path(), model)) {
    expect_identical(tensor, want.at(name), name);
  }
}

TEST(HfNamesTest, ReportsEverythingThatDoesNotFit) {
  HfModel model = read_hf_config(names_golden("llama"));
  model.transformer.num_layers = 4;
  model.transformer.untie_embeddings_and_output_weights = true;
  EXPECT_THAT(message_of<FormatError>([&] { loaded(names_golden("llama"), model); }),
              HasSubstr("missing: model.layers.3.self_attn.k_proj.weight (for "
                        "decoder.layers.3.self_attention.linear_qkv.weight)"));
  model.transformer.ffn_hidden_size = 96;
  const std::string message =
      message_of<FormatError>([&] { loaded(names_golden("llama"), model); });
  EXPECT_THAT(message, HasSubstr("shape: model.layers.0.mlp.up_proj.weight is [104, 48], expected "
                                 "[96, 48]"));
  EXPECT_THAT(message, HasSubstr("shape: model.layers.2.mlp.down_proj.weight is [48, 104], "
                                 "expected [48, 96]"));

  model = read_hf_config(names_golden("llama"));
  model.transformer.num_layers = 2;
  EXPECT_THAT(message_of<FormatError>([&] { loaded(names_golden("llama"), model); }),
              HasSubstr("unexpected: model.layers.2.input_layernorm.weight [48]"));
  model = read_hf_config(names_golden("llama"));
  model.vocab_size = 132;
  model.transformer.padded_vocab_size = 132;
  EXPECT_THAT(message_of<FormatError>([&] { loaded(names_golden("llama"), model); }),
              HasSubstr("model.embed_tokens.weight is [131, 48], expected [132, 48]"));
  model.transformer.padded_vocab_size = 100;
  EXPECT_THAT(message_of<FormatError>([&] { loaded(names_golden("llama"), model); }),
              HasSubstr("expected 132 rows"));
}

TEST(HfNamesTest, RefusesOptionsOfOursWithoutAPlace) {
  HfModel model = read_hf_config(names_golden("llama"));
  model.transformer.qk_layernorm = true;
  EXPECT_THAT(message_of<Unsupported>([&] { loaded(names_golden("llama"), model); }),
              HasSubstr("decoder.layers.0.self_attention.q_layernorm.weight"));
}

TransformerConfig config_with_six_layers(ModelKind kind) {
  TransformerConfig config;
  config.num_layers = 6;
  config.hidden_size = 8;
  config.num_attention_heads = 4;
  config.seq_length = 4;
  config.max_position_embeddings = 4;
  config.kind = kind;
  return resolved(config);
}

// "MODEL LAYOUT: THEIRS = OURS" and the like, as tests/cases/hf_names.txt says.
void expect_name(const std::string& model, const std::string& layout, const std::string& theirs,
                 const std::string& ours) {
  const std::map<std::string, Layout> layouts = {{"same", Layout::kSame},
                                                 {"transpose", Layout::kTranspose},
                                                 {"pad-vocab", Layout::kPadVocab},
                                                 {"thirds", Layout::kQkvThirds},
                                                 {"thirds-transpose", Layout::kQkvThirdsTranspose},
                                                 {"split", Layout::kQkvSplit},
                                                 {"kv-split", Layout::kKvSplit},
                                                 {"gate-up", Layout::kGateUp}};
  const HfFamily& family = *find_hf_family(model);
  const NameTable table = hf_names(family, config_with_six_layers(family.kind));
  const TensorSpec spec{.name = ours, .shape = {8, 8}};
  if (theirs.empty()) {
    EXPECT_THROW(mapped(table, {&spec, 1}), Unsupported) << model << " " << ours;
    return;
  }
  const std::vector<TensorMapping> found = mapped(table, {&spec, 1});
  ASSERT_EQ(found.size(), 1u);
  std::string joined;
  for (const std::string& name : found[0].theirs) joined += (joined.empty() ? "" : "+") + name;
  EXPECT_EQ(joined, theirs);
  EXPECT_EQ(found[0].layout, layouts.at(layout)) << theirs;
}

TEST(HfNamesTest, AreTheCases) {
  std::ifstream file(source_path("tests/cases/hf_names.txt"));
  ASSERT_TRUE(file.is_open());
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string model, layout, theirs, sign, ours;
    words >> model >> layout;
    if (model == "none:") {
      words >> ours;
      expect_name(layout, "", "", ours);
    } else {
      words >> theirs >> sign >> ours;
      layout.pop_back();
      expect_name(model, layout, theirs, ours);
    }
    cases += 1;
  }
  EXPECT_GT(cases, 35);
}

}  // namespace
}  // namespace megatron
